"""docs/benchmarks.md: every goal of every benchmark with the last committed measurement."""

from __future__ import annotations

from benchmarks import catalog
from benchmarks.catalog import Record
from benchmarks.report import Benchmark, Goal

UNKNOWN = "unknown"
INTRODUCTION = """\
# Benchmarks

Each benchmark answers one question, measures its floor in the same run and prints a table on
standard error and one JSON object as the last line of standard output. They are not tests: a slow
machine breaks nothing. Times on a busy machine mean little; compare them with their floor.

`make bench` runs all of them, `make bench-submit_to_running` (or `make bench-p1`) one.
`make bench-smoke` and `make bench-smoke-cluster` run each for seconds, to see that it still works.
`make bench-record BENCH="p1 p3"` measures in full and writes `benchmarks/results/`, from which
`make gen` writes this page. An interrupted benchmark ends every process that it started.

| question | goal | measured | floor | machine | commit | met |
| --- | --- | --- | --- | --- | --- | --- |
"""


def page() -> str:
    """The whole page."""
    every = [(asked, catalog.record(asked.name)) for asked in catalog.every()]
    rows = [row for asked, kept in every for row in _rows(asked, kept)]
    parts = ["## How each is measured", ""]
    for asked, kept in every:
        run = f" Last run: {kept.title}; {_when(kept)}." if kept else ""
        parts.append(f"- **{asked.name}** (`make bench-{_alias(asked)}`). {asked.method}{run}")
    return INTRODUCTION + "\n".join([*rows, "", *parts]) + "\n"


def _rows(asked: Benchmark, kept: Record | None) -> list[str]:
    """One line for each goal; the question stands in the first."""
    questions = [asked.question, *[""] * (len(asked.goals) - 1)]
    return [
        _line([question, *_cells(goal, kept)])
        for question, goal in zip(questions, asked.goals, strict=True)
    ]


def _cells(goal: Goal, kept: Record | None) -> list[str]:
    label = f"{goal.label} {_bound(goal)}"
    if kept is None:
        return [label, "not measured", "", "", "", ""]
    value = kept.measured.get(goal.figure)
    floor = kept.floor.get(goal.floor or goal.figure)
    met = "" if value is None else "yes" if goal.met(value) else "**no**"
    measured = "not measured" if value is None else quantity(goal.figure, value)
    below = "" if floor is None else quantity(goal.floor or goal.figure, floor)
    return [label, measured, below, _machine(kept), kept.commit or UNKNOWN, met]


def _bound(goal: Goal) -> str:
    most = goal.at_most is not None
    bound = goal.at_most if most else goal.at_least
    assert bound is not None, "a goal has a bound"
    return f"{'≤' if most else '≥'} {quantity(goal.figure, bound)}"


def quantity(figure: str, value: float) -> str:
    """A value with the unit that its key ends with."""
    number = f"{value:,.4f}".rstrip("0").rstrip(".")
    if figure.endswith("_per_s"):
        return f"{number} /s"
    for ending, unit in (("_ms", "ms"), ("_s", "s"), ("_percent", "%"), ("ms_per_task", "ms")):
        if figure.endswith(ending):
            return f"{number} {unit}"
    return f"{number} MiB" if "_mib" in figure else number


def _machine(kept: Record) -> str:
    machine = kept.machine
    memory = f"{machine['memory_gib']} GiB" if machine["memory_gib"] else UNKNOWN
    return f"{machine['cores'] or UNKNOWN} cores, {memory}, {machine['cpu'] or 'CPU unknown'}"


def _when(kept: Record) -> str:
    least, most = kept.load["least"], kept.load["most"]
    known = least is not None and most is not None
    load = f"load average {least:g} to {most:g}" if known else "load unknown"
    return f"{kept.date or 'date unknown'}, {load}"


def _alias(asked: Benchmark) -> str:
    return asked.alias.replace("_", "-")


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
