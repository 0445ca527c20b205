"""Submit's handlers: commands are validated, stored and answered; events are only recorded.

Wired in ``main.py``. A command that is wrong is answered with a refusal, never an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from libs.contracts.base import Message
from libs.contracts.limits import CREATE_TASKS_MAX
from libs.contracts.messages import (
    CreateTask,
    CreateTaskReply,
    CreateTasks,
    CreateTasksReply,
    Fence,
    Goal,
    GoalChanged,
    InventoryListed,
    ModeChanged,
    NodeChanged,
    PriorityChanged,
    QuotaChanged,
    Reemit,
    ReemitReply,
    Refusal,
    RefusalCode,
    RunMode,
    SetGoal,
    SetGoalReply,
    SetMode,
    SetModeReply,
    SetPriority,
    SetPriorityReply,
    TaskSpec,
    TaskState,
    TaskStateChanged,
    TaskSubmitted,
    TaskWarning,
)
from libs.contracts.task_states import TERMINAL
from libs.contracts.wording import field_error, not_found
from libs.pods.pod_policy import PodPolicy
from libs.pods.request_validation import check_pod
from libs.pods.requester import Requester
from libs.service.definition import CommandHandler, Handler, Reads
from libs.store.port import Tx
from services.submit import store
from services.submit.domain.facts import Rules
from services.submit.domain.fill import fill_in
from services.submit.domain.fit import check_quota
from services.submit.domain.goals import (
    Carried,
    Change,
    check_fence,
    decide_goal,
    decide_mode,
    decide_priority,
    takes_over,
    with_request,
)
from services.submit.domain.validate import (
    check_requester,
    check_same,
    refusal,
    too_many_live,
    validate,
)
from services.submit.domain.warnings import find_warnings
from services.submit.store import Draft, Known, NodeRow, TaskRow

MakeId = Callable[[datetime], str]


@dataclass(frozen=True, slots=True)
class Commands:
    """submit's commands with what they are configured by."""

    rules: Rules
    make_id: MakeId
    reemit_tasks_max: int
    # Of one owner.
    live_tasks_max: int
    pods: PodPolicy = field(default_factory=PodPolicy)
    # The site runs tasks in pods: without an image there is nothing to run.
    needs_image: bool = False

    def table(self) -> Mapping[type[Message], CommandHandler]:
        """Which command is answered by which function."""
        return {
            CreateTask: self.create_task,
            CreateTasks: self.create_tasks,
            SetGoal: set_goal,
            SetMode: set_mode,
            SetPriority: set_priority,
            Reemit: self.reemit,
        }

    async def create_task(self, tx: Tx, command: CreateTask) -> CreateTaskReply:
        """Store a valid task and emit its event; the same client key again gives the same task
        again. A dry run gets the same answer, and stores nothing."""
        return (await self._create(tx, (command,)))[0]

    async def create_tasks(self, tx: Tx, command: CreateTasks) -> CreateTasksReply:
        """The same for several, in their order, as if they came one after the other."""
        count = len(command.tasks)
        if count > CREATE_TASKS_MAX:
            fault = field_error(
                "tasks", count, f"are more than {CREATE_TASKS_MAX}", "send several commands"
            )
            return CreateTasksReply(refusal=refusal(RefusalCode.INVALID, fault))
        return CreateTasksReply(replies=tuple(await self._create(tx, command.tasks)))

    async def _create(self, tx: Tx, commands: Sequence[CreateTask]) -> list[CreateTaskReply]:
        """Read the facts for all of them, then validate one after the other."""
        drafts = [self._draft(command, tx.now) for command in commands]
        known = await store.known_for(tx, [each for each in drafts if not each.unfit])
        replies: list[CreateTaskReply] = []
        for draft in drafts:
            live = await store.live_tasks(tx, draft.command.owner)
            reply, row = self._decide(draft, known, live, tx.now)
            if row is not None and draft.command.dry_run:
                reply = reply.model_copy(update={"created": False})
            elif row is not None:
                await store.count_live(tx, row.owner, +1)
                known.add(row)
                tx.put(row)
                tx.emit(_submitted(row))
            replies.append(reply)
        return replies

    def _draft(self, command: CreateTask, now: datetime) -> Draft:
        """A command with its defaults, and with an id in case that it makes a task."""
        task_id = self.make_id(now)
        filled = fill_in(
            command.spec,
            task_id=task_id,
            defaults=self.rules,
            group=command.default_group,
            priority=command.default_priority,
        )
        return Draft(command, check_requester(command), task_id, filled)

    def _decide(
        self, draft: Draft, known: Known, live: int, now: datetime
    ) -> tuple[CreateTaskReply, TaskRow | None]:
        """The answer, and the new task if it makes one. ``live``: tasks that the owner has."""
        command, filled = draft.command, draft.filled
        if draft.unfit is not None:
            return CreateTaskReply(refusal=draft.unfit), None
        before = known.made_before(command)
        if before is not None and not command.dry_run:
            return _made_before(before, command.spec), None
        facts = known.facts(draft)
        spec = validate(
            filled,
            owner=command.owner,
            team=command.team,
            facts=facts,
            limits=self.rules,
            pod_errors=check_pod(
                filled,
                Requester.of(filled, command.owner, command.team),
                self.pods,
                needs_image=self.needs_image,
            ),
        )
        if isinstance(spec, Refusal):
            return CreateTaskReply(refusal=spec), None
        if live >= self.live_tasks_max:
            return CreateTaskReply(refusal=too_many_live(command.owner, self.live_tasks_max)), None
        warnings = find_warnings(spec, command.spec, facts)
        row = _new_task(now, draft.task_id, command, spec, warnings)
        reply = CreateTaskReply(
            task_id=row.task_id,
            created=True,
            revision=row.revision,
            submitted_at=row.submitted_at,
            spec=spec,
            warnings=warnings,
        )
        return reply, row

    async def reemit(self, tx: Tx, _command: Reemit) -> ReemitReply:
        """Say the newest tasks again, each with the goal and priority it has now."""
        events = [
            event
            for row in await store.newest_tasks(tx, self.reemit_tasks_max)
            for event in _events_of(row)
        ]
        for event in events:
            tx.emit(event)
        return ReemitReply(events=len(events))


