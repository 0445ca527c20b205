"""Storage grants carried out: which of them a task gets, and what they are in its pods.

``services/launcher/manifests.py`` mounts what ``mounts_of`` returns; ``check.py`` refuses what a
task asks for in vain.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from libs.contracts.messages import FieldError
from libs.pods.asker import Asker
from libs.pods.faults import fault
from libs.pods.forms import under
from libs.pods.grants import Grant, Source
from libs.pods.policy import PodPolicy

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Mounted:
    """One grant in a pod."""

    volume: Json
    mount: Json


def check_storage(names: Sequence[str], asker: Asker, policy: PodPolicy) -> Iterator[FieldError]:
    """What is wrong with the grants that a task names."""
    mine = {grant.name: grant for grant in policy.storage if _usable(grant, asker, policy)}
    at: dict[str, str] = {}
    for index, name in enumerate(names):
        field = f"pod.storage[{index}]"
        if name not in mine:
            fix = f"use of: {', '.join(sorted(mine))}" if mine else "leave it out: there is none"
            # The same answer for grants of others: their names are nobody's business.
            yield fault(field, name, "is no storage that this task may mount", fix)
            continue
        path = asker.filled(mine[name].mount_path) or ""
        if at.setdefault(path, name) != name:
            yield fault(field, name, f"is mounted at {path} like {at[path]}", "ask for one of them")


def mounts_of(names: Sequence[str], asker: Asker, policy: PodPolicy) -> list[Mounted]:
    """What the task's pods mount, in the order of the paths.

    Two grants at one path: the one that was asked for, then the more personal one, then the first.
    """
    chosen: dict[str, tuple[tuple[bool, int, bool], Grant]] = {}
    for grant in policy.storage:
        asked = grant.name in names
        if not (asked or grant.default) or not _usable(grant, asker, policy):
            continue
        path = asker.filled(grant.mount_path) or ""
        rank = (asked, *grant.closeness)
        if path not in chosen or rank > chosen[path][0]:
            chosen[path] = (rank, grant)
    return [_mounted(grant, path, asker) for path, (_, grant) in sorted(chosen.items())]


def _usable(grant: Grant, asker: Asker, policy: PodPolicy) -> bool:
    """True if it is for this task, and every word of it can be filled in."""
    if not grant.holds(asker):
        return False
    source = grant.source
    words = [grant.mount_path, grant.sub_path]
    for part in (source.host_path, source.claim, source.config_map, source.nfs):
        words += [str(value) for value in vars(part).values()] if part else []
    filled = [asker.filled(word) for word in words]
    if None in filled:
        return False
    path = asker.filled(source.host_path.path) if source.host_path else None
    return path is None or under(path, policy.host_path_roots)


def _mounted(grant: Grant, path: str, asker: Asker) -> Mounted:
    mount: Json = {"name": grant.volume, "mountPath": path}
    sub_path = asker.filled(grant.sub_path) or ""
    config_map = grant.source.config_map
    if config_map and config_map.key:
        sub_path = config_map.key
    if sub_path:
        mount["subPath"] = sub_path
    if grant.read_only:
        mount["readOnly"] = True
    return Mounted({"name": grant.volume, **_source(grant.source, grant, asker)}, mount)


def _source(source: Source, grant: Grant, asker: Asker) -> Json:
    """The volume as a pod writes it. What can be read only in itself is."""
    read_only: Json = {"readOnly": True} if grant.read_only else {}

    def filled(text: str) -> str:
        return asker.filled(text) or ""

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
