"""What the command line says about failures, retries and restart rules."""

from __future__ import annotations

from typing import Any

import pytest
from shiftwork.cli import explanation, retry_texts, timeline

from libs.contracts.messages import FaultClass
from services.gateway.json_values import enum_name


def test_every_class_has_words() -> None:
    classes = {enum_name(each) for each in FaultClass} - {"unspecified"}
    assert set(retry_texts.CLASSES) == classes
    for ended in ({}, {"fault_class": ""}, {"fault_class": "unspecified"}):
        assert retry_texts.class_of(ended) == ""


NO_LIMITS = dict.fromkeys(("user", "transient", "platform", "unknown"))


@pytest.mark.parametrize(
    ("limits", "counts", "used", "allowed"),
    [
        ({"max_retries": 0, **NO_LIMITS}, {"max_retries": 0}, "", ""),
        ({"max_retries": 3, **NO_LIMITS}, {"max_retries": 1}, "1 of 3", "3"),
        (
            {"max_retries": 3, **NO_LIMITS, "transient": 5, "user": 0},
            {"max_retries": 1, "transient": 2, "user": 0},
            "1 of 3; user 0 of 0; transient 2 of 5",
            "3; user 0; transient 5",
        ),
        # A server that is older than the counters.
        ({"max_retries": 2}, None, "0 of 2", "2"),
        (None, None, "", ""),
    ],
)
def test_retries(limits: Any, counts: Any, used: str, allowed: str) -> None:
    task = {"retry": limits, "retries_used": counts}
    assert retry_texts.used(task) == used
    assert retry_texts.limits(task) == allowed


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (None, ""),
        ({"when": "never", "scope": "gang"}, "worker: never"),
        ({"when": "on_failure", "scope": "gang"}, "worker: on failure"),
        (
            {"when": "exit_code", "exit_codes": ["3", "128-255"], "scope": "gang"},
            "worker: on exit codes 3, 128-255",
        ),
        (
            {"when": "always", "scope": "rank", "max_restarts": 2},
            "worker: always, in place, at most 2 times",
        ),
    ],
)
def test_restart_rules(rule: Any, text: str) -> None:
    assert retry_texts.rules({"roles": [{"name": "worker", "restart": rule}]}) == text


def test_an_event_and_an_explanation_name_the_class() -> None:
    ended = {"kind": "failed", "detail": "rank 0 ended with code 143", "fault_class": "transient"}
    assert timeline._exited({"exit": ended}) == (
        "the program failed (rank 0 ended with code 143); a passing cause (class transient)"
    )
    task = {"id": "t1", "name": "train", "exit": ended, "retry": {"max_retries": 2}}
    facts = dict(explanation.facts(task, {"state": "failed"}))
    assert facts["last failure"] == "a passing cause (class transient)"
    assert facts["retries used"] == "0 of 2"