async def set_goal(tx: Tx, command: SetGoal) -> SetGoalReply:
    """Note what the owner wants of the task; wanting the same again changes nothing."""
    row = await tx.get(TaskRow, command.task_id)
    if row is None:
        return SetGoalReply(refusal=not_found("task_id", "task", command.task_id))
    fenced = _fenced(row, command.fence)
    if isinstance(fenced, Refusal):
        _note_recalled(tx, row, command.fence)
        return SetGoalReply(refusal=fenced, revision=row.revision)
    if fenced is not None:
        return SetGoalReply(revision=fenced.revision, changed=True)
    verdict = decide_goal(
        command.goal,
        current=row.goal,
        state=row.state,
        now=command.now,
        current_now=row.goal_now,
        debugs=row.debug,
        takes_over=takes_over(command.asked_by, row.goal_changed_by),
    )
    if isinstance(verdict, Refusal):
        return SetGoalReply(refusal=verdict, revision=row.revision)
    if verdict is Change.APPLY:
        row = _with_goal(row, command.goal, command.asked_by, tx.now, at_once=command.now)
        row = replace(row, requests=with_request(row.requests, command.fence, row.revision))
        tx.put(row)
        tx.emit(_goal_changed(row))
    return SetGoalReply(revision=row.revision, changed=verdict is Change.APPLY)


def _fenced(row: TaskRow, fence: Fence | None) -> Carried | Refusal | None:
    return check_fence(
        fence, attempt=row.attempt, goal_revision=row.goal_revision, requests=row.requests
    )


def _note_recalled(tx: Tx, row: TaskRow, fence: Fence | None) -> None:
    """Keep a request that was recalled, so that it is refused when it comes."""
    known = {request for request, _ in row.requests}
    if fence is not None and fence.recall and fence.request not in known:
        tx.put(replace(row, requests=with_request(row.requests, fence, 0)))


def _with_goal(
    row: TaskRow, goal: Goal, changed_by: str, now: datetime, *, at_once: bool = False
) -> TaskRow:
    return replace(
        row,
        revision=row.revision + 1,
        goal=goal,
        goal_now=at_once,
        goal_revision=row.revision + 1,
        goal_changed_by=changed_by,
        goal_changed_at=now,
    )


