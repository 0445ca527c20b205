"""Tasks: submit, list, show, and what their owners want of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import Header, Query
from starlette.responses import Response

from libs.contracts import messages as m
from libs.contracts.task_states import LIVE_WORDS
from libs.contracts.wording import meant
from libs.store.port import Op, Where
from services.gateway import store as rows_of
from services.gateway import views
from services.gateway.api import batches, shapes
from services.gateway.api.deps import (
    Caller,
    Change,
    Context,
    PageQuery,
    Parts,
    allows,
    answer,
    answer_one,
    answer_page,
    router_of,
    task_or_404,
)
from services.gateway.auth import Identity, require_owner, sees_secrets
from services.gateway.bodies import BatchBody, GoalBody, ModeBody, PriorityBody, TaskBody
from services.gateway.command_client import (
    accepted,
    continue_task,
    create_task,
    in_terms_of,
    retry_task,
    set_goal,
    set_mode,
    set_priority,
)
from services.gateway.explanations import explanation, ids_in
from services.gateway.hidden_tasks import hiding, without_hidden
from services.gateway.json_values import PRIORITIES, STATES
from services.gateway.known_names import require_findable
from services.gateway.permissions import Action
from services.gateway.problems import CONFLICT, TOO_MANY, ProblemError, invalid
from services.gateway.rows import RunRow, TaskRow, UserRow
from services.gateway.store import Sort

router = router_of("tasks")


def _orders(name: str, sort: Sort) -> dict[str, Sort]:
    """An order, and with a minus its exact reverse: one index serves both."""
    reverse = Sort(sort.column, not sort.descending, sort.key, not sort.key_descending)
    return {name: sort, f"-{name}": reverse}


# A task's id begins with its time, so that sorting by id is sorting by submission.
SORTS = {
    **_orders("submitted_at", Sort("task_id", False, "task_id", False)),
    **_orders("name", Sort("name", False, "task_id", False)),
    # Falling, the oldest of a level comes first.
    **_orders("priority", Sort("priority_order", False, "task_id", True)),
    # The newest of a state comes first.
    **_orders("state", Sort("state", False, "task_id", True)),
    **_orders("owner", Sort("owner", False, "task_id", False)),
    **_orders("team", Sort("team", False, "task_id", False)),
    **_orders("group", Sort("group", False, "task_id", False)),
}
# What people call setting a goal.
VERBS = {"run": "resume", "pause": "pause", "stop": "stop"}
KEY_CHARACTERS_MAX = 200
# The last ten characters of an id are random; a suffix of this length identifies a task.
ID_SUFFIX_MIN = 6
# Conditions on labels in one list.
LABELS_MAX = 32
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        max_length=KEY_CHARACTERS_MAX,
        description="the same key, the same task",
    ),
]


@router.post("/tasks", status_code=201, response_model=shapes.Task)
@allows(Action.SUBMIT, inside=True)
async def submit(body: TaskBody, caller: Caller, parts: Parts, key: Key = None) -> Response:
    """Submit a task. 201: stored, and its event with it. 200: the key was used for it before."""
    created, row = await _submit(parts, caller, body, key or "")
    return answer(
        views.task(row, secrets=True),
        201 if created else 200,
        {"location": f"/v1/tasks/{row.task_id}"},
    )


@router.post("/tasks:batch", response_model=shapes.Batch)
@allows(Action.SUBMIT)
async def submit_batch(body: BatchBody, caller: Caller, parts: Parts) -> Response:
    """Submit several tasks. Each item of the answer has ``status`` and ``task`` or ``problem``."""
    most = parts.settings.batch_tasks_max
    if len(body.tasks) > most:
        raise invalid("tasks", len(body.tasks), f"are more than {most}", "send several batches")
    return answer({"items": await batches.submit(parts, caller, body.tasks), "next_cursor": None})


@router.post("/tasks:dry-run", response_model=shapes.DryRun)
@allows(Action.SUBMIT)
async def dry_run(body: TaskBody, caller: Caller, parts: Parts) -> Response:
    """The task as it would be submitted, or why it would be refused. Nothing is stored; the task
    has no id. 429: the user sends too many requests; try again after ``Retry-After``."""
    if not parts.dry_runs.take(caller.user):
        rate = parts.settings.dry_runs_per_second
        detail = f"{caller.user} requests more than {rate:g} dry runs a second; try again later"
        raise ProblemError(TOO_MANY, detail, headers={"retry-after": "1"})
    command = create_task(body, caller, "").model_copy(update={"dry_run": True})
    try:
        reply = await parts.commands.ask(command, m.CreateTaskReply)
    except ProblemError as problem:
        raise in_terms_of(body, problem, caller) from None
    row = accepted(reply, command)
    assert row.spec is not None, "submit answers with the spec"
    cluster = await parts.capacity.now()
    task = views.task(row, secrets=True) | {"id": ""}
    free = cluster.free_nodes(row.spec)
    ahead = cluster.ahead(row.group, row.priority_order)
    return answer({"task": task, "free_nodes": free, "ahead": ahead})


@router.post("/tasks/{task_id}/retry", status_code=201, response_model=shapes.Task)
@allows(Action.RESUBMIT, inside=True)
async def retry(task_id: str, caller: Caller, parts: Parts, key: Key = None) -> Response:
    """Submit the same task again, as a new one of the same owner and name, in the owner's present
    team. The label ``retry-of`` names the one before. 201 and 200 as for a new task."""
    async with parts.store.transaction() as tx:
        row = await task_or_404(tx, task_id, caller.sight)
        owner = await tx.get(UserRow, row.owner)
    async with parts.changing(caller, "task.retry", task_id) as change:
        require_owner(caller, row, "submit it again")
        _require_ended(row, "wait for its end, or end it first with: PUT /v1/tasks/ID/goal")
        team = _present_team(task_id, row.owner, owner)
        command = retry_task(task_id, row, team, key or parts.mint.id())
        created, fresh = await _create(parts, command, change)
        change.detail = f"retry of {task_id}"
    return answer(
        views.task(fresh, secrets=sees_secrets(caller, fresh)),
        201 if created else 200,
        {"location": f"/v1/tasks/{fresh.task_id}"},
    )


@router.post("/tasks/{task_id}/continue", status_code=201, response_model=shapes.Task)
@allows(Action.RESUBMIT, inside=True)
async def continue_(task_id: str, caller: Caller, parts: Parts, key: Key = None) -> Response:
    """Go on with an ended task, as a new one of the same chain, owner and name: from its last
    checkpoint (``checkpoint`` of the answer; null: from the beginning) and with its life state.
    201 and 200 as for a new task."""
    async with parts.store.transaction() as tx:
        row = await task_or_404(tx, task_id, caller.sight)
        owner = await tx.get(UserRow, row.owner)
    async with parts.changing(caller, "task.continue", task_id) as change:
        require_owner(caller, row, "go on with it")
        fix = "if it is paused, resume it; else wait for its end, or end it first with:"
        _require_ended(row, f"{fix} PUT /v1/tasks/ID/goal")
        team = _present_team(task_id, row.owner, owner)
        continues = await _continuation(parts, row)
        command = continue_task(row, team, key or parts.mint.id(), continues)
        created, fresh = await _create(parts, command, change)
        change.detail = f"continues {task_id}"
    return answer(
        views.task(fresh, secrets=sees_secrets(caller, fresh)),
        201 if created else 200,
        {"location": f"/v1/tasks/{fresh.task_id}"},
    )


async def _continuation(parts: Context, row: TaskRow) -> m.Continuation:
    """Where a task begins that goes on with this one. If the process dies before the new task is
    stored, the launcher only keeps what it knows of this one for longer."""
    task_id, chain = row.task_id, row.chain or row.task_id
    prepare = m.PrepareContinuation(task_id=task_id)
    reply = await parts.commands.reply(prepare, m.PrepareContinuationReply)
    if reply.refusal is None:
        saved = reply.checkpoint
        if saved is not None and not saved.task_id:
            saved = saved.model_copy(update={"task_id": task_id})
        return m.Continuation(task_id=task_id, chain=chain, checkpoint=saved, state_of=task_id)
    if reply.refusal.code is not m.RefusalCode.NOT_FOUND:
        raise parts.commands.refused(reply.refusal)
    if row.attempt:
        detail = (
            f"what {task_id} has saved is not known any more: it ended too long ago; submit it"
            " again from the beginning with: POST /v1/tasks/ID/retry"
        )
        raise ProblemError(CONFLICT, detail)
    # It never ran: the new task begins where this one would have begun.
    before = row.spec.continues if row.spec is not None else None
    return m.Continuation(
        task_id=task_id,
        chain=chain,
        checkpoint=before.checkpoint if before else None,
        state_of=before.state_of if before else "",
    )


def _require_ended(row: TaskRow, fix: str) -> None:
    """Raises 409 for a task that has not ended, or whose specification is not known."""
    if row.state in LIVE_WORDS:
        message = f"the task is still {row.state}"
        error = m.FieldError(field="task_id", value=row.task_id, message=message, fix=fix)
        raise ProblemError(CONFLICT, f"task_id: {message}; {fix}", [error])
    if row.spec is None:
        raise ProblemError(CONFLICT, f"what {row.task_id} was submitted with is not known")


def _present_team(task_id: str, name: str, owner: UserRow | None) -> str:
    """The team that a task's owner has now; 409 if the owner may not submit any more."""
    if owner is None:
        what, fix = "is not there any more", f"`shiftwork user add {name}` first"
    elif owner.disabled:
        what, fix = "is disabled", f"`shiftwork user set {name} --enable` first"
    else:
        return owner.team
    detail = f"{name}, the owner of {task_id}, {what}; {fix}, or submit it as a task of your own"
    raise ProblemError(CONFLICT, detail)


