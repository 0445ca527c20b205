"""Validates a task's pod request against the policy.

Submit validates, so that people see errors at once; the launcher validates again when it makes the
pods, because the policy may have changed in between.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from libs.contracts.messages import EnvSource, FieldError, PodRequest, TaskSpec
from libs.contracts.rank_sizes import sizes_of
from libs.pods import field_validators as v
from libs.pods.field_errors import FIELD_ERRORS_MAX, field_error
from libs.pods.pod_policy import PodPolicy
from libs.pods.pod_template import check_template
from libs.pods.requester import Requester
from libs.pods.storage_mounts import check_storage
from libs.pods.template_schema import View

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
    view: View
    needs_image: bool


def check_pod(
    spec: TaskSpec, requester: Requester, policy: PodPolicy, *, needs_image: bool
) -> list[FieldError]:
    """Return the first errors, up to ``FIELD_ERRORS_MAX``, so that a bad request stays cheap.

    ``needs_image``: neither the task nor the policy naming an image is an error.
    """
    request = _Request(spec, spec.pod or PodRequest(), View(requester, policy), needs_image)
    every = (found for check in CHECKS for found in check(request))
    return list(islice(every, FIELD_ERRORS_MAX))


def _images(request: _Request) -> FieldErrors:
    given = [("pod.image", request.pod.image)]
    given += [(f"roles[{n}].image", role.image) for n, role in enumerate(request.spec.roles)]
    for field, image in given:
        if image:
            yield from v.image(field, image, request.view)
    imageless = not all(role.image for role in request.spec.roles)
    if (
        request.needs_image
        and imageless
        and not (request.pod.image or request.view.policy.default_image)
    ):
        yield field_error(
            "pod.image", "", "there is no image to run it in", "name one; none is default"
        )
    pull = request.pod.image_pull_policy
    if pull and pull not in PULL_POLICIES:
        fix = "use " + ", ".join(PULL_POLICIES)
        yield field_error("pod.image_pull_policy", pull, "is not a pull policy", fix)
    for index, name in enumerate(request.pod.image_pull_secrets):
        yield from v.secret(f"pod.image_pull_secrets[{index}]", name, request.view)


def _resources(request: _Request) -> FieldErrors:
    for name, text in request.pod.resources.items():
        yield from v.resource(f"pod.resources.{name}", (name, text), request.view)
    only = request.view.policy.cpu_only
    given = only.cpus is not None or only.memory_bytes is not None
    sized = all(
        size.cpus or size.memory_bytes or (size.gpus == 0 and given)
        for size in sizes_of(request.spec).values()
    )
    huge = next((name for name in request.pod.resources if name.startswith("hugepages-")), None)
    if huge is not None and not sized:
        fix = "also set how many cpus or how much memory the task needs"
        yield field_error(f"pod.resources.{huge}", huge, "is given with cpus or memory only", fix)


def _shm(request: _Request) -> FieldErrors:
    size, most = request.pod.shm_bytes, request.view.policy.shm_bytes_max
    sizes = [size.memory_bytes for size in sizes_of(request.spec).values() if size.memory_bytes]
    memory = min(sizes, default=None)
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


def _env_from(request: _Request) -> FieldErrors:
    seen = set(request.spec.env).union(*(role.env for role in request.spec.roles))
    for index, source in enumerate(request.pod.env_from):
        field = f"pod.env_from[{index}]"
        name = v.first_of(
            v.variable,
            v.rule(lambda it: it not in seen, "is given twice", "give each variable once"),
        )
        yield from name(f"{field}.name", source.name, request.view)
        seen.add(source.name)
        yield from _source(field, source, request)


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
                f"{field}.field", source.field, "is not a field that a pod can provide", fix
            )
        return
    kind, name = given[0], source.secret or source.config_map
    may_use = v.secret if kind == "secret" else v.config_map
    yield from may_use(f"{field}.{kind}", name, request.view)
    if not OBJECT_KEY.fullmatch(source.key):
        fix = "name the key in it: letters, digits, - _ and ."
        yield field_error(f"{field}.key", source.key, "is not a key", fix)


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
    lambda it: check_storage(it.pod.storage, it.view.requester, it.view.policy),
    _resources,
    _shm,
    lambda it: v.every(v.capability)("pod.capabilities", [*it.pod.capabilities], it.view),
    _env_from,
    lambda it: check_template(it.pod.template, it.view.requester, it.view.policy),
)
