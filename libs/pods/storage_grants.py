"""The scope of a policy rule, and storage grants: what is mounted where, for which tasks.

``pod_policy.py`` reads them from the policy file; ``storage_mounts.py`` applies them.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from libs.contracts.enum_words import PriorityWord
from libs.pods.formats import is_dns_label, is_object_name, under
from libs.pods.requester import Requester

# A mount path must not be one of these or below one: the platform or the system uses them.
TAKEN_PATHS = (
    "/shiftwork",
    "/etc/shiftwork",
    "/dev/shm",  # noqa: S108 - a path in pods
    "/proc",
    "/sys",
)


def nfs_root(export: str, server: str) -> str | None:
    """Return the folder below which an entry of ``nfs_servers`` offers this server.

    The entry is ``SERVER`` (the result is empty: no folder is named) or ``SERVER:/PATH``;
    ``SERVER`` is a pattern. None if the entry does not match the server.
    """
    pattern, _, root = export.partition(":")
    return root if fnmatchcase(server, pattern) else None


class Part(BaseModel):
    """A part of the policy file. Unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class When(Part):
    """A condition on the task; all given fields must match."""

    # Patterns with *.
    task_names: tuple[str, ...] = ()
    # Label, and a pattern for its value.
    task_labels: dict[str, str] = Field(default_factory=dict[str, str])
    priorities: tuple[PriorityWord, ...] = ()
    nodes_min: int = Field(default=0, ge=0)
    # A task that requests whole nodes always meets it.
    gpus_per_node_min: int = Field(default=0, ge=0)

    def is_true(self, requester: Requester) -> bool:
        """True if the task meets the condition."""
        gpus = requester.gpus_per_node
        return (
            (
                not self.task_names
                or any(fnmatchcase(requester.name, each) for each in self.task_names)
            )
            and all(
                key in requester.labels and fnmatchcase(requester.labels[key], pattern)
                for key, pattern in self.task_labels.items()
            )
            and (not self.priorities or requester.priority in self.priorities)
            and requester.nodes >= self.nodes_min
            and (gpus is None or gpus >= self.gpus_per_node_min)
        )


class Scope(Part):
    """The tasks that a rule applies to: users or teams (none named: everybody), groups of nodes
    (none named: all) and a condition."""

    users: tuple[str, ...] = ()
    teams: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    when: When = When()

    def holds(self, requester: Requester) -> bool:
        """True if the rule applies to this task."""
        everybody = not self.users and not self.teams
        named = requester.owner in self.users or (
            bool(requester.team) and requester.team in self.teams
        )
        there = not self.groups or requester.group in self.groups
        return (everybody or named) and there and self.when.is_true(requester)

    @property
    def closeness(self) -> tuple[int, bool]:
        """How specific the rule is, for comparison; the greater one is more specific."""
        return (2 if self.users else 1 if self.teams else 0), self.when != When()


class HostPath(Part):
    """A path of the node."""

    path: str
    type: Literal["", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"] = (
        "Directory"
    )


class Claim(Part):
    """A persistent volume claim in the namespace of the tasks."""

    name: str


class ConfigMapSource(Part):
    """A ConfigMap in the namespace of the tasks, or one key of it."""

    name: str
    key: str = ""


class Nfs(Part):
    """A path of an NFS server."""

    server: str = Field(min_length=1)
    path: str


class EmptyDir(Part):
    """Scratch space that is deleted with the pod."""

    medium: Literal["", "Memory"] = ""
    size_bytes: int | None = Field(default=None, gt=0)


class Source(Part):
    """A storage source: exactly one of these. ``{owner}``, ``{team}`` and ``{group}`` are filled
    in."""

    host_path: HostPath | None = None
    claim: Claim | None = None
    config_map: ConfigMapSource | None = None
    nfs: Nfs | None = None
    empty_dir: EmptyDir | None = None

    @model_validator(mode="after")
    def _one(self) -> Source:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("give exactly one of " + ", ".join(type(self).model_fields))
        return self


class Grant(Scope):
    """Storage that tasks may mount, or get by default."""

    name: str
    source: Source
    mount_path: str
    # A path inside the source.
    sub_path: str = ""
    read_only: bool = False
    # Mounted for every task in scope without a request.
    default: bool = False
    description: Annotated[str, Field(max_length=1000)] = ""

    @property
    def volume(self) -> str:
        """The volume's name in the pod."""
        return f"storage-{self.name}"

    @model_validator(mode="after")
    def _forms(self) -> Grant:
        if not is_dns_label(f"storage-{self.name}"):
            raise ValueError(f"{self.name!r} is no grant's name; use at most 55 of a-z, 0-9 and -")
        if not under(self.mount_path, ("/",)) or self.mount_path == "/":
            raise ValueError(f"mount_path {self.mount_path!r} is no plain path below /")
        if under(self.mount_path, TAKEN_PATHS):
            taken = ", ".join(TAKEN_PATHS)
            raise ValueError(f"mount_path {self.mount_path!r} is taken; use none below {taken}")
        if self.sub_path and not under("/" + self.sub_path, ("/",)):
            raise ValueError(f"sub_path {self.sub_path!r} is no plain relative path")
        return self

    def check(self, host_path_roots: tuple[str, ...], nfs_servers: tuple[str, ...]) -> None:
        """Raise ValueError unless the policy lists the source."""
        where, source = f"storage {self.name}", self.source
        if source.host_path and not under(source.host_path.path, host_path_roots):
            roots = ", ".join(host_path_roots) or "none"
            raise ValueError(
                f"{where}: host path {source.host_path.path!r} is below none of host_path_roots"
                f" ({roots}); list its folder there"
            )
        nfs = source.nfs
        roots = [nfs_root(each, nfs.server) for each in nfs_servers] if nfs else []
        if nfs and not any(root is not None for root in roots):
            servers = ", ".join(nfs_servers) or "none"
            raise ValueError(
                f"{where}: server {nfs.server!r} fits none of nfs_servers ({servers}); list it"
            )
        if nfs and not under(nfs.path, ("/",)):
            raise ValueError(f"{where}: nfs path {nfs.path!r} is no plain absolute path")
        if nfs and not any(under(nfs.path, (root or "/",)) for root in roots if root is not None):
            raise ValueError(
                f"{where}: nfs path {nfs.path!r} is below no folder that nfs_servers lists for"
                f" {nfs.server}; list it there"
            )
        named = source.claim or source.config_map
        plain = named.name.replace("{owner}", "o").replace("{team}", "t") if named else "x"
        if not is_object_name(plain.replace("{group}", "g")):
            raise ValueError(f"{where}: {plain!r} is no object's name")
