"""What is asked about single fields of a pod template, beside their kind: names, identities,
amounts, places. Used by the table in ``fields.py``; each yields faults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from ipaddress import ip_address
from typing import Any

from libs.contracts.ids import LABEL_VALUE_RULE, is_label_value
from libs.contracts.messages import FieldError
from libs.contracts.variables import RESERVED_PREFIXES, is_reserved, is_variable
from libs.pods import offers
from libs.pods.faults import fault
from libs.pods.forms import amount, is_dns_label, is_object_name, is_qualified, under
from libs.pods.grants import TAKEN_PATHS, nfs_root
from libs.pods.names import MAIN, OWN_PREFIX, STORAGE_PREFIX, is_platforms_key
from libs.pods.policy import Permission
from libs.pods.schema import Judge, View

Faults = Iterator[FieldError]
CONFINED = ("RuntimeDefault", "Localhost")
FREE_RESOURCES = ("cpu", "memory", "ephemeral-storage")


def secret(field: str, name: str, view: View) -> Faults:
    """A Secret that the task may name."""
    yield from offers.check_object(field, "secret", name, view.asker, view.policy)


def config_map(field: str, name: str, view: View) -> Faults:
    """A ConfigMap that the task may name."""
    yield from offers.check_object(field, "config_map", name, view.asker, view.policy)


def claim(field: str, name: str, view: View) -> Faults:
    """A volume claim that the task may name."""
    yield from offers.check_object(field, "claim", name, view.asker, view.policy)


def image(field: str, name: str, view: View) -> Faults:
    """An image that the task may use."""
    yield from offers.check_image(field, name, view.asker, view.policy)


def one_of(*words: str) -> Judge:
    """A word of a short list."""

    def judge(field: str, word: str, _view: View) -> Faults:
        if word not in words:
            fix = "use " + ", ".join(each for each in words if each)
            yield fault(field, word, "is not a word for it", fix)

    return judge


def address(field: str, text: str, _view: View) -> Faults:
    """An IP address."""
    try:
        ip_address(text)
    except ValueError:
        yield fault(field, text, "is not an IP address", "write such as 10.0.0.1")


def addresses(field: str, texts: list[str], view: View) -> Faults:
    """Several of them."""
    for index, text in enumerate(texts):
        yield from address(f"{field}[{index}]", text, view)


def domains(field: str, texts: list[str], _view: View) -> Faults:
    """Names of hosts or domains."""
    for index, text in enumerate(texts):
        if not is_object_name(text.removesuffix(".")):
            yield fault(f"{field}[{index}]", text, "is not a domain", "write such as data.example")


def toleration(field: str, found: Mapping[str, Any], _view: View) -> Faults:
    """A taint: with a value, or whatever its value is."""
    exists = found.get("operator") == "Exists"
    if not exists and not found.get("key"):
        yield fault(f"{field}.key", "", "is missing", "name the taint, or use operator Exists")
    if exists and found.get("value"):
        fix = "leave it out, or use operator Equal"
        yield fault(f"{field}.value", found["value"], "does not go with Exists", fix)
    if "tolerationSeconds" in found and found.get("effect") != "NoExecute":
        fix = "leave tolerationSeconds out, or use NoExecute"
        yield fault(f"{field}.effect", found.get("effect", ""), "has no tolerationSeconds", fix)


def quantity(field: str, value: str | int, _view: View) -> Faults:
    """An amount of something."""
    if amount(str(value)) is None:
        yield fault(field, value, "is not an amount", "write such as 500m, 2 or 4Gi")


def claim_amount(field: str, entry: tuple[str, str | int], view: View) -> Faults:
    """How much storage a claim asks for."""
    yield from quantity(field, entry[1], view)


def variable(field: str, name: str, view: View) -> Faults:
    """A variable that the platform does not set itself."""
    if not is_variable(name):
        fix = "use letters, digits and _, not beginning with a digit"
        yield fault(field, name, "is not a variable's name", fix)
    elif is_reserved(name):
        yield fault(field, name, "is set by the platform", "remove it, or use another name")
    elif view.in_main and name == "PYTHONPATH":
        yield fault(field, name, "is set by the platform", "say it in env of the task")


def variable_prefix(field: str, text: str, _view: View) -> Faults:
    """What variables from elsewhere begin with."""
    if text and not is_variable(text):
        yield fault(field, text, "cannot begin a variable", "use letters, digits and _")
    elif text.startswith(RESERVED_PREFIXES):
        yield fault(field, text, "is set by the platform", "use another prefix")


def one_source(field: str, found: Mapping[str, Any], _view: View) -> Faults:
    """A value comes from one place."""
    if len(found) != 1:
        yield fault(field, ", ".join(found) or "none", "has not one source", "name exactly one")


def one_volume_source(field: str, found: Mapping[str, Any], _view: View) -> Faults:
    """A volume has its name and one more field."""
    kinds = [name for name in found if name != "name"]
    if len(kinds) != 1:
        yield fault(field, ", ".join(kinds) or "none", "has not one source", "name exactly one")


def confinement(field: str, word: str, view: View) -> Faults:
    """The type of a seccomp or AppArmor profile."""
    if word in CONFINED:
        return
    if word != "Unconfined":
        yield fault(field, word, "is not a type of profile", "use " + " or ".join(CONFINED))
    elif not view.policy.allows(Permission.UNCONFINED, view.asker):
        fix = "use RuntimeDefault, or ask an administrator to allow unconfined"
        yield fault(field, word, "is not allowed for this task", fix)


def local_profile(field: str, found: Mapping[str, Any], _view: View) -> Faults:
    """A profile has a name exactly if it is one of the node's."""
    if (found["type"] == "Localhost") != bool(found.get("localhostProfile")):
        fix = "give localhostProfile with the type Localhost, and only then"
        yield fault(field, found["type"], "does not go with localhostProfile", fix)


