"""HTTP bodies to commands, commands over the bus, refusals to HTTP. Called by the routes."""

from __future__ import annotations

from typing import TypeVar

from libs.bus.port import Bus, BusError
from libs.contracts import messages as m
from libs.contracts.base import Message
from libs.contracts.ids import RETRY_OF, name_ending
from libs.contracts.kinds import kinds
from libs.contracts.task_states import LIVE_WORDS
from services.gateway.auth import Identity
from services.gateway.bodies import GoalBody, ModeBody, QuotaBody, TaskBody
from services.gateway.body_types import Body
from services.gateway.conversion import to_message
from services.gateway.handlers import with_submission
from services.gateway.json_values import GOALS, PRIORITIES, RUN_MODES, UNITS
from services.gateway.permissions import Action, Role, whom_to_ask
from services.gateway.problems import UNAVAILABLE, ProblemError, invalid, refused
from services.gateway.rows import AcceptedRow, TaskRow

R = TypeVar("R", bound=Message)


class Commands:
    """Sends commands to the owners, on behalf of a request."""

    def __init__(self, bus: Bus, *, timeout_seconds: float, retry_after_seconds: int) -> None:
        self._bus = bus
        self._timeout_seconds = timeout_seconds
        self._retry_after_seconds = retry_after_seconds

    async def ask(self, command: Message, reply_type: type[R]) -> R:
        """The owner's reply. A refusal is raised as its problem; no answer as 503."""
        reply = await self.reply(command, reply_type)
        refusal: m.Refusal | None = getattr(reply, "refusal", None)
        if refusal is not None:
            raise self.refused(refusal)
        return reply

    async def reply(self, command: Message, reply_type: type[R]) -> R:
        """The owner's reply, which may be a refusal. No answer is raised as 503."""
        try:
            reply = await self._bus.request(command, timeout_s=self._timeout_seconds)
        except BusError as error:
            raise ProblemError(
                UNAVAILABLE,
                "the service that decides this does not answer now; try again",
                headers={"retry-after": str(self._retry_after_seconds)},
            ) from error
        assert isinstance(reply, reply_type), f"{type(reply).__name__} is no {reply_type.__name__}"
        return reply

    def refused(self, refusal: m.Refusal) -> ProblemError:
        """An owner's refusal as a problem."""
        return refused(refusal, self._retry_after_seconds)


def create_task(body: TaskBody, identity: Identity, key: str) -> m.CreateTask:
    """The command for a new task; submit fills in what is left out."""
    if body.command and body.roles:
        raise invalid("command", "", "stands beside roles", "give command or roles, not both")
    spec = to_message(m.TaskSpec, body)
    require_no_zeros(m.TaskSpec, body, "")
    if body.command:
        role = m.Role(command=tuple(body.command))
        spec = spec.model_copy(update={"roles": (role,)})
    level = identity.default_priority
    return m.CreateTask(
        client_key=key,
        owner=identity.user,
        team=identity.team,
        spec=spec,
        default_group=identity.default_group,
        default_priority=PRIORITIES[level] if level else m.Priority.UNSPECIFIED,
    )


def require_no_zeros(kind: type[Message], body: Body, above: str) -> None:
    """Raises the problem of a number that is given as 0 where that is too few: in a message it
    would be a number that is left out, and get its default."""
    for name, field in kinds(kind).items():
        if name not in body.model_fields_set:
            continue
        value, path = getattr(body, name), above + name
        if field.message and value is not None:
            for place, item in enumerate(value if field.repeated else [value]):
                at = f"{path}[{place}]" if field.repeated else path
                require_no_zeros(field.message, item, f"{at}.")
        elif value == 0 and not field.optional and (field.shown.min or 0) > 0:
            least = f"{field.shown.min:g}"
            raise invalid(
                path, value, f"is less than {least}", f"give {least} or more, or leave it out"
            )


def in_terms_of(body: TaskBody, problem: ProblemError, identity: Identity) -> ProblemError:
    """Submit's refusal of a task, with the names that its body has: one command is a role there.
    What the body leaves out is named as the default that it is."""
    role = "roles[0]." if body.command else ""
    errors = [
        _of_default(
            each.model_copy(update={"field": each.field.removeprefix(role)}), body, identity
        )
        for each in problem.errors
    ]
    detail = problem.detail.removeprefix(role)
    for before, after in zip(problem.errors, errors, strict=True):
        detail = detail.replace(before.message, after.message).replace(before.fix, after.fix)
    found = ProblemError(problem.kind, detail, errors, problem.headers)
    found.audited = problem.audited
    return found


