"""What ``show`` prints of one task, and the progress that tables print."""

from __future__ import annotations

from typing import Any

from shiftwork.cli import (
    ending,
    findings,
    ids,
    listening,
    modes,
    parse,
    render,
    retry_texts,
    role_facts,
    sizes,
)
from shiftwork.cli.client import Api
from shiftwork.cli.failures import Failure
from shiftwork.cli.task_options import ENDED
from shiftwork.client.paths import part

# Whole numbers beyond it are not exact.
WHOLE_MAX = 1e15
# Of the ports.
ENDPOINTS_SHOWN_MAX = 20
# Of the nodes with their ranks; the runs of the API have all.
NODES_SHOWN_MAX = 16


def progress(task: dict[str, Any]) -> str:
    """``step 1200  loss 0.31``: what it reported last, else the step of its checkpoint."""
    values = parse.fields(parse.fields(task.get("progress")).get("values"))
    step = parse.fields(task.get("checkpoint")).get("step")
    if not values and step is not None:
        values = {"step": step}
    names = [name for name in ("step", "loss") if name in values]
    names += [name for name in values if name not in names]
    return _figures({name: values[name] for name in names[:2]})


def _reported(task: dict[str, Any]) -> str:
    """All that a task reported last, and when."""
    progress = parse.fields(task.get("progress"))
    if not progress:
        return ""
    return (
        f"{_figures(progress['values'])} ({render.ago(progress['at'])}{_earlier(progress, task)})"
    )


def _figures(values: dict[str, Any]) -> str:
    return "  ".join(f"{name} {_figure(value)}" for name, value in values.items())


def _figure(value: object) -> str:
    """Format whole numbers in full and other floats with four digits; keep texts as they are."""
    if isinstance(value, float) and not (value.is_integer() and abs(value) < WHOLE_MAX):
        return f"{value:.4g}"
    return str(int(value)) if isinstance(value, (int, float)) else str(value)


def _show_warnings(warnings: list[str]) -> None:
    """The warnings of the submission."""
    if warnings:
        render.line("")
    for each in warnings:
        render.line(f"warning: {each}")


def _show_endpoints(endpoints: list[dict[str, Any]]) -> None:
    if not endpoints:
        return
    render.line("")
    render.table(
        (render.Column("PORT"), render.Column("RANK"), render.Column("ROLE"), render.Column("AT")),
        (
            [each["name"], str(each["rank"]), each["role"], f"{each['address']}:{each['port']}"]
            for each in endpoints[:ENDPOINTS_SHOWN_MAX]
        ),
        "",
    )
    more = len(endpoints) - ENDPOINTS_SHOWN_MAX
    if more > 0:
        render.line(f"and {more} more: --json has all")


def show(api: Api, found: dict[str, Any]) -> None:
    """Print all about a task and its runs."""
    checkpoint = found.get("checkpoint")
    ended = found.get("exit")
    reason = parse.fields(found.get("reason"))
    names = ids.Names(api, {found["id"]: found})
    runs = api.get(f"/v1/tasks/{part(found['id'])}/runs")["items"]
    render.facts(
        [
            ("id", found["id"]),
            ("name", found["name"]),
            ("owner", found["owner"]),
            ("team", team(api, found)),
            ("state", found["state"]),
            ("reason", names.put_into(reason.get("text", ""))),
            ("not started", _delayed(runs, found)),
            ("preemption", listening.advice(found, runs)),
            ("goal", found["goal"]),
            ("mode", modes.shown(found)),
            ("priority", found["priority"]),
            ("group", found["group"]),
            ("size", sizes.short(found)),
            ("labels", render.labels(parse.fields(found.get("labels")))),
            ("on nodes with", render.labels(parse.fields(found.get("node_selector")))),
            ("tolerates", " ".join(parse.listed(found.get("tolerations")))),
            *role_facts.facts(found),
            ("attempt", str(found["attempt"] or "")),
            ("ranks", _ranks(runs, found)),
            ("progress", _reported(found)),
            ("activity", _activity(found)),
            *findings.facts(api, found),
            ("checkpoint", _checkpoint(checkpoint, found)),
            ("life state", _life_state(found)),
            ("continues", found.get("continues") or ""),
            ("ended ranks", modes.ended_ranks(runs, found)),
            ("exit", _exit(ended, found)),
            ("retries used", retry_texts.used(found)),
            ("restart", retry_texts.rules(found)),
            ("submitted", render.timestamp(found.get("submitted_at"))),
            ("started", render.timestamp(found.get("started_at"))),
            ("finished", render.timestamp(found.get("finished_at"))),
        ]
    )
    lost = found.get("attempts_without_progress") or 0
    if lost > 1 and found["state"] != "succeeded":
        render.warning(f"{lost} attempts in a row ended without a newer checkpoint")
    if runs:
        render.line("")
        render.table(
            (
                render.Column("ATTEMPT"),
                render.Column("NODES", least=12),
                render.Column("STARTED", drop=2),
                render.Column("FINISHED", drop=1),
                render.Column("END"),
                render.Column("CHECKPOINT", drop=3),
            ),
            map(_run, runs),
            "",
        )
    _show_endpoints(parse.listed(found.get("endpoints")))
    _show_warnings(role_facts.warnings(found))
    show_ending(api, found, runs)


