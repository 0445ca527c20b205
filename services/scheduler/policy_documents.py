"""Parses and validates policy files, and writes them back. Pure.

Called at start (the policy file in the settings) and by the commands of ``policy_commands.py``.
``parse`` finds all errors, not only the first. A group that is ``null`` loses its policy. A key
that a document leaves out has its default, not the value that was set before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from libs.contracts.messages import FieldError
from services.scheduler import policy_fields as f
from services.scheduler.domain.model.group_policy import (
    Demotion,
    GroupPolicy,
    Rotation,
    Shares,
    Timeshare,
    VirtualCluster,
)
from services.scheduler.domain.model.values import WEIGHTS
from services.scheduler.policy_fields import DAY, Field, Problems, at, nth
from services.scheduler.policy_text import DOCUMENT_BYTES_MAX, PolicyTextError, read_document

# The disciplines that production may use.
POLICIES = ("timeshare", "rotation", "fifo", "backfill", "easy", "las")
GROUPS_MAX = 1000
CLUSTERS_MAX = 1000
MEMBERS_MAX = 10_000
TREE_DEPTH_MAX = 16
NAMED_MAX = 2000
TOPOLOGY_MAX = 8
NODES_MAX = 1_000_000
YEAR = 365 * DAY
# Sums of fractions of nodes carry rounding errors.
ALMOST = 1e-6

_LONG = f.duration(0.0, YEAR)
_SOME = f.duration(1.0, YEAR)
_PART = f.number(0.0, 1.0)

TIMESHARE: Mapping[str, Field] = {
    "pass": Field("pass_seconds", f.duration(1.0, DAY), f.duration_text),
    "restart": Field("restart_seconds", f.duration(0.0, 7 * DAY), f.duration_text),
    "budget_share": Field("budget_share", _PART),
    "grant_share": Field("grant_share", _PART),
    "grant_after": Field("grant_after_seconds", _SOME, f.duration_text),
    "slice_min": Field("slice_seconds_min", _SOME, f.duration_text),
    "slice_share": Field("slice_share", f.number(0.0, 100.0)),
    "hold": Field("hold_seconds", _LONG, f.duration_text),
    "use_limits": Field("use_limits", f.flag),
    "adapt_times": Field("adapt_times", f.flag),
    "flood_guard": Field("flood_guard", f.flag),
}
ROTATION: Mapping[str, Field] = {
    "first_slice": Field("first_slice_seconds", _SOME, f.duration_text),
    "slice": Field("slice_seconds", _SOME, f.duration_text),
    "half_life": Field("half_life_seconds", _SOME, f.duration_text),
}
DEMOTION: Mapping[str, Field] = {
    "level": Field("level", f.LEVEL, f.level_text),
    "to": Field("to", f.LEVEL, f.level_text),
    "after": Field("after_seconds", _SOME, f.duration_text),
}
_WEIGHTS = f.weights(0.001, 1000.0, MEMBERS_MAX)
SHARES: Mapping[str, Field] = {
    "users": Field("users", _WEIGHTS, lambda found: {k: f.plain_number(found[k]) for k in found}),
    "teams": Field("teams", _WEIGHTS, lambda found: {k: f.plain_number(found[k]) for k in found}),
}
_NODES = f.number(0.0, NODES_MAX)
_MEMBERS = f.distinct(f.name, MEMBERS_MAX)
CLUSTER: Mapping[str, Field] = {
    "name": Field("name", f.name),
    "parent": Field("parent", f.name),
    "teams": Field("teams", _MEMBERS, list),
    "users": Field("users", _MEMBERS, list),
    "nodes": Field("nodes", _NODES, f.plain_number),
    "nodes_max": Field("nodes_max", _NODES, f.plain_number),
}


@dataclass(frozen=True, slots=True)
class Parsed:
    """The content of a document. With errors, the policies must not be used."""

    policies: tuple[GroupPolicy, ...] = ()
    # Groups whose policies are removed.
    removed: tuple[str, ...] = ()
    errors: tuple[FieldError, ...] = ()
    warnings: tuple[FieldError, ...] = ()
    # Errors beyond those listed.
    errors_more: int = 0


class PolicyFileError(ValueError):
    """A policy file that cannot be used; the text lists everything that is wrong with it."""


def parse(
    text: str,
    *,
    group: str = "",
    capacity: Mapping[str, float] | None = None,
    default_policy: str = "timeshare",
    bytes_max: int = DOCUMENT_BYTES_MAX,
) -> Parsed:
    """Read a document, of many groups or (with ``group``) of that one alone.

    ``capacity`` is the number of known nodes by group; None: not known, so not compared.
    """
    try:
        document = read_document(text, bytes_max=bytes_max)
    except PolicyTextError as problem:
        return Parsed(errors=(problem.error,))
    if group:
        own: object = {} if document is None else document
        document = {"groups": {group: own}}
    return validate(document, capacity=capacity, default_policy=default_policy)


def validate(
    document: object,
    *,
    capacity: Mapping[str, float] | None = None,
    default_policy: str = "timeshare",
) -> Parsed:
    """The same for a document that is parsed already."""
    problems, policies, removed = Problems(), list[GroupPolicy](), list[str]()
    for key, value in _groups(document, problems).items():
        path = at("groups", key)
        name = f.name(key, path, problems)
        if name is None:
            continue
        if capacity is not None and name not in capacity:
            near = problems.suggestions.meant(name, capacity)
            fix = f"{near} GET /v1/groups lists those with nodes".strip()
            problems.warn(path, name, "is a group without known nodes", fix)
        if value is None:
            removed.append(name)
            continue
        policies.append(_group(name, value, path, default_policy, problems))
        _fits(policies[-1], capacity or {}, problems)
    return Parsed(
        tuple(policies),
        tuple(removed),
        tuple(problems.errors),
        tuple(problems.warnings),
        problems.more,
    )


def _groups(document: object, problems: Problems) -> dict[object, object]:
    """The mapping below ``groups``, the one key of a document."""
    top = f.mapping(document, "document", problems)
    for key in top:
        if key != "groups":
            fix = f.closest(key, ("groups",), problems)
            problems.add(at("", key), top[key], "is no key here", fix)
    if top.get("groups") is None and not problems.errors:
        problems.add("groups", None, "is missing", "write groups: {NAME: {policy: timeshare}}")
    groups = f.mapping(top.get("groups"), "groups", problems)
    if len(groups) <= GROUPS_MAX:
        return groups
    problems.add("groups", None, f"has {len(groups)} groups", f"give at most {GROUPS_MAX}")
    return {}


def _group(
    name: str, value: object, path: str, default_policy: str, problems: Problems
) -> GroupPolicy:
    found = f.section(value, path, GROUP, problems)
    policy = replace(GroupPolicy(name, policy=default_policy), **found)
    rotation = policy.rotation
    if rotation.first_slice_seconds > rotation.slice_seconds:
        fix = "give at most the value of slice"
        first = f.duration_text(rotation.first_slice_seconds)
        problems.add(f"{path}.rotation.first_slice", first, "is longer than slice", fix)
    return policy


@f.accepts(f.list_schema(f.section_schema(Demotion, DEMOTION, tuple(DEMOTION)), len(f.LEVELS)))
def _demotions(value: object, path: str, problems: Problems) -> tuple[Demotion, ...]:
    """Each level once, and always downwards, so that no chain is a cycle."""
    found: list[Demotion] = []
    for number, each in enumerate(f.listing(value, path, len(f.LEVELS), problems)):
        below = nth(path, number)
        given = f.section(each, below, DEMOTION, problems)
        missing = [key for key in DEMOTION if DEMOTION[key].attribute not in given]
        if missing:
            _missing(each, below, missing, problems)
            continue
        one = Demotion(**given)
        if WEIGHTS[one.to] >= WEIGHTS[one.level]:
            fix = f"give a level below {f.level_text(one.level)}"
            problems.add(f"{below}.to", f.level_text(one.to), "is not a lower level", fix)
        if any(other.level is one.level for other in found):
            level = f.level_text(one.level)
            problems.add(f"{below}.level", level, "is there twice", "keep one of them")
        found.append(one)
    return tuple(found)


def _missing(value: object, path: str, missing: Sequence[str], problems: Problems) -> None:
    """Add an error for each key that is not given; a wrong value has its own error already."""
    if value is not None and not isinstance(value, dict):
        return
    given = cast("dict[object, object]", value or {})
    for key in missing:
        if given.get(key) is None:
            problems.add(f"{path}.{key}", None, "is missing", "give it")


@f.accepts(f.list_schema(f.section_schema(VirtualCluster, CLUSTER, ("name",)), CLUSTERS_MAX))
def _clusters(value: object, path: str, problems: Problems) -> tuple[VirtualCluster, ...]:
    found: list[VirtualCluster] = []
    places: list[str] = []
    unsized: set[str] = set()
    for number, each in enumerate(f.listing(value, path, CLUSTERS_MAX, problems)):
        below = nth(path, number)
        given = f.section(each, below, CLUSTER, problems)
        if "name" not in given:
            _missing(each, below, ("name",), problems)
            continue
        if cast("dict[str, object]", each).get("nodes") is None:
            unsized.add(given["name"])
        given.setdefault("nodes", 0.0)
        found.append(VirtualCluster(**given))
        places.append(below)
    _named_once(found, places, problems)
    if not _is_tree(found, places, problems):
        return tuple(found)
    return _sized(found, places, unsized, problems)


def _named_once(clusters: Sequence[VirtualCluster], places: list[str], problems: Problems) -> None:
    """Each name, and each team and user of the group, in one place only."""
    seen: dict[tuple[str, str], str] = {}
    for one, path in zip(clusters, places, strict=True):
        entries = [("name", one.name, f"{path}.name")]
        entries += [("team", each, f"{path}.teams") for each in one.teams]
        entries += [("user", each, f"{path}.users") for each in one.users]
        for kind, name, place in entries:
            before = seen.setdefault((kind, name), path)
            if before is not path:
                message = "is the name of two" if kind == "name" else "is in two virtual clusters"
                problems.add(place, name, message, f"the other one is {before}: keep one of them")


def _is_tree(clusters: Sequence[VirtualCluster], places: list[str], problems: Problems) -> bool:
    """True if names are unique, every parent exists, and no branch is a cycle or too deep."""
    parents = {one.name: one.parent for one in clusters}
    sound = len(parents) == len(clusters)
    for one, path in zip(clusters, places, strict=True):
        above, line = one.parent, [one.name]
        while above in parents and above not in line and len(line) <= TREE_DEPTH_MAX:
            line.append(above)
            above = parents[above]
        # Inside a cycle further up: its own members have the errors.
        sound = sound and not above
        if one.parent and one.parent not in parents:
            message = "is no virtual cluster of this group"
            fix = f.closest(one.parent, parents.keys() - {one.name}, problems)
        elif above == one.name:
            message = f"is a cycle of parents: {' > '.join([*line, one.name])}"
            fix = "let one of them have no parent"
        elif above in parents and above not in line:
            message, fix = "lies too deep", f"nest at most {TREE_DEPTH_MAX} virtual clusters"
        else:
            continue
        problems.add(f"{path}.parent", one.parent, message, fix)
    return sound


def _sized(
    clusters: Sequence[VirtualCluster], places: list[str], unsized: set[str], problems: Problems
) -> tuple[VirtualCluster, ...]:
    """A parent without a guarantee has the sum of its parts'; else theirs must fit into its own."""
    parts: defaultdict[str, list[str]] = defaultdict(list)
    for one in clusters:
        if one.parent:
            parts[one.parent].append(one.name)
    nodes = {one.name: one.nodes for one in clusters}

    def settle(name: str) -> float:
        if name in unsized and parts[name]:
            nodes[name] = sum(settle(part) for part in parts[name])
        return nodes[name]

    found = [replace(one, nodes=settle(one.name)) for one in clusters]
    for one, path in zip(found, places, strict=True):
        inside = sum(nodes[part] for part in parts[one.name])
        if one.name in unsized and not parts[one.name]:
            fix = "give the nodes that are guaranteed; 0 if none are"
            problems.add(f"{path}.nodes", None, "is missing", fix)
        if inside > one.nodes + ALMOST:
            message = f"is less than its parts are guaranteed, {inside:g}"
            fix = "give more, or give the parts less"
            problems.add(f"{path}.nodes", f.plain_number(one.nodes), message, fix)
        if one.nodes_max is not None and one.nodes_max + ALMOST < one.nodes:
            message = f"is less than the guaranteed {one.nodes:g} nodes"
            fix = "give as many or more, or leave it out"
            problems.add(f"{path}.nodes_max", f.plain_number(one.nodes_max), message, fix)
        if not (one.teams or one.users or parts[one.name]):
            problems.warn(
                path, one.name, "has nobody in it", "name teams or users, or leave it out"
            )
    return tuple(found)


