"""Checks that the users, teams and groups that a quota or a policy names exist.

Called by the routes. A limit for a misspelt name would have no effect, unnoticed: such names are
rejected, unless the caller sets ``force`` because the person, team or group will exist later. So is
a filter of a list with a name that nothing has.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from libs.contracts.messages import FieldError
from libs.contracts.wording import SUGGESTED_MAX, no_such
from libs.store.port import Op, Order, Tx, Where
from services.gateway.auth import Identity
from services.gateway.permissions import Action
from services.gateway.problems import INVALID, ProblemError
from services.gateway.rows import AuditRow, NodeRow, TaskRow, TeamRow, UsageRow, UserRow

# So many names before a misspelt one in their order, and behind it, are compared with it.
NEIGHBOURS_MAX = 50
# Of groups so many. Each takes a query, because a group may have thousands of nodes.
GROUPS_MAX = 8
ERRORS_MAX = 50
NOBODY: Mapping[str, str] = {}


async def require_known(
    tx: Tx,
    *,
    users: Mapping[str, str] = NOBODY,
    teams: Mapping[str, str] = NOBODY,
    groups: Mapping[str, str] = NOBODY,
    forcible: bool = False,
) -> None:
    """Raise a problem that names each user, team and group that does not exist. ``forcible``: the
    route takes ``force``."""
    if errors := await unknown_names(
        tx, users=users, teams=teams, groups=groups, forcible=forcible
    ):
        raise refusal_of(errors)


def refusal_of(unknown: Sequence[FieldError], others: Sequence[FieldError] = ()) -> ProblemError:
    """One problem of the names that do not exist and of other errors, which come first. The first
    one is its text."""
    first, count = [*others, *unknown][0], len(others) + len(unknown)
    more = f" (and {count - 1} more)" if count > 1 else ""
    errors = [*others, *unknown[:ERRORS_MAX]]
    return ProblemError(INVALID, f"{first.field}: {first.message}{more}", errors)


async def unknown_names(
    tx: Tx,
    *,
    users: Mapping[str, str] = NOBODY,
    teams: Mapping[str, str] = NOBODY,
    groups: Mapping[str, str] = NOBODY,
    forcible: bool = False,
) -> list[FieldError]:
    """The error of each user, team and group that does not exist.

    Each mapping has the names by the fields that hold them. A group exists if a node is, or was
    lately, in it; while no node is known, every group is accepted.
    """
    errors: list[FieldError] = []
    for kind, word, named in (
        (UserRow, "user", users),
        (TeamRow, "team", teams),
        (NodeRow, "group", groups),
    ):
        unknown = {*named.values()} - await _there(tx, kind, {*named.values()})
        if not unknown or not await tx.select(kind, limit=1):
            continue
        for field, name in named.items():
            if name in unknown:
                near = await names_near(tx, kind, name) if len(errors) < SUGGESTED_MAX else ()
                error = no_such(field, word, name, near)
                fix = f"{error.fix}; force accepts a {word} that is to come"
                errors.append(error.model_copy(update={"fix": fix}) if forcible else error)
    return errors


async def require_findable(
    tx: Tx,
    caller: Identity,
    *,
    users: Mapping[str, str] = NOBODY,
    teams: Mapping[str, str] = NOBODY,
    groups: Mapping[str, str] = NOBODY,
    kept: Sequence[tuple[type[TaskRow | UsageRow | AuditRow], str, str]] = (),
) -> None:
    """Raise a problem that names each user, team and group of a list's filters that neither exists
    nor is named by anything that is kept. Called for a list that is empty: a misspelt name is not
    taken for one that has nothing.

    ``kept`` has for a field the rows that may name what was removed since, and their column. Of
    tasks those count that the caller sees. Who may not see accounts learns neither which users
    there are nor which names are similar: the answer stays empty.
    """
    if not caller.reaches_all(Action.READ_USERS):
        users = NOBODY
    sight = caller.sight
    unknown = await unknown_names(tx, users=users, teams=teams, groups=groups)
    names = {**users, **teams, **groups}
    errors: list[FieldError] = []
    for error in unknown:
        where = [(kind, column) for kind, field, column in kept if field == error.field]
        for kind, column in where:
            seen = sight.alternatives() if kind is TaskRow else ((),)
            named = Where(column, Op.EQ, names[error.field])
            if any([await tx.select(kind, named, *each, limit=1) for each in seen]):
                break
        else:
            errors.append(error)
    if errors:
        raise refusal_of(errors)


Named = type[UserRow] | type[TeamRow] | type[NodeRow]


async def _there(tx: Tx, kind: Named, names: Collection[str]) -> set[str]:
    """The names that exist."""
    if kind is NodeRow:
        # A group may have thousands of nodes; one will do.
        found = [await tx.select(NodeRow, Where("group", Op.EQ, name), limit=1) for name in names]
        return {row.group for rows in found for row in rows}
    rows = await tx.select(kind, Where("name", Op.IN, sorted(names))) if names else []
    return {_name(row) for row in rows}


async def names_near(tx: Tx, kind: Named, name: str) -> list[str]:
    """The names of users, teams or groups with which a misspelt one is compared: those that stand
    next to it in their order, which are all if there are few. With many users it costs the same."""
    column, queries, limit = "name", 1, NEIGHBOURS_MAX
    if kind is NodeRow:
        column, queries, limit = "group", GROUPS_MAX, 1
    found: list[str] = []
    for op, descending in ((Op.LT, True), (Op.GT, False)):
        last = name
        for _ in range(queries):
            rows = await tx.select(
                kind, Where(column, op, last), order_by=[Order(column, descending)], limit=limit
            )
            found += map(_name, rows)
            if len(rows) < limit:
                break
            last = _name(rows[-1])
    return found


def _name(row: UserRow | TeamRow | NodeRow) -> str:
    return row.group if isinstance(row, NodeRow) else row.name
