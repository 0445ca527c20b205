"""The report as one HTML page. Pure text from the curves of every run; called by ``study.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from libs.contracts.wording import counted, plural
from services.scheduler.lab.report import plot, style
from services.scheduler.lab.report.curves import Curves, Points
from services.scheduler.lab.report.plot import Series, number, percent, span
from services.scheduler.lab.results import Numbers
from services.scheduler.lab.run_options import Options
from services.scheduler.lab.workload import Workload

_DEFINITIONS = (
    ("completion time", "from submission to end"),
    (
        "wait, time not working",
        "completion time without the job's own work: queued, preempted, restarting, working again",
    ),
    ("big gangs", "jobs on at least a quarter of the nodes"),
    (
        "slowdown",
        "completion time over work, where work below a minute counts as one; at least 1",
    ),
    ("longest gap", "the longest that any job was without service between submission and end"),
    (
        "utilisation, useful",
        "nodes occupied, and with work that was kept, between the first and the last submission",
    ),
    ("lost work", "restart cost and work done again, of all running"),
    ("Gini of users", "of the users' mean slowdowns: 0 if all are served equally"),
)
VCS_SHOWN_MAX = 40
NOTES_SHOWN_MAX = 60
SIZES_SHOWN_MAX = 12
# The policy under test is compared with the first of these that ran.
_PEERS = ("easy", "backfill", "fifo", "rotation", "las", "roundrobin", "srpt")
# With fewer jobs the difference between two policies is chance.
_JOBS_COMPARED_MIN = 30
# Smaller differences count as none.
_RATIO_MIN = 0.01


@dataclass(frozen=True, slots=True)
class _Column:
    head: str
    value: Callable[[Numbers], float | None]
    text: Callable[[float | None], str]
    # -1: the smallest is best, 1: the largest, 0: neither.
    better: int = -1

    def texts(self, runs: Sequence[Numbers]) -> list[str]:
        """The column's cells; durations in one unit, and never without one."""
        values = [self.value(run) for run in runs]
        if self.text is not span:
            return [self.text(value) for value in values]
        text = plot.spans(values)
        return ["0 s" if value == 0 else text(value) for value in values]


COLUMNS = (
    _Column("mean completion", lambda n: n["mean_jct_s"], span),
    _Column("median", lambda n: n["p50_jct_s"], span),
    _Column("p99", lambda n: n["p99_jct_s"], span),
    _Column("big gangs, mean", lambda n: n["big_gangs"]["mean_jct_s"], span),
    _Column("big gangs, p99", lambda n: n["big_gangs"]["p99_jct_s"], span),
    _Column("mean wait", lambda n: n["mean_wait_s"], span),
    _Column("slowdown", lambda n: n["mean_bounded_slowdown"], number),
    _Column("longest gap", lambda n: n["longest_gap_s"], span),
    _Column("utilisation", lambda n: n["utilisation"], percent, 1),
    _Column("useful", lambda n: n["useful_share"], percent, 1),
    _Column("lost work", lambda n: n["lost_share"], percent),
    _Column("preemptions per job", lambda n: n["preemptions_per_job"], number, 0),
    _Column("Gini of users", lambda n: n["by_user_gini"], number),
)
# Even if a name were not escaped, nothing would be loaded or run.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_SHIELD = f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
_CARDS = (0, 3, 2, 6, 8, 10)


def page(workload: Workload, options: Options, runs: Sequence[Curves]) -> str:
    """The whole page; at least one run, ``ours`` first."""
    ordered = sorted(runs, key=lambda run: run.policy != "ours")[: style.SERIES_MAX]
    title = f"Policy lab: {workload.name}"
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        _SHIELD,
        f"<title>{escape(title)}</title><style>{style.css()}</style></head><body><main>",
        f"<header><h1>{escape(workload.name)}</h1>",
        f'<p class="soft">{escape(_run_in_words(workload, options))}</p></header>',
        _headline(ordered, len(workload.jobs)),
        _cards(ordered),
        "<h2>All policies</h2>",
        _table(ordered, len(workload.jobs)),
        _legend(ordered),
        _over_time(ordered),
        _sizes(ordered, "Completion time by size", "completion time", lambda size: size.jct),
        _sizes(ordered, "Waiting time by size", "time not working", lambda size: size.wait),
        _users(ordered),
        _costs(ordered),
        _virtual_clusters(ordered),
        _notes(workload),
        "</main></body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


