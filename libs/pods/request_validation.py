"""Validates a task's pod request against the policy.

Submit validates, so that people see errors at once; the launcher validates again when it makes the
pods, because the policy may have changed in between.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from libs.contracts.messages import EnvSource, FieldError, PodRequest, TaskSpec
from libs.contracts.variables import is_reserved, is_variable
from libs.pods.access_checks import check_capability, check_image, check_object, check_resource
from libs.pods.field_errors import FIELD_ERRORS_MAX, field_error
from libs.pods.pod_policy import PodPolicy
from libs.pods.pod_template import check_template
from libs.pods.requester import Requester
from libs.pods.storage_mounts import check_storage

ENTRIES_MAX = 64
PULL_POLICIES = ("Always", "IfNotPresent", "Never")
FIELD_PATH = re.compile(
    r"metadata\.(name|namespace|uid)"
    r"|metadata\.(labels|annotations)\['[A-Za-z0-9][-A-Za-z0-9_./]{0,316}'\]"
    r"|spec\.(nodeName|serviceAccountName)|status\.(hostIP|hostIPs|podIP|podIPs)"
    r"|(limits|requests)\.(cpu|memory|ephemeral-storage|hugepages-[A-Za-z0-9]+)"
)
OBJECT_KEY = re.compile(r"[-._A-Za-z0-9]{1,253}")

FieldErrors = Iterator[FieldError]


@dataclass(frozen=True, slots=True)
class _Request:
    """One task's request, and what it is validated against."""

    spec: TaskSpec
    pod: PodRequest
    requester: Requester
    policy: PodPolicy
    needs_image: bool


def check_pod(
    spec: TaskSpec, requester: Requester, policy: PodPolicy, *, needs_image: bool
) -> list[FieldError]:
    """Return the first errors, up to ``FIELD_ERRORS_MAX``, so that a bad request stays cheap.

    ``needs_image``: neither the task nor the policy naming an image is an error.
    """
    request = _Request(spec, spec.pod or PodRequest(), requester, policy, needs_image)
    every = (found for check in CHECKS for found in check(request))
    return list(islice(every, FIELD_ERRORS_MAX))


def _images(request: _Request) -> FieldErrors:
    policy, given = request.policy, [("pod.image", request.pod.image)]
    given += [(f"roles[{n}].image", role.image) for n, role in enumerate(request.spec.roles)]
    for field, image in given:
        if image:
            yield from check_image(field, image, request.requester, policy)
    imageless = not all(role.image for role in request.spec.roles)
    if request.needs_image and imageless and not (request.pod.image or policy.default_image):
        yield field_error(
            "pod.image", "", "there is no image to run it in", "name one; none is default"
        )
    pull = request.pod.image_pull_policy
    if pull and pull not in PULL_POLICIES:
        fix = "use " + ", ".join(PULL_POLICIES)
        yield field_error("pod.image_pull_policy", pull, "is not a pull policy", fix)
    for index, name in enumerate(request.pod.image_pull_secrets):
        field = f"pod.image_pull_secrets[{index}]"
        yield from check_object(field, "secret", name, request.requester, policy)


def _storage(request: _Request) -> FieldErrors:
    yield from check_storage(request.pod.storage, request.requester, request.policy)


def _resources(request: _Request) -> FieldErrors:
    for name, text in request.pod.resources.items():
        yield from check_resource(
            f"pod.resources.{name}", name, text, request.requester, request.policy
        )
    spec = request.spec
    sized = spec.cpus is not None or spec.memory_bytes is not None
    only = request.policy.cpu_only
    sized |= spec.gpus_per_node == 0 and (only.cpus is not None or only.memory_bytes is not None)
    huge = next((name for name in request.pod.resources if name.startswith("hugepages-")), None)
    if huge is not None and not sized:
        fix = "say how many cpus or how much memory the task needs, too"
        yield field_error(f"pod.resources.{huge}", huge, "is given with cpus or memory only", fix)


def _shm(request: _Request) -> FieldErrors:
    size, most = request.pod.shm_bytes, request.policy.shm_bytes_max
    memory = request.spec.memory_bytes
    field = "pod.shm_bytes"
    if size is None:
        return
    if size <= 0:
        yield field_error(field, size, "is not a size", "leave it out, or give more than 0 bytes")
    elif memory is not None and size > memory:
        fix = f"ask for at most {memory}, or for more memory"
        yield field_error(field, size, "is more than memory_bytes, in which it counts", fix)
    elif most is not None and size > most:
        yield field_error(field, size, "is more than this site gives", f"ask for at most {most}")


def _capabilities(request: _Request) -> FieldErrors:
    for index, name in enumerate(request.pod.capabilities):
        yield from check_capability(
            f"pod.capabilities[{index}]", name, request.requester, request.policy
        )


def _env_from(request: _Request) -> FieldErrors:
    seen = set(request.spec.env).union(*(role.env for role in request.spec.roles))
    for index, source in enumerate(request.pod.env_from):
        field = f"pod.env_from[{index}]"
        yield from _variable(f"{field}.name", source.name, seen)
        seen.add(source.name)
        yield from _source(field, source, request)


def _variable(field: str, name: str, seen: Iterable[str]) -> FieldErrors:
    if not is_variable(name):
        fix = "use letters, digits and _, not beginning with a digit"
        yield field_error(field, name, "is not a variable's name", fix)
    elif is_reserved(name):
        yield field_error(field, name, "is set by the platform", "remove it, or use another name")
    elif name in seen:
        yield field_error(field, name, "is given twice", "give each variable once")


def _source(field: str, source: EnvSource, request: _Request) -> FieldErrors:
    given = [kind for kind in ("secret", "config_map", "field") if getattr(source, kind)]
    if len(given) != 1:
        shown = ", ".join(given) or "none"
        yield field_error(field, shown, "has not one source", "give secret, config_map or field")
        return
    if given == ["field"]:
        if not FIELD_PATH.fullmatch(source.field):
            fix = "write such as status.podIP, metadata.name or limits.memory"
            yield field_error(
                f"{field}.field", source.field, "is no field that a pod can tell", fix
            )
        return
    name = source.secret or source.config_map
    yield from check_object(
        f"{field}.{given[0]}", given[0], name, request.requester, request.policy
    )
    if not OBJECT_KEY.fullmatch(source.key):
        fix = "name the key in it: letters, digits, - _ and ."
        yield field_error(f"{field}.key", source.key, "is not a key", fix)


def _template(request: _Request) -> FieldErrors:
    yield from check_template(request.pod.template, request.requester, request.policy)


def _counts(request: _Request) -> FieldErrors:
    pod = request.pod
    for name in ("image_pull_secrets", "storage", "resources", "capabilities", "env_from"):
        count = len(getattr(pod, name))
        if count > ENTRIES_MAX:
            yield field_error(
                f"pod.{name}", count, f"has more than {ENTRIES_MAX} entries", "remove some"
            )


CHECKS: Sequence[Callable[[_Request], FieldErrors]] = (
    _counts,
    _images,
    _storage,
    _resources,
    _shm,
    _capabilities,
    _env_from,
    _template,
)
