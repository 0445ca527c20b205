"""What must hold after a chaos run, and the records of tasks and platform that it is checked with.

Spans are bounded from inside: a process certainly lived from its first recorded line to its last.
So an overlap that a check reports did happen; one that is shorter than a step goes unnoticed.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats
import psutil
from nats.js.api import AckPolicy, ConsumerConfig

from libs.bus.connection import Credentials
from libs.bus.topology import DEAD_LETTERS, EVENTS
from libs.contracts import messages as m
from libs.contracts.envelope import Envelope
from services.launcher.runtimes.node.output_writer import LOST
from tests.kit.checkers import Ack, History, Span

FETCH_MESSAGES = 500
_GAP = re.compile(r"\[shiftwork: " + LOST.format("([0-9]+)", ".*") + r"\]")


@dataclass
class Life:
    """One rank's process, by its own record."""

    span: Span
    pid: int
    resumed_step: int
    acked_steps: list[int] = field(default_factory=list)
    lines: int = 0


def lives(records: Path) -> list[Life]:
    """Every process that wrote a record."""
    found: dict[tuple[str, int, int, int], Life] = {}
    for path in sorted(records.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            record: dict[str, Any] = json.loads(line)
            key = (record["task"], record["attempt"], record["rank"], record["pid"])
            if record["t"] == "start":
                identity = (record["task"], record["attempt"], record["rank"], record["node"])
                span = Span(*identity, tuple(record["gpus"]), record["at"], record["at"])
                found[key] = Life(span, record["pid"], record["step"])
                continue
            life = found[key]
            life.span = _until(life.span, record["at"])
            life.lines = record.get("lines", life.lines)
            if record["t"] == "ack":
                life.acked_steps.append(record["step"])
    return list(found.values())


def _until(span: Span, at: float) -> Span:
    identity = (span.task_id, span.attempt, span.rank, span.node_id)
    return Span(*identity, span.gpus, span.start, at)


async def read_stream(
    url: str, admin: Credentials, name: str
) -> list[tuple[dict[str, str], bytes]]:
    """Every message of a stream, in its order."""
    client = await nats.connect(url, user=admin.user, password=admin.password)
    try:
        jetstream = client.jetstream()
        left = (await jetstream.stream_info(name)).state.messages
        found: list[tuple[dict[str, str], bytes]] = []
        if not left:
            return found
        consumer = await jetstream.pull_subscribe(">", stream=name)
        while len(found) < left:
            for message in await consumer.fetch(FETCH_MESSAGES, timeout=10):
                found.append((dict(message.headers or {}), message.data))
                await message.ack()
        return found
    finally:
        await client.close()


async def keep_history(url: str, admin: Credentials) -> None:
    """Let the stream of events keep everything from now on: a durable that never acknowledges.
    Without it an event goes as soon as every service has received it."""
    client = await nats.connect(url, user=admin.user, password=admin.password)
    try:
        consumer = ConsumerConfig(durable_name="chaos", ack_policy=AckPolicy.EXPLICIT)
        await client.jetstream().add_consumer(EVENTS, consumer)
    finally:
        await client.close()


async def envelopes(url: str, admin: Credentials) -> list[Envelope]:
    """Every event since ``keep_history`` in the order of the stream, duplicates included."""
    return [Envelope.read_stored(*message) for message in await read_stream(url, admin, EVENTS)]


async def dead_letters(url: str, admin: Credentials) -> Iterator[str]:
    """No message may be dead-lettered: the faults only kill and freeze processes."""
    found = await read_stream(url, admin, DEAD_LETTERS)
    return iter([f"dead letter: {headers} {body[:200]!r}" for headers, body in found])


def history_of(published: list[Envelope], lived: list[Life], accepted: set[str]) -> History:
    """The history as the checks of the simulation expect it."""
    history = History(published, [life.span for life in lived], [], set(accepted))
    numbers: dict[tuple[str, int, int], int] = {}
    for event in history.of(m.CheckpointSaved):
        saved = event.checkpoint
        key = (event.task_id, event.attempt, saved.step)
        numbers[key] = min(saved.no, numbers.get(key, saved.no))
    for life in lived:
        for step in life.acked_steps:
            key = (life.span.task_id, life.span.attempt, step)
            # Acknowledged but not published: a number that no resume reaches, so it counts as lost.
            history.acks.append(Ack(key[0], key[1], numbers.get(key, 1 << 62), step))
    return history


def acknowledged_steps_are_kept(lived: list[Life]) -> Iterator[str]:
    """A process resumes at or behind every step acknowledged to an earlier attempt."""
    acked: dict[str, dict[int, int]] = defaultdict(dict)
    for life in lived:
        if life.acked_steps:
            steps = acked[life.span.task_id]
            attempt = life.span.attempt
            steps[attempt] = max(steps.get(attempt, 0), *life.acked_steps)
    for life in lived:
        for attempt, step in acked[life.span.task_id].items():
            if attempt < life.span.attempt and life.resumed_step < step:
                yield (
                    f"{life.span.task_id}.{life.span.attempt} began at step {life.resumed_step}, "
                    f"though attempt {attempt} had step {step} acknowledged"
                )


def processes_were_announced(history: History, lived: list[Life]) -> Iterator[str]:
    """Every process belongs to a run that was announced, on the nodes and GPUs it was given."""
    given: dict[tuple[str, int, int], tuple[str, tuple[int, ...]]] = {}
    for event in history.of(m.RunAssigned, m.RunResumed):
        for place in event.placements:
            given[event.task_id, event.attempt, place.rank] = (place.node_id, tuple(place.gpus))
    for life in lived:
        span = life.span
        where = given.get((span.task_id, span.attempt, span.rank))
        if where != (span.node_id, span.gpus):
            yield f"{span} ran on {span.node_id}/{span.gpus}, but was given {where}"


def output_is_complete(life: Life, kept: bytes) -> Iterator[str]:
    """Every recorded line of a rank's output was kept once, whole and in order, or belongs to a gap
    that the output notes with at least as many bytes as are missing (a full disk)."""
    span = life.span
    identity = f"{span.task_id} {span.attempt} {span.rank}"
    # The next line; how many bytes of lines from there on may not be there as whole lines.
    following, lacking = 1, 0
    after_gap = cut = False
    for line in kept.decode().splitlines():
        if gap := _GAP.fullmatch(line):
            lacking, after_gap, cut = lacking + int(gap[1]), True, False
            continue
        ends = after_gap and any(
            _line(identity, number).endswith(f"{line}\n")
            for number in range(following, life.lines + 2)
        )
        after_gap = False
        if not line.startswith("chaos ") and not cut:
            lacking += len(line) + 1 if ends else 0
            continue
        number = _whole_line(identity, line)
        begun = f"chaos {identity} " if lacking else _line(identity, following)
        if not number and not cut and (begun.startswith(line) or line.startswith(begun)):
            # Only the note of a gap may come next.
            lacking, cut = lacking + len(line), True
            continue
        missing = sum(len(_line(identity, each)) for each in range(following, number))
        if cut or number < following or missing > lacking:
            yield f"output of {identity}: line {following} is {line!r}"
            return
        following, lacking = number + 1, 0
    missing = sum(len(_line(identity, each)) for each in range(following, life.lines + 1))
    if cut or missing > lacking:
        yield f"output of {identity}: {following - 1} of {life.lines} lines were kept"


def _line(identity: str, number: int) -> str:
    """A line of the output of ``task.py``."""
    return f"chaos {identity} {number} {'x' * 80}\n"


def _whole_line(identity: str, line: str) -> int:
    """The number of a whole line; 0 for anything else."""
    number = line.removeprefix(f"chaos {identity} ").partition(" ")[0]
    return int(number) if number.isdecimal() and f"{line}\n" == _line(identity, int(number)) else 0


def event_log_is_complete(history: History, log: list[Mapping[str, Any]]) -> Iterator[str]:
    """The gateway's log has no gap, and every end of a run that the bus carried."""
    positions = [int(event["position"]) for event in log]
    if positions != list(range(1, len(positions) + 1)):
        yield f"the event log has gaps or repetitions: {positions[:20]}..."
    for kind, name in ((m.RunExited, "run.exited"), (m.RunAssigned, "run.assigned")):
        published = sorted((event.task_id, event.attempt) for event in history.of(kind))
        kept = sorted((e["task"], e["attempt"]) for e in log if e["type"] == name)
        if published != kept:
            missing, extra = Counter(published) - Counter(kept), Counter(kept) - Counter(published)
            yield f"{name}: the event log lacks {[*missing]} and has too many of {[*extra]}"


def living_processes(marker: str) -> Iterator[psutil.Process]:
    """Processes with ``marker`` in their command line, this one and its parents excepted."""
    own = {process.pid for process in (psutil.Process(), *psutil.Process().parents())}
    for process in psutil.process_iter():
        try:
            if process.pid not in own and any(marker in word for word in process.cmdline()):
                yield process
        except psutil.Error:
            continue