def _run_in_words(workload: Workload, options: Options) -> str:
    """One paragraph: cluster, jobs and options."""
    jobs, nodes, each = len(workload.jobs), workload.nodes, counted(workload.gpus_per_node, "GPU")
    parts = [
        f"{jobs:,} {plural(jobs, 'job')} on {nodes:,} {plural(nodes, 'node')} with {each} each",
        f"every restart costs {span(options.restart_cost_s)}",
        "checkpoints on request"
        if not options.checkpoint_interval_s
        else f"a checkpoint every {span(options.checkpoint_interval_s)}",
        "users' time limits may be read" if options.with_limits else "no estimates of durations",
    ]
    if options.node_mtbf_s:
        parts.append(f"each node fails every {span(options.node_mtbf_s)} on average")
    if workload.skipped:
        lines = plural(workload.skipped, "line")
        parts.append(f"without {workload.skipped:,} {lines} of the trace")
    return "; ".join(parts) + "."


def _peer(runs: Sequence[Curves]) -> Curves | None:
    others = {run.policy: run for run in runs[1:]}
    return next((others[name] for name in _PEERS if name in others), None)


def _headline(runs: Sequence[Curves], jobs: int) -> str:
    peer = _peer(runs)
    mine = runs[0].numbers["mean_jct_s"]
    if peer is None or not mine or not peer.numbers["mean_jct_s"]:
        return ""
    if jobs < _JOBS_COMPARED_MIN:
        many = "One job is" if jobs == 1 else f"{jobs} jobs are"
        return f'<p class="lead">{many} too few to compare policies.</p>'
    ratio = mine / peer.numbers["mean_jct_s"]
    if abs(ratio - 1) < _RATIO_MIN:
        return (
            f'<p class="lead">Under <i>{escape(runs[0].policy)}</i> the average job is done after '
            f"{span(mine)}, as under <i>{escape(peer.policy)}</i>.</p>"
        )
    kind, text = ("", "sooner") if ratio <= 1 else (' class="bad"', "later")
    factor = 1 / ratio if ratio <= 1 else ratio
    return (
        f'<p class="lead">Under <i>{escape(runs[0].policy)}</i> the average job is done after '
        f"{span(mine)}, <b{kind}>{factor:.2f} times {text}</b> than under "
        f"<i>{escape(peer.policy)}</i>.</p>"
    )


def _cards(runs: Sequence[Curves]) -> str:
    peer = _peer(runs)
    parts = ['<div class="cards">']
    shown = [runs[0], *([peer] if peer is not None else [])]
    for column in (COLUMNS[place] for place in _CARDS):
        value, *others = column.texts([run.numbers for run in shown])
        than = "".join(
            f'<div class="than">{escape(run.policy)}: {text}</div>'
            for run, text in zip(shown[1:], others, strict=True)
        )
        parts.append(
            f'<div class="card"><div class="what">{column.head}</div>'
            f'<div class="value">{value}</div>{than}</div>'
        )
    return "".join(parts) + "</div>"


