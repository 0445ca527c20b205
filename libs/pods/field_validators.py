"""Validators of single values of a pod request or template: names, identities, amounts, paths.

``request_validation.py`` and the table in ``template_fields.py`` refer to them; each yields errors.
All tasks share one namespace: without rules for objects anybody could mount another task's run
token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from ipaddress import ip_address
from typing import Any

from libs.contracts.ids import LABEL_VALUE_RULE, is_label_value
from libs.contracts.messages import FieldError
from libs.contracts.variables import is_reserved, is_variable, reserved_prefixes
from libs.pods.field_errors import field_error
from libs.pods.formats import (
    DNS_LABEL_RULE,
    amount,
    is_capability,
    is_dns_label,
    is_image,
    is_object_name,
    is_platforms_own,
    is_qualified,
    under,
)
from libs.pods.kubernetes_names import MAIN, OWN_PREFIX, STORAGE_PREFIX, is_platforms_key
from libs.pods.pod_policy import Permission, PodPolicy, Rule
from libs.pods.requester import Requester
from libs.pods.storage_grants import TAKEN_PATHS, nfs_root
from libs.pods.template_schema import Validator, View

FieldErrors = Iterator[FieldError]
CONFINED = ("RuntimeDefault", "Localhost")
FREE_RESOURCES = ("cpu", "memory", "ephemeral-storage")
# What the plan counts, and the task's field for it.
PLANNED = {"cpu": "cpus", "memory": "memory_bytes"}
# Resources whose amounts may have a unit, such as 2Gi.
PARTED = ("ephemeral-storage", "hugepages-")


# How validators are put together


def rule(fits: Callable[[Any], bool], message: str, fix: str) -> Validator:
    """Return a validator for values that fit."""

    def validate(field: str, value: object, _view: View) -> FieldErrors:
        if not fits(value):
            yield field_error(field, value, message, fix)

    return validate


def one_of(*values: str) -> Validator:
    """Return a validator for one of these values."""
    return rule(values.__contains__, "is not a word for it", "use " + ", ".join(values))


def first_of(*rules: Validator) -> Validator:
    """Return a validator that yields the errors of the first rule that finds some."""

    def validate(field: str, value: object, view: View) -> FieldErrors:
        for validator in rules:
            found = list(validator(field, value, view))
            if found:
                yield from found
                return

    return validate


def every(validator: Validator) -> Validator:
    """Return a validator for every entry of a list."""

    def validate(field: str, values: list[Any], view: View) -> FieldErrors:
        for index, value in enumerate(values):
            yield from validator(f"{field}[{index}]", value, view)

    return validate


def one_source(*beside: str) -> Validator:
    """Return a validator for an object that has exactly one field beside these."""

    def validate(field: str, found: Mapping[str, Any], _view: View) -> FieldErrors:
        kinds = [name for name in found if name not in beside]
        if len(kinds) != 1:
            shown = ", ".join(kinds) or "none"
            yield field_error(field, shown, "has not one source", "name exactly one")

    return validate


def _offered(rules: Iterable[Rule], requester: Requester) -> str:
    """Return the names that the requester may use, for the fix of an error."""
    mine = [
        requester.filled(name) for each in rules if each.holds(requester) for name in each.names
    ]
    return ", ".join(name for name in mine if name) or "(none is offered to this task)"


def _among(rules_of: Callable[[PodPolicy], Iterable[Rule]], message: str) -> Validator:
    """Return a validator for names that rules of the policy offer to the task."""

    def validate(field: str, name: str, view: View) -> FieldErrors:
        rules = rules_of(view.policy)
        if not any(each.matches(name, view.requester) for each in rules):
            fix = "use one of: " + _offered(rules, view.requester)
            yield field_error(field, name, message, fix)

    return validate


def _object(kind: str, what: str) -> Validator:
    """Return a validator for the name of an object that the task may use."""

    def is_allowed(field: str, name: str, view: View) -> FieldErrors:
        if not view.policy.allows_object(kind, name, view.requester):
            rules = [each for each in view.policy.objects if kind in each.kinds]
            fix = "use one named " + _offered(rules, view.requester)
            yield field_error(field, name, f"is a {what} that this task may not use", fix)

    return first_of(
        rule(is_object_name, f"is not a {what}'s name", "use lower-case letters, digits, - and ."),
        rule(
            lambda name: not is_platforms_own(kind, name),
            f"is a {what} of the platform",
            "use one of your own",
        ),
        is_allowed,
    )


# Single values


def _is_free(field: str, name: str, view: View) -> FieldErrors:
    if is_reserved(name, view.requester.contract):
        yield field_error(field, name, "is set by the platform", "remove it, or use another name")


def _is_free_prefix(field: str, text: str, view: View) -> FieldErrors:
    if text.startswith(reserved_prefixes(view.requester.contract)):
        yield field_error(field, text, "is set by the platform", "use another prefix")


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


secret = _object("secret", "Secret")
config_map = _object("config_map", "ConfigMap")
claim = _object("claim", "PersistentVolumeClaim")
image = first_of(
    rule(is_image, "is not an image", "write NAME:TAG or NAME@DIGEST"),
    _among(lambda policy: policy.images, "is an image that this task may not use"),
)
capability = first_of(
    rule(is_capability, "is not a capability", "write such as IPC_LOCK"),
    _among(lambda policy: policy.capabilities, "is a capability that this task may not have"),
)
address = rule(_is_address, "is not an IP address", "write such as 10.0.0.1")
domain = rule(
    lambda text: is_object_name(text.removesuffix(".")),
    "is not a domain",
    "write such as data.example",
)
quantity = rule(
    lambda value: amount(str(value)) is not None, "is not an amount", "write such as 500m, 2 or 4Gi"
)
variable = first_of(
    rule(
        is_variable,
        "is not a variable's name",
        "use letters, digits and _, not beginning with a digit",
    ),
    _is_free,
)
variable_prefix = first_of(
    rule(
        lambda text: not text or is_variable(text),
        "cannot begin a variable",
        "use letters, digits and _",
    ),
    _is_free_prefix,
)
container_name = first_of(
    rule(is_dns_label, "is not a name", f"use {DNS_LABEL_RULE}"),
    rule(
        lambda name: not name.startswith(OWN_PREFIX),
        "is the platform's",
        f"use a name without {OWN_PREFIX}",
    ),
)
volume_name = first_of(
    container_name,
    rule(
        lambda name: not name.startswith(STORAGE_PREFIX),
        "is the platform's",
        f"use a name without {STORAGE_PREFIX}",
    ),
)
init_container_name = first_of(
    container_name,
    rule(lambda name: name != MAIN, "is the task's own container", "use another name"),
)
# The only restart policy that an init container may have.
sidecar_restart = rule(
    lambda value: value == "Always",
    "is no restart policy of an init container",
    "leave it out, or write Always for one that runs beside the task",
)
# Neither the platform nor the system uses it.
mount_path = first_of(
    rule(
        lambda path: under(path, ("/",)) and path != "/" and ":" not in path,
        "is not a plain path below /",
        "write such as /scratch",
    ),
    rule(
        lambda path: not under(path, TAKEN_PATHS) and path != "/dev",
        "is taken",
        f"mount it elsewhere than below {', '.join(TAKEN_PATHS)}",
    ),
)
# Of a label or taint.
label_text = rule(is_label_value, "is not a label's value", f"use {LABEL_VALUE_RULE}")
qualified = rule(
    lambda key: not key or is_qualified(key), "is not a key", "write NAME or DOMAIN/NAME"
)


def template_variable(field: str, name: str, view: View) -> FieldErrors:
    """A variable that the platform does not set itself in this container."""
    if view.in_main and name == "PYTHONPATH":
        yield field_error(field, name, "is set by the platform", "set it in env of the task")
    else:
        yield from variable(field, name, view)


def claim_amount(field: str, entry: tuple[str, str | int], view: View) -> FieldErrors:
    """The amount of storage that a claim requests."""
    yield from quantity(field, entry[1], view)


def resource(field: str, entry: tuple[str, object], view: View) -> FieldErrors:
    """An extended resource and its amount."""
    name, value = entry
    if name in PLANNED or name == view.policy.gpu_resource:
        fix = f"use {PLANNED.get(name, 'gpus_per_node')} of the task"
        yield field_error(field, value, "is planned by the platform", fix)
        return
    if not is_qualified(name):
        yield field_error(field, name, "is not a resource's name", "write such as rdma/hca")
        return
    rules = view.policy.resources
    if not any(each.matches(name, view.requester) for each in rules):
        fix = "use one of: " + _offered(rules, view.requester)
        yield field_error(field, value, "is a resource that is not offered to this task", fix)
        return
    parted = name.startswith(PARTED)
    found = amount(str(value))
    whole = found is not None and found > 0 and found == found.to_integral_value()
    if not whole or (not parted and not str(value).isdecimal()):
        fix = "write a whole number" + (", such as 2Gi" if parted else "")
        yield field_error(field, value, "is not an amount of it", fix)


def container_resource(field: str, entry: tuple[str, Any], view: View) -> FieldErrors:
    """A resource of a sidecar container. GPUs belong to the task's own container."""
    if entry[0] in FREE_RESOURCES:
        yield from quantity(field, entry[1], view)
    else:
        yield from resource(field, entry, view)


