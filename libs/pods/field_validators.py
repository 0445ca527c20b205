"""Validators for single fields of a pod template: names, identities, amounts, paths.

The table in ``template_fields.py`` refers to them; each yields errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from ipaddress import ip_address
from typing import Any

from libs.contracts.ids import LABEL_VALUE_RULE, is_label_value
from libs.contracts.messages import FieldError
from libs.contracts.variables import RESERVED_PREFIXES, is_reserved, is_variable
from libs.pods import access_checks
from libs.pods.field_errors import field_error
from libs.pods.formats import amount, is_dns_label, is_object_name, is_qualified, under
from libs.pods.kubernetes_names import MAIN, OWN_PREFIX, STORAGE_PREFIX, is_platforms_key
from libs.pods.pod_policy import Permission
from libs.pods.storage_grants import TAKEN_PATHS, nfs_root
from libs.pods.template_schema import Validator, View

FieldErrors = Iterator[FieldError]
CONFINED = ("RuntimeDefault", "Localhost")
FREE_RESOURCES = ("cpu", "memory", "ephemeral-storage")


def secret(field: str, name: str, view: View) -> FieldErrors:
    """A Secret that the task may name."""
    yield from access_checks.check_object(field, "secret", name, view.requester, view.policy)


def config_map(field: str, name: str, view: View) -> FieldErrors:
    """A ConfigMap that the task may name."""
    yield from access_checks.check_object(field, "config_map", name, view.requester, view.policy)


def claim(field: str, name: str, view: View) -> FieldErrors:
    """A volume claim that the task may name."""
    yield from access_checks.check_object(field, "claim", name, view.requester, view.policy)


def image(field: str, name: str, view: View) -> FieldErrors:
    """An image that the task may use."""
    yield from access_checks.check_image(field, name, view.requester, view.policy)


def one_of(*values: str) -> Validator:
    """Return a validator for one of these values."""

    def validate(field: str, value: str, _view: View) -> FieldErrors:
        if value not in values:
            fix = "use " + ", ".join(each for each in values if each)
            yield field_error(field, value, "is not a word for it", fix)

    return validate


def address(field: str, text: str, _view: View) -> FieldErrors:
    """An IP address."""
    try:
        ip_address(text)
    except ValueError:
        yield field_error(field, text, "is not an IP address", "write such as 10.0.0.1")


def addresses(field: str, texts: list[str], view: View) -> FieldErrors:
    """Several IP addresses."""
    for index, text in enumerate(texts):
        yield from address(f"{field}[{index}]", text, view)


def domains(field: str, texts: list[str], _view: View) -> FieldErrors:
    """Names of hosts or domains."""
    for index, text in enumerate(texts):
        if not is_object_name(text.removesuffix(".")):
            yield field_error(
                f"{field}[{index}]", text, "is not a domain", "write such as data.example"
            )


def toleration(field: str, found: Mapping[str, Any], _view: View) -> FieldErrors:
    """A taint: with a value, or whatever its value is."""
    exists = found.get("operator") == "Exists"
    if not exists and not found.get("key"):
        yield field_error(
            f"{field}.key", "", "is missing", "name the taint, or use operator Exists"
        )
    if exists and found.get("value"):
        fix = "leave it out, or use operator Equal"
        yield field_error(f"{field}.value", found["value"], "does not go with Exists", fix)
    if "tolerationSeconds" in found and found.get("effect") != "NoExecute":
        fix = "leave tolerationSeconds out, or use NoExecute"
        yield field_error(
            f"{field}.effect", found.get("effect", ""), "has no tolerationSeconds", fix
        )


def quantity(field: str, value: str | int, _view: View) -> FieldErrors:
    """An amount of something."""
    if amount(str(value)) is None:
        yield field_error(field, value, "is not an amount", "write such as 500m, 2 or 4Gi")


def claim_amount(field: str, entry: tuple[str, str | int], view: View) -> FieldErrors:
    """How much storage a claim asks for."""
    yield from quantity(field, entry[1], view)


def variable(field: str, name: str, view: View) -> FieldErrors:
    """A variable that the platform does not set itself."""
    if not is_variable(name):
        fix = "use letters, digits and _, not beginning with a digit"
        yield field_error(field, name, "is not a variable's name", fix)
    elif is_reserved(name):
        yield field_error(field, name, "is set by the platform", "remove it, or use another name")
    elif view.in_main and name == "PYTHONPATH":
        yield field_error(field, name, "is set by the platform", "say it in env of the task")


def variable_prefix(field: str, text: str, _view: View) -> FieldErrors:
    """The prefix of variables that come from a Secret or ConfigMap."""
    if text and not is_variable(text):
        yield field_error(field, text, "cannot begin a variable", "use letters, digits and _")
    elif text.startswith(RESERVED_PREFIXES):
        yield field_error(field, text, "is set by the platform", "use another prefix")


def one_source(field: str, found: Mapping[str, Any], _view: View) -> FieldErrors:
    """A variable has exactly one source."""
    if len(found) != 1:
        yield field_error(
            field, ", ".join(found) or "none", "has not one source", "name exactly one"
        )


def one_volume_source(field: str, found: Mapping[str, Any], _view: View) -> FieldErrors:
    """A volume has exactly one source beside its name."""
    kinds = [name for name in found if name != "name"]
    if len(kinds) != 1:
        yield field_error(
            field, ", ".join(kinds) or "none", "has not one source", "name exactly one"
        )


def confinement(field: str, value: str, view: View) -> FieldErrors:
    """The type of a seccomp or AppArmor profile."""
    if value in CONFINED:
        return
    if value != "Unconfined":
        yield field_error(field, value, "is not a type of profile", "use " + " or ".join(CONFINED))
    elif not view.policy.allows(Permission.UNCONFINED, view.requester):
        fix = "use RuntimeDefault, or ask an administrator to allow unconfined"
        yield field_error(field, value, "is not allowed for this task", fix)


def local_profile(field: str, found: Mapping[str, Any], _view: View) -> FieldErrors:
    """``localhostProfile`` is given if and only if the type is ``Localhost``."""
    if (found["type"] == "Localhost") != bool(found.get("localhostProfile")):
        fix = "give localhostProfile with the type Localhost, and only then"
        yield field_error(field, found["type"], "does not go with localhostProfile", fix)


def user_id(field: str, number: int, view: View) -> FieldErrors:
    """The user id that processes run under."""
    mine = view.policy.identity_of(view.requester.owner)
    yield from _identity(field, number, (mine.user,), view)


def group_id(field: str, number: int, view: View) -> FieldErrors:
    """The group id of processes and files."""
    mine = view.policy.identity_of(view.requester.owner)
    yield from _identity(field, number, (mine.group, *mine.groups), view)


def group_ids(field: str, numbers: list[int], view: View) -> FieldErrors:
    """Supplementary group ids."""
    for index, number in enumerate(numbers):
        yield from group_id(f"{field}[{index}]", number, view)


def _identity(field: str, number: int, mine: tuple[int, ...], view: View) -> FieldErrors:
    if number in mine:
        return
    if not 0 <= number < 2**31:
        yield field_error(field, number, "is not an identity", "leave it out")
        return
    needed = Permission.RUN_AS_OTHERS if number else Permission.RUN_AS_ROOT
    if not view.policy.allows(needed, view.requester):
        fix = f"use {mine[0]} or leave it out, or ask an administrator to allow {needed}"
        yield field_error(field, number, "is not allowed for this task", fix)


def capabilities(field: str, names: list[str], view: View) -> FieldErrors:
    """Capabilities that the task may have."""
    for index, name in enumerate(names):
        at = f"{field}[{index}]"
        yield from access_checks.check_capability(at, name, view.requester, view.policy)


def read_only_root(field: str, value: bool, view: View) -> FieldErrors:
    """The policy may require a read-only root file system."""
    if view.policy.read_only_root and not value:
        yield field_error(
            field, value, "is not allowed here", "leave it out, write to /tmp or $HOME"
        )


def container_resource(field: str, entry: tuple[str, Any], view: View) -> FieldErrors:
    """A resource of a sidecar container. GPUs belong to the task's own container."""
    name, value = entry
    if name in FREE_RESOURCES:
        yield from quantity(field, value, view)
    else:
        yield from access_checks.check_resource(field, name, value, view.requester, view.policy)