def _table(runs: Sequence[Curves], jobs: int) -> str:
    compared = jobs >= _JOBS_COMPARED_MIN
    best = [_best(column, runs) if compared else None for column in COLUMNS]
    texts = [column.texts([run.numbers for run in runs]) for column in COLUMNS]
    heads = "".join(f'<th scope="col">{column.head}</th>' for column in COLUMNS)
    rows: list[str] = []
    for place, run in enumerate(runs):
        cells = "".join(
            f"<td{_mark(column.value(run.numbers), top)}>{cells_of[place]}</td>"
            for column, top, cells_of in zip(COLUMNS, best, texts, strict=True)
        )
        chosen = ' class="chosen"' if place == 0 else ""
        rows.append(f'<tr{chosen}><th scope="row">{escape(run.policy)}</th>{cells}</tr>')
    note = '<p class="soft">The best value of each column is bold.</p>\n' if compared else ""
    return (
        f'{note}<div class="scroll"><table><thead><tr><th scope="col">policy</th>'
        f"{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _best(column: _Column, runs: Sequence[Curves]) -> float | None:
    values = [value for run in runs if (value := column.value(run.numbers)) is not None]
    if len(set(values)) < 2 or column.better == 0:  # noqa: PLR2004 - nothing to compare
        return None
    return min(values) if column.better < 0 else max(values)


def _mark(value: float | None, best: float | None) -> str:
    return ' class="best"' if best is not None and value == best else ""


def _legend(runs: Sequence[Curves]) -> str:
    entries = "".join(
        f'<label><input type="checkbox" id="t{n}" checked>'
        f'<svg viewBox="0 0 30 10" aria-hidden="true"><line class="s{n}" x1="0" x2="30" y1="5" '
        f'y2="5" stroke-width="3"/></svg>{escape(run.policy)}</label>'
        for n, run in enumerate(runs)
    )
    return f'<div class="legend" role="group" aria-label="Policies shown">{entries}</div>'


def _series(runs: Sequence[Curves], points: Callable[[Curves], Points]) -> list[Series]:
    return [Series(n, run.policy, points(run)) for n, run in enumerate(runs)]


def _reach(series: Sequence[Series], place: int) -> float:
    return max((point[place] for each in series for point in each.points), default=1.0)


def _figure(title: str, drawn: str, caption: str = "", kind: str = "") -> str:
    description = f"<figcaption>{caption}</figcaption>" if caption else ""
    return f"<figure class='{kind}'><h3>{escape(title)}</h3>{drawn}{description}</figure>"


def _over_time(runs: Sequence[Curves]) -> str:
    busy = _series(runs, lambda run: run.utilisation)
    waiting = _series(runs, lambda run: run.waiting)
    end = max(_reach(busy, 0), _reach(waiting, 0))
    share = plot.linear(0.0, 1.0, "", lambda value: f"{100 * value:.0f} %")
    jobs = plot.linear(0.0, _reach(waiting, 1), "", lambda value: f"{value:,.0f}")
    description = "; ".join(f"{r.policy} {percent(r.numbers['utilisation'])}" for r in runs)
    return "".join(
        (
            '<h2>Over time</h2><div class="charts">',
            _figure(
                "Nodes in use",
                plot.lines("Nodes in use", description, plot.time_axis(end, "time"), share, busy),
            ),
            _figure(
                "Jobs without service",
                plot.lines(
                    "Jobs without service",
                    "queued or preempted jobs",
                    plot.time_axis(end, "time"),
                    jobs,
                    waiting,
                ),
            ),
            "</div>",
        )
    )


def _sizes(
    runs: Sequence[Curves], heading: str, label: str, points: Callable[[Any], Points]
) -> str:
    share = plot.linear(0.0, 1.0, "", lambda value: f"{100 * value:.0f} %")
    whole = label == "completion time"
    everyone = _series(runs, lambda run: run.jct if whole else run.wait)
    axis = plot.log_spans(_reach(everyone, 0), label)
    figures = [_figure("All jobs", plot.lines(heading, "all jobs", axis, share, everyone))]
    labels = list(dict.fromkeys(size.label for run in runs for size in run.sizes))
    for name in labels[:SIZES_SHOWN_MAX]:
        found = [
            (n, run.policy, size)
            for n, run in enumerate(runs)
            for size in run.sizes
            if size.label == name
        ]
        series = [Series(n, policy, points(size)) for n, policy, size in found]
        jobs = max(size.jobs for _, _, size in found)
        title = f"{name} ({jobs:,} {plural(jobs, 'job')})"
        figures.append(_figure(title, plot.lines(heading, name, axis, share, series)))
    return (
        f'<h2>{heading}</h2><p class="soft">Part of the jobs that are done within a time; '
        f'further left is better.</p><div class="charts">{"".join(figures)}</div>'
    )


def _users(runs: Sequence[Curves]) -> str:
    series = _series(runs, lambda run: run.users)
    x = plot.linear(0.0, 1.0, "users, best served first", lambda value: f"{100 * value:.0f} %")
    y = plot.log_numbers(_reach(series, 1), "")
    rows = [
        (n, run.policy, run.numbers["by_user_gini"] or 0.0, number(run.numbers["by_user_gini"]))
        for n, run in enumerate(runs)
    ]
    drawn = plot.lines("Users' mean slowdown", "users ranked by it", x, y, series)
    return (
        '<h2>Between users</h2><div class="charts">'
        + _figure("Mean slowdown of each user", drawn, "Lower and flatter is fairer.")
        + _figure("Gini coefficient", plot.bars("Gini coefficient", "of users' slowdowns", rows))
        + "</div>"
    )


def _costs(runs: Sequence[Curves]) -> str:
    def rows(key: str, text: Callable[[float | None], str]) -> list[tuple[int, str, float, str]]:
        return [(n, r.policy, r.numbers[key], text(r.numbers[key])) for n, r in enumerate(runs)]

    preemptions = plot.bars("Preemptions per job", "by policy", rows("preemptions_per_job", number))
    lost = plot.bars("Lost work", "by policy", rows("lost_share", percent))
    return (
        '<h2>What preemption costs</h2><div class="charts">'
        + _figure("Preemptions per job", preemptions)
        + _figure("Lost work", lost, "Restart cost and work done again, of all running.")
        + "</div>"
    )


def _virtual_clusters(runs: Sequence[Curves]) -> str:
    description = runs[0].numbers["by_vc"]
    compared = {vc: of for vc, of in description.items() if of["private_mean_wait_s"] is not None}
    if not compared:
        return ""
    busiest = sorted(compared, key=lambda vc: -compared[vc]["jobs"])[:VCS_SHOWN_MAX]
    rows = [
        plot.Pair(
            vc or "(no name)",
            compared[vc]["same_jobs_mean_wait_s"] or 0.0,
            compared[vc]["private_mean_wait_s"] or 0.0,
        )
        for vc in sorted(busiest)
    ]
    most = max(max(row.one, row.other) for row in rows)
    axis = plot.log_spans(most, "mean time not working")
    drawn = plot.pairs("Waiting with others and alone", "by virtual cluster", axis, rows)
    worse = sum(row.one > row.other for row in rows)
    left_out = len(compared) - len(rows)
    caption = f"{worse} of {len(rows)} wait longer than alone." + (
        f" {left_out} smaller ones are not shown." if left_out else ""
    )
    heads = "".join(f'<th scope="col">{escape(run.policy)}</th>' for run in runs)
    body = "".join(
        f'<tr><th scope="row">{escape(vc or "(no name)")}</th><td>{compared[vc]["jobs"]:,}</td>'
        f"{''.join(_vc_cell(run, vc) for run in runs)}</tr>"
        for vc in sorted(busiest)
    )
    return (
        "<h2>Virtual clusters: shared and alone</h2>"
        f'<p class="soft">Disc: under <i>{escape(runs[0].policy)}</i> with everybody. Ring: the '
        "same jobs alone on the nodes that are guaranteed. In the table: mean wait, shared / alone."
        f"</p>{_figure('Mean time not working', drawn, caption, 'wide')}"
        f'<br><div class="scroll"><table><thead><tr><th scope="col">virtual cluster</th>'
        f'<th scope="col">jobs</th>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _vc_cell(run: Curves, vc: str) -> str:
    of = run.numbers["by_vc"].get(vc)
    if of is None or of["private_mean_wait_s"] is None:
        return "<td>\u2013</td>"
    shared, alone = of["same_jobs_mean_wait_s"], of["private_mean_wait_s"]
    worse = ' class="bad"' if shared is not None and shared > alone else ""
    return f"<td{worse}>{span(shared)} / {span(alone)}</td>"


def _notes(workload: Workload) -> str:
    notes = list(workload.notes[:NOTES_SHOWN_MAX])
    if len(workload.notes) > len(notes):
        notes.append(f"… and {len(workload.notes) - len(notes)} more notes")
    listed = "".join(f"<li>{escape(note)}</li>" for note in notes)
    description = f"<h2>About the trace</h2><ul>{listed}</ul>" if notes else ""
    texts = "".join(f"<dt>{text}</dt><dd>{what}</dd>" for text, what in _DEFINITIONS)
    return f"{description}<h2>What the terms mean</h2><dl>{texts}</dl>"
