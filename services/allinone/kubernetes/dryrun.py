"""What an installation or upgrade would change, object by object. Nothing is changed.

helm renders the charts as the cluster's own ``lookup`` sees it; the API server then applies each
object without keeping it (server-side dry run), so that admission, defaults and rights take effect;
the results are compared with the existing objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml
from shiftwork.cli.failures import UNREACHABLE, Failure
from shiftwork.cli.parse import fields, listed

from services.allinone.kubernetes.helm import Helm, Values
from services.allinone.kubernetes.kubectl import Json, Kubectl, Target, as_list, documents

Kind = Literal["create", "change", "same", "remove", "refused"]
# Fields that the server writes; their changes do not matter.
_SERVERS_OWN = ("managedFields", "resourceVersion", "generation", "uid", "creationTimestamp")
_MANAGER = "helm"
_CHANGED_MAX = 4
Key = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Change:
    """What would become of one object."""

    kind: Kind
    object: str
    name: str
    namespace: str
    # Which fields differ, or why the server refuses.
    detail: str = ""

    def document(self) -> dict[str, str]:
        """The result as an object for scripts."""
        return {
            "change": self.kind,
            "kind": self.object,
            "name": self.name,
            "namespace": self.namespace,
            "detail": self.detail,
        }


def changes(to: Target, chart: Path, values: Values) -> list[Change]:
    """Every object of the release as it is to be, and those that would go."""
    helm, kubectl = Helm(to), Kubectl(to)
    before = _objects(helm.manifest() if helm.release() else "", to)
    wanted = _objects(str(helm.rendered(chart, values)["manifest"]), to)
    live = _live(kubectl, [*wanted.values(), *before.values()])
    applied, refused = _applied(kubectl, [wanted[key] for key in wanted if key in live])
    found = [_change(key, live.get(key), applied.get(key), refused.get(key, "")) for key in wanted]
    gone = (key for key in before if key not in wanted and key in live)
    kept = "helm.sh/resource-policy"
    found += [
        Change("remove", key[1], key[3], key[2])
        for key in gone
        if kept not in fields(live[key]["metadata"].get("annotations"))
    ]
    return found


def _objects(manifest: str, to: Target) -> dict[Key, Json]:
    found: dict[Key, Json] = {}
    for each in yaml.safe_load_all(manifest):
        if each:
            key, metadata = _key(each, to.namespace), each["metadata"]
            if key[2]:
                metadata["namespace"] = key[2]
            # What helm adds when it installs.
            metadata["annotations"] = fields(metadata.get("annotations")) | {
                "meta.helm.sh/release-name": to.release,
                "meta.helm.sh/release-namespace": to.namespace,
            }
            found[key] = each
    return found


def _key(it: Json, namespace: str) -> Key:
    """Group and kind, namespace (none for the cluster's own kinds), name."""
    group = str(it["apiVersion"]).rpartition("/")[0]
    own = "" if it["kind"] in CLUSTER_WIDE else it["metadata"].get("namespace") or namespace
    return group, str(it["kind"]), own, str(it["metadata"]["name"])


CLUSTER_WIDE = frozenset(
    {"Namespace", "ClusterRole", "ClusterRoleBinding", "PriorityClass", "StorageClass"}
)


def _live(kubectl: Kubectl, objects: Sequence[Json]) -> dict[Key, Json]:
    """What is there of these objects."""
    if not objects:
        return {}
    output = kubectl.run(
        *("get", "-f", "-", "--ignore-not-found", "-o", "json"),
        stdin=as_list(objects),
    )
    return {_key(it, kubectl.to.namespace): it for it in documents(output)}


def _applied(kubectl: Kubectl, objects: Sequence[Json]) -> tuple[dict[Key, Json], dict[Key, str]]:
    """Objects as the server would keep them; those that it refuses, with its words."""
    try:
        return _apply(kubectl, objects), {}
    except Failure as problem:
        if problem.code == UNREACHABLE:
            raise
    # At least one is refused: apply them individually to find out which.
    applied: dict[Key, Json] = {}
    refused: dict[Key, str] = {}
    for it in objects:
        try:
            applied |= _apply(kubectl, [it])
        except Failure as problem:
            refused[_key(it, kubectl.to.namespace)] = problem.what
    return applied, refused


def _apply(kubectl: Kubectl, objects: Sequence[Json]) -> dict[Key, Json]:
    if not objects:
        return {}
    output = kubectl.run(
        *("apply", "-f", "-", "--server-side", "--dry-run=server", "--force-conflicts"),
        *(f"--field-manager={_MANAGER}", "-o", "json"),
        stdin=as_list(objects),
    )
    return {_key(it, kubectl.to.namespace): it for it in documents(output)}


def _change(key: Key, live: Json | None, applied: Json | None, refused: str) -> Change:
    _, kind, namespace, name = key
    if live is None:
        return Change("create", kind, name, namespace)
    if applied is None:
        return Change("refused", kind, name, namespace, refused)
    differing = list(_differing(_bare(live), _bare(applied)))
    if not differing:
        return Change("same", kind, name, namespace)
    more = f" and {len(differing) - _CHANGED_MAX} more" if len(differing) > _CHANGED_MAX else ""
    detail = ", ".join(differing[:_CHANGED_MAX]) + more
    return Change("change", kind, name, namespace, detail)


def _bare(it: Json) -> Json:
    metadata = {key: value for key, value in it["metadata"].items() if key not in _SERVERS_OWN}
    rest = {key: value for key, value in it.items() if key not in ("status", "metadata")}
    return rest | {"metadata": metadata}


def _differing(old: object, new: object, at: str = "") -> Iterator[str]:
    """Paths of the fields that differ; never a value, as it may be a secret."""
    if isinstance(old, dict) and isinstance(new, dict):
        one, other = fields(old), fields(new)  # pyright: ignore[reportUnknownArgumentType] - any JSON
        for key in sorted({*one, *other}):
            yield from _differing(one.get(key), other.get(key), f"{at}.{key}" if at else key)
    elif isinstance(old, list) and isinstance(new, list) and len(listed(old)) == len(listed(new)):  # pyright: ignore[reportUnknownArgumentType] - any JSON
        for index, pair in enumerate(zip(listed(old), listed(new), strict=True)):  # pyright: ignore[reportUnknownArgumentType] - any JSON
            yield from _differing(*pair, f"{at}[{index}]")
    elif old != new:
        yield at
