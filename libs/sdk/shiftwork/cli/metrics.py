"""``shiftwork metrics`` and ``node metrics``: what was measured and reported, as charts."""

import sys
from datetime import datetime, timezone
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import typer

from shiftwork.cli import charts, complete, csv_output, guide, parse, render, session, tasks
from shiftwork.cli.failures import Failure, naming, usage
from shiftwork.client.paths import part

CHART_WIDTH = 40
RANKS_NAMED_MAX = 16
CSV_COLUMNS: Tuple[str, ...] = (
    "at_seconds",
    "signal",
    "source",
    "rank",
    "attempt",
    "node",
    "gpu",
    "average",
    "minimum",
    "maximum",
)
OPTIONS = {
    "signal": "--signal",
    "from": "--from",
    "to": "--to",
    "step_seconds": "--step",
    "rank": "--rank",
    "attempt": "--attempt",
}
_FROM = typer.Option(
    "", "--from", metavar="WHEN", help="15m ago, 2026-11-21 or 2026-11-21T10:00:00Z."
)
_TO = typer.Option("", "--to", metavar="WHEN", help="Left out: now, or the attempt's end.")
_STEP = typer.Option("", "--step", metavar="TIME", help="The distance of points, such as 1m.")
_SIGNAL = typer.Option(
    None, "--signal", metavar="NAME", help="Such as gpu_percent or loss. Repeatable."
)
_CSV = typer.Option(False, "--csv", help="Answer in CSV, a line for each point.")
Row = Tuple[Dict[str, Any], Dict[str, Any]]


def register(app: session.App) -> None:
    """Add the command."""
    app.command("metrics", cls=session.Watched)(metrics)


def metrics(
    task: str = typer.Argument(
        ..., metavar="TASK", help=tasks.TASK_HELP, autocompletion=complete.tasks
    ),
    signal: Optional[List[str]] = _SIGNAL,
    since: str = _FROM,
    to: str = _TO,
    step: str = _STEP,
    rank: Optional[int] = typer.Option(None, "--rank", min=0, help="Of one rank."),
    attempt: Optional[int] = typer.Option(None, "--attempt", min=1, help="Of one attempt."),
    as_csv: bool = _CSV,
) -> None:
    """Show what a task's ranks use and report, as charts over time.

    Left out, --from is the start of the newest attempt. A gap is a time without a sample.
    """
    session.refuse_csv_as_document(as_csv)
    now = session.current()
    api = now.api()
    query = {
        "series": "true",
        **_range(signal, since, to, step),
        **({} if rank is None else {"rank": rank}),
        **({} if attempt is None else {"attempt": attempt}),
    }
    with naming(OPTIONS, task=task):
        found = tasks.find(api, task)
        page = api.items(f"/v1/tasks/{part(found['id'])}/metrics", query)
    if now.json:
        render.document(page)
        return
    rows = [(each, series) for each in page["items"] for series in each["series"]]
    if as_csv:
        csv_output.write(CSV_COLUMNS, _csv_rows(rows))
        return
    if page.get("series_problem"):
        render.warning(page["series_problem"])
    if not rows and (signal or rank is not None or attempt is not None):
        everything = {"series": "true", **_range(None, since, to, step)}
        path = f"/v1/tasks/{part(found['id'])}/metrics"
        _check_filters(api.items(path, everything)["items"], signal or [], rank)
    _draw(rows, f"nothing was measured or reported of {found['name']} in this time")


def _check_filters(
    items: List[Dict[str, Any]], signals: Sequence[str], rank: Optional[int]
) -> None:
    """Raise Failure for a signal or rank that a task does not have, with those that it has in this
    time. Without any it is not known what is misspelt."""
    known = sorted({str(series["signal"]) for each in items for series in each["series"]})
    for each in ",".join(signals).split(",") if signals and known else ():
        if each not in known:
            fix = f"{guide.meant(each, known)} there are {', '.join(known)}".strip()
            raise usage(f"there is no signal {each!r} in this time", where="--signal", fix=fix)
    ranks = sorted({int(each["rank"]) for each in items if each.get("rank") is not None})
    if rank is not None and ranks and rank not in ranks:
        there = ", ".join(map(str, ranks[:RANKS_NAMED_MAX]))
        fix = f"there are {there}{', ...' if len(ranks) > RANKS_NAMED_MAX else ''}"
        raise usage(f"there is no rank {rank} in this time", where="--rank", fix=fix)