async def set_mode(tx: Tx, command: SetMode) -> SetModeReply:
    """Note another mode. A pause is a goal, and so is the end of one; debug mode is apart."""
    row = await tx.get(TaskRow, command.task_id)
    if row is None:
        return SetModeReply(refusal=not_found("task_id", "task", command.task_id))
    wish = decide_mode(
        command.mode,
        debug=row.debug,
        goal=row.goal,
        state=row.state,
        stay_paused=command.stay_paused,
        takes_over=takes_over(command.asked_by, row.goal_changed_by),
    )
    if isinstance(wish, Refusal):
        return SetModeReply(refusal=wish, revision=row.revision)
    if wish.goal is Goal.PAUSE:
        # Before the mode, whose end would resume a task that is paused by the scheduler alone.
        row = _with_goal(row, wish.goal, command.asked_by, tx.now)
        tx.put(row)
        tx.emit(_goal_changed(row))
    if wish.debug is not None:
        row = replace(
            row,
            revision=row.revision + 1,
            debug=wish.debug,
            mode_revision=row.revision + 1,
            mode_changed_by=command.asked_by,
            mode_changed_at=tx.now,
        )
        tx.put(row)
        tx.emit(_mode_changed(row))
    if wish.goal is Goal.RUN:
        row = _with_goal(row, wish.goal, command.asked_by, tx.now)
        tx.put(row)
        tx.emit(_goal_changed(row))
    return SetModeReply(revision=row.revision)


async def set_priority(tx: Tx, command: SetPriority) -> SetPriorityReply:
    """Note another level; one at which the quota can never admit the task is refused."""
    row = await tx.get(TaskRow, command.task_id)
    if row is None:
        return SetPriorityReply(refusal=not_found("task_id", "task", command.task_id))
    fenced = _fenced(row, command.fence)
    if isinstance(fenced, Refusal):
        _note_recalled(tx, row, command.fence)
        return SetPriorityReply(refusal=fenced, revision=row.revision)
    if fenced is not None:
        return SetPriorityReply(revision=fenced.revision)
    verdict = decide_priority(command.priority, current=row.priority, state=row.state)
    if verdict is Change.APPLY:
        facts = await store.facts_for(tx, owner=row.owner, team=row.team, group=row.spec.group)
        spec = row.spec.model_copy(update={"priority": command.priority})
        errors = [*check_quota(spec, row.owner, row.team, facts)]
        verdict = refusal(RefusalCode.INVALID, *errors) if errors else verdict
    if isinstance(verdict, Refusal):
        return SetPriorityReply(refusal=verdict, revision=row.revision)
    if verdict is Change.APPLY:
        row = replace(
            row,
            revision=row.revision + 1,
            priority=command.priority,
            priority_revision=row.revision + 1,
            priority_changed_by=command.asked_by,
            priority_changed_at=tx.now,
        )
        row = replace(row, requests=with_request(row.requests, command.fence, row.revision))
        tx.put(row)
        tx.emit(_priority_changed(row))
    return SetPriorityReply(revision=row.revision)


async def on_task_state_changed(tx: Tx, event: TaskStateChanged) -> None:
    """Note where the task stands. An ended task has ended, whatever arrives later."""
    row = await tx.get(TaskRow, event.task_id)
    if row is None or row.ended or event.version < row.state_version:
        return
    if event.version == row.state_version and row.attempt >= 0:
        return
    ended = event.state in TERMINAL
    if ended:
        await store.count_live(tx, row.owner, -1)
    tx.put(
        replace(
            row,
            state=event.state,
            state_version=event.version,
            attempt=max(row.attempt, event.attempt),
            ended=ended,
            ended_at=tx.now if ended else None,
        )
    )


async def on_node_changed(tx: Tx, event: NodeChanged) -> None:
    """Note the node; removed ones no longer count, lost and cordoned ones do."""
    node = event.node.model_copy(update={"id": event.node_id})
    await store.record_node(tx, node, version=event.version, removed=event.removed)


