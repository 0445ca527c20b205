"""Scenarios: a cluster and a timeline in YAML, the decisions as committed text, one line each.

A change of the policy is reviewed as a diff of these files. Regenerate them on purpose with
``UPDATE_SCENARIOS=1 python -m pytest tests/scenarios``.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from libs.contracts.messages import (
    CheckpointSaved,
    ExitKind,
    Goal,
    GoalChanged,
    PreemptMode,
    Priority,
    PriorityChanged,
    Unit,
)
from libs.contracts.reasons import level_name
from services.scheduler.domain import facts
from services.scheduler.domain.apply import Change, applied
from services.scheduler.domain.check import check
from services.scheduler.domain.decide import decide
from services.scheduler.domain.lifecycle import TERMINAL
from services.scheduler.domain.model import Assign, Decision, Inventory, PolicySettings, Task
from services.scheduler.domain.index import Index
from services.scheduler.domain.snapshot import Snapshot
from tests.builders import (
    START,
    a_checkpoint,
    a_limit,
    a_node,
    a_spec,
    a_task,
    at,
    exited_event,
    started_event,
    submitted_event,
)

HERE = Path(__file__).parent
SCENARIOS = sorted(HERE.glob("*.yaml"))
UPDATE = bool(os.environ.get("UPDATE_SCENARIOS"))
ROUNDS_MAX = 50


def ranges(gpus: tuple[int, ...]) -> str:
    """``0-7`` for eight GPUs in a row, else each."""
    row = tuple(range(gpus[0], gpus[-1] + 1)) if gpus else ()
    return f"{gpus[0]}-{gpus[-1]}" if gpus == row and len(gpus) > 2 else ",".join(map(str, gpus))


class Stage:
    """One scenario being played on the pure domain."""

    def __init__(self, script: dict[str, Any]) -> None:
        self.policy = PolicySettings(**script.get("policy", {}))
        self.index = Index(self.policy)
        self.lines: list[str] = []
        self.seconds = 0.0
        self.due: float | None = None
        self.saved: dict[str, int] = {}
        nodes = [a_node(**each) for each in script["nodes"]]
        self.index.apply(put=[*nodes, Inventory("process", (), START)])
        self.index.apply(put=[self.limit(each) for each in script.get("limits", [])])

    @staticmethod
    def limit(values: dict[str, Any]) -> Any:
        told = dict(values)
        if "priority" in told:
            told["priority"] = Priority[told["priority"].upper()]
        return a_limit(unit=Unit[told.pop("unit", "gpus").upper()], **told)

    def play(self, script: dict[str, Any]) -> list[str]:
        for entry in script["timeline"]:
            moment = float(entry["at"])
            self.until(moment)
            self.seconds = moment
            for verb, value in entry.items():
                if verb != "at":
                    for each in value if isinstance(value, list) else [value]:
                        getattr(self, verb)(each)
            self.rounds()
        return self.lines

    def until(self, moment: float) -> None:
        """Let time pass: deadlines on the way are met when they come."""
        while self.due is not None and self.due < moment:
            self.seconds = self.due
            self.rounds()

    def rounds(self) -> None:
        for _ in range(ROUNDS_MAX):
            snapshot = Snapshot.view(self.index)
            plan = decide(snapshot, at(self.seconds))
            assert check(snapshot, plan, deep=True) == []
            self.index.settle(plan)
            self.index.apply(put=plan.books)
            self.due = None if plan.due_at is None else (plan.due_at - START).total_seconds()
            if not plan.decisions:
                return
            for decision in plan.decisions:
                before = self.index.tasks[decision.task_id]
                after = applied(before, decision, at(self.seconds)).task
                self.tell(self.line(decision))
                self.index.apply(put=[after])
        raise AssertionError("the scheduler does not come to rest")

    def line(self, decision: Decision) -> str:
        code = decision.reason.code.value.removeprefix("REASON_CODE_").lower()
        attempt = getattr(decision, "attempt", None)
        run = decision.task_id + (f".{attempt}" if attempt is not None else "")
        if isinstance(decision, Assign):
            where = " ".join(f"{p.node_id}[{ranges(p.gpus)}]" for p in decision.placements)
            resumed = f" from checkpoint {decision.resume_from.no}" if decision.resume_from else ""
            return f"{decision.kind} {run} {level_name(decision.level)} {where}{resumed}"
        beneficiary = getattr(decision, "beneficiary", "")
        return f"{decision.kind} {run} {code}" + (f" for {beneficiary}" if beneficiary else "")

    def tell(self, text: str) -> None:
        self.lines.append(f"{self.seconds:8.1f}  {text}")

    def fact(self, task: Task, outcome: facts.Outcome) -> None:
        if not isinstance(outcome, Change):
            self.tell(f"({task.id}: dropped, {outcome.value})")
            return
        after = outcome.task
        if after.state is not task.state:
            code = after.reason.code.value.removeprefix("REASON_CODE_").lower()
            self.tell(f"({task.id} {after.state.value[len('TASK_STATE_') :].lower()}: {code})")
        if after.state in TERMINAL:
            self.index.apply(deleted=[(Task, (task.id,))])
        else:
            self.index.apply(put=[after])

    # The verbs of a timeline.

    def submit(self, values: dict[str, Any]) -> None:
        told = dict(values)
        who = {key: told.pop(key) for key in ("owner", "team") if key in told}
        task_id = told.pop("id")
        if "priority" in told:
            told["priority"] = Priority[told["priority"].upper()]
        if "mode" in told:
            told["mode"] = PreemptMode[told["mode"].upper()]
        task = a_task(task_id, spec=a_spec(**told), submitted=self.seconds, **who)
        change = facts.on_submitted(submitted_event(task), None, at(self.seconds))
        self.index.apply(put=[change.task])

    def started(self, task_id: str) -> None:
        task = self.index.tasks[task_id]
        event = started_event(task, now=self.seconds)
        self.fact(task, facts.on_run_started(task, event, at(self.seconds)))

    def saved_checkpoint(self, task_id: str) -> None:
        task = self.index.tasks[task_id]
        self.saved[task_id] = self.saved.get(task_id, 0) + 1
        checkpoint = a_checkpoint(self.saved[task_id], attempt=task.attempt, saved=self.seconds)
        event = CheckpointSaved(task_id=task_id, attempt=task.attempt, checkpoint=checkpoint)
        self.fact(task, facts.on_checkpoint_saved(task, event))

    def exited(self, values: dict[str, str] | str) -> None:
        told = {"task": values} if isinstance(values, str) else values
        task = self.index.tasks[told["task"]]
        kind = ExitKind[told.get("kind", "ok").upper()]
        event = exited_event(task, kind, now=self.seconds)
        self.fact(task, facts.on_run_exited(task, event, at(self.seconds), self.policy))

    def goal(self, values: dict[str, str]) -> None:
        task = self.index.tasks[values["task"]]
        event = GoalChanged(
            task_id=task.id,
            goal=Goal[values["goal"].upper()],
            revision=task.revision + 1,
            changed_at=at(self.seconds),
        )
        self.fact(task, facts.on_goal_changed(task, event, at(self.seconds)))

    def priority(self, values: dict[str, str]) -> None:
        task = self.index.tasks[values["task"]]
        event = PriorityChanged(
            task_id=task.id,
            priority=Priority[values["priority"].upper()],
            revision=task.revision + 1,
            changed_at=at(self.seconds),
        )
        self.fact(task, facts.on_priority_changed(task, event, at(self.seconds)))

    def node(self, values: dict[str, Any]) -> None:
        known = self.index.nodes.get(values["id"])
        told = {key: value for key, value in values.items() if key != "id"}
        new = replace(known, **told) if known else a_node(values["id"], **told)
        self.index.apply(put=[new])

    def quota(self, values: dict[str, Any]) -> None:
        self.index.apply(put=[self.limit(values)])


def about(script: dict[str, Any]) -> Iterator[str]:
    for text in script["about"].strip().splitlines():
        yield f"# {text}"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    script = yaml.safe_load(path.read_text())
    found = "\n".join([*about(script), *Stage(script).play(script)]) + "\n"
    golden = path.with_suffix(".expected.txt")
    if UPDATE:
        golden.write_text(found)
    expected = golden.read_text()
    diff = "\n".join(difflib.unified_diff(expected.splitlines(), found.splitlines(), lineterm=""))
    assert found == expected, f"the timeline of {path.name} changed:\n{diff}"


def test_every_timeline_has_its_scenario() -> None:
    golden = {path.name.removesuffix(".expected.txt") for path in HERE.glob("*.expected.txt")}
    assert golden == {path.stem for path in SCENARIOS}
