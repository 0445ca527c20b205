"""Every fault in what a task asks of its pods, under the policy: field, value and fix.

Asked by submit, so that the person hears it at once, and again by the launcher when it makes the
pods, because the policy may have changed since.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from libs.contracts.messages import EnvSource, FieldError, PodRequest, TaskSpec
from libs.contracts.variables import is_reserved, is_variable
from libs.pods.asker import Asker
from libs.pods.faults import FAULTS_MAX, fault
from libs.pods.offers import check_capability, check_image, check_object, check_resource
from libs.pods.overrides import check_template
from libs.pods.policy import PodPolicy
from libs.pods.storage import check_storage

ENTRIES_MAX = 64
PULL_POLICIES = ("Always", "IfNotPresent", "Never")
FIELD_PATH = re.compile(
    r"metadata\.(name|namespace|uid)"
    r"|metadata\.(labels|annotations)\['[A-Za-z0-9][-A-Za-z0-9_./]{0,316}'\]"
    r"|spec\.(nodeName|serviceAccountName)|status\.(hostIP|hostIPs|podIP|podIPs)"
    r"|(limits|requests)\.(cpu|memory|ephemeral-storage|hugepages-[A-Za-z0-9]+)"
)
OBJECT_KEY = re.compile(r"[-._A-Za-z0-9]{1,253}")

Faults = Iterator[FieldError]


@dataclass(frozen=True, slots=True)
class _Asked:
    """One task's request, and what it is judged by."""

    spec: TaskSpec
    pod: PodRequest
    asker: Asker
    policy: PodPolicy
    needs_image: bool


def check_pod(
    spec: TaskSpec, asker: Asker, policy: PodPolicy, *, needs_image: bool
) -> list[FieldError]:
    """The first faults, up to ``FAULTS_MAX``: a request costs no more for having thousands.

    ``needs_image``: a task that is given no image by anybody is refused.
    """
    asked = _Asked(spec, spec.pod or PodRequest(), asker, policy, needs_image)
    every = (found for check in CHECKS for found in check(asked))
    return list(islice(every, FAULTS_MAX))


def _images(asked: _Asked) -> Faults:
    policy, given = asked.policy, [("pod.image", asked.pod.image)]
    given += [(f"roles[{n}].image", role.image) for n, role in enumerate(asked.spec.roles)]
    for field, image in given:
        if image:
            yield from check_image(field, image, asked.asker, policy)
    imageless = not all(role.image for role in asked.spec.roles)
    if asked.needs_image and imageless and not (asked.pod.image or policy.default_image):
        yield fault("pod.image", "", "there is no image to run it in", "name one; none is default")
    pull = asked.pod.image_pull_policy
    if pull and pull not in PULL_POLICIES:
        fix = "use " + ", ".join(PULL_POLICIES)
        yield fault("pod.image_pull_policy", pull, "is not a pull policy", fix)
    for index, name in enumerate(asked.pod.image_pull_secrets):
        field = f"pod.image_pull_secrets[{index}]"
        yield from check_object(field, "secret", name, asked.asker, policy)


def _storage(asked: _Asked) -> Faults:
    yield from check_storage(asked.pod.storage, asked.asker, asked.policy)


def _resources(asked: _Asked) -> Faults:
    for name, text in asked.pod.resources.items():
        yield from check_resource(f"pod.resources.{name}", name, text, asked.asker, asked.policy)
    spec = asked.spec
    sized = spec.cpus is not None or spec.memory_bytes is not None
    only = asked.policy.cpu_only
    sized |= spec.gpus_per_node == 0 and (only.cpus is not None or only.memory_bytes is not None)
    huge = next((name for name in asked.pod.resources if name.startswith("hugepages-")), None)
    if huge is not None and not sized:
        fix = "say how many cpus or how much memory the task needs, too"
        yield fault(f"pod.resources.{huge}", huge, "is given with cpus or memory only", fix)


def _shm(asked: _Asked) -> Faults:
    size, most = asked.pod.shm_bytes, asked.policy.shm_bytes_max
    memory = asked.spec.memory_bytes
    field = "pod.shm_bytes"
    if size is None:
        return
    if size <= 0:
        yield fault(field, size, "is not a size", "leave it out, or give more than 0 bytes")
    elif memory is not None and size > memory:
        fix = f"ask for at most {memory}, or for more memory"
        yield fault(field, size, "is more than memory_bytes, in which it counts", fix)
    elif most is not None and size > most:
        yield fault(field, size, "is more than this site gives", f"ask for at most {most}")


def _capabilities(asked: _Asked) -> Faults:
    for index, name in enumerate(asked.pod.capabilities):
        yield from check_capability(f"pod.capabilities[{index}]", name, asked.asker, asked.policy)


def _env_from(asked: _Asked) -> Faults:
    seen = set(asked.spec.env).union(*(role.env for role in asked.spec.roles))
    for index, source in enumerate(asked.pod.env_from):
        field = f"pod.env_from[{index}]"
        yield from _variable(f"{field}.name", source.name, seen)
        seen.add(source.name)
        yield from _source(field, source, asked)


def _variable(field: str, name: str, seen: Iterable[str]) -> Faults:
    if not is_variable(name):
        fix = "use letters, digits and _, not beginning with a digit"
        yield fault(field, name, "is not a variable's name", fix)
    elif is_reserved(name):
        yield fault(field, name, "is set by the platform", "remove it, or use another name")
    elif name in seen:
        yield fault(field, name, "is given twice", "give each variable once")


def _source(field: str, source: EnvSource, asked: _Asked) -> Faults:
    given = [kind for kind in ("secret", "config_map", "field") if getattr(source, kind)]
    if len(given) != 1:
        shown = ", ".join(given) or "none"
        yield fault(field, shown, "has not one source", "give secret, config_map or field")
        return
    if given == ["field"]:
        if not FIELD_PATH.fullmatch(source.field):
            fix = "write such as status.podIP, metadata.name or limits.memory"
            yield fault(f"{field}.field", source.field, "is no field that a pod can tell", fix)
        return
    name = source.secret or source.config_map
    yield from check_object(f"{field}.{given[0]}", given[0], name, asked.asker, asked.policy)
    if not OBJECT_KEY.fullmatch(source.key):
        fix = "name the key in it: letters, digits, - _ and ."
        yield fault(f"{field}.key", source.key, "is not a key", fix)


def _template(asked: _Asked) -> Faults:
    yield from check_template(asked.pod.template, asked.asker, asked.policy)


def _counts(asked: _Asked) -> Faults:
    pod = asked.pod
    for name in ("image_pull_secrets", "storage", "resources", "capabilities", "env_from"):
        count = len(getattr(pod, name))
        if count > ENTRIES_MAX:
            yield fault(f"pod.{name}", count, f"has more than {ENTRIES_MAX} entries", "remove some")


CHECKS: Sequence[Callable[[_Asked], Faults]] = (
    _counts,
    _images,
    _storage,
    _resources,
    _shm,
    _capabilities,
    _env_from,
    _template,
)
