"""Applies storage grants: selects those that a task gets and turns them into volumes and mounts.

The launcher mounts what ``mounts_of`` returns; ``request_validation.py`` rejects grants that a task
requests but may not mount.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from libs.contracts.messages import FieldError
from libs.pods.field_errors import field_error
from libs.pods.formats import under
from libs.pods.pod_policy import PodPolicy
from libs.pods.requester import Requester
from libs.pods.storage_grants import Grant, Source

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Mounted:
    """One grant as a volume and its mount in a pod."""

    volume: Json
    mount: Json


def check_storage(
    names: Sequence[str],
    requester: Requester,
    policy: PodPolicy,
    *,
    above: str = "pod",
    beside: Sequence[str] = (),
) -> Iterator[FieldError]:
    """Yield the errors in the grants that a task requests. ``above`` is where the list stands,
    ``beside`` the grants that are mounted with them and were validated elsewhere."""
    mine = {grant.name: grant for grant in policy.storage if _usable(grant, requester, policy)}
    at = {requester.filled(mine[name].mount_path) or "": name for name in beside if name in mine}
    for index, name in enumerate(names):
        field = f"{above}.storage[{index}]"
        if name not in mine:
            fix = f"use of: {', '.join(sorted(mine))}" if mine else "leave it out: there is none"
            # The same error for grants of others, so that their names do not leak.
            yield field_error(field, name, "is no storage that this task may mount", fix)
            continue
        path = requester.filled(mine[name].mount_path) or ""
        if at.setdefault(path, name) != name:
            yield field_error(
                field, name, f"is mounted at {path} like {at[path]}", "ask for one of them"
            )


def mounts_of(names: Sequence[str], requester: Requester, policy: PodPolicy) -> list[Mounted]:
    """Return what the task's pods mount, ordered by path.

    Of two grants at one path it prefers the requested one, then the more specific, then the first.
    """
    chosen: dict[str, tuple[tuple[bool, int, bool], Grant]] = {}
    for grant in policy.storage:
        requested = grant.name in names
        if not (requested or grant.default) or not _usable(grant, requester, policy):
            continue
        path = requester.filled(grant.mount_path) or ""
        rank = (requested, *grant.closeness)
        if path not in chosen or rank > chosen[path][0]:
            chosen[path] = (rank, grant)
    return [_mounted(grant, path, requester) for path, (_, grant) in sorted(chosen.items())]


def _usable(grant: Grant, requester: Requester, policy: PodPolicy) -> bool:
    """True if the grant applies to this task and all its templates can be filled in."""
    if not grant.holds(requester):
        return False
    source = grant.source
    templates = [grant.mount_path, grant.sub_path]
    for part in (source.host_path, source.claim, source.config_map, source.nfs):
        templates += [str(value) for value in vars(part).values()] if part else []
    filled = [requester.filled(template) for template in templates]
    if None in filled:
        return False
    path = requester.filled(source.host_path.path) if source.host_path else None
    return path is None or under(path, policy.host_path_roots)


def _mounted(grant: Grant, path: str, requester: Requester) -> Mounted:
    mount: Json = {"name": grant.volume, "mountPath": path}
    sub_path = requester.filled(grant.sub_path) or ""
    config_map = grant.source.config_map
    if config_map and config_map.key:
        sub_path = config_map.key
    if sub_path:
        mount["subPath"] = sub_path
    if grant.read_only:
        mount["readOnly"] = True
    return Mounted({"name": grant.volume, **_source(grant.source, grant, requester)}, mount)


def _source(source: Source, grant: Grant, requester: Requester) -> Json:
    """Return the volume as a pod declares it, read-only at the volume where its type allows."""
    read_only: Json = {"readOnly": True} if grant.read_only else {}

    def filled(text: str) -> str:
        return requester.filled(text) or ""

    if source.host_path:
        kind: Json = {"type": source.host_path.type} if source.host_path.type else {}
        return {"hostPath": {"path": filled(source.host_path.path), **kind}}
    if source.claim:
        return {"persistentVolumeClaim": {"claimName": filled(source.claim.name), **read_only}}
    if source.nfs:
        path = posixpath.normpath(filled(source.nfs.path))
        return {"nfs": {"server": source.nfs.server, "path": path, **read_only}}
    if source.config_map:
        return {"configMap": {"name": filled(source.config_map.name)}}
    assert source.empty_dir is not None, "a source is one of these"
    size = source.empty_dir.size_bytes
    return {
        "emptyDir": {
            **({"medium": source.empty_dir.medium} if source.empty_dir.medium else {}),
            **({"sizeLimit": str(size)} if size else {}),
        }
    }
