"""Histories in which the core once decided wrongly, each cut down to what it takes.

They are replayed by the machine of ``test_index_machine.py``: every plan is checked in depth and
compared with the plan of an index that is rebuilt from the rows, until nothing more is decided.
"""

from __future__ import annotations

from typing import Any

import pytest

from libs.contracts.messages import ExitKind, Goal, Priority
from tests.kit.builders import a_limit
from tests.services.scheduler.domain.test_index_machine import TREES, Histories

# The default values of a submission.
SUBMITTED: dict[str, Any] = {
    "nodes": 1,
    "gpus": None,
    "priority": Priority.NORMAL,
    "owner": "ann",
    "team": "text",
    "limit": None,
    "kill": False,
    "group": "default",
}

RECORDED: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "one grant in each slice round for all tasks that wait for long": (
        ("begin", {"name": "fifo", "tree": TREES[0], "sizes": [4], "protected": 0.0}),
        ("change_node", {"pick": 20, "what": "draining"}),
        ("submit", {"group": "dev"}),
        ("submit", {"group": "dev"}),
        ("wait", {"seconds": 90000.0, "going": False}),
        ("submit", {}),
        ("change_node", {"pick": 34, "what": "draining"}),
        ("wait", {"seconds": 61.0, "going": False}),
    ),
    "whole nodes may be small ones": (
        (
            "begin",
            {"name": "rotation", "tree": TREES[0], "sizes": [4, 2, 2, 4, 0], "protected": 0.0},
        ),
        ("submit", {}),
        ("submit", {}),
        ("round", {}),
        ("exit", {"pick": 28, "kind": ExitKind.OK}),
        ("submit", {}),
        ("submit", {"gpus": 4}),
        ("submit", {"gpus": 0}),
        ("change_goal", {"pick": 40, "goal": Goal.PAUSE}),
        ("submit", {"gpus": 4, "priority": Priority.LOW}),
        ("wait", {"seconds": 3700.0, "going": False}),
        ("wait", {"seconds": 90000.0, "going": True}),
        ("submit", {"gpus": 0}),
        ("submit", {"gpus": 0}),
        ("round", {}),
        ("submit", {"gpus": 0}),
        ("change_goal", {"pick": 97, "goal": Goal.STOP}),
        ("submit", {"nodes": 2}),
        ("submit", {"gpus": 2, "owner": "cat"}),
        ("wait", {"seconds": 300.0, "going": False}),
        ("leave_all", {}),
        ("submit", {"gpus": 4, "priority": Priority.ABOVE_NORMAL}),
        ("wait", {"seconds": 900.0, "going": False}),
        ("submit", {"gpus": 0}),
        ("change_node", {"pick": 25, "what": "gpus"}),
        ("submit", {"gpus": 2, "limit": 700.0}),
        ("wait", {"seconds": 61.0, "going": True}),
        ("wait", {"seconds": 3700.0, "going": True}),
    ),
    "fifo holds nodes back from promises too": (
        ("begin", {"name": "timeshare", "tree": TREES[0], "sizes": [2, 4, 4, 4], "protected": 0.0}),
        ("submit", {"priority": Priority.LOW}),
        ("submit", {"nodes": 3, "gpus": 4}),
        ("submit", {"priority": Priority.ABOVE_NORMAL}),
        ("change_policy", {"name": "fifo", "tree": TREES[0]}),
        ("submit", {"nodes": 2, "gpus": 2}),
        ("wait", {"seconds": 1.0, "going": False}),
    ),
    "a CPU-only rank keeps a whole node": (
        ("begin", {"name": "easy", "tree": TREES[0], "sizes": [0, 0], "protected": 0.0}),
        ("submit", {"gpus": 0}),
        ("change_policy", {"name": "rotation", "tree": TREES[0]}),
        ("submit", {"gpus": 0, "priority": Priority.LOW, "kill": True}),
        ("submit", {"gpus": 0, "owner": "cat"}),
        ("submit", {"gpus": 0}),
        ("submit", {}),
        ("wait", {"seconds": 61.0, "going": False}),
        ("exit", {"pick": 75, "kind": ExitKind.OK}),
        ("wait", {"seconds": 61.0, "going": False}),
    ),
    "a limit of all groups together is given back in another": (
        ("begin", {"name": "backfill", "tree": TREES[0], "sizes": [4], "protected": 0.0}),
        ("submit", {"owner": "bob"}),
        (
            "change_limit",
            {"row": a_limit(6)},
        ),
        ("submit", {"owner": "bob", "group": "dev"}),
        ("round", {}),
        ("exit", {"pick": 82, "kind": ExitKind.OK}),
        ("round", {}),
    ),
    "borrowing, guarantee and level take no turns for ever": (
        ("begin", {"name": "roundrobin", "tree": TREES[3], "sizes": [0, 4, 2], "protected": 0.0}),
        ("submit", {}),
        ("submit", {}),
        ("submit", {"gpus": 1}),
        ("submit", {}),
        ("submit", {}),
        ("submit", {"priority": Priority.HIGH}),
        ("submit", {"team": "vision"}),
        ("submit", {"priority": Priority.HIGH, "team": "speech"}),
        ("submit", {}),
        ("wait", {"seconds": 900.0, "going": True}),
        ("submit", {}),
        ("submit", {"owner": "bob"}),
        ("submit", {}),
        ("submit", {"group": "dev"}),
        ("wait", {"seconds": 1.0, "going": False}),
        ("change_priority", {"pick": 92, "priority": Priority.ABOVE_NORMAL}),
        ("submit", {"gpus": 2, "priority": Priority.LOW, "owner": "bob"}),
        ("exit", {"pick": 57, "kind": ExitKind.OK}),
        ("wait", {"seconds": 90000.0, "going": True}),
    ),
    "a retry that is due waits behind others": (
        ("begin", {"name": "timeshare", "tree": TREES[0], "sizes": [2, 2], "protected": 0.0}),
        ("change_policy", {"name": "easy", "tree": TREES[3]}),
        ("submit", {"team": "vision"}),
        ("submit", {"team": "vision"}),
        ("submit", {}),
        ("submit", {"team": "speech"}),
        ("round", {}),
        ("exit", {"pick": 23, "kind": ExitKind.FAILED}),
        ("wait", {"seconds": 900.0, "going": False}),
    ),
    "two promises of one CPU place": (
        ("begin", {"name": "backfill", "tree": TREES[3], "sizes": [4, 4], "protected": 0.0}),
        ("submit", {"priority": Priority.LOW}),
        ("submit", {"team": "vision"}),
        ("submit", {}),
        ("submit", {}),
        ("submit", {}),
        ("submit", {}),
        ("submit", {}),
        ("submit", {"gpus": 0}),
        ("submit", {"team": "speech"}),
        ("submit", {}),
        ("wait", {"seconds": 3700.0, "going": False}),
        ("submit", {}),
        ("change_node", {"pick": 29, "what": "schedulable"}),
        ("submit", {}),
        ("exit", {"pick": 71, "kind": ExitKind.OK}),
        ("submit", {"gpus": 0}),
        ("submit", {"gpus": 0}),
        ("submit", {}),
        ("submit", {}),
        ("leave_all", {}),
        ("round", {}),
        ("submit", {}),
        ("exit", {"pick": 81, "kind": ExitKind.FAILED}),
        ("submit", {}),
        ("submit", {}),
        ("submit", {"gpus": 0}),
        ("wait", {"seconds": 3700.0, "going": False}),
        ("exit", {"pick": 94, "kind": ExitKind.LOST}),
        ("wait", {"seconds": 3700.0, "going": False}),
    ),
    "a whole node without GPUs is not free with a rank on it": (
        ("begin", {"name": "fifo", "tree": TREES[0], "sizes": [0, 4], "protected": 0.0}),
        ("change_node", {"pick": 77, "what": "schedulable"}),
        ("submit", {}),
        ("submit", {"gpus": 0, "owner": "cat"}),
        ("change_policy", {"name": "timeshare", "tree": TREES[0]}),
        ("submit", {}),
        ("wait", {"seconds": 90000.0, "going": False}),
    ),
}


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_snapshots_that_were_once_decided_wrongly_are_decided_correctly(name: str) -> None:
    histories = Histories()
    for rule, values in RECORDED[name]:
        usual = SUBMITTED if rule == "submit" else {}
        getattr(histories, rule)(**usual | values)
        histories.both_keep_the_same()
        histories.no_gpu_has_two_owners()
