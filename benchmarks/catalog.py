"""Every benchmark by its name, and the committed record of each one's last measurement."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import Benchmark, Number

NAMES = (
    "submit_to_running",
    "submit_to_admission",
    "preempt_to_newcomer",
    "start_and_memory",
    "decisions_per_second",
    "cost_of_change",
    "sharing_quality",
    "usage_ledger",
    "log_search",
    "signal_series",
    "durable_gateway",
    "event_fan_out",
    "kept_output",
    "submit_to_running_pods",
    "preempt_to_newcomer_pods",
    "pods_at_scale",
)
RESULTS = Path(__file__).with_name("results")


class UnknownBenchmarkError(Exception):
    """No benchmark has this name."""


def benchmark(name: str) -> Benchmark:
    """The declaration in the module of this name."""
    found: Benchmark = importlib.import_module(f"benchmarks.{name}").BENCHMARK
    assert found.name == name, "a benchmark has its module's name"
    return found


def every() -> list[Benchmark]:
    """All benchmarks, in the order of the table."""
    return [benchmark(name) for name in NAMES]


def named(word: str) -> Benchmark:
    """The benchmark of this name or alias; a hyphen is as good as an underscore."""
    wanted = word.replace("-", "_")
    for found in every():
        if wanted in (found.name, found.alias):
            return found
    known = ", ".join(f"{found.name} ({found.alias})" for found in every())
    raise UnknownBenchmarkError(f"no benchmark is called {word!r}; known are {known}")


@dataclass(frozen=True, kw_only=True)
class Record:
    """One committed measurement; None is what is not known."""

    title: str
    measured: dict[str, Number]
    floor: dict[str, Number]
    # Cores, GiB of memory, model of the processor.
    machine: dict[str, Any]
    # Load averages of the last minute, before and after.
    load: dict[str, float | None]
    commit: str | None
    date: str | None


def path_of(name: str) -> Path:
    """Where the record of this benchmark is."""
    return RESULTS / f"{name}.json"


def record(name: str) -> Record | None:
    """The committed record, or None."""
    path = path_of(name)
    return Record(**json.loads(path.read_text())) if path.exists() else None


def keep(name: str, kept: Record) -> None:
    """Write a record, to be committed."""
    RESULTS.mkdir(exist_ok=True)
    path_of(name).write_text(json.dumps(vars(kept), indent=1) + "\n")
