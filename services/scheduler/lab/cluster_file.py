"""The cluster file of the lab: a policy file that also lists the nodes and quotas.

::

    groups:
      default:
        nodes:
          - {count: 32, gpus: 8, labels: {zone: a, spine: s1}, prefix: a}
          - {count: 32, gpus: 8, labels: {zone: b, spine: s2}, prefix: b}
        virtual_clusters:
          - {name: vision, nodes: 40, teams: [vision]}
          - {name: speech, nodes: 20.5, users: [eve]}
    quotas:
      - {group: default, user: alice, priority: high, gpus: 16}

Each key of a policy file may stand beside ``nodes``. A virtual cluster without users and teams is
the trace's ``vc`` of the same name. Called by ``cli.py``; errors name the path and the fix.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from shiftwork.cli.input_files import advice

from libs.contracts.ids import NODE_ID_FORM
from libs.contracts.messages import Priority, Unit
from libs.contracts.wording import counted
from services.scheduler import policy_documents
from services.scheduler.domain.model.group_policy import GroupPolicy, VirtualCluster
from services.scheduler.domain.model.rows import Limit, LimitKey
from services.scheduler.lab.errors import LabError
from services.scheduler.lab.traces.row import LEVELS
from services.scheduler.lab.workload import Cluster, LabGroup, LabNode
from services.scheduler.lab.yaml_mapping import BYTES_MAX, YamlMapping, read_yaml

GPUS_MAX = 64
NODES_MAX = 1_000_000
_UNITS = MappingProxyType(
    {"gpus": Unit.GPUS, "nodes": Unit.NODES, "gpus_or_nodes": Unit.GPUS_OR_NODES}
)
# Keys of a quota in the API's answers that are not part of the quota.
_QUOTA_METADATA = ("version", "changed_by", "changed_at", "expires_at")
_QUOTA_KEYS = (
    *("group", "user", "team", "priority", "gpus", "nodes", "unit", "limit"),
    *("grant", "unlimited", "level_max"),
    *_QUOTA_METADATA,
)


def read(path: Path, nodes: int | None, gpus_per_node: int) -> Cluster:
    """Read a cluster file. Raises LabError.

    ``nodes`` and ``gpus_per_node`` describe a single group that lists no nodes of its own.
    """
    return parse(_text(path), str(path), nodes, gpus_per_node)


def parse(text: str, where: str, nodes: int | None = None, gpus_per_node: int = 8) -> Cluster:
    """Parse the text of a cluster file."""
    root = YamlMapping(read_yaml(text, where), where)
    root.known("groups", "quotas")
    groups_mapping = YamlMapping(root.get("groups"), root.at("groups"))
    names = groups_mapping.names()
    if not names:
        raise LabError(
            "it names no group", where=groups_mapping.path, fix="groups: {default: {nodes: …}}"
        )
    shared: dict[str, Any] = {}
    places: dict[str, tuple[LabNode, ...]] = {}
    for name in names:
        group = YamlMapping(groups_mapping.get(name) or {}, groups_mapping.at(name))
        shared[name] = {key: group.get(key) for key in group.names() if key != "nodes"}
        if group.get("nodes") is not None:
            places[name] = tuple(_nodes(name, group))
        elif nodes is not None and len(names) == 1:
            places[name] = tuple(_block(name, nodes, gpus_per_node, {}))
        else:
            raise LabError("it is missing", where=group.at("nodes"), fix=_NODES_FIX)
    _check_unique_names(places, groups_mapping.path)
    if nodes is not None and nodes != sum(map(len, places.values())):
        raise LabError(
            f"it has {counted(sum(map(len, places.values())), 'node')}: --nodes is {nodes}",
            where=where,
            fix="leave out --nodes, or the nodes of the file",
        )
    groups = tuple(
        LabGroup(policy.group, places[policy.group], _with_members(policy))
        for policy in _policies(shared, places, where)
    )
    cluster = Cluster(groups)
    return replace(cluster, quotas=tuple(_quotas(root, cluster)))


_NODES_FIX = "nodes: [{count: 16, gpus: 8}]"


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MAX + 1)
        return data.decode()
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise LabError(
            f"it cannot be read: {reason}", where=str(path), fix=advice(str(path))
        ) from None


def _nodes(group: str, tree: YamlMapping) -> Iterator[LabNode]:
    for block in tree.items("nodes"):
        block.known("count", "gpus", "labels", "prefix")
        prefix = block.text("prefix", f"{group}-")
        labels = block.labels("labels")
        if not re.fullmatch(NODE_ID_FORM, f"{group}.{prefix}1"):
            raise LabError(
                f"{prefix!r} cannot begin the name of a node",
                where=f"{block.path}.prefix",
                fix="use letters, digits, '-', '_' and '.'",
            )
        yield from _block(
            prefix, block.whole("count", 1, NODES_MAX), block.whole("gpus", 0, GPUS_MAX), labels
        )


def _block(prefix: str, count: int, gpus: int, labels: dict[str, str]) -> Iterator[LabNode]:
    width = len(str(count))
    shared = MappingProxyType(labels)
    for place in range(1, count + 1):
        yield LabNode(f"{prefix}{place:0{width}}", gpus, shared)


def _check_unique_names(places: dict[str, tuple[LabNode, ...]], path: str) -> None:
    seen: set[str] = set()
    for group, nodes in places.items():
        if len(nodes) > NODES_MAX:
            raise LabError(f"it has more than {NODES_MAX} nodes", where=f"{path}.{group}.nodes")
        for node in nodes:
            if node.name in seen:
                raise LabError(
                    f"node {node.name} is there twice",
                    where=f"{path}.{group}.nodes",
                    fix="give each block a prefix of its own",
                )
            seen.add(node.name)


def _policies(
    shared: dict[str, Any], places: dict[str, tuple[LabNode, ...]], where: str
) -> tuple[GroupPolicy, ...]:
    capacity = {name: float(len(nodes)) for name, nodes in places.items()}
    parsed = policy_documents.validate({"groups": shared}, capacity=capacity)
    if parsed.errors:
        first = parsed.errors[0]
        message = f"{first.value!r} {first.message}" if first.value else first.message
        more = len(parsed.errors) - 1 + parsed.errors_more
        raise LabError(
            message + (f" (and {more} more)" if more else ""),
            where=f"{where}.{first.field}",
            fix=first.fix,
        )
    return parsed.policies


def _with_members(policy: GroupPolicy) -> GroupPolicy:
    taken = {team for each in policy.virtual_clusters for team in each.teams}

    def with_members(each: VirtualCluster) -> VirtualCluster:
        named = each.teams or each.users or each.name in taken
        return each if named else replace(each, teams=(each.name,))

    return replace(policy, virtual_clusters=tuple(map(with_members, policy.virtual_clusters)))


# --- quotas ---------------------------------------------------------------------------------


def read_quotas(path: Path, cluster: Cluster) -> tuple[Limit, ...]:
    """Read a file of quotas, or the output of ``shiftwork quota ls --json``. Raises LabError."""
    found = read_yaml(_text(path), str(path))
    if isinstance(found, list):
        found = cast("dict[str, Any]", {"quotas": found})
    elif isinstance(found, dict) and "items" in found:
        answer = cast("dict[str, Any]", found)
        found = {"quotas": answer["items"]}
    root = YamlMapping(found, str(path))
    root.known("quotas")
    return tuple(_quotas(root, cluster))


def _quotas(root: YamlMapping, cluster: Cluster) -> Iterator[Limit]:
    seen: set[LimitKey] = set()
    for quota in root.optional_items("quotas"):
        quota.known(*_QUOTA_KEYS)
        limit = _quota(quota, cluster)
        if limit.key in seen:
            raise LabError("it is there twice", where=quota.path, fix="keep one of them")
        seen.add(limit.key)
        yield limit


def _quota(quota: YamlMapping, cluster: Cluster) -> Limit:
    group = quota.text("group", "")
    if group and cluster.group(group) is None:
        names = ", ".join(each.name for each in cluster.groups)
        raise LabError(f"it is {group!r}", where=quota.at("group"), fix=f"groups are {names}")
    grant = quota.get("grant") is True
    row = Limit(
        group=group,
        user=quota.text("user", ""),
        team=quota.text("team", ""),
        priority=_level(quota, "priority"),
        unit=Unit.UNSPECIFIED,
        limit=0,
        grant=grant,
        level_max=_level(quota, "level_max") if grant else Priority.UNSPECIFIED,
    )
    if grant and quota.get("unlimited") is True:
        return replace(row, unlimited=True)
    name, unit = _unit(quota)
    limit = quota.whole(name, 0, 10**9)
    # A grant may be for nodes that are to come.
    most = limit if grant else _capacity(cluster, group or None, unit)
    if limit > most:
        raise LabError(
            f"it is {limit}: there are {most} {unit.name.lower()}",
            where=quota.at(name),
            fix=f"give at most {most}, or leave the quota out",
        )
    return replace(row, unit=unit, limit=limit)


def _level(quota: YamlMapping, name: str) -> Priority:
    word = quota.text(name, "")
    if word and word not in LEVELS:
        raise LabError(
            f"it is {word!r}", where=quota.at(name), fix=f"levels are {', '.join(LEVELS)}"
        )
    return LEVELS[word] if word else Priority.UNSPECIFIED


def _unit(quota: YamlMapping) -> tuple[str, Unit]:
    """The key that holds the number, and what it counts."""
    if quota.get("unit") is not None:
        word = quota.text("unit")
        if word not in _UNITS:
            raise LabError(f"it is {word!r}", where=quota.at("unit"), fix="write gpus or nodes")
        return "limit", _UNITS[word]
    given = [name for name in _UNITS if quota.get(name) is not None]
    if len(given) != 1:
        raise LabError(
            "it has no number" if not given else "it has two numbers",
            where=quota.path,
            fix="write gpus: N or nodes: N",
        )
    return given[0], _UNITS[given[0]]


def _capacity(cluster: Cluster, group: str | None, unit: Unit) -> int:
    nodes = [node for each in cluster.groups if group in (None, each.name) for node in each.nodes]
    return len(nodes) if unit is Unit.NODES else sum(node.gpus for node in nodes)