async def _submit(
    parts: Context, caller: Identity, body: TaskBody, key: str
) -> tuple[bool, TaskRow]:
    command = create_task(body, caller, key or parts.mint.id())
    async with parts.changing(caller, "task.submit", body.name) as change:
        try:
            return await _create(parts, command, change)
        except ProblemError as problem:
            raise in_terms_of(body, problem, caller) from None


async def _create(parts: Context, command: m.CreateTask, change: Change) -> tuple[bool, TaskRow]:
    """Ask submit for the task, and note it with the entry of the audit trail."""
    reply = await parts.commands.ask(command, m.CreateTaskReply)
    row: TaskRow = accepted(reply, command)
    change.target = reply.task_id
    change.detail = "" if reply.created else "the key was used before"
    if reply.created:
        change.rows.append(accepted(reply, command))
    else:
        async with parts.store.transaction() as tx:
            row = await rows_of.task(tx, reply.task_id) or row
    return reply.created, row


@router.get("/tasks", response_model=shapes.TaskPage)
@allows(Action.READ_TASKS)
async def list_tasks(
    caller: Caller,
    parts: Parts,
    paging: PageQuery,
    *,
    state: Annotated[str | None, Query(description="states, separated by commas")] = None,
    owner: str | None = None,
    mine: bool = False,
    name: str | None = None,
    name_prefix: Annotated[
        str | None, Query(max_length=63, description="the first characters of the name")
    ] = None,
    id_prefix: Annotated[str | None, Query(max_length=26)] = None,
    id_suffix: Annotated[
        str | None,
        Query(
            min_length=ID_SUFFIX_MIN,
            max_length=26,
            description="the last characters of the id, as tables show them",
        ),
    ] = None,
    team: Annotated[
        str | None, Query(max_length=63, description="that tasks were submitted under")
    ] = None,
    group: str | None = None,
    chain: Annotated[
        str | None, Query(max_length=26, description="id of the first task of a chain")
    ] = None,
    priority: Annotated[str | None, Query(description="levels, separated by commas")] = None,
    label: Annotated[
        list[str] | None,
        Query(
            max_length=LABELS_MAX,
            description="K=V: with this label; K: with this label, whatever its value;"
            " K!=V: without it, or with another value. All given ones hold",
        ),
    ] = None,
    everything: Annotated[
        bool, Query(alias="all", description="all=false: only tasks that have not ended")
    ] = True,
    sort: Annotated[str, Query(description="a field; with - falling")] = "-submitted_at",
    run_seconds: Annotated[
        bool, Query(description="with the time that each task's ended attempts ran")
    ] = False,
) -> Response:
    """Tasks that the caller sees and that meet every filter, newest first."""
    where: list[Where] = []
    if state is not None:
        where.append(Where("state", Op.IN, _several("state", state, set(STATES))))
    elif not everything:
        where.append(Where("state", Op.IN, list(LIVE_WORDS)))
    if priority is not None:
        where.append(Where("priority", Op.IN, _several("priority", priority, set(PRIORITIES))))
    equal = (
        *(("owner", owner), ("team", team), ("group", group)),
        *(("name", name), ("chain", chain)),
    )
    for column, value in equal:
        if value is not None:
            where.append(Where(column, Op.EQ, value))
    if mine:
        where.append(Where("owner", Op.EQ, caller.user))
    parts_of = (
        ("task_id", Op.PREFIX, id_prefix),
        ("task_id", Op.SUFFIX, id_suffix),
        ("name", Op.PREFIX, name_prefix),
    )
    where += [Where(column, op, text) for column, op, text in parts_of if text]
    where += [_label(each) for each in label or ()]
    async with parts.store.transaction() as tx:
        page = await rows_of.task_page(tx, where, _sort(sort), paging, caller.sight)
        left_out = list(tx.unreadable)
        if not page.rows and paging.cursor is None:
            await require_findable(
                tx,
                caller,
                users={"owner": owner} if owner else {},
                teams={"team": team} if team else {},
                groups={"group": group} if group else {},
                kept=[(TaskRow, field, field) for field in ("owner", "team", "group")],
            )
        ids = [row.task_id for row in page.rows]
        ran = await rows_of.run_seconds(tx, ids if run_seconds else [])
        progress = await rows_of.progress_of(tx, ids)
        hide = await hiding(tx, caller.sight, (row.reason for row in page.rows))

    def view(row: TaskRow) -> dict[str, Any]:
        row = replace(row, reason=hide(row.reason))
        found = views.task(row, secrets=sees_secrets(caller, row), report=progress.get(row.task_id))
        return found | ({"run_seconds": ran[row.task_id]} if run_seconds else {})

    return answer_page(page.rows, view, _id, page.next_cursor, left_out=left_out)


