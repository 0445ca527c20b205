"""Preemption, the platform's share of it.

    python -m benchmarks.preempt_to_newcomer [--rounds 20] [--wide 64] [--wide-rounds 5]

Three parts, each on a full cluster that a gang of high priority wants whole:

silent   four victims that never answer: how far from its deadline each is ended by force.
sdk      four Python processes with the SDK, steps of a millisecond and checkpoints that cost
         nothing. The victim's start is taken by a shell before Python begins, so that Python's own
         start and imports are not counted as the platform's.
wide     as many nodes as two cores allow. Their victims are shells in the mode ``signal`` (TERM,
         then exit 75): 64 Python processes would measure Python.

A newcomer runs when its last rank has written its first byte, by that rank's clock.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import chain
from benchmarks.guard import run
from benchmarks.harness import (
    BenchmarkError,
    Http,
    Platform,
    now_s,
    ready_nodes,
    running_platform,
    seconds,
    up,
    written_times,
)
from benchmarks.report import Benchmark, Goal, Report, spread

BENCHMARK = Benchmark(
    name="preempt_to_newcomer",
    alias="p5",
    question="How soon does a task that preempts others run?",
    method=(
        "A gang of high priority takes a full cluster: four Python programs with the SDK, whose"
        " checkpoints cost nothing, then 64 shells that leave at a signal, and four victims that"
        " never answer. Floor: the commits and hops of the same steps and the child."
    ),
    goals=(
        Goal(figure="running_p50_ms", label="newcomer runs, 4 nodes, median", at_most=80.0),
        Goal(figure="running_p99_ms", label="newcomer runs, 4 nodes, p99", at_most=200.0),
        Goal(figure="wide_running_p99_ms", label="newcomer runs, 64 nodes, p99", at_most=500.0),
        Goal(
            figure="silent_off_deadline_max_ms",
            label="silent victim ended, off its deadline",
            at_most=200.0,
        ),
        Goal(figure="acknowledged_steps_lost", label="acknowledged steps lost", at_most=0.0),
        Goal(figure="cycles_per_s", label="preemption cycles per second", at_least=150.0),
    ),
    smoke=("--rounds", "2", "--wide", "4", "--wide-rounds", "1", "--chains", "3"),
)
NARROW = 4
SETTLE_SECONDS = 0.5
HOLD_SECONDS = 0.3
WAIT_SECONDS = 60.0
SILENT_DEADLINE_SECONDS = 2.0
VICTIM = Path(__file__).with_name("victim.py")


@dataclass
class Found:
    """Seconds between the steps of a preemption."""

    running: list[float] = field(default_factory=list)
    requested_acked: list[float] = field(default_factory=list)
    acked_exited: list[float] = field(default_factory=list)
    exited_running: list[float] = field(default_factory=list)
    ended_resumed: list[float] = field(default_factory=list)
    python_start: list[float] = field(default_factory=list)
    cycles_per_s: list[float] = field(default_factory=list)
    lost_steps: int = 0
    preemptions: int = 0


@dataclass(frozen=True)
class Note:
    """One line that a victim wrote."""

    what: str
    attempt: int
    at: float
    step: int


def notes(path: Path) -> list[Note]:
    """What a victim wrote so far."""
    found: list[Note] = []
    for line in path.read_text().splitlines() if path.exists() else []:
        words = line.split()
        if len(words) == 4:
            found.append(Note(words[0], int(words[1]), float(words[2]), int(words[3])))
    return found


async def until(condition: Callable[[], bool], what: str) -> None:
    """Poll until the condition holds. Raises ``BenchmarkError`` after ``WAIT_SECONDS``."""
    ends_at = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > ends_at:
            raise BenchmarkError(f"not within {WAIT_SECONDS:g} s: {what}")
        await asyncio.sleep(0.01)


class Newcomer:
    """A gang over the whole cluster: each rank writes when it runs, holds, writes when it ends."""

    def __init__(self, folder: Path, number: int, nodes: int) -> None:
        self.prefix = folder / f"newcomer-{number}"
        self.name, self.nodes = f"newcomer-{number}", nodes
        self.submitted = 0.0

    async def submit(self, http: Http) -> None:
        """Submit the gang now."""
        script = (
            f'date +%s.%N >"{self.prefix}.$RANK"; sleep {HOLD_SECONDS};'
            f' date +%s.%N >"{self.prefix}-end.$RANK"'
        )
        self.submitted = now_s()
        await http.submit(
            name=self.name,
            priority="high",
            nodes=self.nodes,
            command=["/bin/sh", "-c", script],
            working_directory="/",
        )

    def times(self) -> tuple[float, float] | None:
        """When the last rank ran and when the last one ended; None before."""
        began = written_times(self.prefix, self.nodes)
        ended = written_times(Path(f"{self.prefix}-end"), self.nodes)
        return (max(began), max(ended)) if began and ended else None

    async def over(self) -> tuple[float, float]:
        """Wait until the last rank has ended."""
        await until(lambda: self.times() is not None, f"{self.name} runs and ends")
        found = self.times()
        assert found is not None, "just seen"
        return found


async def sdk_round(http: Http, platform: Platform, victims: dict[str, Path], number: int) -> Found:
    """One newcomer takes all nodes from the SDK's victims, and gives them back."""
    found = Found()
    newcomer = Newcomer(platform.folder, number, len(victims))
    before = {task: len(notes(path)) for task, path in victims.items()}
    await newcomer.submit(http)
    running, ended = await newcomer.over()
    found.running.append(running - newcomer.submitted)

    def resumed() -> bool:
        return all(
            any(note.what == "steps" for note in notes(path)[before[task] :])
            for task, path in victims.items()
        )

    await until(resumed, "every victim steps again")
    exits: list[float] = []
    for task, path in victims.items():
        fresh = notes(path)[before[task] :]
        acked = next(note for note in fresh if note.what == "acked")
        started = next(note for note in fresh if note.what == "start")
        began = next(note for note in fresh if note.what == "began")
        run = next(run for run in await http.runs(task) if run["attempt"] == acked.attempt)
        exits.append(seconds(run["exit"]["exited_at"]))
        found.requested_acked.append(acked.at - seconds(run["preemption"]["requested_at"]))
        found.acked_exited.append(exits[-1] - acked.at)
        found.ended_resumed.append(started.at - ended)
        found.python_start.append(began.at - started.at)
        found.lost_steps += max(0, acked.step - began.step)
        found.preemptions += 1
    found.exited_running.append(running - max(exits))
    return found


