"""Routes for abnormal tasks. The monitor finds them; these routes decide what a caller sees."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from libs.contracts import messages as m
from services.gateway.api import abnormal_shapes as shapes
from services.gateway.api.deps import (
    Caller,
    PageQuery,
    Parts,
    allows,
    answer,
    answer_page,
    router_of,
)
from services.gateway.json_values import enum_name, rfc3339
from services.gateway.known_names import require_findable
from services.gateway.permissions import Action
from services.gateway.rows import TaskRow
from services.gateway.views import Json

router = router_of("abnormal")
Name = Annotated[str, Query(max_length=63)]


@router.get("/abnormal", response_model=shapes.AbnormalPage)
@allows(Action.READ_TASKS)
async def list_abnormal(
    caller: Caller,
    parts: Parts,
    paging: PageQuery,
    *,
    task_id: Name = "",
    owner: Name = "",
    team: Name = "",
    group: Name = "",
    rule: Annotated[str, Query(max_length=63, description="such as idle_gpus")] = "",
    ended: Annotated[bool, Query(description="also the last findings that are over")] = False,
) -> Response:
    """Tasks that a rule finds abnormal, as far as the caller sees them."""
    query = m.ListAbnormalTasks(
        task_id=task_id,
        owner=owner,
        team=team,
        group=group,
        rule=rule,
        seen_by=caller.sight.user,
        seen_team=caller.sight.team,
        ended=ended,
        after=paging.cursor or "",
        limit=paging.limit,
    )
    reply = await parts.commands.ask(query, m.ListAbnormalTasksReply)
    if not reply.tasks and paging.cursor is None:
        async with parts.store.transaction() as tx:
            await require_findable(
                tx,
                caller,
                users={"owner": owner} if owner else {},
                teams={"team": team} if team else {},
                groups={"group": group} if group else {},
                kept=[(TaskRow, field, field) for field in ("owner", "team", "group")],
            )
    return answer_page(reply.tasks, _task, lambda each: each.task_id, reply.next or None)


@router.get("/abnormal/rules", response_model=shapes.AbnormalRules)
@allows(Action.READ_CLUSTER)
async def list_rules(caller: Caller, parts: Parts) -> Response:
    """The rules as the site has set them."""
    del caller
    reply = await parts.commands.ask(m.ListAbnormalRules(), m.ListAbnormalRulesReply)
    return answer({"items": [_rule(each) for each in reply.rules]})


def _task(found: m.AbnormalTask) -> Json:
    return {
        "task_id": found.task_id,
        "name": found.name,
        "owner": found.owner,
        "team": found.team,
        "group": found.group,
        "attempt": found.attempt,
        "rule": found.rule,
        "began_at": rfc3339(found.began_at),
        "ended_at": rfc3339(found.ended_at),
        "detail": found.detail,
        "suggestion": found.suggestion,
        "actions": [
            {
                "action": enum_name(each.action),
                "node": each.node_id or None,
                "outcome": enum_name(each.outcome),
                "detail": each.detail,
            }
            for each in found.actions
        ],
    }


def _rule(found: m.AbnormalRule) -> Json:
    return {
        "name": found.name,
        "detail": found.detail,
        "threshold": found.threshold,
        "unit": found.unit,
        "enabled": found.enabled,
        "actions": [enum_name(each) for each in found.actions],
        "dry_run": found.dry_run,
        "groups": list(found.groups),
        "teams": list(found.teams),
    }