def _id(row: TaskRow) -> str:
    return row.task_id


def _several(field: str, text: str, known: set[str]) -> list[str]:
    states = [word for word in text.split(",") if word]
    unknown = [word for word in states if word not in known or word == "unspecified"]
    if unknown or not states:
        choices = sorted(known - {"unspecified"})
        near = meant(unknown[0], choices) if unknown else ""
        fix = f"{near} give some of {', '.join(choices)}".strip()
        raise invalid(field, ",".join(unknown), "is not known", fix)
    return states


def _label(text: str) -> Where:
    """The condition of ``K=V``, ``K!=V`` or ``K``. Each is tested on the rows that the page's order
    yields, so a page costs the same whatever is asked of labels."""
    name, equals, value = text.partition("=")
    differs = bool(equals) and name.endswith("!")
    key = name[:-1] if differs else name
    if not key:
        fix = "write label=NAME=VALUE, label=NAME!=VALUE or label=NAME"
        raise invalid("label", text, "names no label", fix)
    if not equals:
        return Where("labels", Op.HAS_KEY, key)
    return Where("labels", Op.LACKS if differs else Op.CONTAINS, {key: value})


def _sort(text: str) -> Sort:
    found = SORTS.get(text)
    if found is None:
        raise invalid("sort", text, "is not an order", f"give one of {', '.join(SORTS)}")
    return found


