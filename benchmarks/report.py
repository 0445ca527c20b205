"""What every benchmark prints: a table for people, and one JSON line, last, for machines."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
    """Where the figures come from."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        # Of the last one, five and fifteen minutes: how quiet it was.
        "load_average": [round(load, 1) for load in os.getloadavg()],
    }


@dataclass
class Report:
    """One benchmark's outcome; ``at_most`` and ``at_least`` are the goals, by measured key."""

    benchmark: str
    title: str
    measured: dict[str, Number] = field(default_factory=dict)
    floor: dict[str, Number] = field(default_factory=dict)
    at_most: Mapping[str, float] = field(default_factory=dict)
    at_least: Mapping[str, float] = field(default_factory=dict)
    # Why it could not be carried out.
    problem: str = ""

    def misses(self) -> list[str]:
        """The goals that the measured figures do not meet."""
        return [
            f"{key} {self.measured[key]} > {bound}"
            for key, bound in self.at_most.items()
            if (value := self.measured.get(key)) is not None and value > bound
        ] + [
            f"{key} {self.measured[key]} < {bound}"
            for key, bound in self.at_least.items()
            if (value := self.measured.get(key)) is not None and value < bound
        ]

    def publish(self) -> None:
        """Print the table (standard error) and the JSON line (last on standard output)."""
        goals = {**self.at_most, **self.at_least}
        table = Table(title=f"{self.benchmark.upper()} {self.title}")
        for column in ("figure", "measured", "goal", "floor, same run"):
            table.add_column(column, justify="left" if column == "figure" else "right")
        for key in [*self.measured, *(key for key in self.floor if key not in self.measured)]:
            sign = "<=" if key in self.at_most else ">=" if key in self.at_least else ""
            table.add_row(
                key,
                _text(self.measured.get(key)),
                f"{sign} {goals[key]:g}" if key in goals else "",
                _text(self.floor.get(key)),
            )
        console = Console(file=sys.stderr)
        console.print(table)
        misses = self.misses()
        missing = [key for key in goals if self.measured.get(key) is None]
        told = f"missed: {'; '.join(misses)}" if misses else "goals met"
        console.print(self.problem or told)
        print(
            json.dumps(
                {
                    "benchmark": self.benchmark,
                    "measured": self.measured,
                    "floor": self.floor,
                    "goal": {
                        **{f"{key}_at_most": value for key, value in self.at_most.items()},
                        **{f"{key}_at_least": value for key, value in self.at_least.items()},
                    },
                    "met": None if missing else not misses,
                    "misses": misses + [f"{key} was not measured" for key in missing],
                    **({"problem": self.problem} if self.problem else {}),
                    "machine": machine(),
                }
            ),
            flush=True,
        )


def _text(value: Number) -> str:
    return "" if value is None else f"{value:g}"
