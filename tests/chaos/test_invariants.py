"""The checks of the chaos run complain about what is wrong, and about nothing else."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from libs.contracts import messages as m
from libs.contracts.envelope import Envelope
from services.launcher.runtimes.node.output_writer import LOST
from tests.chaos import invariants
from tests.chaos.faults import PARTS, schedule
from tests.kit.checkers import (
    acknowledged_checkpoints_survive,
    slots_never_double_booked,
    verdict,
)

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def write(folder: Path, *lines: dict[str, Any]) -> list[invariants.Life]:
    identity = {"task": "t", "attempt": 1, "rank": 0, "node": "n", "gpus": [0], "pid": 1}
    text = "".join(json.dumps(identity | line) + "\n" for line in lines)
    (folder / "t.jsonl").write_text(text)
    return invariants.lives(folder)


def published(message: m.Message) -> Envelope:
    return Envelope(id=message.to_json().decode(), source="s", time=NOW, message=message)


def resumed(attempt: int, checkpoint: m.Checkpoint | None) -> Envelope:
    place = m.Placement(node_id="n", gpus=(0,), rank=0)
    event = m.RunResumed.model_construct(
        task_id="t", attempt=attempt, placements=(place,), resume_from=checkpoint
    )
    return Envelope(id=f"resumed-{attempt}", source="s", time=NOW, message=event)


def test_two_processes_on_one_slot_are_seen(tmp_path: Path) -> None:
    lived = write(
        tmp_path,
        {"t": "start", "at": 1.0, "step": 0},
        {"t": "beat", "at": 2.0, "step": 1, "lines": 1},
        {"t": "start", "at": 1.5, "step": 0, "attempt": 2, "pid": 2},
    )
    history = invariants.history_of([], lived, set())
    assert len(verdict(history, [slots_never_double_booked])) == 1


def test_one_process_after_the_other_is_right(tmp_path: Path) -> None:
    lived = write(
        tmp_path,
        {"t": "start", "at": 1.0, "step": 0},
        {"t": "ack", "at": 1.5, "step": 4},
        {"t": "end", "at": 2.0, "lines": 1},
        {"t": "start", "at": 2.5, "step": 4, "attempt": 2, "pid": 2},
    )
    assert [*invariants.acknowledged_steps_are_kept(lived)] == []
    assert verdict(invariants.history_of([], lived, set()), [slots_never_double_booked]) == []


def test_a_lost_checkpoint_is_seen(tmp_path: Path) -> None:
    lived = write(
        tmp_path,
        {"t": "start", "at": 1.0, "step": 0},
        {"t": "ack", "at": 1.5, "step": 4},
        {"t": "start", "at": 2.5, "step": 3, "attempt": 2, "pid": 2},
    )
    assert len([*invariants.acknowledged_steps_are_kept(lived)]) == 1
    saved = m.Checkpoint(no=7, attempt=1, step=4, saved_at=NOW)
    event = m.CheckpointSaved(task_id="t", attempt=1, checkpoint=saved)
    older = m.Checkpoint(no=6, attempt=1, step=2, saved_at=NOW)
    for given, complaints in ((saved, 0), (older, 1), (None, 1)):
        history = invariants.history_of([published(event), resumed(2, given)], lived, set())
        assert len(verdict(history, [acknowledged_checkpoints_survive])) == complaints
    # Acknowledged, and never published.
    history = invariants.history_of([resumed(2, saved)], lived, set())
    assert len(verdict(history, [acknowledged_checkpoints_survive])) == 1


def test_a_process_where_none_was_placed_is_seen(tmp_path: Path) -> None:
    lived = write(tmp_path, {"t": "start", "at": 1.0, "step": 0, "attempt": 2})
    right = invariants.history_of([resumed(2, None)], lived, set())
    assert [*invariants.processes_were_announced(right, lived)] == []
    assert (
        len([*invariants.processes_were_announced(invariants.history_of([], [], set()), lived)])
        == 1
    )


def test_output_that_is_short_or_out_of_order_is_seen(tmp_path: Path) -> None:
    start = {"t": "start", "at": 1.0, "step": 0}
    (life,) = write(tmp_path, start, {"t": "beat", "at": 2.0, "lines": 3})
    lines = [f"chaos t 1 0 {number} {'x' * 80}\n".encode() for number in (1, 2, 3)]
    assert [*invariants.output_is_complete(life, b"".join(lines))] == []
    assert [*invariants.output_is_complete(life, b"shiftwork: a warning\n" + b"".join(lines))] == []
    for wrong in (
        lines[:2],
        [*lines[:2], lines[1], lines[2]],
        lines[1:],
        [*lines[:2], lines[2][9:]],
    ):
        assert len([*invariants.output_is_complete(life, b"".join(wrong))]) == 1


def gap(count: int) -> bytes:
    return f"[shiftwork: {LOST.format(count, 'no space left')}]\n".encode()


def test_output_may_lack_the_bytes_of_a_noted_gap_and_no_more(tmp_path: Path) -> None:
    start = {"t": "start", "at": 1.0, "step": 0}
    (life,) = write(tmp_path, start, {"t": "beat", "at": 2.0, "lines": 4})
    lines = [f"chaos t 1 0 {number} {'x' * 80}\n".encode() for number in (1, 2, 3, 4)]
    size = len(lines[0])
    for right in (
        [lines[0], gap(size), *lines[2:]],
        [gap(2 * size), *lines[2:]],
        [*lines[:2], gap(2 * size)],
        # More than our lines was lost, such as a warning between them.
        [lines[0], gap(3 * size), *lines[2:]],
        # A line was cut at the gap's begin, another one at its end.
        [lines[0], lines[1][:30], b"\n", gap(size), lines[2][30:], lines[3]],
        [lines[0], gap(size), b"shiftwork: a warning\n", *lines[2:]],
        [gap(2 * size), lines[2][:40], b"\n", gap(size), lines[3]],
    ):
        assert [*invariants.output_is_complete(life, b"".join(right))] == []
    for wrong in (
        [lines[0], *lines[2:]],
        [lines[0], gap(size - 1), *lines[2:]],
        [lines[0], gap(size), lines[3]],
        [lines[0], lines[2], gap(size), lines[3]],
        [gap(size), *lines[:2], lines[3]],
        [lines[0], lines[1][:30], b"\n", *lines[2:]],
        [*lines[:2], gap(size)],
        [*lines[:2], gap(2 * size), *lines[1:]],
    ):
        assert len([*invariants.output_is_complete(life, b"".join(wrong))]) == 1


def test_a_gap_in_the_event_log_is_seen() -> None:
    log = [{"position": number, "type": "node.changed"} for number in (1, 2, 3)]
    empty = invariants.history_of([], [], set())
    assert [*invariants.event_log_is_complete(empty, log)] == []
    assert len([*invariants.event_log_is_complete(empty, [log[0], log[2]])]) == 1


def test_a_seed_gives_the_same_faults_and_every_part_its_turn() -> None:
    one, two = schedule(3, (0.5, 4.0)), schedule(3, (0.5, 4.0))
    faults = [one() for _ in range(3 * len(PARTS))]
    assert faults == [two() for _ in faults]
    assert {part for fault in faults for part in fault.parts} == set(PARTS)