def _fits(policy: GroupPolicy, capacity: Mapping[str, float], problems: Problems) -> None:
    """Add an error if the guarantees of a group exceed its known nodes."""
    known = capacity.get(policy.group)
    given = sum(one.nodes for one in policy.virtual_clusters if not one.parent)
    if known is not None and given > known + ALMOST:
        message = f"guarantees {given:g} nodes of {known:g} that are known in the group"
        path = f"groups.{policy.group}.virtual_clusters"
        problems.add(path, f.plain_number(given), message, "give less, or add the nodes first")


def overcommitted(policy: GroupPolicy, capacity: Mapping[str, float]) -> str:
    """The error of guarantees beyond the known nodes; empty if there is none."""
    problems = Problems()
    _fits(policy, capacity, problems)
    return "; ".join(f"{error.field}: {error.message}" for error in problems.errors)


def _cluster_document(one: VirtualCluster) -> dict[str, object]:
    every = f.written(one, CLUSTER)
    return {key: every[key] for key in every if every[key] not in ("", None, [])}


GROUP: Mapping[str, Field] = {
    "policy": Field("policy", f.one_of("is not known", dict(zip(POLICIES, POLICIES, strict=True)))),
    "timeshare": f.nested("timeshare", Timeshare, TIMESHARE),
    "rotation": f.nested("rotation", Rotation, ROTATION),
    "demotions": Field(
        "demotions", _demotions, lambda found: [f.written(each, DEMOTION) for each in found]
    ),
    "shares": f.nested("shares", Shares, SHARES),
    "virtual_clusters": Field(
        "virtual_clusters", _clusters, lambda found: [_cluster_document(each) for each in found]
    ),
    "protected": Field("protected_seconds", f.duration(0.0, 30 * DAY), f.duration_text),
    "topology": Field("topology", f.distinct(f.label, TOPOLOGY_MAX), list),
    "cross_zone_gangs_max": Field("cross_zone_gangs_max", f.whole(0, NODES_MAX)),
}


