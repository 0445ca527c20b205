"""The benchmarks by name, all of them for seconds, and their records.

    python -m benchmarks NAME [OPTIONS OF THE BENCHMARK]
    python -m benchmarks all
    python -m benchmarks smoke [--cluster]
    python -m benchmarks record [NAME ...]

``smoke`` runs every benchmark with its smallest sizes and fails when one fails; its figures mean
nothing. Those that need a control plane with simulated nodes run with ``--cluster``, because its
start alone takes half a minute. ``record`` runs benchmarks in full and keeps their results as the
JSON files from which docs/benchmarks.md is generated.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from benchmarks import catalog
from benchmarks.report import Benchmark

SMOKE_SECONDS_MAX = 240.0
SMOKE_AT_ONCE = 2
ROOT = catalog.RESULTS.parents[1]


class FailedError(Exception):
    """A benchmark ended with an error, or measured nothing."""


def command(asked: Benchmark, options: Sequence[str]) -> list[str]:
    """The benchmark as a process of its own."""
    return [sys.executable, "-m", f"benchmarks.{asked.name}", *options]


def options_of(asked: Benchmark) -> list[str]:
    """The options that make's variables stand for."""
    given = {name: os.environ.get(f"BENCH_{name}", "") for name in asked.variables}
    return [
        word for name, value in given.items() if value for word in (asked.variables[name], value)
    ]


def outcome(
    asked: Benchmark, options: Sequence[str], seconds: float | None = None
) -> dict[str, Any]:
    """Run it; returns the JSON of its last line."""
    # Its own guard ends what it started when this process is interrupted or waits too long.
    process = subprocess.Popen(command(asked, options), stdout=subprocess.PIPE, text=True)
    try:
        text, _ = process.communicate(timeout=seconds)
    except BaseException as error:
        process.terminate()
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise FailedError(f"{asked.name}: it took more than {seconds:g} s") from None
        raise
    if process.returncode != 0:
        raise FailedError(f"{asked.name}: it ended with status {process.returncode}")
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    if not found["measured"]:
        raise FailedError(f"{asked.name}: {found.get('problem') or 'it measured nothing'}")
    return found


def smoke(*, cluster: bool) -> list[str]:
    """Run every benchmark for seconds; returns what failed."""
    wanted = [asked for asked in catalog.every() if asked.cluster is cluster]
    # They mostly wait for the servers that they start, so two at a time are quicker.
    with ThreadPoolExecutor(SMOKE_AT_ONCE) as pool:
        return [failure for failure in pool.map(_smoked, wanted) if failure]


def _smoked(asked: Benchmark) -> str:
    """One benchmark for seconds; how it failed, or nothing."""
    began, failure = time.monotonic(), ""
    try:
        outcome(asked, asked.smoke, SMOKE_SECONDS_MAX)
    except FailedError as error:
        failure = f"{error}; again: python {' '.join(command(asked, asked.smoke)[1:])}"
    print(f"{asked.name}: {time.monotonic() - began:.1f} s", flush=True)
    return failure


def record(words: Sequence[str]) -> list[str]:
    """Measure these (none: all) in full and keep the results; returns what failed."""
    failed: list[str] = []
    for asked in [catalog.named(word) for word in words] or catalog.every():
        commit = _commit()
        try:
            found = outcome(asked, options_of(asked))
        except FailedError as error:
            failed.append(str(error))
            continue
        kept = {name: found[name] for name in ("title", "measured", "floor", "machine", "load")}
        date = datetime.now(UTC).date().isoformat()
        catalog.keep(asked.name, catalog.Record(**kept, commit=commit, date=date))
        print(f"{catalog.path_of(asked.name).relative_to(ROOT)}: run `make gen`, commit both")
    return failed


def _commit() -> str:
    """The commit that is measured; with a suffix if the tree differs from it."""
    text = subprocess.run(
        ["git", "describe", "--always", "--exclude=*", "--dirty=+changes"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return text.strip()


def every_one() -> list[str]:
    """Run all benchmarks in full, one after the other; returns what failed."""
    failed: list[str] = []
    for asked in catalog.every():
        try:
            print(json.dumps(outcome(asked, options_of(asked))), flush=True)
        except FailedError as error:
            failed.append(str(error))
    return failed


def main(words: Sequence[str]) -> int:
    """Carry out a command line; returns the exit status."""
    match list(words):
        case ["smoke"]:
            failed = smoke(cluster=False)
        case ["smoke", "--cluster"]:
            failed = smoke(cluster=True)
        case ["record", *names]:
            failed = record(names)
        case ["all"]:
            failed = every_one()
        case [name, *options]:
            asked = catalog.named(name)
            found = command(asked, [*options_of(asked), *options])
            os.execv(found[0], found)
        case _:
            raise SystemExit(__doc__)
    for line in failed:
        sys.stderr.write(f"failed: {line}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except catalog.UnknownBenchmarkError as error:
        sys.exit(str(error))
