"""What every benchmark prints: a table for people, and one JSON line, last, for machines."""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

Number = float | int | None


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0 to 1) of the values lie; nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered) + 0.5) - 1))]


def spread(values: Sequence[float], name: str, scale: float = 1_000.0) -> dict[str, float]:
    """``name_p50_ms``, ``name_p99_ms`` and ``name_max_ms`` of values in seconds."""
    return {
        f"{name}_p50_ms": round(statistics.median(values) * scale, 2),
        f"{name}_p99_ms": round(percentile(values, 0.99) * scale, 2),
        f"{name}_max_ms": round(max(values) * scale, 2),
    }


def machine() -> dict[str, object]:
    """What the figures were taken on, and nothing else about the place."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    models = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
        "cpu": models[0] if models else None,
    }


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A bound for one measured figure. ``label`` is the figure in words."""

    figure: str
    label: str
    at_most: float | None = None
    at_least: float | None = None
    # The key of the floor to compare with; empty: the figure's own.
    floor: str = ""

    def met(self, value: float) -> bool:
        """True if the value is within the bound."""
        return (self.at_most is None or value <= self.at_most) and (
            self.at_least is None or value >= self.at_least
        )

    def text(self) -> str:
        """The bound for people."""
        return f"<= {self.at_most:g}" if self.at_most is not None else f">= {self.at_least:g}"


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """The declaration of one benchmark. Each module of a benchmark has its own."""

    # The module's name, and the short name of older days.
    name: str
    alias: str
    question: str
    # How it is measured, and what its floor is.
    method: str
    goals: tuple[Goal, ...]
    # Options with which it takes seconds; its figures then mean nothing.
    smoke: tuple[str, ...]
    # It needs a control plane with simulated nodes, whose programs are built once.
    cluster: bool = False
    # Variables of make that become options: name -> option.
    variables: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass
class Report:
    """One benchmark's outcome. ``goals`` are the benchmark's own, unless it was run in part."""

    benchmark: Benchmark
    title: str
    goals: tuple[Goal, ...]
    measured: dict[str, Number] = field(default_factory=dict[str, Number])
    floor: dict[str, Number] = field(default_factory=dict[str, Number])
    # Why it could not be carried out.
    problem: str = ""
    began_load: float = field(default_factory=lambda: os.getloadavg()[0])

    def misses(self) -> list[str]:
        """The goals that the measured figures do not meet."""
        return [
            f"{goal.figure} {value} is not {goal.text()}"
            for goal in self.goals
            if (value := self.measured.get(goal.figure)) is not None and not goal.met(value)
        ]

    def publish(self) -> None:
        """Print the table (standard error) and the JSON line (last on standard output)."""
        goals = {goal.figure: goal for goal in self.goals}
        table = Table(title=f"{self.benchmark.question} {self.title}")
        for column in ("figure", "measured", "goal", "floor, same run"):
            table.add_column(column, justify="left" if column == "figure" else "right")
        for key in [*self.measured, *(key for key in self.floor if key not in self.measured)]:
            table.add_row(
                key,
                _text(self.measured.get(key)),
                goals[key].text() if key in goals else "",
                _text(self.floor.get(key)),
            )
        console = Console(file=sys.stderr)
        console.print(table)
        misses = self.misses()
        loads = [round(load, 1) for load in (self.began_load, os.getloadavg()[0])]
        missing = [key for key in goals if self.measured.get(key) is None]
        outcome = f"missed: {'; '.join(misses)}" if misses else "goals met"
        console.print(self.problem or outcome)
        print(
            json.dumps(
                {
                    "benchmark": self.benchmark.name,
                    "alias": self.benchmark.alias,
                    "title": self.title,
                    "measured": self.measured,
                    "floor": self.floor,
                    "goal": {
                        f"{goal.figure}_{bound}": value
                        for goal in self.goals
                        for bound, value in (("at_most", goal.at_most), ("at_least", goal.at_least))
                        if value is not None
                    },
                    "met": None if missing else not misses,
                    "misses": misses + [f"{key} was not measured" for key in missing],
                    **({"problem": self.problem} if self.problem else {}),
                    "machine": machine(),
                    "load": {"least": min(loads), "most": max(loads)},
                }
            ),
            flush=True,
        )


def _text(value: Number) -> str:
    return "" if value is None else f"{value:g}"