async def on_inventory_listed(tx: Tx, event: InventoryListed) -> None:
    """Note that the nodes are known; until then no size and no group is refused."""
    await store.record_inventory(tx, event)


async def on_quota_changed(tx: Tx, event: QuotaChanged) -> None:
    """Note the limit."""
    await store.record_quota(tx, event.quota, version=event.version, removed=event.removed)


async def prepare(tx: Tx, messages: Sequence[Message]) -> None:
    """Read once what several commands for new tasks will ask."""
    asked: list[CreateTask] = []
    for message in messages:
        if isinstance(message, CreateTask):
            asked.append(message)
        elif isinstance(message, CreateTasks):
            asked += message.tasks
    await store.read_ahead(tx, [each for each in asked if check_requester(each) is None])


READS: Mapping[type[Message], Reads] = {
    TaskStateChanged: lambda event: [(TaskRow, event.task_id)],
    NodeChanged: lambda event: [(NodeRow, event.node_id)],
}
HANDLERS: Mapping[type[Message], Handler] = {
    TaskStateChanged: on_task_state_changed,
    NodeChanged: on_node_changed,
    InventoryListed: on_inventory_listed,
    QuotaChanged: on_quota_changed,
}


def _made_before(row: TaskRow, asked: TaskSpec) -> CreateTaskReply:
    differs = check_same(asked, row.asked)
    if differs is not None:
        return CreateTaskReply(refusal=differs, task_id=row.task_id)
    return CreateTaskReply(
        task_id=row.task_id,
        created=False,
        revision=row.revision,
        submitted_at=row.submitted_at,
        spec=row.spec,
        warnings=row.warnings,
    )


def _new_task(
    now: datetime,
    task_id: str,
    command: CreateTask,
    spec: TaskSpec,
    warnings: tuple[TaskWarning, ...],
) -> TaskRow:
    return TaskRow(
        task_id=task_id,
        owner=command.owner,
        team=command.team,
        name=spec.name,
        client_key=command.client_key or None,
        asked=command.spec,
        spec=spec,
        submitted_at=now,
        revision=1,
        goal=Goal.PAUSE if spec.run_mode is RunMode.PAUSE else Goal.RUN,
        goal_revision=1,
        goal_changed_by=command.owner,
        goal_changed_at=now,
        priority=spec.priority,
        priority_revision=1,
        priority_changed_by=command.owner,
        priority_changed_at=now,
        state=TaskState.QUEUED,
        state_version=0,
        ended=False,
        warnings=warnings,
        debug=spec.run_mode is RunMode.DEBUG,
        mode_changed_by=command.owner,
        mode_changed_at=now,
    )


def _events_of(row: TaskRow) -> list[Message]:
    """The events of one task: its submission, and the changes that there were of goal, mode and
    priority."""
    found: list[Message] = [_submitted(row)]
    if row.goal_revision > 1:
        found.append(_goal_changed(row))
    if row.mode_revision > 1:
        found.append(_mode_changed(row))
    if row.priority_revision > 1:
        found.append(_priority_changed(row))
    return found


def _submitted(row: TaskRow) -> TaskSubmitted:
    return TaskSubmitted(
        task_id=row.task_id,
        owner=row.owner,
        team=row.team,
        spec=row.spec,
        submitted_at=row.submitted_at,
        revision=1,
        warnings=row.warnings,
    )


def _goal_changed(row: TaskRow) -> GoalChanged:
    return GoalChanged(
        task_id=row.task_id,
        goal=row.goal,
        revision=row.goal_revision,
        changed_by=row.goal_changed_by,
        changed_at=row.goal_changed_at,
        now=row.goal_now,
    )


def _mode_changed(row: TaskRow) -> ModeChanged:
    return ModeChanged(
        task_id=row.task_id,
        mode=RunMode.DEBUG if row.debug else RunMode.NORMAL,
        revision=row.mode_revision,
        changed_by=row.mode_changed_by,
        changed_at=row.mode_changed_at or row.submitted_at,
    )


def _priority_changed(row: TaskRow) -> PriorityChanged:
    return PriorityChanged(
        task_id=row.task_id,
        priority=row.priority,
        revision=row.priority_revision,
        changed_by=row.priority_changed_by,
        changed_at=row.priority_changed_at,
    )
