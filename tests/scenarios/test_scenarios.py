"""Scenarios: a cluster and a timeline in YAML, the decisions as committed text, one line each.

A change of the policy is reviewed as a diff of these files. Regenerate them on purpose with
``UPDATE_SCENARIOS=1 python -m pytest tests/scenarios``.
"""

from __future__ import annotations

import difflib
import heapq
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import yaml

from libs.contracts.messages import (
    CheckpointSaved,
    ExitKind,
    Goal,
    GoalChanged,
    Placement,
    PreemptMode,
    Priority,
    PriorityChanged,
    Reason,
    ReasonCode,
    TaskState,
    TaskStateChanged,
    Unit,
    Verdict,
)
from libs.contracts.reasons import level_name
from services.scheduler.domain.check.plan import check
from services.scheduler.domain.decide import decide
from services.scheduler.domain.explain.explanation import explain
from services.scheduler.domain.facts.index import Index
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model import observations
from services.scheduler.domain.model.changes import Change, applied
from services.scheduler.domain.model.decisions import Assign, Decision, Hold, Plan, Preempt, Reorder
from services.scheduler.domain.model.group_policy import GroupPolicy, PolicySettings
from services.scheduler.domain.model.lifecycle import LEAVING, TERMINAL
from services.scheduler.domain.model.rows import EndedTask, Inventory, Node, Task
from services.scheduler.domain.model.values import reason
from services.scheduler.domain.placement.slots import Slot, placements_of
from services.scheduler.dry_run import diff
from services.scheduler.policy_documents import validate
from tests.kit.builders import (
    a_checkpoint,
    a_limit,
    a_node,
    a_spec,
    a_task,
    exited_event,
    listened_event,
    started_event,
    submitted_event,
)
from tests.kit.clock import START, at
from tests.services.scheduler.domain.explain.copies import Copies, copy_of

HERE = Path(__file__).parent
SCENARIOS = sorted(HERE.glob("*.yaml"))
UPDATE = bool(os.environ.get("UPDATE_SCENARIOS"))
ROUNDS_MAX = 50
# Verbs that only read; they run after the rounds of their entry.
READING = frozenset({"explain", "forge", "dry_run"})
EFFECTS_MAX = 20
SAME = re.compile(r"( *[0-9.]+  hold ([a-z]+))[0-9]+ (.*)")
STAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8}Z")


def ranges(gpus: tuple[int, ...]) -> str:
    """``0-7`` for eight GPUs in a row, else each."""
    row = tuple(range(gpus[0], gpus[-1] + 1)) if gpus else ()
    return f"{gpus[0]}-{gpus[-1]}" if gpus == row and len(gpus) > 2 else ",".join(map(str, gpus))


def places(placements: tuple[Placement, ...]) -> str:
    return " ".join(f"{each.node_id}[{ranges(each.gpus)}]" for each in placements)


def seconds_of(seconds: float | str) -> float:
    """Seconds, or a duration such as ``1h30m``."""
    if isinstance(seconds, str):
        units = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
        return sum(float(n) * units[unit] for n, unit in re.findall(r"([0-9.]+)([smhd])", seconds))
    return float(seconds)