@router.get("/tasks/{task_id}", response_model=shapes.Task)
@allows(Action.READ_TASKS)
async def show(task_id: str, caller: Caller, parts: Parts) -> Response:
    """One task."""
    async with parts.store.transaction() as tx:
        row = await task_or_404(tx, task_id, caller.sight)
        report = (await rows_of.progress_of(tx, [task_id])).get(task_id)
        run = await tx.get(RunRow, task_id, row.attempt)
        hide = await hiding(tx, caller.sight, [row.reason])
    row = replace(row, reason=hide(row.reason))
    secrets = sees_secrets(caller, row)
    used = run.activity if run is not None and run.live else None
    return answer_one(
        task_id,
        lambda: {
            **views.task(row, secrets=secrets, report=report),
            **({"activity": views.activity(used)} if used is not None else {}),
        },
    )


@router.put("/tasks/{task_id}/goal", status_code=202, response_model=shapes.Revision)
@allows(Action.CHANGE_TASKS, inside=True)
async def put_goal(task_id: str, body: GoalBody, caller: Caller, parts: Parts) -> Response:
    """Run, pause or stop. Stored when this answers; applied when ``observed_revision`` is there.
    With ``now`` a run that is to pause or stop is ended at once, without being asked to save.
    """
    async with parts.store.transaction() as tx:
        row = await task_or_404(tx, task_id, caller.sight)
    verb = f"{VERBS[body.goal]} it"
    async with parts.changing(caller, f"task.goal.{body.goal}", task_id, verb=verb) as change:
        require_owner(caller, row, verb)
        change.note({"goal": row.goal}, {"goal": body.goal})
        reply = await change.ask(set_goal(task_id, body, caller), m.SetGoalReply)
    return answer({"task": task_id, "revision": reply.revision}, 202)