def confinement(field: str, value: str, view: View) -> FieldErrors:
    """The type of a seccomp or AppArmor profile."""
    if value in CONFINED:
        return
    if value != "Unconfined":
        yield field_error(field, value, "is not a type of profile", "use " + " or ".join(CONFINED))
    elif not view.policy.allows(Permission.UNCONFINED, view.requester):
        fix = "use RuntimeDefault, or ask an administrator to allow unconfined"
        yield field_error(field, value, "is not allowed for this task", fix)


def user_id(field: str, number: int, view: View) -> FieldErrors:
    """The user id that processes run under."""
    mine = view.policy.identity_of(view.requester.owner)
    yield from _identity(field, number, (mine.user,), view)


def group_id(field: str, number: int, view: View) -> FieldErrors:
    """The group id of processes and files."""
    mine = view.policy.identity_of(view.requester.owner)
    yield from _identity(field, number, (mine.group, *mine.groups), view)


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


def read_only_root(field: str, value: bool, view: View) -> FieldErrors:
    """The policy may require a read-only root file system."""
    if view.policy.read_only_root and not value:
        yield field_error(
            field, value, "is not allowed here", "leave it out, write to /tmp or $HOME"
        )


def declared_volume(field: str, name: str, view: View) -> FieldErrors:
    """A volume that the template declares. Storage grants define their own mounts."""
    if name not in view.volumes:
        fix = "declare it under spec.volumes; storage grants are requested for in pod.storage"
        yield field_error(field, name, "is no volume of this template", fix)


