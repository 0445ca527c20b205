"""Checks whether a task may use the image, resource, capability or namespace object that it names.

``request_validation.py`` checks requests with it, ``field_validators.py`` pod templates. All tasks
share one namespace: without rules for objects anybody could mount another task's run token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from libs.contracts.messages import FieldError
from libs.pods.field_errors import field_error
from libs.pods.formats import (
    amount,
    is_capability,
    is_image,
    is_object_name,
    is_platforms_own,
    is_qualified,
)
from libs.pods.pod_policy import PodPolicy, Rule
from libs.pods.requester import Requester

KINDS = {"secret": "Secret", "config_map": "ConfigMap", "claim": "PersistentVolumeClaim"}
# What the plan counts, and the task's field for it.
PLANNED = {"cpu": "cpus", "memory": "memory_bytes"}
# Resources whose amounts may have a unit, such as 2Gi.
PARTED = ("ephemeral-storage", "hugepages-")

FieldErrors = Iterator[FieldError]


def check_object(
    field: str, kind: str, name: object, requester: Requester, policy: PodPolicy
) -> FieldErrors:
    """Validate the name of a ``secret``, ``config_map`` or ``claim``."""
    if not isinstance(name, str) or not is_object_name(name):
        fix = "use lower-case letters, digits, - and ."
        yield field_error(field, name, f"is not a {KINDS[kind]}'s name", fix)
    elif is_platforms_own(kind, name):
        yield field_error(field, name, f"is a {KINDS[kind]} of the platform", "use one of your own")
    elif not policy.allows_object(kind, name, requester):
        rules = [rule for rule in policy.objects if kind in rule.kinds]
        fix = "use one named " + offered(rules, requester)
        yield field_error(field, name, f"is a {KINDS[kind]} that this task may not use", fix)


def check_image(field: str, image: str, requester: Requester, policy: PodPolicy) -> FieldErrors:
    """Validate a container image."""
    if not is_image(image):
        yield field_error(field, image, "is not an image", "write NAME:TAG or NAME@DIGEST")
    elif not any(rule.matches(image, requester) for rule in policy.images):
        fix = "use one of: " + offered(policy.images, requester)
        yield field_error(field, image, "is an image that this task may not use", fix)


def check_resource(
    field: str, name: str, text: object, requester: Requester, policy: PodPolicy
) -> FieldErrors:
    """Validate an extended resource and its amount."""
    if name in PLANNED or name == policy.gpu_resource:
        fix = f"use {PLANNED.get(name, 'gpus_per_node')} of the task"
        yield field_error(field, text, "is planned by the platform", fix)
        return
    if not is_qualified(name):
        yield field_error(field, name, "is not a resource's name", "write such as rdma/hca")
        return
    if not any(rule.matches(name, requester) for rule in policy.resources):
        fix = "use one of: " + offered(policy.resources, requester)
        yield field_error(field, text, "is a resource that is not offered to this task", fix)
        return
    parted = name.startswith(PARTED)
    found = amount(str(text))
    whole = found is not None and found > 0 and found == found.to_integral_value()
    if not whole or (not parted and not str(text).isdecimal()):
        fix = "write a whole number" + (", such as 2Gi" if parted else "")
        yield field_error(field, text, "is not an amount of it", fix)


def check_capability(field: str, name: str, requester: Requester, policy: PodPolicy) -> FieldErrors:
    """Validate a Linux capability."""
    if not is_capability(name):
        yield field_error(field, name, "is not a capability", "write such as IPC_LOCK")
    elif not any(rule.matches(name, requester) for rule in policy.capabilities):
        fix = "use one of: " + offered(policy.capabilities, requester)
        yield field_error(field, name, "is a capability that this task may not have", fix)


def offered(rules: Iterable[Rule], requester: Requester) -> str:
    """Return the names that the requester may use, for the fix of an error."""
    mine = [
        requester.filled(name) for rule in rules if rule.holds(requester) for name in rule.names
    ]
    return ", ".join(name for name in mine if name) or "(none is offered to this task)"