# The JSON schema of one group's document, and of a file of many.
DOCUMENT_SCHEMA = f.section_schema(GroupPolicy, GROUP) | {
    "title": "PolicyDocument",
    "description": "How one node group is shared. What a document leaves out has its default.",
}
FILE_SCHEMA: Mapping[str, Any] = {
    "title": "PolicyFile",
    "description": "The policies of node groups. A group that is null loses its own.",
    "type": "object",
    "properties": {
        "groups": {
            "type": "object",
            "additionalProperties": {"anyOf": [DOCUMENT_SCHEMA, {"type": "null"}]},
            "propertyNames": f.name.schema,
            "maxProperties": GROUPS_MAX,
        }
    },
    "required": ["groups"],
    "additionalProperties": False,
}


def document_of(policy: GroupPolicy) -> dict[str, Any]:
    """The policy as a group's document with every key; ``parse`` reads the same again."""
    return f.written(policy, GROUP)


def named(policies: Sequence[GroupPolicy]) -> tuple[dict[str, str], dict[str, str]]:
    """The users and the teams that policies name, by place in the document. Each name once, and at
    most ``NAMED_MAX`` of either, so that a reply with them stays small."""
    found: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for policy in policies:
        path = at("groups", policy.group)
        for kind, names in zip(("users", "teams"), found, strict=True):
            shares = at(at(path, "shares"), kind)
            places = [(at(shares, name), name) for name in getattr(policy.shares, kind)]
            for index, cluster in enumerate(policy.virtual_clusters):
                members = at(nth(at(path, "virtual_clusters"), index), kind)
                places += [(nth(members, n), name) for n, name in enumerate(getattr(cluster, kind))]
            for place, name in places:
                if len(names) < NAMED_MAX:
                    names.setdefault(name, place)
    users, teams = ({place: name for name, place in names.items()} for names in found)
    return users, teams


def load_file(path: Path, *, default_policy: str = "timeshare") -> tuple[GroupPolicy, ...]:
    """The policies of a file; PolicyFileError lists everything that is wrong with it."""
    try:
        with path.open("rb") as file:
            data = file.read(DOCUMENT_BYTES_MAX + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as problem:
        raise PolicyFileError(f"{path} cannot be read: {problem}") from None
    found = parse(text, default_policy=default_policy)
    if found.errors:
        raise PolicyFileError("\n".join([f"{path} is no policy file:", *error_lines(found)]))
    if found.removed:
        raise PolicyFileError(f"{path}: groups.{found.removed[0]} is empty; leave it out")
    return tuple(replace(policy, from_file=True) for policy in found.policies)


def error_lines(found: Parsed) -> list[str]:
    """The errors as lines for people."""
    lines = [f"  {each.field}: {_valued(each)}{each.message}; {each.fix}" for each in found.errors]
    return [*lines, f"  and {found.errors_more} more"] if found.errors_more else lines


def _valued(error: FieldError) -> str:
    return f"{error.value!r} " if error.value else ""