def requests_within_limits(field: str, found: Mapping[str, Any], _view: View) -> FieldErrors:
    """No request is above its limit."""
    limits: Mapping[str, Any] = found.get("limits", {})
    requests: Mapping[str, Any] = found.get("requests", {})
    for name, value in requests.items():
        requested, most = amount(str(value)), amount(str(limits.get(name, value)))
        if requested is not None and most is not None and requested > most:
            at = f"{field}.requests.{name}"
            yield field_error(
                at, value, "is more than its limit", f"ask for at most {limits[name]}"
            )


def declared_volume(field: str, name: str, view: View) -> FieldErrors:
    """A volume that the template declares. Storage grants define their own mounts."""
    if name not in view.volumes:
        fix = "declare it under spec.volumes; storage grants are requested for in pod.storage"
        yield field_error(field, name, "is no volume of this template", fix)


def mount_path(field: str, path: str, _view: View) -> FieldErrors:
    """A mount path that neither the platform nor the system uses."""
    if not under(path, ("/",)) or path == "/" or ":" in path:
        yield field_error(field, path, "is not a plain path below /", "write such as /scratch")
    elif under(path, TAKEN_PATHS) or path == "/dev":
        taken = ", ".join(TAKEN_PATHS)
        yield field_error(field, path, "is taken", f"mount it elsewhere than below {taken}")


def container_name(field: str, name: str, _view: View) -> FieldErrors:
    """A container name that the platform does not reserve."""
    if not is_dns_label(name):
        yield field_error(field, name, "is not a name", "use 1 to 63 of a-z, 0-9 and -")
    elif name.startswith(OWN_PREFIX):
        yield field_error(field, name, "is the platform's", f"use a name without {OWN_PREFIX}")