def _of_default(error: m.FieldError, body: TaskBody, identity: Identity) -> m.FieldError:
    """The error of a group or a priority, which says whose default it is if the body has none."""
    given = {"group": body.group, "priority": body.priority}
    defaults = {"group": identity.default_group, "priority": identity.default_priority}
    name, default = error.field, defaults.get(error.field)
    if not default or given[name]:
        return error
    of_team = name in identity.defaults_of_team
    whose = f"team {identity.team}" if of_team else identity.user
    route = f"/v1/teams/{identity.team}" if of_team else f"/v1/users/{identity.user}"
    change = f"PATCH {route} with another default_{name}"
    asked = "" if identity.role is Role.ADMIN else f"{whom_to_ask(Action.CHANGE_PEOPLE)} changes "
    asked = asked and f"; {asked}it: {change}"
    return error.model_copy(
        update={
            "message": f"{error.message}; {default} is the default of {whose}",
            "fix": f"{error.fix}{asked or f'; to change the default: {change}'}",
        }
    )


def accepted(reply: m.CreateTaskReply, command: m.CreateTask) -> AcceptedRow:
    """The task as submit has stored it, before its event is projected."""
    assert reply.submitted_at is not None, "submit reports when it stored the task"
    stored = m.TaskSubmitted(
        task_id=reply.task_id,
        owner=command.owner,
        team=command.team,
        spec=reply.spec or command.spec,
        submitted_at=reply.submitted_at,
        revision=reply.revision,
        warnings=reply.warnings,
    )
    queued = AcceptedRow(reply.task_id, reason=m.Reason(code=m.ReasonCode.QUEUED))
    return with_submission(queued, stored)


def retry_task(task_id: str, row: TaskRow, team: str, key: str) -> m.CreateTask:
    """The command for the same task again: its owner's, in the team that the owner has now, and
    labelled with the task before. A name that was made up is made up again; that of a live task
    stays, so that submit refuses a second one beside it. It runs, whatever mode the one before was
    submitted with."""
    assert row.spec is not None, "the caller has seen that its spec is known"
    spec = row.spec.model_copy(
        update={
            **_without_derived(row.spec),
            "labels": {**row.spec.labels, RETRY_OF: task_id},
            "name": _name_again(task_id, row, row.spec),
            "continues": None,
            "run_mode": m.RunMode.NORMAL,
        }
    )
    return m.CreateTask(client_key=key, owner=row.owner, team=team, spec=spec)


def continue_task(row: TaskRow, team: str, key: str, continues: m.Continuation) -> m.CreateTask:
    """The command for a task that goes on with an ended one, as ``retry_task`` does, but from its
    last checkpoint and with its life state."""
    assert row.spec is not None, "the caller has seen that its spec is known"
    spec = row.spec.model_copy(
        update={
            **_without_derived(row.spec),
            "name": _name_again(row.task_id, row, row.spec),
            "continues": continues,
            "run_mode": m.RunMode.NORMAL,
        }
    )
    return m.CreateTask(client_key=key, owner=row.owner, team=team, spec=spec)


def _without_derived(spec: m.TaskSpec) -> dict[str, object]:
    """Fields that submit fills in again: the sum of the replicas, and the deadline of a run that
    gets none. It would warn of their earlier values, although no user wrote them."""
    preemption = spec.preemption
    if preemption.mode is m.PreemptMode.KILL:
        preemption = preemption.model_copy(update={"ack_deadline_seconds": 0.0})
    return {"nodes": 0, "preemption": preemption}


def _name_again(task_id: str, row: TaskRow, spec: m.TaskSpec) -> str:
    made_up = spec.name.endswith(name_ending(task_id)) and row.state not in LIVE_WORDS
    return "" if made_up else spec.name


def set_goal(task_id: str, body: GoalBody, identity: Identity) -> m.SetGoal:
    """The command for run, pause or stop."""
    return m.SetGoal(task_id=task_id, goal=GOALS[body.goal], asked_by=identity.user, now=body.now)


def set_mode(task_id: str, body: ModeBody, identity: Identity) -> m.SetMode:
    """The command for normal, debug or pause."""
    return m.SetMode(
        task_id=task_id,
        mode=RUN_MODES[body.mode],
        asked_by=identity.user,
        stay_paused=body.stay_paused,
    )


def set_priority(task_id: str, priority: str, identity: Identity) -> m.SetPriority:
    """The command for another level."""
    return m.SetPriority(task_id=task_id, priority=PRIORITIES[priority], asked_by=identity.user)


def set_quota(body: QuotaBody, identity: Identity) -> m.SetQuota:
    """The command for a cap or a grant, or for none."""
    gpus = m.Unit.UNSPECIFIED if body.limit is None else m.Unit.GPUS
    quota = m.Quota(
        group=body.group or "",
        user=body.user or "",
        team=body.team or "",
        priority=PRIORITIES[body.priority] if body.priority else m.Priority.UNSPECIFIED,
        unit=UNITS[body.unit] if body.unit else gpus,
        limit=body.limit or 0,
        grant=body.grant,
        unlimited=body.unlimited and body.grant,
        level_max=PRIORITIES[body.level_max] if body.level_max else m.Priority.UNSPECIFIED,
        expires_at=body.expires_at,
    )
    return m.SetQuota(quota=quota, remove=body.removes, asked_by=identity.user)