def user_id(field: str, number: int, view: View) -> Faults:
    """Whom processes may be."""
    mine = view.policy.identity_of(view.asker.owner)
    yield from _identity(field, number, (mine.user,), view)


def group_id(field: str, number: int, view: View) -> Faults:
    """Of which group processes and files may be."""
    mine = view.policy.identity_of(view.asker.owner)
    yield from _identity(field, number, (mine.group, *mine.groups), view)


def group_ids(field: str, numbers: list[int], view: View) -> Faults:
    """Further groups."""
    for index, number in enumerate(numbers):
        yield from group_id(f"{field}[{index}]", number, view)


def _identity(field: str, number: int, mine: tuple[int, ...], view: View) -> Faults:
    if number in mine:
        return
    if not 0 <= number < 2**31:
        yield fault(field, number, "is not an identity", "leave it out")
        return
    needed = Permission.RUN_AS_OTHERS if number else Permission.RUN_AS_ROOT
    if not view.policy.allows(needed, view.asker):
        fix = f"use {mine[0]} or leave it out, or ask an administrator to allow {needed}"
        yield fault(field, number, "is not allowed for this task", fix)


def capabilities(field: str, names: list[str], view: View) -> Faults:
    """Capabilities that the task may have."""
    for index, name in enumerate(names):
        at = f"{field}[{index}]"
        yield from offers.check_capability(at, name, view.asker, view.policy)


def read_only_root(field: str, value: bool, view: View) -> Faults:
    """The site may want no container to write to its image."""
    if view.policy.read_only_root and not value:
        yield fault(field, value, "is not allowed here", "leave it out, write to /tmp or $HOME")


def container_resource(field: str, entry: tuple[str, Any], view: View) -> Faults:
    """What a container beside the task's own may have. GPUs are the task's."""
    name, value = entry
    if name in FREE_RESOURCES:
        yield from quantity(field, value, view)
    else:
        yield from offers.check_resource(field, name, value, view.asker, view.policy)


def requests_within_limits(field: str, found: Mapping[str, Any], _view: View) -> Faults:
    """Nothing is asked for beyond its limit."""
    limits: Mapping[str, Any] = found.get("limits", {})
    requests: Mapping[str, Any] = found.get("requests", {})
    for name, value in requests.items():
        asked, most = amount(str(value)), amount(str(limits.get(name, value)))
        if asked is not None and most is not None and asked > most:
            at = f"{field}.requests.{name}"
            yield fault(at, value, "is more than its limit", f"ask for at most {limits[name]}")


def declared_volume(field: str, name: str, view: View) -> Faults:
    """A volume of the template itself. Grants say themselves where and how they are mounted."""
    if name not in view.volumes:
        fix = "declare it under spec.volumes; storage grants are asked for in pod.storage"
        yield fault(field, name, "is no volume of this template", fix)


def mount_path(field: str, path: str, _view: View) -> Faults:
    """A place that is not the platform's or the system's."""
    if not under(path, ("/",)) or path == "/" or ":" in path:
        yield fault(field, path, "is not a plain path below /", "write such as /scratch")
    elif under(path, TAKEN_PATHS) or path == "/dev":
        taken = ", ".join(TAKEN_PATHS)
        yield fault(field, path, "is taken", f"mount it elsewhere than below {taken}")


def container_name(field: str, name: str, _view: View) -> Faults:
    """A container's name that is not the platform's."""
    if not is_dns_label(name):
        yield fault(field, name, "is not a name", "use 1 to 63 of a-z, 0-9 and -")
    elif name.startswith(OWN_PREFIX):
        yield fault(field, name, "is the platform's", f"use a name without {OWN_PREFIX}")