def host_path(field: str, path: str, view: View) -> FieldErrors:
    """A path of the node that the policy offers."""
    roots = view.requester.filled_all(view.policy.host_path_roots)
    if not under(path, roots):
        fix = "use one below " + (", ".join(roots) or "(no path of the nodes is offered)")
        yield field_error(field, path, "is not among the paths of the nodes that are offered", fix)


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
        yield field_error(field, key, "is set by the platform", "leave it out")
    elif not policy.allows_key(key):
        listed = ", ".join(policy.metadata_keys) or "none"
        fix = f"leave it out, or ask an administrator to add it to metadata_keys ({listed})"
        yield field_error(field, key, "is not a key that tasks may set here", fix)


# Objects as a whole


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


def local_profile(field: str, found: Mapping[str, Any], _view: View) -> FieldErrors:
    """``localhostProfile`` is given if and only if the type is ``Localhost``."""
    if (found["type"] == "Localhost") != bool(found.get("localhostProfile")):
        fix = "give localhostProfile with the type Localhost, and only then"
        yield field_error(field, found["type"], "does not go with localhostProfile", fix)


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


def into_container(found: Mapping[str, Any], view: View) -> View:
    """Return the view that is valid inside one of the containers."""
    return view.inside(main=found.get("name") == MAIN)
