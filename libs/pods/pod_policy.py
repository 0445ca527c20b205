"""The pod policy: what a site gives every pod, and what else each user and team may request.

One file in YAML or JSON. Submit reads it at its start and rejects invalid tasks early; the launcher
reads it, builds the pods and validates again. ``docs/pods.md`` is its reference.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import yaml
from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

from libs.contracts.ids import is_label_value, is_name, is_taint
from libs.contracts.variables import is_reserved, is_variable
from libs.pods.formats import is_capability, is_object_name, is_qualified, under
from libs.pods.kubernetes_names import is_platforms_key
from libs.pods.requester import Requester
from libs.pods.storage_grants import Grant, Part, Scope

FILE_BYTES_MAX = 1_048_576
GIB = 1 << 30


class PolicyError(ValueError):
    """The policy file cannot be used; the text names the place, the value and the fix."""


class Permission(StrEnum):
    """What no pod may do unless the policy's ``allow`` grants it."""

    PRIVILEGED = "privileged"
    PRIVILEGE_ESCALATION = "privilege_escalation"
    RUN_AS_ROOT = "run_as_root"
    RUN_AS_OTHERS = "run_as_others"
    HOST_NETWORK = "host_network"
    HOST_PID = "host_pid"
    HOST_IPC = "host_ipc"
    HOST_PATH = "host_path"
    HOST_PORT = "host_port"
    UNCONFINED = "unconfined"
    PROC_MOUNT = "proc_mount"
    SYSCTLS = "sysctls"
    OTHER_VOLUMES = "other_volumes"
    SERVICE_ACCOUNT = "service_account"


def _checked(kind: str, fits: Any) -> AfterValidator:  # noqa: ANN401 - str -> bool
    def check(text: str) -> str:
        if not fits(text):
            raise ValueError(f"{text!r} is no {kind}")
        return text

    return AfterValidator(check)


Key = Annotated[str, _checked("label's key", is_qualified)]
LabelValue = Annotated[str, _checked("label's value", is_label_value)]
ObjectName = Annotated[str, _checked("object's name", is_object_name)]
ResourceName = Annotated[str, _checked("resource's name", is_qualified)]
UserName = Annotated[str, _checked("user's name", is_name)]


class Rule(Scope):
    """Patterns of names, with ``*`` and ``{owner}``, ``{team}``, ``{group}``, for a scope."""

    names: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=1)

    def matches(self, name: str, requester: Requester) -> bool:
        """True if the rule applies to this task and one of its patterns matches."""
        return self.holds(requester) and any(
            pattern is not None and fnmatchcase(name, pattern)
            for pattern in map(requester.filled, self.names)
        )


class ObjectRule(Rule):
    """Which Secrets, ConfigMaps and volume claims a task may name."""

    kinds: tuple[Literal["secret", "config_map", "claim"], ...] = Field(
        default=("secret", "config_map", "claim"), min_length=1
    )


class Identity(Part):
    """The user and group ids of a user's processes on the file systems."""

    user: int = Field(ge=1, le=2**31 - 1)
    group: int = Field(ge=1, le=2**31 - 1)
    groups: tuple[Annotated[int, Field(ge=1, le=2**31 - 1)], ...] = Field(default=(), max_length=64)


class Sizes(Part):
    """The default CPUs and memory of a pod of a task without GPUs."""

    cpus: float | None = Field(default=None, gt=0, le=65_536)
    memory_bytes: int | None = Field(default=None, gt=0)


