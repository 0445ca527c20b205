"""``shiftwork simulate``: the policy lab on the command line.

Joins the command line through its entry point group ``shiftwork.commands``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from shiftwork.cli import parse, render, session
from shiftwork.cli.failures import Failure, usage

if TYPE_CHECKING:
    from services.scheduler.lab.results import Numbers
    from services.scheduler.lab.run_options import Drive, Options
    from services.scheduler.lab.traces.fitting import Request
    from services.scheduler.lab.workload import Cluster, Workload

BAR_WIDTH = 28
NODES_MAX = 1_000_000
GPUS_MAX = 64
SCALE_MAX = 1000.0
NOTES_SHOWN_MAX = 25


def register(app: session.App) -> None:
    """Add the command."""
    app.command("simulate")(simulate)


def simulate(  # noqa: PLR0917 - a command: every parameter is an option by name
    trace: Annotated[
        str,
        typer.Argument(
            help="A trace: CSV, SWF, Kueue generator YAML, the platform's task history as JSON, "
            "any of them gzipped; or synthetic:JOBS[:SEED].",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder of the results; left out: simulation-TRACE.", show_default=False
        ),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=NODES_MAX, help="Nodes of the cluster.")
    ] = None,
    gpus_per_node: Annotated[int, typer.Option(min=1, max=GPUS_MAX, help="GPUs on each.")] = 8,
    cluster: Annotated[
        Path | None, typer.Option(help="Cluster file: groups, nodes, virtual clusters, quotas.")
    ] = None,
    policy: Annotated[
        str,
        typer.Option(help="Any of ours, fifo, backfill, easy, las, rotation, roundrobin, srpt."),
    ] = "ours,fifo,easy",
    arrival_scale: Annotated[
        float, typer.Option(help="Times between arrivals are multiplied by it.")
    ] = 1.0,
    restart_cost: Annotated[str, typer.Option(help="What each restart costs.")] = "60",
    checkpoint_interval: Annotated[
        str, typer.Option(help="Jobs save only so often; 0: whenever they are asked to leave.")
    ] = "0",
    with_limits: Annotated[
        bool, typer.Option("--with-limits", help="The policy may read the users' time limits.")
    ] = False,
    node_mtbf_hours: Annotated[
        float | None, typer.Option(help="Mean hours between failures of a node.")
    ] = None,
    node_repair: Annotated[str, typer.Option(help="How long a failed node is away.")] = "1h",
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first jobs.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of everything random.")] = 0,
    quota: Annotated[
        Path | None, typer.Option(help="Quotas that replace the cluster file's.")
    ] = None,
    private: Annotated[
        bool, typer.Option(help="Run each virtual cluster alone on its nodes, too.")
    ] = True,
    bad_rows: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Part of the lines that may be bad.")
    ] = 0.01,
    format: Annotated[  # noqa: A002 - the option's name
        str, typer.Option(help="csv, swf, kueue or history; by default from the file's name.")
    ] = "",
) -> None:
    """Replay a trace through the scheduler's own policy, and through others to compare.

    Writes results.json, report.html and one jobs-POLICY.csv each into the folder.
    """
    from services.scheduler.lab import study  # noqa: PLC0415 - imports the scheduler
    from services.scheduler.lab.errors import LabError  # noqa: PLC0415
    from services.scheduler.lab.run_options import Options  # noqa: PLC0415
    from services.scheduler.lab.traces.fitting import Request  # noqa: PLC0415

    if not 0.0 < arrival_scale <= SCALE_MAX:
        raise usage(f"{arrival_scale:g} is no scale", where="--arrival-scale", fix="0.75, or 1.2")
    if node_mtbf_hours is not None and not node_mtbf_hours > 0:
        raise usage(f"{node_mtbf_hours:g} is too short", where="--node-mtbf-hours", fix="e.g. 2000")
    options = Options(
        restart_cost_s=parse.duration(restart_cost, "--restart-cost"),
        checkpoint_interval_s=parse.duration(checkpoint_interval, "--checkpoint-interval"),
        with_limits=with_limits,
        node_mtbf_s=None if node_mtbf_hours is None else node_mtbf_hours * 3600.0,
        node_repair_s=parse.duration(node_repair, "--node-repair"),
        seed=seed,
    )
    policies = _policies(policy)
    _format(format)
    out = out or _default_folder(trace)
    try:
        machine = _cluster(cluster, nodes, gpus_per_node)
        request = Request(nodes, gpus_per_node, machine, bad_rows, limit, format)
        workload = _with_quotas(_workload(trace, request, options), quota).scaled(arrival_scale)
        _print_notes(workload)
        task = study.Study(workload, policies, options, out, private)
        with _progress() as report:
            results = study.run(task, _driver(), report)
    except LabError as error:
        raise Failure(error.what, where=error.where, fix=error.fix) from None
    _show(results, out, notes_printed=len(workload.notes))


def _default_folder(trace: str) -> Path:
    """A folder in the current one, named after the trace; a later run of it replaces the files."""
    name = Path(trace).name.partition(".")[0]
    return Path(f"simulation-{re.sub('[^A-Za-z0-9_-]+', '-', name) or 'trace'}")


def _policies(text: str) -> tuple[str, ...]:
    from services.scheduler.lab.run_options import POLICIES  # noqa: PLC0415 - imports the scheduler

    names = tuple(dict.fromkeys(word.strip().lower() for word in text.split(",") if word.strip()))
    unknown = [name for name in names if name not in POLICIES]
    if unknown or not names:
        raise usage(
            f"{unknown[0] if unknown else text!r} is no policy",
            where="--policy",
            fix=f"choose from {', '.join(POLICIES)}",
        )
    return names


def _format(word: str) -> None:
    from services.scheduler.lab.traces.load import FORMATS  # noqa: PLC0415 - imports the scheduler

    if word and word not in FORMATS:
        raise usage(f"{word!r} is no format", where="--format", fix=", ".join(FORMATS))


def _cluster(path: Path | None, nodes: int | None, gpus_per_node: int) -> Cluster | None:
    from services.scheduler.lab import cluster_file  # noqa: PLC0415 - imports the scheduler

    return None if path is None else cluster_file.read(path, nodes, gpus_per_node)


def _workload(trace: str, request: Request, options: Options) -> Workload:
    from services.scheduler.lab import generator  # noqa: PLC0415 - imports the scheduler
    from services.scheduler.lab.traces.load import load  # noqa: PLC0415
    from services.scheduler.lab.workload import Cluster, uniform  # noqa: PLC0415

    wanted = generator.parse_name(trace)
    if wanted is None:
        return load(Path(trace), request)
    if request.cluster is None and request.nodes is None:
        raise usage("how large the cluster is, is not known", where="--nodes", fix="--nodes N")
    machine = request.cluster or Cluster(
        (uniform("default", request.nodes or 1, request.gpus_per_node),)
    )
    jobs, seed = wanted
    made = generator.generate(machine, jobs, options.seed if seed is None else seed)
    return made.first(request.limit or jobs)


def _with_quotas(workload: Workload, path: Path | None) -> Workload:
    if path is None:
        return workload
    from services.scheduler.lab import cluster_file  # noqa: PLC0415 - imports the scheduler

    quotas = cluster_file.read_quotas(path, workload.cluster)
    return replace(workload, cluster=replace(workload.cluster, quotas=quotas))


def _driver() -> Drive:
    """The driver; a function, so that tests can replace it."""
    from services.scheduler.lab.drive import drive  # noqa: PLC0415 - imports the scheduler

    return drive


def _print_notes(workload: Workload) -> None:
    for note in workload.notes[:NOTES_SHOWN_MAX]:
        render.note(note)


@contextmanager
def _progress() -> Generator[Callable[[str, int, int], None]]:
    """A bar on a terminal; nothing elsewhere, under ``-q`` and ``--json``."""
    with render.Progress() as shown:

        def report(what: str, ended: int, total: int) -> None:
            full = BAR_WIDTH * ended // max(1, total)
            bar = "━" * full + "╌" * (BAR_WIDTH - full)
            part = 100 * ended // max(1, total)
            shown.show(f"{what}  {bar}  {part} %  {ended:,} of {total:,} jobs")

        yield report


def _show(results: Numbers, out: Path, *, notes_printed: int) -> None:
    """Print the table; ``notes_printed``: how many of the notes were printed before the run."""
    from services.scheduler.lab.report.page import COLUMNS  # noqa: PLC0415 - imports the scheduler

    if session.current().json:
        render.document(results)
        return
    shown = [column for column in COLUMNS if column.head in _DROP]
    runs = cast("dict[str, Numbers]", results["policies"])
    cells = [column.texts(list(runs.values())) for column in shown]
    rows = [list(row) for row in zip(runs, *cells, strict=True)]
    heads = [render.Column(column.head, drop=_DROP[column.head]) for column in shown]
    render.table([render.Column("policy"), *heads], rows, "nothing was run")
    for note in results["notes"][notes_printed:]:
        render.note(note)
    render.note(f"{out / 'report.html'} and {out / 'results.json'}")


# The columns of the table, and the order in which a narrow terminal leaves them out: the highest
# first, 0 never.
_DROP = {
    "mean completion": 0,
    "p99": 2,
    "big gangs, mean": 4,
    "mean wait": 0,
    "slowdown": 5,
    "utilisation": 1,
    "lost work": 3,
    "preemptions per job": 6,
}
