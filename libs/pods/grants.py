"""Whom a rule of the policy is for, and storage grants: what is mounted where, for whom.

Read from the policy file by ``policy.py``; carried out by ``storage.py``.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from libs.pods.asker import Asker
from libs.pods.forms import is_dns_label, is_object_name, under

PRIORITY = Literal[
    "extreme_high",
    "very_high",
    "high",
    "above_normal",
    "normal",
    "below_normal",
    "low",
    "idle",
    "auto",
]
# What a mount path must not be or be below: the platform's own, and the system's.
TAKEN_PATHS = (
    "/shiftwork",
    "/etc/shiftwork",
    "/dev/shm",  # noqa: S108 - a path in pods
    "/proc",
    "/sys",
)


def nfs_root(export: str, server: str) -> str | None:
    """The folder below which an entry of ``nfs_servers`` offers this server.

    The entry is ``SERVER`` (then the result is empty: no folder is named) or ``SERVER:/PATH``;
    ``SERVER`` is a pattern. None if the entry is about another server.
    """
    pattern, _, root = export.partition(":")
    return root if fnmatchcase(server, pattern) else None


class Part(BaseModel):
    """A part of the file: fields that are not known are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class When(Part):
    """A condition on the task; all that is said must be true."""

    # Patterns with *.
    task_names: tuple[str, ...] = ()
    # Label and a pattern for its value.
    task_labels: dict[str, str] = Field(default_factory=dict[str, str])
    priorities: tuple[PRIORITY, ...] = ()
    nodes_min: int = Field(default=0, ge=0)
    # A task that asks for whole nodes has enough.
    gpus_per_node_min: int = Field(default=0, ge=0)

    def is_true(self, asker: Asker) -> bool:
        """True if the task is such a one."""
        gpus = asker.gpus_per_node
        return (
            (not self.task_names or any(fnmatchcase(asker.name, each) for each in self.task_names))
            and all(
                key in asker.labels and fnmatchcase(asker.labels[key], pattern)
                for key, pattern in self.task_labels.items()
            )
            and (not self.priorities or asker.priority in self.priorities)
            and asker.nodes >= self.nodes_min
            and (gpus is None or gpus >= self.gpus_per_node_min)
        )


class Who(Part):
    """Users or teams (none named: everybody), on some groups of nodes (none named: all), when."""

    users: tuple[str, ...] = ()
    teams: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    when: When = When()

    def holds(self, asker: Asker) -> bool:
        """True if the rule is for this task."""
        everybody = not self.users and not self.teams
        named = asker.owner in self.users or (bool(asker.team) and asker.team in self.teams)
        there = not self.groups or asker.group in self.groups
        return (everybody or named) and there and self.when.is_true(asker)

    @property
    def closeness(self) -> tuple[int, bool]:
        """Which of two rules is the more personal one: the greater."""
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
    """Space of the pod's own, gone with it."""

    medium: Literal["", "Memory"] = ""
    size_bytes: int | None = Field(default=None, gt=0)


class Source(Part):
    """Exactly one of these. ``{owner}``, ``{team}`` and ``{group}`` are filled in."""

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


class Grant(Who):
    """A piece of storage that tasks may mount, or get by default."""

    name: str
    source: Source
    mount_path: str
    # A path inside the source.
    sub_path: str = ""
    read_only: bool = False
    # Mounted for everyone it is for, without being asked for.
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
        """ValueError unless the source is among what the policy lists."""
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
