"""How a rank begins: its folders, its context file, its control group and its waiting process.

Used by ``ranks.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from services.launcher.runtimes.node import proc
from services.launcher.runtimes.node.cgroups import Cgroups
from services.launcher.runtimes.node.identity import Identity
from services.launcher.runtimes.node.outputs import Outputs
from services.launcher.runtimes.node.rank import CONTEXT_VARIABLE, Rank, context_path
from services.launcher.runtimes.node.spawn import Program, spawn


@dataclass(frozen=True)
class Starting:
    """What the ranks of a node begin with; the fields are those of ``Ranks``."""

    runs_folder: str
    work_folder: str
    outputs: Outputs
    cgroups: Cgroups
    now: Callable[[], float]
    boot: str

    def start(self, run: str, order: Mapping[str, Any]) -> Rank:
        """A child that waits at its gate. OSError if there can be none; then nothing is left."""
        # A launcher that names no user is of an earlier version: nothing runs, least of all as us.
        user = order["user"]
        identity = Identity(*user) if user is not None else None
        uid = os.geteuid() if identity is None else identity.uid
        number: int = order["rank"]
        folder = self._folders(run, number, identity)
        context = context_path(self.runs_folder, run, number)
        self._write_private(context, order["context"], identity)
        name = f"{run}.{number}"
        groups = self.cgroups.create(name, order["cpus"], order["memory_bytes"])
        # The version 2 group, if there is one, is the first.
        group = groups[0] if self.cgroups.unified else ""
        output, end = self.outputs.create(folder)
        try:
            program = Program(
                argv=order["argv"],
                env={**order["env"], CONTEXT_VARIABLE: context},
                cwd=order["cwd"] or f"{self.work_folder}/{run}",
                output=end,
                identity=identity,
                processes_max=self.cgroups.user_pids_max,
            )
            gated = spawn(program, cgroup=group, warning=self._warning(order))
        except OSError:
            self.outputs.finish(output)
            raise
        finally:
            os.close(end)
        seen = proc.stat(gated.pid)
        assert seen is not None, "an unreaped child has an entry in /proc"
        rank = Rank(run, number, gated.pid, seen.ticks, self.boot, context, self.now(), uid)
        rank.output, rank.gated = output, gated
        try:
            self.cgroups.join(groups[1:] if gated.joined else groups, gated.pid)
        except OSError:
            self.abandon([rank])
            raise
        return rank

    def abandon(self, fresh: Sequence[Rank]) -> None:
        """Let children go that may not become ranks: they read the end of their pipes. All pipes
        are closed first, because a later child holds copies of the earlier ones' ends."""
        for rank in fresh:
            assert rank.gated is not None, "it is not a rank yet"
            os.close(rank.gated.gate)
        for rank in fresh:
            os.waitpid(rank.pid, 0)
            self.cgroups.remove(rank.name)
            self.outputs.finish(rank.output)

    def _warning(self, order: Mapping[str, Any]) -> str:
        wants = order["cpus"] is not None or order["memory_bytes"] is not None
        if not wants or self.cgroups.can_limit:
            return ""
        return "the CPU and memory limits of this task are not enforced on this machine"

    def _folders(self, run: str, rank: int, identity: Identity | None) -> str:
        """Make the run's folders and return the rank's own, which holds its context and output.

        A rank that runs as another user owns its work folder and may pass to its context file, by
        its group; the folders on the way stay ours, so that it cannot put anything in the place
        of its output. Rights are set even if the folder exists: we may have died in between.
        """
        folder, work = f"{self.runs_folder}/{run}/{rank}", f"{self.work_folder}/{run}"
        for path in (f"{self.runs_folder}/{run}", folder, work):
            with suppress(FileExistsError):
                os.mkdir(path, 0o700)  # noqa: PTH102 - small imports
            if identity is None:
                continue
            if path == work:
                os.chown(path, identity.uid, identity.gid)
            else:
                os.chown(path, -1, identity.gid)
                os.chmod(path, 0o710)  # noqa: PTH101, S103 - small imports; for its group
        return folder

    def _write_private(self, path: str, text: str, identity: Identity | None) -> None:
        """Write a file that only the task may read."""
        unlink(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            if identity is not None:
                os.fchown(file.fileno(), identity.uid, identity.gid)


def unlink(path: str) -> None:
    """Remove a file that may be gone."""
    try:
        os.unlink(path)  # noqa: PTH108 - small imports
    except FileNotFoundError:
        return