def volume_name(field: str, name: str, view: View) -> FieldErrors:
    """A volume name that the platform does not reserve."""
    yield from container_name(field, name, view)
    if name.startswith(STORAGE_PREFIX):
        yield field_error(field, name, "is the platform's", f"use a name without {STORAGE_PREFIX}")


def into_container(found: Mapping[str, Any], view: View) -> View:
    """Return the view that is valid inside one of the containers."""
    return view.inside(main=found.get("name") == MAIN)


def init_container_name(field: str, name: str, view: View) -> FieldErrors:
    """A container name that is not that of the task's own container either."""
    yield from container_name(field, name, view)
    if name == MAIN:
        yield field_error(field, name, "is the task's own container", "use another name")


def init_container(field: str, found: Mapping[str, Any], _view: View) -> FieldErrors:
    """Only an init container that keeps running has probes and hooks."""
    if found.get("restartPolicy") == "Always":
        return
    for name in ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe"):
        if name in found:
            fix = "leave it out, or write restartPolicy Always"
            yield field_error(f"{field}.{name}", "", "is for containers that run on", fix)


def names_differ(field: str, found: Mapping[str, Any], _view: View) -> FieldErrors:
    """No init container has the name of another container."""
    taken = {each["name"] for each in found.get("containers", ())}
    for index, each in enumerate(found.get("initContainers", ())):
        if each["name"] in taken:
            at = f"{field}.initContainers[{index}].name"
            yield field_error(at, each["name"], "is given twice", "give each a name of its own")


def complete_container(field: str, found: Mapping[str, Any], view: View) -> FieldErrors:
    """A sidecar container names its image."""
    if not view.in_main and "image" not in found:
        yield field_error(f"{field}.image", "", "is missing", "name its image")


def sidecar_restart(field: str, value: str, _view: View) -> FieldErrors:
    """The only restart policy that an init container may have: ``Always``."""
    if value != "Always":
        fix = "leave it out, or write Always for one that runs beside the task"
        yield field_error(field, value, "is no restart policy of an init container", fix)


def host_path(field: str, path: str, view: View) -> FieldErrors:
    """A path of the node that the policy offers."""
    roots = view.requester.filled_all(view.policy.host_path_roots)
    if not under(path, roots):
        fix = "use one below " + (", ".join(roots) or "(no path of the nodes is offered)")
        yield field_error(field, path, "is not among the paths of the nodes that are offered", fix)


def nfs_export(field: str, found: Mapping[str, Any], view: View) -> FieldErrors:
    """A folder of an NFS server that the policy offers, never the server's whole export."""
    server, path = found["server"], found["path"]
    exports = view.requester.filled_all(view.policy.nfs_servers)
    roots = [root for root in (nfs_root(each, server) for each in exports) if root is not None]
    if not roots:
        fix = "use " + (", ".join(exports) or "a storage grant")
        yield field_error(f"{field}.server", server, "is not a server that is offered", fix)
    elif not any(under(path, (root or "/",)) and (root or path != "/") for root in roots):
        fix = "use one below " + ", ".join(root or "/" for root in roots)
        yield field_error(
            f"{field}.path", path, "is not a folder that the server offers to tasks", fix
        )


def csi_driver(field: str, name: str, view: View) -> FieldErrors:
    """A CSI driver that the policy lists: some drivers expose the secrets of others."""
    drivers = view.policy.csi_drivers
    if not any(fnmatchcase(name, each) for each in drivers):
        fix = "use " + (", ".join(drivers) or "a storage grant")
        yield field_error(field, name, "is not a driver that is offered", fix)


def label(field: str, entry: tuple[str, str], view: View) -> FieldErrors:
    """A label that no controller of the cluster acts on."""
    _, value = entry
    yield from annotation(field, entry, view)
    yield from label_text(field, value, view)


def label_text(field: str, value: str, _view: View) -> FieldErrors:
    """The value of a label or taint."""
    if not is_label_value(value):
        yield field_error(field, value, "is not a label's value", f"use {LABEL_VALUE_RULE}")


def qualified(field: str, key: str, _view: View) -> FieldErrors:
    """The key of a label or taint."""
    if key and not is_qualified(key):
        yield field_error(field, key, "is not a key", "write NAME or DOMAIN/NAME")


def annotation(field: str, entry: tuple[str, str], view: View) -> FieldErrors:
    """A key that the platform does not set, and that the policy lets templates set.

    Controllers, admission webhooks and container runtimes act on keys with a domain: they grant
    identities and inject containers and secrets. Such keys are rejected unless the policy lists
    them.
    """
    key, _ = entry
    policy = view.policy
    if not is_qualified(key):
        yield field_error(field, key, "is not a key", "write NAME or DOMAIN/NAME")
    elif is_platforms_key(key) or key in policy.labels or key in policy.annotations:
        yield field_error(field, key, "is said by the platform", "leave it out")
    elif not policy.allows_key(key):
        listed = ", ".join(policy.metadata_keys) or "none"
        fix = f"leave it out, or ask an administrator to add it to metadata_keys ({listed})"
        yield field_error(field, key, "is not a key that tasks may set here", fix)