def team(api: Api, task: dict[str, Any]) -> str:
    """The team that the task was submitted under; of a task that lives also the owner's present
    team, if that is another one and may be seen."""
    named = str(task.get("team") or "")
    if task["state"] in ENDED:
        return named
    try:
        present = api.get(f"/v1/users/{part(task['owner'])}").get("team") or ""
    except Failure:
        return named
    if present == named:
        return named
    now = f"in team {present}" if present else "in no team"
    return f"{named or 'none'} (as submitted; {task['owner']} is {now} now)"


def show_ending(api: Api, task: dict[str, Any], runs: list[dict[str, Any]]) -> None:
    """Under everything else: the error lines of a run that failed, and what a failed task wrote
    last."""
    last = ending.report(api, task)
    for number, text in enumerate([*ending.error_report(runs, last), *last]):
        if number == 0:
            render.line("")
        render.line(text)


def _delayed(runs: list[dict[str, Any]], task: dict[str, Any]) -> str:
    """What the launcher waits for before the current attempt runs; empty if nothing."""
    for run in runs:
        if run["attempt"] == task["attempt"]:
            return str(parse.fields(run.get("delayed")).get("detail", ""))
    return ""


def _activity(task: dict[str, Any]) -> str:
    """Whether its live run uses what it holds; empty if that was not measured."""
    used = parse.fields(task.get("activity"))
    if used.get("quiet_since"):
        since = render.timestamp(used["quiet_since"])
        return f"nothing: no rank uses a processor or a GPU since {since}"
    if not used.get("gpus"):
        return ""
    if not used["idle_gpus"]:
        return f"uses {render.counted(used['gpus'], 'GPU')}"
    since = render.timestamp(used["idle_since"])
    return f"{used['idle_gpus']} of {render.counted(used['gpus'], 'GPU')} idle since {since}"


def _ranks(runs: list[dict[str, Any]], task: dict[str, Any]) -> str:
    """Which ranks of the latest attempt are on which node: ``rank 0 on n0, ranks 1-2 on n1``."""
    of_nodes: dict[str, list[int]] = {}
    latest = [run for run in runs if run["attempt"] == task["attempt"]]
    for placed in (each for run in latest for each in parse.listed(run.get("placements"))):
        of_nodes.setdefault(str(placed["node"]), []).append(placed["rank"])
    if sum(map(len, of_nodes.values())) < 2:  # noqa: PLR2004 - one rank is where the attempt is
        return ""
    found = sorted((sorted(ranks), node) for node, ranks in of_nodes.items())
    listed = [f"{_spans(ranks)} on {node}" for ranks, node in found[:NODES_SHOWN_MAX]]
    more = len(found) - NODES_SHOWN_MAX
    if more > 0:
        listed.append(f"others on {render.counted(more, 'more node')}")
    return ", ".join(listed)


def _spans(ranks: list[int]) -> str:
    """``rank 4``, ``ranks 1-3+7`` for sorted numbers."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    text = "+".join(f"{low}-{high}" if high > low else str(low) for low, high in spans)
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {text}"


def _checkpoint(saved: dict[str, Any] | None, task: dict[str, Any]) -> str:
    if not saved:
        return ""
    when = render.ago(saved.get("saved_at"))
    when += f", task {saved['task']}" if saved.get("task") else _earlier(saved, task)
    return f"no {saved['no']}, step {saved['step']}, {when}: {saved['uri']}"


def _life_state(task: dict[str, Any]) -> str:
    saved = parse.fields(task.get("life_state"))
    if not saved:
        return ""
    return f"{render.counted(saved['bytes'], 'byte')}, {render.ago(saved.get('saved_at'))}"


def _exit(ended: dict[str, Any] | None, task: dict[str, Any]) -> str:
    if not ended:
        return ""
    code = "" if ended.get("code") is None else f" (code {ended['code']})"
    text = f": {ended['text']}" if ended.get("text") else ""
    blamed = retry_texts.class_of(ended)
    blamed = f"; {blamed}" if blamed else ""
    if ended.get("debug"):
        return f"{ended['kind']}, in debug mode{_earlier(ended, task)}{text}"
    return f"{ended['kind']}{code}{_earlier(ended, task)}{text}{blamed}"


def _earlier(fact: dict[str, Any], task: dict[str, Any]) -> str:
    """Return ``, attempt 1`` if the fact belongs to an earlier attempt, else an empty text."""
    attempt = fact.get("attempt", task["attempt"])
    return f", attempt {attempt}" if attempt < task["attempt"] else ""


def _run(run: dict[str, Any]) -> list[str | render.Cell]:
    checkpoint = run.get("checkpoint")
    return [
        str(run["attempt"]),
        ",".join(sorted({placed["node"] for placed in parse.listed(run.get("placements"))})),
        render.when(run.get("started_at")),
        render.when(run.get("finished_at")),
        modes.end(run),
        f"step {checkpoint['step']}" if checkpoint else "",
    ]
