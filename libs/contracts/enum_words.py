"""What people write for the members of enums. GENERATED from proto/ by `make gen`."""

from __future__ import annotations

from typing import Literal

PriorityWord = Literal[
    "auto",
    "idle",
    "low",
    "below_normal",
    "normal",
    "above_normal",
    "high",
    "very_high",
    "extreme_high",
]
PreemptModeWord = Literal["sdk", "signal", "kill"]
GoalWord = Literal["run", "pause", "stop"]
UnitWord = Literal["gpus", "nodes", "gpus_or_nodes"]
ContractWord = Literal["torch", "tf_config", "rank", "coordinator", "mpi", "none"]
RestartWhenWord = Literal["never", "on_failure", "always", "exit_code"]
RestartScopeWord = Literal["gang", "rank"]
StartConditionWord = Literal["running", "ready"]
RunModeWord = Literal["normal", "debug", "pause"]
OccasionWord = Literal[
    "started", "preempted", "failed", "finished", "waiting", "quota_reached", "abnormal"
]
NotifiedTasksWord = Literal["own", "team", "all"]
