"""Checks whether a task can ever run on the known inventory and within the quotas.

Called by ``validate.py`` for new tasks and by ``handlers.py`` for a new priority. A task that only
has to wait is accepted. Facts that are not known reject nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from libs.contracts.grants import ASCENDING, deciding, grant_text, permitted, set_command
from libs.contracts.messages import FieldError, Priority, Quota, TaskSpec, Unit
from libs.contracts.rank_sizes import (
    RankSize,
    effective,
    given_at,
    has_own_size,
    role_given_at,
    role_specs,
    size_of,
    sizes_differ,
)
from libs.contracts.reasons import level_name
from libs.contracts.whole_nodes import Nodes, kinds_for
from libs.contracts.wording import Suggestions, are, as_text, counted, field_error, meant
from services.submit.domain.facts import Facts, Shape
from services.submit.domain.fill import DEFAULT_ROLE

GIB = 1 << 30
LABELS_SHOWN_MAX = 12
UNBOUNDED = 1 << 30
FOR_NODES_TO_COME = "with wait_for_nodes it waits for nodes that are to come"


def check_inventory(spec: TaskSpec, facts: Facts) -> Iterator[FieldError]:
    """Yield the requirements that no set of known nodes can meet."""
    if not facts.inventory_known or spec.wait_for_nodes:
        return
    group = [shape for shape in facts.shapes if shape.group == spec.group and shape.nodes > 0]
    if not group:
        known = sorted({shape.group for shape in facts.shapes if shape.nodes > 0})
        yield field_error(
            "group",
            spec.group,
            "no node belongs to this group",
            (
                f"{meant(spec.group, known)} use one of: {', '.join(known)}".strip()
                if known
                else "add nodes first"
            )
            + f"; {FOR_NODES_TO_COME}",
        )
        return
    unmatched = list(_unmatched(spec, facts, group))
    yield from unmatched
    if unmatched:
        return
    suitable = _suitable(spec, facts)
    if sizes_differ(spec):
        alone = list(_roles_that_fit_nowhere(spec, group, suitable))
        yield from alone or _roles_that_fit_not_together(spec, suitable)
        return
    given, spec = spec, effective(spec)
    tainted = _tainted(spec, facts)
    too_large = [
        error.model_copy(update={"field": given_at(given, error.field)})
        for error in _larger_than_any(spec, suitable)
    ]
    yield from too_large
    usable = _usable_count(spec, group, suitable)
    if not too_large and spec.nodes > usable:
        # All nodes of a gang of whole nodes have one number of GPUs.
        nodes = counted(usable, "node") + (" of one kind" if spec.gpus_per_node is None else "")
        if tainted:
            yield _intolerant(spec, tainted)
        where = f"{_where(spec)} has {nodes} that one of its replicas fits on" + (
            " and whose taints it tolerates" if tainted else ""
        )
        if not has_given_roles(spec):
            fix = f"ask for at most {usable}, or use another group; {FOR_NODES_TO_COME}"
            yield field_error("nodes", spec.nodes, where, fix)
            return
        index = max(range(len(spec.roles)), key=lambda each: spec.roles[each].replicas)
        yield field_error(
            f"roles[{index}].replicas",
            spec.roles[index].replicas,
            f"each of the task's {counted(spec.nodes, 'replica')} has a node of its own, and "
            + where,
            f"{_to_share(spec)}, ask for at most {counted(usable, 'replica')} in all, "
            f"or use another group; {FOR_NODES_TO_COME}",
        )


def check_commands(spec: TaskSpec, facts: Facts) -> Iterator[FieldError]:
    """Yield the roles that leave the program to an image, where nothing runs in images."""
    if facts.has_pods is not False:
        return
    for index, role in enumerate(spec.roles):
        if role.args and not role.command:
            yield field_error(
                f"roles[{index}].command",
                "",
                "is empty, and only an image has a program of its own: no node runs pods",
                "give the program, too",
            )


def has_given_roles(spec: TaskSpec) -> bool:
    """True if the task was surely written with roles: one command becomes a single role, too."""
    if len(spec.roles) != 1:
        return True
    (role,) = spec.roles
    return role.name != DEFAULT_ROLE or has_own_size(role)


def _to_share(spec: TaskSpec) -> str:
    """What lets replicas share nodes that have a node each."""
    if spec.gpus_per_node is not None and any(role.spread for role in spec.roles):
        return "leave spread out, so that replicas share nodes"
    return "give the roles gpus, so that replicas share nodes"


def _roles_that_fit_nowhere(
    spec: TaskSpec, group: Sequence[Shape], suitable: Sequence[Shape]
) -> Iterator[FieldError]:
    """Yield the roles of which no node holds a replica, or all nodes together too few.

    Each role is compared with the empty nodes by itself.
    """
    seen: set[str] = set()
    for index, (role, own) in enumerate(zip(spec.roles, role_specs(spec), strict=True)):
        at = f"roles[{index}]"
        too_large = [
            error.model_copy(update={"field": role_given_at(spec, index, error.field)})
            for error in _larger_than_any(own, suitable)
        ]
        # Several roles may have it from the task.
        yield from (error for error in too_large if error.field not in seen)
        seen |= {error.field for error in too_large}
        usable = _usable_count(own, group, suitable)
        size = size_of(spec, role)
        if size.gpus is not None and not size.spread:
            usable = sum(shape.nodes * _ranks_on(shape, size) for shape in suitable)
        if not too_large and role.replicas > usable:
            yield field_error(
                f"{at}.replicas",
                role.replicas,
                f"the nodes of {_where(spec)} hold {counted(usable, 'replica')} of this size"
                + (f": {PER_CPU}" if usable and size.gpus == 0 and not size.spread else ""),
                (f"ask for at most {usable}, " if usable else "ask ")
                + f"for less in each, or use another group; {FOR_NODES_TO_COME}",
            )


def _roles_that_fit_not_together(spec: TaskSpec, suitable: Sequence[Shape]) -> Iterator[FieldError]:
    """Yield what all roles together need more of than all nodes have.

    Such a task can never run. One that passes may still find no place, because whole ranks have to
    be packed into nodes: the scheduler, which packs them, rejects it then.
    """
    sizes = [(role.replicas, size_of(spec, role)) for role in spec.roles]
    nodes = sum(shape.nodes for shape in suitable)
    whole = sum(count for count, size in sizes if size.gpus is None)
    one_each = sum(
        role.replicas
        for role, (_, size) in zip(spec.roles, sizes, strict=True)
        if size.gpus is None or not has_own_size(role)
    )
    if one_each > nodes:
        why = (
            f"{counted(one_each, 'replica')} of several roles have a node each, and "
            f"{_where(spec)} has {counted(nodes, 'node')}"
        )
        yield _not_together(spec, _largest(sizes, "gpus"), why)
        return
    without_gpus = sum(count for count, size in sizes if size.gpus == 0)
    places = sum(shape.nodes * _places_without_gpus(shape) for shape in suitable)
    if without_gpus > places:
        index = max(range(len(sizes)), key=lambda each: (sizes[each][1].gpus == 0, sizes[each][0]))
        why = (
            f"all roles together have {counted(without_gpus, 'replica')} without GPUs, and the "
            f"nodes of {_where(spec)} hold {places}: {PER_CPU}"
        )
        yield _not_together(spec, index, why)
        return
    for name, noun in RESOURCES.items():
        if name != "gpus" and not _all_known(suitable, name):
            continue
        needed = sum(_total(each, name) for each in sizes if each[1].gpus is not None)
        # Which nodes are taken whole is not known: the smallest leave the most to the others.
        smallest = sorted(getattr(each, name) for each in suitable for _ in range(each.nodes))
        there = sum(smallest[whole:])
        if needed > there * (1 + ROUNDING):
            beside = f" beside {counted(whole, 'whole node')}" if whole else ""
            why = (
                f"all roles together need {as_text(needed)} {noun}{beside}, and the nodes of "
                f"{_where(spec)} have {as_text(there)}"
            )
            yield _not_together(spec, _largest(sizes, name), why)
            return


RESOURCES: Mapping[str, str] = {"gpus": "GPUs", "cpus": "CPUs", "memory_bytes": "bytes of memory"}


def _not_together(spec: TaskSpec, index: int, why: str) -> FieldError:
    fix = f"ask for fewer replicas or less in each, or use another group; {FOR_NODES_TO_COME}"
    return field_error(f"roles[{index}].replicas", spec.roles[index].replicas, why, fix)


def _largest(sizes: Sequence[tuple[int, RankSize]], name: str) -> int:
    """The role that takes the most of a resource."""
    return max(range(len(sizes)), key=lambda index: _total(sizes[index], name))


def _total(role: tuple[int, RankSize], name: str) -> float:
    """What all replicas of a role take of a resource; whole nodes are not counted."""
    count, size = role
    amount: float = getattr(size, name) or 0
    return count * amount


# CPUs are fractions, whose sums are not exact.
ROUNDING = 1e-9


def _places_without_gpus(shape: Shape) -> int:
    """Return how many ranks without GPUs the scheduler gives an empty node: one for each CPU. Where
    the CPUs are not known, a setting of the scheduler bounds them."""
    return max(1, int(shape.cpus)) if shape.cpus else UNBOUNDED


PER_CPU = "a node holds one replica without GPUs for each of its CPUs"


def _ranks_on(shape: Shape, size: RankSize) -> int:
    """Return how many ranks of a size an empty node holds; what it does not report limits none."""
    limits = [shape.gpus // size.gpus if size.gpus else _places_without_gpus(shape)]
    if shape.cpus and size.cpus:
        limits.append(int(shape.cpus / size.cpus))
    if shape.memory_bytes and size.memory_bytes:
        limits.append(shape.memory_bytes // size.memory_bytes)
    return min(limits)


def _unmatched(spec: TaskSpec, facts: Facts, group: Sequence[Shape]) -> Iterator[FieldError]:
    """Yield labels that no node has, or taints that every node with the labels has."""
    wanted = ", ".join(f"{key}={value}" for key, value in sorted(spec.node_selector.items()))
    if facts.selected is not None and not facts.selected:
        shown = ", ".join(facts.labels[:LABELS_SHOWN_MAX]) or "none"
        more = len(facts.labels) - LABELS_SHOWN_MAX
        and_more = f" and {more} more" if more > 0 else ""
        yield field_error(
            "node_selector",
            wanted,
            f"no node of group {spec.group} has {wanted}",
            f"labels there are: {shown}{and_more}; {FOR_NODES_TO_COME}",
        )
    elif not _suitable(spec, facts):
        taints = sorted({each for shape in facts.selected or group for each in shape.taints})
        there = f"taints there are: {', '.join(taints[:LABELS_SHOWN_MAX])}; {FOR_NODES_TO_COME}"
        yield field_error(
            "tolerations",
            ", ".join(spec.tolerations),
            f"every node of {_where(spec)} has a taint that the task does not tolerate",
            f"{_near_taint(spec, taints)} {there}".strip(),
        )


def _tainted(spec: TaskSpec, facts: Facts) -> list[Shape]:
    """Return the nodes of the group that have the labels, but taints that it does not tolerate."""
    return [shape for shape in _labelled(spec, facts) if not _is_tolerated(shape, spec)]


def _intolerant(spec: TaskSpec, tainted: Sequence[Shape]) -> FieldError:
    """Return the error that names the taints that keep nodes from the task."""
    tolerated = set(spec.tolerations)
    taints = sorted(
        {
            taint
            for shape in tainted
            for taint in shape.taints
            if not {taint, taint.partition("=")[0]} & tolerated
        }
    )
    count = sum(shape.nodes for shape in tainted)
    shown = ", ".join(taints[:LABELS_SHOWN_MAX])
    fix = f"tolerate {shown} to use {'it' if count == 1 else 'them'}, too"
    return field_error(
        "tolerations",
        ", ".join(spec.tolerations),
        f"{counted(count, 'node')} of {_where(spec)} {are(count)} kept from the task by the taint"
        f"{'' if len(taints) == 1 else 's'} {shown}",
        f"{_near_taint(spec, taints)} {fix}".strip(),
    )


def _near_taint(spec: TaskSpec, taints: Sequence[str]) -> str:
    """Return ``did you mean TAINT?`` for a toleration that no taint has; empty if none is near."""
    known = {*taints, *(taint.partition("=")[0] for taint in taints)}
    unknown = [each for each in spec.tolerations if each not in known]
    suggestions = Suggestions()
    return next(filter(None, (suggestions.meant(each, taints) for each in unknown)), "")


def check_quota(spec: TaskSpec, owner: str, team: str, facts: Facts) -> Iterator[FieldError]:
    """Yield an error if a quota can never admit this task."""
    rows = [_in_its_unit(row, spec, facts) for row in facts.quotas]
    caps = [row for row in rows if not row.grant and _concerns(row, spec.group, owner, team)]
    grants = {(row.group, row.user, row.team, row.priority): row for row in rows if row.grant}
    levels = ASCENDING if spec.priority is Priority.AUTO else (spec.priority,)
    exceeded: list[FieldError] = []
    for level in levels:
        grant = deciding(grants.get, owner, team, spec.group, level)
        own = _own_grant(owner, spec.group, level)
        error = _not_permitted(grant, own, spec, facts) if grant is not None else None
        if error is None and (found := _exceeded(caps, level, spec, facts)) is not None:
            row, needed = found
            permits = f"and the quota of {_holder(row)} is {row.limit}"
            error = _too_much(spec, row, needed, permits, facts, more=row)
        if error is None:
            return
        exceeded.append(error)
    yield exceeded[0]


def _own_grant(owner: str, group: str, level: Priority) -> Quota:
    """Return the names of the grant that an operator gives to the owner alone: it decides."""
    return Quota(grant=True, user=owner, group=group, priority=level)


def _set_to(row: Quota, amount: int, unit: Unit) -> str:
    """Return the command with which an operator sets a row to an amount."""
    return f"`{set_command(row)} --{'nodes' if unit is Unit.NODES else 'gpus'} {amount}`"


def _not_permitted(grant: Quota, own: Quota, spec: TaskSpec, facts: Facts) -> FieldError | None:
    """Return the error of a task that the grant which decides can never admit at the level of the
    grant ``own``, which would."""
    level = own.priority
    most = permitted(grant, level)
    if most == 0:
        name = level_name(level)
        unit = Unit.GPUS if demand(spec, Unit.GPUS, facts) else Unit.NODES
        return field_error(
            "priority",
            level_name(spec.priority),
            f"{grant_text(grant)} permits nothing at {name} in group {spec.group}",
            "choose another priority or group, or ask an operator for a grant: "
            f"{_set_to(own, demand(spec, unit, facts), unit)}; "
            "GET /v1/quotas/explain shows what is permitted",
        )
    needed = demand(spec, grant.unit, facts)
    if most is None or needed <= most:
        return None
    permits = f"more than {grant_text(grant)} permits"
    return _too_much(spec, grant, needed, permits, facts, more=own)


def _too_much(
    spec: TaskSpec, row: Quota, needed: int, permits: str, facts: Facts, *, more: Quota
) -> FieldError:
    """Return the error of a task that needs more than a row permits; an operator would raise the
    row ``more``."""
    most, noun = row.limit, "node" if row.unit is Unit.NODES else "GPU"
    field, value = _counted_by(spec, row, needed, facts)
    whole = row.unit is Unit.GPUS and not has_given_roles(spec) and spec.gpus_per_node is None
    nodes = f" ({counted(spec.nodes, 'whole node')})" if whole else ""
    in_all = "" if has_given_roles(spec) or spec.nodes == 1 else " in all"
    less = f"ask for at most {counted(most, noun)}{in_all}, choose" if most else "choose"
    return field_error(
        field,
        value,
        f"the task needs {counted(needed, noun)}{nodes}, {permits}",
        f"{less} another priority or group, "
        f"or ask an operator for more: {_set_to(more, needed, row.unit)}",
    )


def _in_its_unit(row: Quota, spec: TaskSpec, facts: Facts) -> Quota:
    """The row in the unit in which it counts this task."""
    if row.unit is not Unit.GPUS_OR_NODES:
        return row
    unit = Unit.GPUS if demand(spec, Unit.GPUS, facts) else Unit.NODES
    return row.model_copy(update={"unit": unit})


def _counted_by(spec: TaskSpec, row: Quota, needed: int, facts: Facts) -> tuple[str, object]:
    """Return the field that a quota is exceeded by, and its value: of the role that needs most.

    GPUs are exceeded by the nodes where one node alone stays within the quota.
    """
    unit = row.unit
    if not has_given_roles(spec):
        if unit is Unit.NODES or (spec.nodes > 1 and needed <= row.limit * spec.nodes):
            return "nodes", spec.nodes
        return "gpus_per_node", "" if spec.gpus_per_node is None else spec.gpus_per_node
    alone = role_specs(spec)
    index = max(
        range(len(alone)),
        key=lambda each: (not spec.roles[each].auxiliary, demand(alone[each], unit, facts)),
    )
    role = spec.roles[index]
    if unit is Unit.GPUS and role.gpus is not None:
        return f"roles[{index}].gpus", role.gpus
    return f"roles[{index}].replicas", role.replicas


def demand(spec: TaskSpec, unit: Unit, facts: Facts) -> int:
    """Return the least amount of GPUs or nodes that the task can hold when it runs.

    Whole nodes count with the smallest kind of which there are enough, as in the scheduler.
    """
    if sizes_differ(spec):
        return sum(
            demand(own, unit, facts)
            for role, own in zip(spec.roles, role_specs(spec), strict=True)
            if not (unit is Unit.NODES and role.auxiliary)
        )
    spec = effective(spec)
    if unit is Unit.NODES:
        return spec.nodes
    if spec.gpus_per_node is not None:
        return spec.nodes * spec.gpus_per_node
    if not facts.inventory_known:
        return 0
    group = [shape for shape in facts.shapes if shape.group == spec.group]
    return spec.nodes * min(_kinds(spec, group, _suitable(spec, facts), spec.nodes), default=0)


def _suitable(spec: TaskSpec, facts: Facts) -> list[Shape]:
    """Return the nodes of the task's group with the labels that it selects and only taints that it
    tolerates."""
    return [shape for shape in _labelled(spec, facts) if _is_tolerated(shape, spec)]


def _labelled(spec: TaskSpec, facts: Facts) -> list[Shape]:
    return [
        shape
        for shape in (facts.shapes if facts.selected is None else facts.selected)
        if shape.group == spec.group and shape.nodes > 0
    ]


def _is_tolerated(shape: Shape, spec: TaskSpec) -> bool:
    tolerated = set(spec.tolerations)
    return all({taint, taint.partition("=")[0]} & tolerated for taint in shape.taints)


def _usable_count(spec: TaskSpec, group: Sequence[Shape], suitable: Sequence[Shape]) -> int:
    """Return how many nodes the task can get at most; whole nodes all have one number of GPUs."""
    if spec.gpus_per_node is not None:
        return sum(shape.nodes for shape in suitable if _fits(shape, spec))
    return max(
        (
            sum(shape.nodes for shape in suitable if shape.gpus == gpus and _fits(shape, spec))
            for gpus in _kinds(spec, group, suitable, 0)
        ),
        default=0,
    )


def _kinds(
    spec: TaskSpec, group: Sequence[Shape], suitable: Sequence[Shape], wanted: int
) -> tuple[int, ...]:
    # Whether the group has GPUs at all depends on all of its nodes.
    nodes = [Nodes(shape.gpus, shape.nodes, suit=False) for shape in group]
    nodes += [Nodes(shape.gpus, shape.nodes, _fits(shape, spec)) for shape in suitable]
    return kinds_for(nodes, wanted)


def _where(spec: TaskSpec) -> str:
    return f"group {spec.group}" + (" with these labels" if spec.node_selector else "")


def _larger_than_any(spec: TaskSpec, group: Sequence[Shape]) -> Iterator[FieldError]:
    gpus = max(shape.gpus for shape in group)
    if (spec.gpus_per_node or 0) > gpus:
        yield field_error(
            "gpus_per_node",
            spec.gpus_per_node,
            f"the largest node of {_where(spec)} has {gpus}",
            f"ask for at most {gpus} on each of more nodes, or use another group; "
            f"{FOR_NODES_TO_COME}",
        )
    cpus = max(shape.cpus for shape in group)
    if _all_known(group, "cpus") and (spec.cpus or 0) > cpus:
        yield field_error(
            "cpus",
            spec.cpus,
            f"the largest node of {_where(spec)} has {cpus:g}",
            f"ask for at most {cpus:g}, or use another group; {FOR_NODES_TO_COME}",
        )
    memory = max(shape.memory_bytes for shape in group)
    if _all_known(group, "memory_bytes") and (spec.memory_bytes or 0) > memory:
        yield field_error(
            "memory_bytes",
            spec.memory_bytes,
            f"the largest node of {_where(spec)} has {memory} ({memory / GIB:.1f} GiB)",
            f"ask for at most {memory}, or use another group; {FOR_NODES_TO_COME}",
        )


def _all_known(group: Sequence[Shape], column: str) -> bool:
    return all(getattr(shape, column) > 0 for shape in group)


def _fits(shape: Shape, spec: TaskSpec) -> bool:
    return (
        (spec.gpus_per_node or 0) <= shape.gpus
        and (not shape.cpus or (spec.cpus or 0) <= shape.cpus)
        and (not shape.memory_bytes or (spec.memory_bytes or 0) <= shape.memory_bytes)
    )


def _concerns(row: Quota, group: str, owner: str, team: str) -> bool:
    """True if the quota applies. An empty field of a row matches everything."""
    return row.group in {"", group} and row.user in {"", owner} and row.team in {"", team}


def _exceeded(
    rows: Sequence[Quota], level: Priority, spec: TaskSpec, facts: Facts
) -> tuple[Quota, int] | None:
    """Return the tightest quota that this task exceeds at this level, and what it needs."""
    found = [
        (row, demand(spec, row.unit, facts))
        for row in rows
        if row.priority in {Priority.UNSPECIFIED, level}
    ]
    over = [(row, needed) for row, needed in found if needed > row.limit]
    return min(over, key=lambda pair: pair[0].limit, default=None)


def _holder(row: Quota) -> str:
    holders = [f"user {row.user}"] * bool(row.user) + [f"team {row.team}"] * bool(row.team)
    name = " in ".join(holders) or "everyone"
    level = row.priority.removeprefix("PRIORITY_").lower()
    at = "" if row.priority is Priority.UNSPECIFIED else f" at priority {level}"
    return f"{name}{at} in {'group ' + row.group if row.group else 'every group'}"
