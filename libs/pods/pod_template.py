"""Parses a task's pod template, validates it and merges it over the platform's pod.

The merge follows Kubernetes' strategic merge for the lists that matter: containers, variables,
volumes and labels by name, mounts by path. A validated template cannot remove what the platform
set; containers that the template adds get the restricted defaults.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from libs.contracts.messages import FieldError
from libs.pods.field_errors import field_error
from libs.pods.pod_policy import PodPolicy
from libs.pods.requester import Requester
from libs.pods.template_fields import TEMPLATE
from libs.pods.template_schema import View, check_value

Json = dict[str, Any]

FIELD = "pod.template"
DEPTH_MAX = 32
# The field that identifies an entry of these lists; other lists are appended to.
KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "hostAliases": "ip",
}
# Entries of these are merged field by field, of the others replaced as a whole.
MERGED_ENTRIES = frozenset({"containers", "initContainers"})
# With these capabilities Kubernetes rejects "allowPrivilegeEscalation: false".
ESCALATING = frozenset({"SYS_ADMIN", "ALL"})


class _NotJsonError(ValueError):
    """The text is not a JSON object; the message gives the reason."""


def check_template(
    text: str, requester: Requester, policy: PodPolicy, *, field: str = FIELD, below: str = ""
) -> Iterator[FieldError]:
    """Yield every error of a template; an empty template has none. ``below`` is the template that
    it is merged over; what both come to is validated as well."""
    if not text:
        return
    most, size = policy.template_bytes_max, len(text.encode())
    if size > most:
        fix = "put large values in a ConfigMap of your own" if most else "leave it out"
        yield field_error(field, f"{size} bytes", f"is larger than {most} bytes", fix)
        return
    try:
        found = _parsed(text)
    except _NotJsonError as error:
        yield field_error(
            field, f"{size} bytes", f"is not a pod template: {error}", "write metadata and spec"
        )
        return
    base = _readable(below)
    view = View(requester, policy, volumes=_declared(found) | _declared(base))
    clean = True
    for error in check_value(TEMPLATE, field, found, view):
        clean = False
        yield error
    if clean and base and not any(check_value(TEMPLATE, FIELD, base, view)):
        yield from check_value(TEMPLATE, field, _merge(base, found), view)


def _readable(text: str) -> Json:
    """Parse another template, whose own errors are reported elsewhere."""
    try:
        return read_template(text)
    except _NotJsonError:
        return {}


def read_template(text: str) -> Json:
    """Parse a validated template; an empty text is an empty template."""
    return _parsed(text) if text else {}


def merged_templates(below: str, above: str) -> str:
    """Merge one validated template over another; the result is a template, too."""
    if not below or not above:
        return above or below
    return json.dumps(_merge(read_template(below), read_template(above)))


def merged(pod: Json, template: Json, policy: PodPolicy) -> Json:
    """Merge a validated template over the platform's pod. Does not change its arguments."""
    found: Json = _merge(pod, template)
    spec: Json = found["spec"]
    own = {container["name"] for part in LISTS for container in pod["spec"].get(part, ())}
    for part in LISTS:
        if part in spec:
            spec[part] = [
                _restricted(each, policy, ours=each["name"] in own) for each in spec[part]
            ]
    _settle_identity(spec)
    if spec.get("hostNetwork"):
        # Otherwise the node's own name servers would resolve the names of the ranks.
        spec["dnsPolicy"] = "ClusterFirstWithHostNet"
    return found


LISTS = ("containers", "initContainers")


def _parsed(text: str) -> Json:
    try:
        found: Any = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise _NotJsonError("it is nested too deeply") from None
    except ValueError as error:
        raise _NotJsonError(str(error)) from error
    if not isinstance(found, dict):
        raise _NotJsonError("it is not an object")
    document = cast("Json", found)
    _check_depth(document)
    return document


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def _check_depth(document: object) -> None:
    level: list[Any] = [document]
    for _ in range(DEPTH_MAX):
        deeper: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                deeper += cast("Json", each).values()
            elif isinstance(each, list):
                deeper += cast("list[Any]", each)
        level = deeper
    if level:
        raise _NotJsonError("it is nested too deeply")


def _declared(template: Json) -> frozenset[str]:
    """Return the names of the template's volumes, even if the template is otherwise invalid."""
    spec: Any = template.get("spec")
    volumes: Any = cast("Json", spec).get("volumes") if isinstance(spec, dict) else None
    if not isinstance(volumes, list):
        return frozenset()
    listed = cast("list[Any]", volumes)
    names = [cast("Json", each).get("name") for each in listed if isinstance(each, dict)]
    return frozenset(name for name in names if isinstance(name, str))


def _merge(base: Json, over: Json) -> Json:
    found = dict(base)
    for name, value in over.items():
        old = found.get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            found[name] = _merge(cast("Json", old), cast("Json", value))
        elif isinstance(old, list) and isinstance(value, list):
            lists = cast("list[Any]", old), cast("list[Any]", value)
            found[name] = _merge_lists(*lists, name)
        else:
            found[name] = value
    return found


def _merge_lists(base: Sequence[Any], over: Sequence[Any], name: str) -> list[Any]:
    key = KEYS.get(name)
    if key is None:
        return [*base, *(each for each in over if each not in base)]
    found: dict[str, Json] = {entry[key]: entry for entry in base}
    for entry in over:
        old = found.get(entry[key]) if name in MERGED_ENTRIES else None
        found[entry[key]] = entry if old is None else _merge(old, entry)
    return list(found.values())


def _restricted(container: Json, policy: PodPolicy, *, ours: bool) -> Json:
    """Add what the restricted profile requires, where nothing else was granted."""
    security: Json = {"allowPrivilegeEscalation": False, **container.get("securityContext", {})}
    capabilities: Json = dict(security.get("capabilities", {}))
    # A template may add capabilities, never keep the default ones.
    capabilities["drop"] = ["ALL"]
    security["capabilities"] = capabilities
    if policy.read_only_root:
        security["readOnlyRootFilesystem"] = True
    if security.get("privileged") or ESCALATING.intersection(capabilities.get("add", ())):
        security["allowPrivilegeEscalation"] = True
    found = {**container, "securityContext": security}
    if not ours:
        # An image may request every GPU of the node by default; a sidecar gets none.
        void = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
        found["env"] = [*container.get("env", ()), void]
    return found


def _settle_identity(spec: Json) -> None:
    """Clear ``runAsNonRoot`` where root was granted: the pod would not start otherwise."""
    if spec["securityContext"].get("runAsUser") == 0:
        spec["securityContext"] = {**spec["securityContext"], "runAsNonRoot": False}
    for part in LISTS:
        for container in spec.get(part, ()):
            security: Json = container["securityContext"]
            if security.get("runAsUser") == 0:
                security["runAsNonRoot"] = False