def volume_name(field: str, name: str, view: View) -> Faults:
    """A volume's name that is not the platform's."""
    yield from container_name(field, name, view)
    if name.startswith(STORAGE_PREFIX):
        yield fault(field, name, "is the platform's", f"use a name without {STORAGE_PREFIX}")


def into_container(found: Mapping[str, Any], view: View) -> View:
    """The view from inside one of the containers."""
    return view.inside(main=found.get("name") == MAIN)


def init_container_name(field: str, name: str, view: View) -> Faults:
    """Its name is not that of the task's own container either."""
    yield from container_name(field, name, view)
    if name == MAIN:
        yield fault(field, name, "is the task's own container", "use another name")


def init_container(field: str, found: Mapping[str, Any], _view: View) -> Faults:
    """Only one that runs on is watched."""
    if found.get("restartPolicy") == "Always":
        return
    for name in ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe"):
        if name in found:
            fix = "leave it out, or write restartPolicy Always"
            yield fault(f"{field}.{name}", "", "is for containers that run on", fix)


def names_differ(field: str, found: Mapping[str, Any], _view: View) -> Faults:
    """No init container has the name of a container."""
    taken = {each["name"] for each in found.get("containers", ())}
    for index, each in enumerate(found.get("initContainers", ())):
        if each["name"] in taken:
            at = f"{field}.initContainers[{index}].name"
            yield fault(at, each["name"], "is given twice", "give each a name of its own")


def complete_container(field: str, found: Mapping[str, Any], view: View) -> Faults:
    """A container of the template's own says what it runs in."""
    if not view.in_main and "image" not in found:
        yield fault(f"{field}.image", "", "is missing", "name its image")


def sidecar_restart(field: str, word: str, _view: View) -> Faults:
    """The only policy that a container has of its own."""
    if word != "Always":
        fix = "leave it out, or write Always for one that runs beside the task"
        yield fault(field, word, "is no restart policy of an init container", fix)


def host_path(field: str, path: str, view: View) -> Faults:
    """A path of the node that the site lists."""
    roots = view.asker.filled_all(view.policy.host_path_roots)
    if not under(path, roots):
        fix = "use one below " + (", ".join(roots) or "(no path of the nodes is offered)")
        yield fault(field, path, "is not among the paths of the nodes that are offered", fix)


def nfs_export(field: str, found: Mapping[str, Any], view: View) -> Faults:
    """A folder of a server that the site lists, and never all that the server exports."""
    server, path = found["server"], found["path"]
    exports = view.asker.filled_all(view.policy.nfs_servers)
    roots = [root for root in (nfs_root(each, server) for each in exports) if root is not None]
    if not roots:
        fix = "use " + (", ".join(exports) or "a storage grant")
        yield fault(f"{field}.server", server, "is not a server that is offered", fix)
    elif not any(under(path, (root or "/",)) and (root or path != "/") for root in roots):
        fix = "use one below " + ", ".join(root or "/" for root in roots)
        yield fault(f"{field}.path", path, "is not a folder that the server offers to tasks", fix)


def csi_driver(field: str, name: str, view: View) -> Faults:
    """A driver that the site lists: some give a pod the secrets of others."""
    drivers = view.policy.csi_drivers
    if not any(fnmatchcase(name, each) for each in drivers):
        fix = "use " + (", ".join(drivers) or "a storage grant")
        yield fault(field, name, "is not a driver that is offered", fix)


def label(field: str, entry: tuple[str, str], view: View) -> Faults:
    """A label that steers nothing of the cluster."""
    _, value = entry
    yield from annotation(field, entry, view)
    yield from label_text(field, value, view)


def label_text(field: str, value: str, _view: View) -> Faults:
    """The value of a label or taint."""
    if not is_label_value(value):
        yield fault(field, value, "is not a label's value", f"use {LABEL_VALUE_RULE}")


def qualified(field: str, key: str, _view: View) -> Faults:
    """The key of a label or taint."""
    if key and not is_qualified(key):
        yield fault(field, key, "is not a key", "write NAME or DOMAIN/NAME")


def annotation(field: str, entry: tuple[str, str], view: View) -> Faults:
    """A key that is not the platform's, and that the site lets templates set.

    Controllers, admission webhooks and container runtimes act on keys with a domain: they give
    identities, inject containers and secrets. Those are refused unless the policy lists them.
    """
    key, _ = entry
    policy = view.policy
    if not is_qualified(key):
        yield fault(field, key, "is not a key", "write NAME or DOMAIN/NAME")
    elif is_platforms_key(key) or key in policy.labels or key in policy.annotations:
        yield fault(field, key, "is said by the platform", "leave it out")
    elif not policy.allows_key(key):
        listed = ", ".join(policy.metadata_keys) or "none"
        fix = f"leave it out, or ask an administrator to add it to metadata_keys ({listed})"
        yield fault(field, key, "is not a key that tasks may set here", fix)