@router.post(
    "/tasks/{task_id}/mode",
    operation_id="tasks_set_mode",
    status_code=202,
    response_model=shapes.Revision,
)
@allows(Action.CHANGE_TASKS, inside=True)
async def post_mode(task_id: str, body: ModeBody, caller: Caller, parts: Parts) -> Response:
    """Normal, debug or pause. Normal also resumes a paused task, unless ``stay_paused`` is given;
    pause is the same as the goal. Stored when this answers; applied when ``observed_revision`` is
    there."""
    async with parts.store.transaction() as tx:
        row = await task_or_404(tx, task_id, caller.sight)
    async with parts.changing(caller, f"task.mode.{body.mode}", task_id) as change:
        require_owner(caller, row, "change its mode")
        before = "debug" if row.debug else "pause" if row.goal == "pause" else "normal"
        change.note({"mode": before}, {"mode": body.mode})
        reply = await change.ask(set_mode(task_id, body, caller), m.SetModeReply)
    return answer({"task": task_id, "revision": reply.revision}, 202)


@router.put("/tasks/{task_id}/priority", status_code=202, response_model=shapes.Revision)
@allows(Action.CHANGE_TASKS, inside=True)
async def put_priority(task_id: str, body: PriorityBody, caller: Caller, parts: Parts) -> Response:
    """Another level. Stored when this answers; applied when ``observed_revision`` is there."""
    async with parts.store.transaction() as tx:
        row = await task_or_404(tx, task_id, caller.sight)
    async with parts.changing(caller, f"task.priority.{body.priority}", task_id) as change:
        require_owner(caller, row, "give it another priority")
        change.note({"priority": row.priority}, {"priority": body.priority})
        command = set_priority(task_id, body.priority, caller)
        reply = await change.ask(command, m.SetPriorityReply)
    return answer({"task": task_id, "revision": reply.revision}, 202)


