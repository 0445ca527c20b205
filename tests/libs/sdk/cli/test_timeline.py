"""Events as sentences."""

from __future__ import annotations

from typing import Any

import pytest
from shiftwork.cli.timeline import sentence

QUOTA: dict[str, Any] = {"unit": "gpus", "limit": 2, "group": "", "priority": "unspecified"}
NODE = {"ready": True, "schedulable": True, "draining": False}


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        (
            "quota.usage",
            {"owner": "ann", "gpu_seconds": 7.4, "node_seconds": 3.6},
            "used 7 GPU-seconds, 4 node-seconds, for ann",
        ),
        ("run.delayed", {"ranks": 1, "detail": "n1 is full"}, "not started yet: n1 is full"),
        ("run.delayed", {"ranks": 0, "detail": ""}, "nothing delays the start"),
        (
            "policy.changed",
            {
                "group": "training",
                "version": 3,
                "policy": {"policy": "fifo", "source": "command", "changed_by": "ada"},
            },
            "policy of group training: fifo (version 3, command), by ada",
        ),
        (
            "quota.changed",
            {"quota": {**QUOTA, "user": "ann"}, "changed_by": "admin"},
            "quota of ann in every group: at most 2 GPUs, by admin",
        ),
        (
            "quota.changed",
            {
                "quota": {**QUOTA, "team": "lab", "group": "g", "priority": "high", "limit": 1},
                "changed_by": "admin",
            },
            "quota of team lab in group g at priority high: at most 1 GPU, by admin",
        ),
        (
            "quota.changed",
            {"quota": {**QUOTA, "unit": "nodes"}, "removed": True, "changed_by": "admin"},
            "quota of every user in every group: no limit, by admin",
        ),
        ("node.changed", {"node_id": "n0", "node": NODE}, "node n0 ready"),
        ("node.changed", {"node_id": "n0", "node": {**NODE, "ready": False}}, "node n0 lost"),
        (
            "node.changed",
            {"node_id": "n0", "node": {**NODE, "schedulable": False}},
            "node n0 cordoned",
        ),
        (
            "node.changed",
            {"node_id": "n0", "node": {**NODE, "schedulable": False, "draining": True}},
            "node n0 draining",
        ),
        ("node.changed", {"node_id": "n0", "removed": True}, "node n0 removed"),
        ("run.listened", {}, "asks from now on whether to leave"),
        (
            "run.resumed",
            {"placements": [{"node_id": "n1"}], "resume_from": {"step": 7}},
            "resumed on n1 from step 7",
        ),
        (
            "run.resumed",
            {"placements": [{"node_id": "n1"}], "spec": {"preemption": {"mode": "sdk"}}},
            "restarted on n1 from the beginning (no checkpoint)",
        ),
        (
            "run.resumed",
            {"placements": [{"node_id": "n1"}], "spec": {"preemption": {"mode": "signal"}}},
            "resumed on n1",
        ),
        (
            "task.goal_changed",
            {"goal": "stop", "now": True, "changed_by": "ann"},
            "goal stop now, by ann",
        ),
        ("something.new", {}, "something new"),
    ],
)
def test_sentences(kind: str, data: dict[str, Any], expected: str) -> None:
    assert sentence(kind, data) == expected
