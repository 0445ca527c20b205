"""Whether the users, teams and groups that a quota or a policy names are there.

Called by the routes. A limit for a misspelt name limits nobody, and nobody notices: such names are
refused, unless the caller says that the person, team or group is to come.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from libs.contracts.messages import FieldError
from libs.store.port import Op, Order, Tx, Where
from services.gateway.problems import INVALID, ProblemError, shown
from services.gateway.rows import NodeRow, TeamRow, UserRow

# So many names are compared with a misspelt one.
COMPARED_MAX = 10_000
ERRORS_MAX = 50


async def require_known(tx: Tx, users: Mapping[str, str], teams: Mapping[str, str]) -> None:
    """A problem that names each user and team that is not there. ``users`` and ``teams``: the
    field that names someone, and the name."""
    errors: list[FieldError] = []
    for kind, word, asked in ((UserRow, "user", users), (TeamRow, "team", teams)):
        names = sorted({*asked.values()})
        rows = await tx.select(kind, Where("name", Op.IN, names)) if names else []
        unknown = {*names} - {row.name for row in rows}
        if unknown:
            every = await tx.select(kind, order_by=(Order("name"),), limit=COMPARED_MAX)
            there = [row.name for row in every]
            errors += [
                FieldError(
                    field=field,
                    value=shown(name),
                    message=f"there is no {word} {shown(name)}",
                    fix=f"{_meant(name, there, word)}; force accepts a {word} that is to come",
                )
                for field, name in asked.items()
                if name in unknown
            ]
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        detail = f"{errors[0].field}: {errors[0].message}{more}"
        raise ProblemError(INVALID, detail, errors[:ERRORS_MAX])


async def require_group(tx: Tx, field: str, group: str) -> None:
    """A problem if no node is, or was lately, in the group. While none is known, all may come."""
    if await tx.select(NodeRow, Where("group", Op.EQ, group), limit=1):
        return
    nodes = await tx.select(NodeRow, order_by=(Order("node_id"),), limit=COMPARED_MAX)
    there = sorted({row.group for row in nodes})
    if not there:
        return
    message = f"there is no group {shown(group)}"
    fix = f"{_meant(group, there, 'group')}; force accepts a group that is to come"
    error = FieldError(field=field, value=shown(group), message=message, fix=fix)
    raise ProblemError(INVALID, f"{field}: {message}", [error])


def _meant(name: str, there: list[str], word: str) -> str:
    near = get_close_matches(name, there, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"`shiftwork {word} ls` lists those there are"
