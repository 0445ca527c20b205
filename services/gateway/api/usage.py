"""The usage ledger: what attempts held, by user, team, group, priority, outcome, task and day."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any, Literal

from fastapi import Header, Query
from starlette.responses import Response

from libs.contracts.wording import meant
from services.gateway import usage, views
from services.gateway.api import usage_shapes as shapes
from services.gateway.api.deps import Caller, Context, Parts, allows, answer, router_of
from services.gateway.api.query_parameters import NameQuery, require_before, time_parameter
from services.gateway.auth import Identity
from services.gateway.known_names import require_findable
from services.gateway.permissions import Action, Reach, whom_to_ask
from services.gateway.problems import FORBIDDEN, TOO_MANY, ProblemError, invalid
from services.gateway.rows import TaskRow, UsageRow
from services.gateway.usage import DAY, DIMENSIONS, Selection, Sums

router = router_of("usage")
RANGE_DEFAULT = timedelta(days=7)
CSV = "text/csv"
# Who does not reach everybody's usage sees these of the own alone.
_OF_PERSONS = ("user", "task")


def permitted(caller: Identity, selection: Selection) -> Selection:
    """The part of a selection that the caller may see: ``READ_USAGE``, and ``READ_TEAM_USAGE`` for
    a team without its users and tasks. Raises a problem if the selection names another user or
    team, or the team's users and tasks."""
    if caller.reach is Reach.ALL:
        return selection
    user, team = selection.filters.get("user"), selection.filters.get("team")
    if user is not None and user != caller.user:
        raise _forbidden("user", user, f"is not you: {caller.user} may not see this user's usage")
    if user is None and team is not None:
        whose = caller.doing(Action.READ_TEAM_USAGE).reach
        is_own = bool(caller.team) and team == caller.team
        if whose is not Reach.ALL and not (is_own and whose is Reach.TEAM):
            raise _forbidden("team", team, f"is not the team of {caller.user}")
        named = [name for name in _OF_PERSONS if name in (*selection.group_by, *selection.filters)]
        if named:
            what = f"is shown as a whole: {caller.user} may not see it by {' and '.join(named)}"
            raise _forbidden("team", team, what)
        return selection
    return replace(selection, filters={**selection.filters, "user": caller.user})


def _forbidden(field: str, value: str, message: str) -> ProblemError:
    fix = f"leave it out for your own, or ask {whom_to_ask(Action.READ_USAGE)}"
    problem = invalid(field, value, message, fix)
    return ProblemError(FORBIDDEN, problem.detail, problem.errors)


@router.get(
    "/usage",
    response_model=shapes.Usage,
    response_model_exclude_unset=True,
    responses={200: {"content": {CSV: {"schema": {"type": "string"}}}}},
)
@allows(Action.READ_USAGE)
async def get_usage(
    caller: Caller,
    parts: Parts,
    *,
    since: Annotated[
        str | None,
        Query(alias="from", max_length=40, description="RFC 3339; left out: 7 days before to"),
    ] = None,
    to: Annotated[str | None, Query(max_length=40, description="left out: now")] = None,
    group_by: Annotated[
        str, Query(max_length=100, description=f"of {', '.join(DIMENSIONS)}; with commas")
    ] = "",
    user: NameQuery = None,
    team: NameQuery = None,
    group: NameQuery = None,
    priority: NameQuery = None,
    outcome: NameQuery = None,
    task: NameQuery = None,
    form: Annotated[Literal["json", "csv"] | None, Query(alias="format")] = None,
    accept: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """What attempts held between two times, summed up. An attempt that lies partly in the range
    counts with that part, one that goes on until now.

    Operators and administrators see everything; others their own, and with ``team`` their team's.
    """
    until = time_parameter("to", to) or parts.clock.now()
    given = {
        "user": user,
        "team": team,
        "group": group,
        "priority": _one_of("priority", priority, usage.LEVELS),
        "outcome": _one_of("outcome", outcome, list(usage.Outcome)),
        "task": task,
    }
    selection = Selection(
        since=time_parameter("from", since) or until - RANGE_DEFAULT,
        until=until,
        group_by=_dimensions(group_by),
        filters={name: value for name, value in given.items() if value is not None},
    )
    _check_range(parts, selection)
    found = await _sums(parts, caller.user, permitted(caller, selection))
    if not found:
        async with parts.store.transaction() as tx:
            await require_findable(
                tx,
                caller,
                users={"user": user} if user else {},
                teams={"team": team} if team else {},
                groups={"group": group} if group else {},
                kept=[
                    *((UsageRow, field, field) for field in ("user", "team")),
                    (TaskRow, "group", "group"),
                ],
            )
    if form == "csv" or (form is None and CSV in accept):
        return Response(_csv(selection.group_by, found), media_type=CSV)
    return answer(
        {
            "from": views.rfc3339(selection.since),
            "to": views.rfc3339(selection.until),
            "group_by": list(selection.group_by),
            "items": [{**each.key, **each.amounts.seconds()} for each in found],
            "total": usage.total(found).seconds(),
        }
    )


def _one_of(field: str, word: str | None, known: Sequence[str]) -> str | None:
    if word is not None and word not in known:
        fix = f"{meant(word, known)} give one of {', '.join(known)}".strip()
        raise invalid(field, word, "is not known here", fix)
    return word


def _dimensions(text: str) -> tuple[str, ...]:
    names = [each.strip() for each in text.split(",") if each.strip()]
    for name in names:
        _one_of("group_by", name, DIMENSIONS)
    return tuple(dict.fromkeys(names))


def _check_range(parts: Context, selection: Selection) -> None:
    since, until = selection.since, selection.until
    require_before("from", since, until)
    most = parts.settings.usage_days_max
    if DAY in selection.group_by and until - since > timedelta(days=most):
        fix = "give a shorter range, or leave day out of group_by"
        raise invalid("from", views.rfc3339(since), f"is more than {most} days before the end", fix)


async def _sums(parts: Context, user: str, selection: Selection) -> list[Sums]:
    """What the ledger says, until now at the latest."""
    now = parts.clock.now()
    if selection.since >= now:
        return []
    selection = replace(selection, until=min(selection.until, now))
    most = parts.settings.usage_groups_max
    if parts.usage_questions.count(user) >= parts.settings.usage_waiting_max:
        detail = f"{user} asks for usage too often at once; wait for the answers"
        raise ProblemError(TOO_MANY, detail, headers={"retry-after": "1"})
    # Each may take a connection for seconds: a few at a time leave the others to everything else.
    async with parts.usage_questions.of(user), parts.store.transaction() as tx:
        groups = await tx.span_sums(UsageRow, usage.query(selection, most + 1))
    if len(groups) > most:
        fix = "give a shorter range, a filter, or fewer names"
        names = ",".join(selection.group_by)
        raise invalid("group_by", names, f"makes more than {most} groups", fix)
    return usage.sums(selection, groups)


def _csv(group_by: Sequence[str], found: Sequence[Sums]) -> str:
    text = io.StringIO()
    rows: list[dict[str, Any]] = [{**each.key, **each.amounts.seconds()} for each in found]
    names = [*group_by, *usage.Amounts().seconds()]
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
