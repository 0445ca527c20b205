"""Whether a task may have what it names: an image, a resource, a capability, or an object in the
namespace of the tasks. Asked of the request by ``check.py`` and of the template by ``fields.py``.

That namespace is shared: without rules for objects anybody could mount another task's run token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from libs.contracts.messages import FieldError
from libs.pods.asker import Asker
from libs.pods.faults import fault
from libs.pods.forms import (
    amount,
    is_capability,
    is_image,
    is_object_name,
    is_platforms_own,
    is_qualified,
)
from libs.pods.policy import PodPolicy, Rule

KINDS = {"secret": "Secret", "config_map": "ConfigMap", "claim": "PersistentVolumeClaim"}
# What the plan counts, and the task's field that says it.
PLANNED = {"cpu": "cpus", "memory": "memory_bytes"}
# Can be asked for in parts that have a sign, such as 2Gi.
PARTED = ("ephemeral-storage", "hugepages-")

Faults = Iterator[FieldError]


def check_object(field: str, kind: str, name: object, asker: Asker, policy: PodPolicy) -> Faults:
    """A ``secret``, ``config_map`` or ``claim``."""
    if not isinstance(name, str) or not is_object_name(name):
        fix = "use lower-case letters, digits, - and ."
        yield fault(field, name, f"is not a {KINDS[kind]}'s name", fix)
    elif is_platforms_own(kind, name):
        yield fault(field, name, f"is a {KINDS[kind]} of the platform", "use one of your own")
    elif not policy.allows_object(kind, name, asker):
        rules = [rule for rule in policy.objects if kind in rule.kinds]
        fix = "use one named " + offered(rules, asker)
        yield fault(field, name, f"is a {KINDS[kind]} that this task may not use", fix)


def check_image(field: str, image: str, asker: Asker, policy: PodPolicy) -> Faults:
    """A container image."""
    if not is_image(image):
        yield fault(field, image, "is not an image", "write NAME:TAG or NAME@DIGEST")
    elif not any(rule.matches(image, asker) for rule in policy.images):
        fix = "use one of: " + offered(policy.images, asker)
        yield fault(field, image, "is an image that this task may not use", fix)


def check_resource(field: str, name: str, text: object, asker: Asker, policy: PodPolicy) -> Faults:
    """A resource that nodes offer by a name of its own, and how much of it."""
    if name in PLANNED or name == policy.gpu_resource:
        fix = f"use {PLANNED.get(name, 'gpus_per_node')} of the task"
        yield fault(field, text, "is planned by the platform", fix)
        return
    if not is_qualified(name):
        yield fault(field, name, "is not a resource's name", "write such as rdma/hca")
        return
    if not any(rule.matches(name, asker) for rule in policy.resources):
        fix = "use one of: " + offered(policy.resources, asker)
        yield fault(field, text, "is a resource that is not offered to this task", fix)
        return
    parted = name.startswith(PARTED)
    found = amount(str(text))
    whole = found is not None and found > 0 and found == found.to_integral_value()
    if not whole or (not parted and not str(text).isdecimal()):
        fix = "write a whole number" + (", such as 2Gi" if parted else "")
        yield fault(field, text, "is not an amount of it", fix)


def check_capability(field: str, name: str, asker: Asker, policy: PodPolicy) -> Faults:
    """A Linux capability."""
    if not is_capability(name):
        yield fault(field, name, "is not a capability", "write such as IPC_LOCK")
    elif not any(rule.matches(name, asker) for rule in policy.capabilities):
        fix = "use one of: " + offered(policy.capabilities, asker)
        yield fault(field, name, "is a capability that this task may not have", fix)


def offered(rules: Iterable[Rule], asker: Asker) -> str:
    """The names that a person may write here, for the fix of a fault."""
    mine = [asker.filled(name) for rule in rules if rule.holds(asker) for name in rule.names]
    return ", ".join(name for name in mine if name) or "(none is offered to this task)"
