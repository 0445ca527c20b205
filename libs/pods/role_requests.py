"""The pod request of a role: the task's, with the role's own merged over it.

``request_validation.py`` validates both, and the launcher builds the pods of each role with the
result. A test compares ``MERGES`` with the fields of the message and with the table of
``docs/pods.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from libs.contracts.messages import EnvSource, PodRequest, Role, TaskSpec
from libs.pods.pod_template import merged_templates

NOTHING = PodRequest()


class Merge(StrEnum):
    """How a field of a role's request meets the same field of the task's."""

    REPLACED = "the role's instead of the task's"
    ADDED = "the task's and the role's"
    BY_NAME = "merged by name; of two with one name the role's"
    AS_POD = "merged as pods are, the role's over the task's"


MERGES: Mapping[str, Merge] = {
    "image": Merge.REPLACED,
    "image_pull_policy": Merge.REPLACED,
    "image_pull_secrets": Merge.ADDED,
    "storage": Merge.ADDED,
    "resources": Merge.BY_NAME,
    "shm_bytes": Merge.REPLACED,
    "capabilities": Merge.ADDED,
    "env_from": Merge.BY_NAME,
    "template": Merge.AS_POD,
}


def request_of(spec: TaskSpec, role: Role) -> PodRequest:
    """The request of a role's pods. The templates must have been validated."""
    common, own = spec.pod or NOTHING, role.pod
    if own is None:
        return common
    update = {
        name: _MERGED[merge](getattr(common, name), getattr(own, name))
        for name, merge in MERGES.items()
        if getattr(own, name)
    }
    return common.model_copy(update=update)


def image_of(spec: TaskSpec, role: Role) -> str:
    """The image that the role or the task names; empty: none."""
    named = [role.image, role.pod.image if role.pod else "", spec.pod.image if spec.pod else ""]
    return next(filter(None, named), "")


def _replaced(_common: Any, own: Any) -> Any:  # noqa: ANN401 - a field of any type
    return own


def _added(common: tuple[str, ...], own: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*common, *own)))


def _by_name(common: Any, own: Any) -> Any:  # noqa: ANN401 - a map, or variables with names
    if not isinstance(own, tuple):
        return {**common, **own}
    sources: list[EnvSource] = [*common, *own]
    return tuple({each.name: each for each in sources}.values())


_MERGED: Mapping[Merge, Callable[[Any, Any], Any]] = {
    Merge.REPLACED: _replaced,
    Merge.ADDED: _added,
    Merge.BY_NAME: _by_name,
    Merge.AS_POD: merged_templates,
}