def node_metrics(
    node: str = typer.Argument(..., metavar="NODE", autocompletion=complete.nodes),
    signal: Optional[List[str]] = _SIGNAL,
    since: str = _FROM,
    to: str = typer.Option("", "--to", metavar="WHEN", help="Left out: now."),
    step: str = _STEP,
    as_csv: bool = _CSV,
) -> None:
    """Show what is used of a node and its GPUs, as charts over time. Left out, --from is 1h."""
    session.refuse_csv_as_document(as_csv)
    now = session.current()
    with naming(OPTIONS):
        found = now.api().get(f"/v1/nodes/{part(node)}/metrics", _range(signal, since, to, step))
    if now.json:
        render.document(found)
        return
    rows: List[Row] = [({}, series) for series in found["series"]]
    if as_csv:
        csv_output.write(CSV_COLUMNS, _csv_rows(rows))
        return
    _draw(rows, f"nothing was measured of {node} in this time")


def utilization(api: Any, nodes: Sequence[str], of_tasks: Sequence[str]) -> Dict[str, Any]:  # noqa: ANN401 - Api
    """The newest samples by node and task; empty where the server has none, or is older."""
    found: Dict[str, Any] = {}
    for kind, ids in (("node", nodes), ("task", of_tasks)):
        for first in range(0, len(ids), IDS_AT_ONCE):
            query = {kind: ",".join(ids[first : first + IDS_AT_ONCE])}
            try:
                answer = api.get("/v1/utilization", query)
            except Failure as failure:
                if failure.problem.get("status") in _MISSING:
                    return found
                raise
            found.update({each[kind]: each for each in answer[f"{kind}s"]})
    return found


def percent(value: Optional[float]) -> str:
    """A share in percent; empty if it is not known."""
    return "" if value is None else f"{value:.0f} %"


def mean_gpu(used: Dict[str, Any]) -> Optional[float]:
    """How busy the GPUs of a node are on average; None if none of them was measured."""
    known = [gpu["gpu_percent"] for gpu in used.get("gpus", ()) if gpu["gpu_percent"] is not None]
    return sum(known) / len(known) if known else None


# Ids of nodes may be long, and a URL has a limit.
IDS_AT_ONCE = 50
# The server is older, or its monitor does not answer.
_MISSING = (404, 503)


def _range(signal: Optional[List[str]], since: str, to: str, step: str) -> Dict[str, Any]:
    now = render.now()
    return {
        **({"signal": ",".join(signal)} if signal else {}),
        **({"from": parse.timestamp(since, "--from", now)} if since else {}),
        **({"to": parse.timestamp(to, "--to", now)} if to else {}),
        **({"step_seconds": _step(step)} if step else {}),
    }


def _step(text: str) -> int:
    seconds = int(parse.duration(text, "--step"))
    if seconds < 1:
        fix = "write 1s or more, such as 1m"
        raise usage(f"--step {text} is less than a second", where="--step", fix=fix)
    return seconds


def _draw(rows: Sequence[Row], empty: str) -> None:
    spans = [
        (point["at_seconds"], point["at_seconds"] + (series["step_seconds"] or 0))
        for _, series in rows
        for point in series["points"]
    ]
    begin, end = min(spans, default=(0.0,))[0], max((end for _, end in spans), default=0.0)
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower()
    plain = not encoding.startswith("utf")
    lines: List[List[str]] = []
    for each, series in rows:
        known = [p for p in series["points"] if charts.number(p["average"]) is not None]
        if not known:
            continue
        name = series["signal"]
        average = sum(float(p["average"]) for p in known) / len(known)
        lines.append(
            [
                name,
                "" if each.get("rank") is None else str(each["rank"]),
                "" if series["gpu"] is None else str(series["gpu"]),
                charts.valued(name, charts.number(known[-1]["average"])),
                charts.valued(name, min(float(p["minimum"]) for p in known)),
                charts.valued(name, average),
                charts.valued(name, max(float(p["maximum"]) for p in known)),
                charts.sparkline(
                    known, begin, end, CHART_WIDTH, step=series["step_seconds"], plain=plain
                ),
            ]
        )
    render.table(
        (
            render.Column("SIGNAL", least=12),
            render.Column("RANK"),
            render.Column("GPU", drop=3),
            render.Column("LAST"),
            render.Column("MIN", drop=2),
            render.Column("MEAN", drop=1),
            render.Column("MAX", drop=2),
            render.Column("OVER TIME", least=10),
        ),
        lines,
        empty,
    )
    if lines:
        render.note(f"from {_clock(begin)} to {_clock(end)}")


def _clock(at_seconds: float) -> str:
    return f"{datetime.fromtimestamp(at_seconds, timezone.utc):%Y-%m-%d %H:%M:%S}Z"


def _csv_rows(rows: Sequence[Row]) -> Iterator[Dict[str, Any]]:
    for each, series in rows:
        for point in series["points"]:
            yield {
                **{name: series[name] for name in ("signal", "source", "attempt", "node", "gpu")},
                "rank": each.get("rank"),
                **point,
            }