class PodPolicy(Part):
    """The policy. Every field has a default; an empty file grants nothing."""

    # Images.
    default_image: str = ""
    image_pull_policy: Literal["", "Always", "IfNotPresent", "Never"] = ""
    image_pull_secrets: tuple[ObjectName, ...] = ()
    # Which images may be used, and by which users and teams.
    images: tuple[Rule, ...] = (Rule(names=("*",)),)
    # Holds the Python package of the platform; empty: nothing is put into pods.
    sdk_image: str = ""

    # Resources.
    gpu_resource: ResourceName = "nvidia.com/gpu"
    # Extended resources that may be requested: rdma/hca, hugepages-2Mi, ephemeral-storage.
    resources: tuple[Rule, ...] = ()
    cpu_only: Sizes = Sizes()
    shm_bytes: int = Field(default=2 * GIB, gt=0)
    shm_bytes_max: int | None = Field(default=None, gt=0)

    # What pods may do.
    capabilities: tuple[Rule, ...] = ()
    allow: dict[Permission, tuple[Scope, ...]] = Field(default_factory=dict[Permission, Any])
    objects: tuple[ObjectRule, ...] = (ObjectRule(names=("user.{owner}.*", "team.{team}.*")),)
    identity: Identity = Identity(user=10_001, group=10_001)
    identities: dict[UserName, Identity] = Field(default_factory=dict[str, Identity])
    read_only_root: bool = False

    # Storage. Host paths are mounted only below one of these.
    host_path_roots: tuple[str, ...] = ()
    # SERVER or SERVER:/PATH; SERVER is a pattern.
    nfs_servers: tuple[str, ...] = ()
    # Patterns of CSI drivers whose inline volumes templates may declare.
    csi_drivers: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    storage: tuple[Grant, ...] = ()

    # How pods are treated by the cluster.
    service_account: str = ""
    priority_class: str = ""
    scheduler_name: str = ""
    runtime_class: str = ""
    # Taints (key or key=value) that every pod tolerates.
    tolerate: tuple[Annotated[str, _checked("taint", is_taint)], ...] = ("nvidia.com/gpu",)
    # Node labels that a pod gets as an annotation.
    node_labels: tuple[Key, ...] = (
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
    )
    labels: dict[Key, LabelValue] = Field(default_factory=dict[str, str])
    annotations: dict[Key, str] = Field(
        default_factory=lambda: {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    )
    # Keys of labels and annotations that a pod template may set, as patterns. ``*`` is every key
    # without a domain; one with a domain needs a pattern that names it: ``example.com/*``.
    metadata_keys: tuple[str, ...] = ("*",)
    termination_grace_seconds: int = Field(default=35, ge=1, le=86_400)
    env: dict[str, str] = Field(default_factory=lambda: {"LANG": "C.UTF-8"})
    template_bytes_max: int = Field(default=65_536, ge=0, le=262_144)

    @field_validator("allow", mode="before")
    @classmethod
    def _everyone(cls, allow: Any) -> Any:  # noqa: ANN401 - any content of the file
        """Replace ``everyone`` by a rule that applies to every task."""
        if not isinstance(allow, dict):
            return allow
        rules = cast("dict[Any, Any]", allow)
        everyone: list[dict[str, Any]] = [{}]
        return {
            name: everyone if scopes == "everyone" else scopes for name, scopes in rules.items()
        }

    def allows(self, permission: Permission, requester: Requester) -> bool:
        """True if the policy grants this task the permission."""
        return any(rule.holds(requester) for rule in self.allow.get(permission, ()))

    def allows_object(self, kind: str, name: str, requester: Requester) -> bool:
        """True if the task may name this Secret, ConfigMap or claim."""
        return any(kind in rule.kinds and rule.matches(name, requester) for rule in self.objects)

    def allows_key(self, key: str) -> bool:
        """True if a pod template may set this key of a label or an annotation."""
        has_domain = _has_domain(key)
        return any(
            fnmatchcase(key, pattern)
            for pattern in self.metadata_keys
            if has_domain == _has_domain(pattern)
        )

    def identity_of(self, owner: str) -> Identity:
        """Return the ids of the owner's processes."""
        return self.identities.get(owner, self.identity)

    @model_validator(mode="after")
    def _places(self) -> PodPolicy:
        _unique("storage", (grant.name for grant in self.storage))
        for root in self.host_path_roots:
            if root == "/" or not under(root, ("/",)):
                raise ValueError(f"host_path_roots: {root!r} is no folder below /; write /data")
        for export in self.nfs_servers:
            server, colon, root = export.partition(":")
            if not server or (colon and not under(root, ("/",))):
                raise ValueError(f"nfs_servers: {export!r} is neither SERVER nor SERVER:/PATH")
        for pattern in self.metadata_keys:
            if _has_domain(pattern) and not any(map(str.isalnum, pattern.partition("/")[0])):
                raise ValueError(f"metadata_keys: {pattern!r} names no domain; write example.com/*")
        for grant in self.storage:
            grant.check(self.host_path_roots, self.nfs_servers)
        return self

    @model_validator(mode="after")
    def _keys(self) -> PodPolicy:
        for name in self.env:
            if not is_variable(name) or is_reserved(name):
                raise ValueError(f"env: {name!r} is no variable, or one of the platform's own")
        for key in (*self.labels, *self.annotations):
            if is_platforms_key(key):
                raise ValueError(f"labels, annotations: {key!r} is set by the platform itself")
        for capability in (name for rule in self.capabilities for name in rule.names):
            if not is_capability(capability):
                raise ValueError(f"capabilities: {capability!r} is none; write IPC_LOCK")
        if self.shm_bytes_max is not None and self.shm_bytes > self.shm_bytes_max:
            raise ValueError(f"shm_bytes {self.shm_bytes} is above shm_bytes_max")
        return self


def _has_domain(key: str) -> bool:
    """True for ``DOMAIN/NAME``, and for names with dots, which container runtimes read."""
    return "/" in key or "." in key


def _unique(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{what}: {name} stands there twice; give each a name of its own")
        seen.add(name)


def read_policy(path: Path) -> PodPolicy:
    """Read a policy file. PolicyError names the field, the value and the fix if it is invalid."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise PolicyError(f"pod policy {path}: is larger than {FILE_BYTES_MAX} bytes")
        found: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PolicyError(f"pod policy {path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise PolicyError(f"pod policy {path}: is neither YAML nor JSON: {error}") from error
    try:
        return PodPolicy.model_validate({} if found is None else found)
    except ValidationError as error:
        raise PolicyError(f"pod policy {path}: {_described(error)}") from error


def _described(error: ValidationError) -> str:
    """Describe the first of several errors: field, value, fix."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"] if part != "[key]") or "the file"
    if first["type"] == "extra_forbidden":
        return f"{where}: is not known; the reference lists every field"
    message = first["msg"].removeprefix("Value error, ")
    value = first["input"]
    shown = f" (it is {value!r})" if isinstance(value, str | int | float | bool) else ""
    return f"{where}: {message}{shown}"