class ScenarioPlayer:
    """One scenario being played on the pure domain."""

    def __init__(self, script: dict[str, Any]) -> None:
        self.policy = PolicySettings(**script.get("policy", {}))
        self.index = Index(self.policy)
        self.lines: list[str] = []
        self.seconds = 0.0
        self.due: float | None = None
        self.saved: dict[str, int] = {}
        self.counted: set[str] = set()
        # Tasks whose programs never call ``should_preempt``.
        self.silent: list[str] = script.get("silent", [])
        # Reasons whose decisions are left out.
        self.quiet: list[str] = script.get("quiet", [])
        # Seconds from an assignment to the start, and from a request to leave to the exit after a
        # last checkpoint.
        self.delays: dict[str, float] = script.get("delays", {})
        # How long each task runs in all.
        self.runs: dict[str, float] = {}
        self.happenings: list[tuple[float, int, str, str, int]] = []
        nodes = [node for each in script["nodes"] for node in self.nodes(each)]
        self.index.apply(put=[*nodes, Inventory("process", (), START)])
        self.index.apply(put=[self.limit(each) for each in script.get("limits", [])])
        self.groups(script.get("groups", {}))

    @staticmethod
    def nodes(values: dict[str, Any]) -> list[Node]:
        """One node, or ``count`` of them that differ in the number at the end of their ids."""
        fields = dict(values)
        count = fields.pop("count", None)
        if count is None:
            return [a_node(**fields)]
        node_id, first = fields.pop("node_id"), fields.pop("first", 0)
        return [a_node(f"{node_id}{first + number}", **fields) for number in range(count)]

    @staticmethod
    def limit(values: dict[str, Any]) -> Any:
        fields = dict(values)
        if "priority" in fields:
            fields["priority"] = Priority[fields["priority"].upper()]
        return a_limit(unit=Unit[fields.pop("unit", "gpus").upper()], **fields)

    def play(self, script: dict[str, Any]) -> list[str]:
        for entry in script["timeline"]:
            seconds = seconds_of(entry["at"])
            self.until(seconds)
            self.seconds = seconds
            self.do({verb: value for verb, value in entry.items() if verb not in READING})
            self.rounds()
            self.do({verb: value for verb, value in entry.items() if verb in READING})
        return [text for group in self.grouped() for text in group]

    def grouped(self) -> Iterator[list[str]]:
        """Equal lines of several tasks of one ``count`` become one line."""
        for key, lines in groupby(self.lines, self.kind):
            found = list(lines)
            yield found if len(found) == 1 or not key[0] else [f"{key[0]} x{len(found)} {key[1]}"]

    def kind(self, line: str) -> tuple[str, str]:
        found = SAME.fullmatch(line)
        return (found[1], found[3]) if found and found[2] in self.counted else ("", line)

    def do(self, entry: dict[str, Any]) -> None:
        for verb, value in entry.items():
            if verb != "at":
                for each in value if isinstance(value, list) else [value]:
                    getattr(self, verb)(each)

    def until(self, seconds: float) -> None:
        """Move the clock forward; deadlines and delayed events on the way occur at their times."""
        while True:
            times = [] if self.due is None else [self.due]
            times += [self.happenings[0][0]] if self.happenings else []
            if not times or min(times) >= seconds:
                return
            self.seconds = max(self.seconds, min(times))
            while self.happenings and self.happenings[0][0] <= self.seconds:
                self.happen(*heapq.heappop(self.happenings)[2:])
            self.rounds()

    def happens(self, after: float, what: str, task: Task) -> None:
        seconds = self.seconds + after
        entry = (seconds, len(self.happenings), what, task.id, task.attempt)
        heapq.heappush(self.happenings, entry)

    def happen(self, what: str, task_id: str, attempt: int) -> None:
        task = self.index.tasks.get(task_id)
        if task is None or task.live_attempt != attempt:
            return
        if what == "started":
            self.started(task_id)
        elif what == "leaves" and task.state is not TaskState.KILLING:
            self.saved_checkpoint(task_id)
            self.exited({"task": task_id, "kind": "preempted"})
        else:
            self.exited({"task": task_id, "kind": "killed" if what == "leaves" else "ok"})

    def rounds(self) -> None:
        for _ in range(ROUNDS_MAX):
            snapshot = Snapshot.view(self.index)
            plan = decide(snapshot, at(self.seconds))
            assert check(snapshot, plan, deep=True) == []
            self.index.settle(plan)
            self.due = None if plan.due_at is None else (plan.due_at - START).total_seconds()
            if plan.decisions or plan.ledgers:
                self.commit(plan)
            if not plan.decisions:
                return
        raise AssertionError("the scheduler does not come to rest")

    def commit(self, plan: Plan) -> None:
        """All at once, as the loop does it."""
        rows: dict[str, Task] = {}
        ended: dict[str, Change] = {}
        for decision in plan.decisions:
            before = rows.get(decision.task_id) or self.index.tasks[decision.task_id]
            change = applied(before, decision, at(self.seconds))
            rows[decision.task_id] = change.task
            if change.task.state in TERMINAL:
                ended[decision.task_id] = change
            if code_of(decision.reason) not in self.quiet:
                self.write(self.line(decision))
        for row in rows.values() if self.delays else ():
            if row.state is TaskState.STARTING:
                self.happens(self.delays["start"], "started", row)
            elif row.state in LEAVING:
                self.happens(self.delays["leave"], "leaves", row)
        put = [row for row in rows.values() if row.id not in ended]
        self.index.apply(
            put=[*plan.ledgers, *put, *map(self.over, ended.values())],
            deleted=[(Task, (task_id,)) for task_id in ended],
        )

    def over(self, change: Change) -> EndedTask:
        last = [each for each in change.messages if isinstance(each, TaskStateChanged)][-1]
        return EndedTask(change.task.id, at(self.seconds), last, change.task.run_seconds)

    def line(self, decision: Decision) -> str:
        code = decision.reason.code.value.removeprefix("REASON_CODE_").lower()
        attempt = getattr(decision, "attempt", None)
        run = decision.task_id + (f".{attempt}" if attempt is not None else "")
        if isinstance(decision, Assign):
            where = places(decision.placements)
            resumed = f" from checkpoint {decision.resume_from.no}" if decision.resume_from else ""
            return f"{decision.kind} {run} {level_name(decision.level)} {where}{resumed}"
        text = f"{decision.kind} {run} {code}"
        beneficiary = getattr(decision, "beneficiary", "")
        if beneficiary:
            text += f" for {beneficiary}"
        if isinstance(decision, Hold) and decision.reserved is not None:
            text += (
                f", promised {places(decision.reserved)}" if decision.reserved else ", unpromised"
            )
        if isinstance(decision, Reorder) and decision.level is not Priority.UNSPECIFIED:
            text += f" to {level_name(decision.level)}"
        return text

    def write(self, text: str) -> None:
        self.lines.append(f"{self.seconds:8.1f}  {text}")

    def fact(self, task: Task, outcome: observations.ChangeOrDrop) -> None:
        if not isinstance(outcome, Change):
            self.write(f"({task.id}: dropped, {outcome.value})")
            return
        after = outcome.task
        if after.state is not task.state:
            code = after.reason.code.value.removeprefix("REASON_CODE_").lower()
            self.write(f"({task.id} {after.state.value[len('TASK_STATE_') :].lower()}: {code})")
        if after.state in TERMINAL:
            self.index.apply(put=[self.over(outcome)], deleted=[(Task, (task.id,))])
        else:
            self.index.apply(put=[after])

    # The verbs of a timeline.

    def submit(self, values: dict[str, Any]) -> None:
        fields = dict(values)
        owner_fields = {key: fields.pop(key) for key in ("owner", "team") if key in fields}
        task_id = fields.pop("id")
        count = fields.pop("count", None)
        if count is not None:
            self.counted.add(task_id)
            for number in range(count):
                self.submit({**values, "id": f"{task_id}{number}", "count": None})
            return
        if "runs" in fields:
            self.runs[task_id] = seconds_of(fields.pop("runs"))
        if "priority" in fields:
            fields["priority"] = Priority[fields["priority"].upper()]
        if "mode" in fields:
            fields["mode"] = PreemptMode[fields["mode"].upper()]
        task = a_task(task_id, spec=a_spec(**fields), submitted=self.seconds, **owner_fields)
        change = observations.on_submitted(submitted_event(task), None, at(self.seconds))
        self.index.apply(put=[change.task])

    def started(self, task_id: str) -> None:
        task = self.index.tasks[task_id]
        event = started_event(task, now=self.seconds)
        self.fact(task, observations.on_run_started(task, event, at(self.seconds)))
        if task_id not in self.silent:
            self.listened(task_id)
        after = self.index.tasks[task_id]
        if task_id in self.runs and after.state is TaskState.RUNNING:
            self.happens(max(0.0, self.runs[task_id] - after.run_seconds), "ends", after)

    def listened(self, task_id: str) -> None:
        """The program calls ``should_preempt`` for the first time."""
        task = self.index.tasks[task_id]
        event = listened_event(task, now=self.seconds)
        self.fact(task, observations.on_run_listened(task, event))

    def saved_checkpoint(self, task_id: str) -> None:
        task = self.index.tasks[task_id]
        self.saved[task_id] = self.saved.get(task_id, 0) + 1
        checkpoint = a_checkpoint(self.saved[task_id], attempt=task.attempt, saved=self.seconds)
        event = CheckpointSaved(task_id=task_id, attempt=task.attempt, checkpoint=checkpoint)
        self.fact(task, observations.on_checkpoint_saved(task, event))

    def exited(self, values: dict[str, str] | str) -> None:
        fields = {"task": values} if isinstance(values, str) else values
        task = self.index.tasks[fields["task"]]
        kind = ExitKind[fields.get("kind", "ok").upper()]
        event = exited_event(task, kind, now=self.seconds)
        self.fact(task, observations.on_run_exited(task, event, at(self.seconds), self.policy))

    def goal(self, values: dict[str, Any]) -> None:
        task = self.index.tasks[values["task"]]
        event = GoalChanged(
            task_id=task.id,
            goal=Goal[values["goal"].upper()],
            revision=task.revision + 1,
            changed_at=at(self.seconds),
            now=values.get("now", False),
        )
        self.fact(task, observations.on_goal_changed(task, event, at(self.seconds), self.policy))

    def priority(self, values: dict[str, str]) -> None:
        task = self.index.tasks[values["task"]]
        event = PriorityChanged(
            task_id=task.id,
            priority=Priority[values["priority"].upper()],
            revision=task.revision + 1,
            changed_at=at(self.seconds),
        )
        self.fact(task, observations.on_priority_changed(task, event, at(self.seconds)))

    def node(self, values: dict[str, Any]) -> None:
        known = self.index.nodes.get(values["id"])
        fields = {key: value for key, value in values.items() if key != "id"}
        new = replace(known, **fields) if known else a_node(values["id"], **fields)
        self.index.apply(put=[new])

    def groups(self, values: dict[str, Any]) -> None:
        """Policies of node groups, as a policy file writes them."""
        parsed = validate({"groups": values}, capacity=self.capacity())
        assert parsed.errors == (), parsed.errors
        self.index.apply(put=parsed.policies)

    def capacity(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for node in self.index.nodes.values():
            found[node.group] = found.get(node.group, 0.0) + 1.0
        return found

    def quota(self, values: dict[str, Any]) -> None:
        self.index.apply(put=[self.limit(values)])

    # The verbs that only read.

    def explain(self, task_id: str) -> None:
        """The place of a task and its reason, as ``shiftwork explain`` shows them."""
        task = self.index.tasks[task_id]
        reply = explain(copy_of(self.index), task, at(self.seconds), Copies()).reply
        place = f", {reply.position} of {reply.queue_length}" if reply.position else ""
        whose = f" for {reply.beneficiary}" if reply.beneficiary else ""
        self.write(f"? {task_id}{place}: {code_of(reply.reason)}{whose}")
        for node in reply.promised:
            held = f" held by {', '.join(node.held_by)}" if node.held_by else " free"
            self.write(f"?   kept: {node.node_id}{held}")
        for each in reply.chosen:
            cost = f"{each.cost_node_seconds:g} node-seconds"
            self.write(f"?   asked to go: {each.task_id}, {cost}: {each.why}")
        for text in reply.remedies:
            self.write(f"?   to start: {STAMP.sub(self.since_start, text)}")
        if reply.forecast is not None:
            starts_at = reply.forecast.starts_at
            found = reply.forecast.unknown
            if starts_at is not None:
                found = f"starts at {(starts_at - START).total_seconds():.1f}"
            between = (reply.forecast.earliest_at, reply.forecast.latest_at)
            if starts_at is not None and all(between):
                first, last = ((each - START).total_seconds() for each in between if each)
                found += f", between {first:.1f} and {last:.1f}"
            self.write(f"?   forecast: {found}")
            for text in reply.forecast.assumptions:
                self.write(f"?     if {text}")

    @staticmethod
    def since_start(found: re.Match[str]) -> str:
        return f"{(datetime.fromisoformat(found[0]) - START).total_seconds():.1f}"

    def forge(self, values: dict[str, Any]) -> None:
        """Check a plan that the scheduler would not make; every reason why it is refused."""
        task = self.index.tasks[values["task"]]
        decisions: list[Decision]
        if "where" in values:
            nodes = [self.index.nodes[node_id] for node_id in values["where"]]
            slots = tuple(Slot(node.id, (1 << node.gpus) - 1) for node in nodes)
            start = Assign(
                task_id=task.id,
                attempt=task.attempt + 1,
                level=task.priority,
                placements=placements_of(slots, task.spec, self.index.nodes),
                start_deadline_at=at(self.seconds + 300),
                resume_from=task.checkpoint,
                reason=reason(ReasonCode.PLACED),
            )
            decisions = [start]
            text = f"assign {task.id} {' '.join(values['where'])}"
        else:
            other = self.index.tasks[values["for"]]
            names = {"task": other.id, "priority": other.priority.value}
            why = reason(ReasonCode[values.get("why", "preempted_by").upper()], names=names)
            kept = reason(ReasonCode.WAITS_FOR_VICTIMS)
            decisions = [
                Preempt(task.id, task.live_attempt or 0, why, at(self.seconds + 60), other.id),
                Hold(other.id, kept, True, None, task.placements, other.priority),
            ]
            text = f"preempt {task.id} for {other.id} ({code_of(why)})"
        snapshot = Snapshot.view(self.index)
        plan = Plan(snapshot.version, at(self.seconds), tuple(decisions), {})
        faults = check(snapshot, plan, deep=True)
        self.write(f"forged: {text}: {'fine' if not faults else 'refused'}")
        for fault in faults:
            self.write(f"  {fault}")

    def dry_run(self, values: dict[str, Any]) -> None:
        """What other policies would decide now, as a difference."""
        parsed = validate({"groups": values}, capacity=self.capacity())
        assert parsed.errors == (), parsed.errors
        before, after = (
            self.decided({}),
            self.decided({each.group: each for each in parsed.policies}),
        )
        changes = diff(before, after, self.index.tasks, effects_max=EFFECTS_MAX)
        self.write(f"dry run: {len(changes.effects)} tasks")
        for each in changes.effects:
            now, then = describe(each.now), describe(each.then)
            self.write(f"  {each.task_id}: {now} -> {then}")
        for outlook in changes.outlooks:
            now, then = outlook.now, outlook.then
            self.write(
                f"  {outlook.group}: starts {now.starts} -> {then.starts}, promised {now.promised}"
                f" -> {then.promised}, preempted {now.preemptions} -> {then.preemptions}, at risk"
                f" {now.gpu_seconds_at_risk:g} -> {then.gpu_seconds_at_risk:g} GPU-seconds"
            )

    def decided(self, instead: dict[str, GroupPolicy]) -> Plan:
        """One round in which everything is decided again."""
        snapshot = Snapshot.of(
            tasks=self.index.tasks.values(),
            nodes=self.index.nodes.values(),
            limits=self.index.limits.values(),
            inventories=self.index.inventories.values(),
            policies={**self.index.policies, **instead}.values(),
            ledgers=self.index.ledgers.values(),
            settings=self.policy,
        )
        return decide(snapshot, at(self.seconds))


def code_of(why: Reason | None) -> str:
    return "" if why is None else why.code.value.removeprefix("REASON_CODE_").lower()


def describe(verdict: Verdict) -> str:
    text = f"{verdict.kind} {code_of(verdict.reason)}".strip() or "nothing"
    return f"{text} for {verdict.beneficiary}" if verdict.beneficiary else text


def about(script: dict[str, Any]) -> Iterator[str]:
    for text in script["about"].strip().splitlines():
        yield f"# {text}"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    script = yaml.safe_load(path.read_text())
    found = "\n".join([*about(script), *ScenarioPlayer(script).play(script)]) + "\n"
    golden = path.with_suffix(".expected.txt")
    if UPDATE:
        golden.write_text(found)
    expected = golden.read_text()
    diff = "\n".join(difflib.unified_diff(expected.splitlines(), found.splitlines(), lineterm=""))
    assert found == expected, f"the timeline of {path.name} changed:\n{diff}"


def test_every_timeline_has_its_scenario() -> None:
    golden = {path.name.removesuffix(".expected.txt") for path in HERE.glob("*.expected.txt")}
    assert golden == {path.stem for path in SCENARIOS}