async def sdk(http: Http, platform: Platform, rounds: int) -> Found:
    """Rounds of preemption with Python victims."""
    victims: dict[str, Path] = {}
    for index in range(NARROW):
        path = platform.folder / f"victim-{index}"
        script = (
            f'echo "start $SHIFTWORK_ATTEMPT $(date +%s.%N) 0" >>"{path}";'
            f' exec python "{VICTIM}" "{path}"'
        )
        task = await http.submit(
            name=f"victim-{index}",
            priority="low",
            nodes=1,
            command=["/bin/sh", "-c", script],
            working_directory="/",
        )
        victims[task] = path
    begun = list(victims.values())
    await until(
        lambda: all(any(note.what == "steps" for note in notes(path)) for path in begun),
        "every victim steps",
    )
    total = Found()
    for number in range(rounds):
        await asyncio.sleep(SETTLE_SECONDS)
        one = await sdk_round(http, platform, victims, number)
        if number == 0:
            continue  # warms up connections and statements
        for name, values in vars(one).items():
            setattr(total, name, getattr(total, name) + values)
    await stop(http, list(victims))
    return total


async def stop(http: Http, tasks: list[str]) -> None:
    """End tasks and wait until they have."""
    for task in tasks:
        await http.call("PUT", f"/v1/tasks/{task}/goal", {"goal": "stop"})
    await http.until(tasks, seconds=WAIT_SECONDS)


async def silent(http: Http, platform: Platform) -> list[float]:
    """How long after its deadline each silent victim was gone."""
    tasks = [
        await http.submit(
            name=f"silent-{index}",
            priority="low",
            nodes=1,
            command=["/bin/sleep", "86400"],
            preemption={"ack_deadline_seconds": SILENT_DEADLINE_SECONDS},
            working_directory="/",
        )
        for index in range(NARROW)
    ]
    await http.until(tasks, {"running"}, seconds=WAIT_SECONDS)
    newcomer = Newcomer(platform.folder, 1_000_000, NARROW)
    await newcomer.submit(http)
    await newcomer.over()
    late: list[float] = []
    for task in tasks:
        run = (await http.runs(task))[0]
        late.append(seconds(run["exit"]["exited_at"]) - seconds(run["preemption"]["deadline_at"]))
    await stop(http, tasks)
    return late


