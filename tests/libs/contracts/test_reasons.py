from __future__ import annotations

import pytest

from libs.contracts.messages import Priority, Reason, ReasonCode
from libs.contracts.reasons import SENTENCES, level_name, render

NUMBERS = {
    "nodes": 2,
    "gpus": 4,
    "limit": 8,
    "need": 4,
    "retry": 1,
    "retries": 3,
    "retries_max": 3,
    "attempt": 2,
    "attempts": 5,
    "seconds": 300,
}
NAMES = {
    "group": "train",
    "user": "ann",
    "team": "vision",
    "priority": "PRIORITY_VERY_HIGH",
    "unit": "UNIT_GPUS",
    "task": "t1",
    "node": "n0",
    "at": "2026-01-01T00:00:00+00:00",
    "detail": "rank 0 exited with 1",
}


def rendered(code: ReasonCode, numbers: dict[str, float] | None = None, **names: str) -> str:
    return render(Reason(code=code, numbers=numbers or {}, names=names))


@pytest.mark.parametrize("code", list(ReasonCode))
def test_every_reason_has_a_sentence_with_and_without_its_numbers(code: ReasonCode) -> None:
    full = render(Reason(code=code, numbers=NUMBERS, names=NAMES))
    short = render(Reason(code=code))
    for text in (full, short):
        assert text
        assert "_" not in text.replace(NAMES["priority"], "").replace("very_high", "")
        assert not text.endswith(".")
    assert short == SENTENCES[code][1]


def test_sentences_count_in_words() -> None:
    one, two = {"nodes": 1.0}, {"nodes": 2.0}
    waits = ReasonCode.WAITS_FOR_CAPACITY
    assert rendered(waits, one, group="g") == "waits for 1 whole node to come free in group g"
    assert rendered(waits, two, group="g") == "waits for 2 whole nodes to come free in group g"
    assert "2 nodes with 1 GPU each" in rendered(waits, {"nodes": 2, "gpus": 1}, group="g")
    assert "1 node with 3 GPUs to" in rendered(waits, {"nodes": 1, "gpus": 3}, group="g")
    assert "1 node (CPU only)" in rendered(waits, {"nodes": 1, "gpus": 0}, group="g")


def test_the_quotas_sentence_names_its_owner_and_whether_waiting_helps() -> None:
    code = ReasonCode.WAITS_FOR_QUOTA
    numbers = {"limit": 8.0, "need": 4.0}
    text = rendered(code, numbers, user="ann", group="train", unit="UNIT_GPUS")
    assert text == "waits for the quota of user ann in group train: 8 GPUs at once, it needs 4 GPUs"
    text = rendered(code, {"limit": 1, "need": 2}, unit="UNIT_NODES", priority="PRIORITY_HIGH")
    assert text == (
        "needs 2 nodes, more than the quota of each user at level high ever allows (1 node)"
    )


def test_levels_are_written_as_people_write_them() -> None:
    assert level_name(Priority.VERY_HIGH) == "very_high"


def test_the_reason_of_a_yield_has_the_programs_words_and_the_time() -> None:
    at = "2026-01-02T03:04:05+00:00"
    text = rendered(ReasonCode.YIELDED, {"attempt": 2, "step": 7}, detail="left: no data", at=at)
    assert text == (
        "attempt 2 left: no data; it goes on from step 7;"
        " it may start again from 2026-01-02 03:04:05Z"
    )


def test_no_checkpoint_is_claimed_of_a_run_that_left() -> None:
    assert rendered(ReasonCode.RUN_PREEMPTED, {"attempt": 1}) == (
        "attempt 1 left when it was asked to"
    )
    for text in SENTENCES[ReasonCode.RUN_PREEMPTED][1], SENTENCES[ReasonCode.WAITS_FOR_VICTIMS][1]:
        assert "save" not in text