@router.get("/tasks/{task_id}/explain", response_model=shapes.Explanation)
@allows(Action.READ_TASKS)
async def explain(task_id: str, caller: Caller, parts: Parts) -> Response:
    """Why the task stands where it stands, computed by the scheduler now."""
    async with parts.store.transaction() as tx:
        row = await task_or_404(tx, task_id, caller.sight)
        run = await tx.get(RunRow, task_id, row.attempt)
    try:
        reply = await parts.commands.ask(m.Explain(task_id=task_id), m.ExplainReply)
    except ProblemError as problem:
        if problem.kind.status != 404:  # noqa: PLR2004 - not found
            raise
        # The task is submitted and has not reached the scheduler yet.
        reply = m.ExplainReply(
            state=STATES[row.state], reason=row.reason, explained_at=parts.clock.now()
        )
    if reply.state is m.TaskState.UNSPECIFIED:
        # The scheduler cannot read its row of the task.
        reply = reply.model_copy(update={"state": STATES[row.state]})
    async with parts.store.transaction() as tx:
        others = await rows_of.seen_tasks(tx, ids_in(reply), caller.sight)
    document = explanation(task_id, reply, run.delayed if run else None, others)
    if not caller.sight.is_full:
        document = without_hidden(document, {task_id, *(other.task_id for other in others)})
    return answer(document)


@router.get("/tasks/{task_id}/decisions", response_model=shapes.DecisionPage)
@allows(Action.READ_TASKS)
async def decisions(task_id: str, caller: Caller, parts: Parts, paging: PageQuery) -> Response:
    """The scheduler's decisions about the task, oldest first."""
    async with parts.store.transaction() as tx:
        await task_or_404(tx, task_id, caller.sight)
    after = number_cursor(paging.cursor)
    reply = await parts.commands.ask(
        m.Decisions(task_id=task_id, after=after, limit=paging.limit), m.DecisionsReply
    )
    more = str(reply.decisions[-1].no) if reply.more and reply.decisions else None
    async with parts.store.transaction() as tx:
        hide = await hiding(tx, caller.sight, (each.reason for each in reply.decisions))
    return answer_page(
        reply.decisions,
        lambda record: views.decision(record.model_copy(update={"reason": hide(record.reason)})),
        lambda record: str(record.no),
        more,
    )


def number_cursor(cursor: str | None) -> int:
    """A cursor that is a plain number."""
    if cursor is None:
        return 0
    if not cursor.isdecimal() or len(cursor) > len(str(2**63)) or int(cursor) >= 2**63:
        fix = "give next_cursor of the page before, or leave it out"
        raise invalid("cursor", cursor, "is not a cursor of this list", fix)
    return int(cursor)


@router.get("/tasks/{task_id}/runs", response_model=shapes.RunPage)
@allows(Action.READ_TASKS)
async def runs(task_id: str, caller: Caller, parts: Parts, paging: PageQuery) -> Response:
    """The task's attempts, oldest first."""
    after = number_cursor(paging.cursor)
    async with parts.store.transaction() as tx:
        await task_or_404(tx, task_id, caller.sight)
        rows = await rows_of.runs(tx, task_id, after, paging.limit + 1)
        reasons = (each for row in rows for each in (row.preempt_reason, row.kill_reason))
        hide = await hiding(tx, caller.sight, reasons)

    def view(row: RunRow) -> dict[str, Any]:
        kept = replace(
            row, preempt_reason=hide(row.preempt_reason), kill_reason=hide(row.kill_reason)
        )
        return views.run(kept)

    more = str(rows[paging.limit - 1].attempt) if len(rows) > paging.limit else None
    return answer_page(
        rows[: paging.limit], view, lambda row: str(row.attempt), more, left_out=tx.unreadable
    )