async def wide(http: Http, platform: Platform, nodes: int, rounds: int) -> Found:
    """A gang over many nodes, against shells that leave at a signal."""
    starts = platform.folder / "starts"
    starts.mkdir()
    script = (
        "trap 'exit 75' TERM;"
        f' date +%s.%N >"{starts}/$SHIFTWORK_TASK.$SHIFTWORK_ATTEMPT";'
        " while :; do sleep 1000 & wait $!; done"
    )
    tasks = [
        await http.submit(
            name=f"wide-{index}",
            priority="low",
            nodes=1,
            command=["/bin/sh", "-c", script],
            preemption={"mode": "signal", "signal": "TERM"},
            working_directory="/",
        )
        for index in range(nodes)
    ]
    found = Found()

    def started(attempt: int) -> list[float] | None:
        times = [starts / f"{task}.{attempt}" for task in tasks]
        texts = [path.read_text() if path.exists() else "" for path in times]
        return [float(text) for text in texts] if all(texts) else None

    for number in range(rounds):
        await until(lambda: started(number + 1) is not None, "every victim runs")  # noqa: B023 - at once
        await http.until(tasks, {"running"}, seconds=WAIT_SECONDS)
        await asyncio.sleep(SETTLE_SECONDS)
        newcomer = Newcomer(platform.folder, number, nodes)
        await newcomer.submit(http)
        running, ended = await newcomer.over()
        await until(lambda: started(number + 2) is not None, "every victim runs again")  # noqa: B023 - at once
        again = started(number + 2)
        assert again is not None, "just seen"
        if number == 0 and rounds > 1:
            continue
        found.running.append(running - newcomer.submitted)
        found.ended_resumed += [at - ended for at in again]
        worked = running - newcomer.submitted + max(again) - ended
        found.cycles_per_s.append(nodes / worked)
        found.preemptions += nodes
    await stop(http, tasks)
    return found


async def main() -> None:
    """Measure the three parts and the bare chain, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--wide", type=int, default=64)
    parser.add_argument("--wide-rounds", type=int, default=5)
    parser.add_argument("--chains", type=int, default=40)
    asked = parser.parse_args()
    report = Report(BENCHMARK, f"{NARROW} Python victims and {asked.wide} shells", BENCHMARK.goals)
    bare = await chain.measure(asked.chains, NARROW)
    with running_platform(up(NARROW, 1)) as platform:
        platform.start()
        http = Http(platform.url, platform.token)
        await ready_nodes(http, NARROW)
        late = await silent(http, platform)
        found = await sdk(http, platform, asked.rounds)
        http.close()
    with running_platform(up(asked.wide, 1)) as platform:
        platform.start()
        http = Http(platform.url, platform.token)
        await ready_nodes(http, asked.wide)
        many = await wide(http, platform, asked.wide, asked.wide_rounds)
        http.close()
    measured = report.measured
    measured |= spread(found.running, "running")
    measured |= spread(found.requested_acked, "requested_to_acked")
    measured |= spread(found.acked_exited, "acked_to_exited")
    measured |= spread(found.exited_running, "exited_to_running")
    measured |= spread(found.ended_resumed, "ended_to_victim_started")
    measured |= spread(found.python_start, "victims_python_start")
    measured["acknowledged_steps_lost"] = found.lost_steps
    measured["preemptions"] = found.preemptions
    measured["silent_off_deadline_max_ms"] = round(max(abs(each) for each in late) * 1000, 2)
    measured |= spread(many.running, "wide_running")
    measured |= spread(many.ended_resumed, "wide_ended_to_victim_started")
    measured["cycles_per_s"] = round(max(many.cycles_per_s), 1)
    report.floor |= spread(bare["preemption"], "running") | spread(
        bare["chain"], "ended_to_victim_started"
    )
    report.publish()


if __name__ == "__main__":
    run(main)
