"""Validates a task's pod request against the policy.

Submit validates, so that people see errors at once; the launcher validates again when it makes the
pods, because the policy may have changed in between.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from libs.contracts.messages import EnvSource, FieldError, PodRequest, Role, TaskSpec
from libs.contracts.rank_sizes import limits_of, size_of
from libs.pods import field_validators as v
from libs.pods.field_errors import FIELD_ERRORS_MAX, field_error
from libs.pods.pod_policy import PodPolicy
from libs.pods.pod_template import check_template
from libs.pods.requester import Requester
from libs.pods.role_requests import image_of
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
    """The request of a task or of one role, and what it is validated against."""

    spec: TaskSpec
    pod: PodRequest
    # Where it stands: pod, or roles[0].pod.
    at: str
    # The roles whose pods have it, and the request that it is merged over.
    roles: tuple[Role, ...]
    below: PodRequest
    view: View
    needs_image: bool


def check_pod(
    spec: TaskSpec, requester: Requester, policy: PodPolicy, *, needs_image: bool
) -> list[FieldError]:
    """Return the first errors, up to ``FIELD_ERRORS_MAX``, so that a bad request stays cheap.

    ``needs_image``: neither the task nor the policy naming an image is an error.
    """
    view, common = View(requester, policy), spec.pod or PodRequest()
    requests = [_Request(spec, common, "pod", spec.roles, PodRequest(), view, needs_image)]
    requests += [
        _Request(spec, role.pod, f"roles[{index}].pod", (role,), common, view, False)
        for index, role in enumerate(spec.roles)
        if role.pod is not None
    ]
    every = (found for each in requests for check in CHECKS for found in check(each))
    return list(islice(every, FIELD_ERRORS_MAX))


def _images(request: _Request) -> FieldErrors:
    at, pod, view = request.at, request.pod, request.view
    if pod.image:
        yield from v.image(f"{at}.image", pod.image, view)
    if at == "pod":
        yield from _role_images(request)
    pull = pod.image_pull_policy
    if pull and pull not in PULL_POLICIES:
        fix = "use " + ", ".join(PULL_POLICIES)
        yield field_error(f"{at}.image_pull_policy", pull, "is not a pull policy", fix)
    for index, name in enumerate(pod.image_pull_secrets):
        yield from v.secret(f"{at}.image_pull_secrets[{index}]", name, view)


def _role_images(request: _Request) -> FieldErrors:
    """The images that roles name themselves, and those that none names."""
    roles = request.spec.roles
    for index, role in enumerate(roles):
        if role.image:
            yield from v.image(f"roles[{index}].image", role.image, request.view)
        if role.image and role.pod and role.pod.image:
            yield field_error(
                f"roles[{index}].pod.image",
                role.pod.image,
                "stands beside the role's image",
                "give one of them",
            )
    imageless = not all(image_of(request.spec, role) for role in roles)
    if request.needs_image and imageless and not request.view.policy.default_image:
        yield field_error(
            "pod.image", "", "there is no image to run it in", "name one; none is default"
        )


def _resources(request: _Request) -> FieldErrors:
    at, resources = request.at, request.pod.resources
    for name, text in resources.items():
        yield from v.resource(f"{at}.resources.{name}", (name, text), request.view)
    only = request.view.policy.cpu_only
    given = only.cpus is not None or only.memory_bytes is not None
    sized = all(
        size.cpus or size.memory_bytes or (size.gpus == 0 and given)
        for size in (size_of(request.spec, role) for role in request.roles)
    )
    huge = next((name for name in resources if name.startswith("hugepages-")), None)
    if huge is not None and not sized:
        fix = "also set how many cpus or how much memory the task needs"
        yield field_error(f"{at}.resources.{huge}", huge, "is given with cpus or memory only", fix)


def _shm(request: _Request) -> FieldErrors:
    size, most = request.pod.shm_bytes, request.view.policy.shm_bytes_max
    limits = [
        limits_of(request.spec, role).memory_bytes
        for role in request.roles
        # What a role says itself is compared with its own memory.
        if request.at != "pod" or role.pod is None or role.pod.shm_bytes is None
    ]
    memory = min((each for each in limits if each is not None), default=None)
    field = f"{request.at}.shm_bytes"
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
    roles = request.roles
    seen = set(request.spec.env).union(*(role.env for role in roles))
    seen = seen.union(*(role.resume.env for role in roles if role.resume is not None))
    for index, source in enumerate(request.pod.env_from):
        field = f"{request.at}.env_from[{index}]"
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
                f"{request.at}.{name}", count, f"has more than {ENTRIES_MAX} entries", "remove some"
            )


CHECKS: Sequence[Callable[[_Request], FieldErrors]] = (
    _counts,
    _images,
    lambda it: check_storage(
        it.pod.storage,
        it.view.requester,
        it.view.policy,
        above=it.at,
        beside=it.below.storage,
    ),
    _resources,
    _shm,
    lambda it: v.every(v.capability)(f"{it.at}.capabilities", [*it.pod.capabilities], it.view),
    _env_from,
    lambda it: check_template(
        it.pod.template,
        it.view.requester,
        it.view.policy,
        field=f"{it.at}.template",
        below=it.below.template,
    ),
)
