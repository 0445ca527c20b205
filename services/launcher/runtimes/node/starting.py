"""How a rank begins: its folders, its context file, its control group and its waiting process.

Used by ``ranks.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.launcher.runtimes.node import proc
from services.launcher.runtimes.node.cgroups import Cgroups
from services.launcher.runtimes.node.outputs import Outputs
from services.launcher.runtimes.node.rank import CONTEXT_VARIABLE, Rank
from services.launcher.runtimes.node.spawn import Identity, Program, spawn


@dataclass(frozen=True)
class Starting:
    """What the ranks of a node begin with; the fields are those of ``Ranks``."""

    runs_folder: str
    work_folder: str
    outputs: Outputs
    cgroups: Cgroups
    now: Callable[[], float]
    boot: str
    identity: Identity | None

    def start(self, run: str, order: Mapping[str, Any]) -> Rank:
        """A child that waits at its gate. OSError if there can be none; then nothing is left."""
        number: int = order["rank"]
        folder = self._folders(run, number)
        context = f"{folder}/context.json"
        self._write_private(context, order["context"])
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
                identity=self.identity,
            )
            gated = spawn(program, cgroup=group, warning=self._warning(order))
        except OSError:
            self.outputs.finish(output)
            raise
        finally:
            os.close(end)
        seen = proc.stat(gated.pid)
        assert seen is not None, "an unreaped child has an entry in /proc"
        rank = Rank(run, number, gated.pid, seen.ticks, self.boot, context, self.now())
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

    def _folders(self, run: str, rank: int) -> str:
        """Make the run's folders; the rank's own is returned. With another user for tasks, the way
        to the context file is passable and nothing more, and the work folder is theirs."""
        folder, work = f"{self.runs_folder}/{run}/{rank}", f"{self.work_folder}/{run}"
        mode = 0o700 if self.identity is None else 0o711
        for path in (f"{self.runs_folder}/{run}", folder, work):
            try:
                os.mkdir(path, mode)  # noqa: PTH102 - small imports
            except FileExistsError:
                continue
            if path == work and self.identity is not None:
                os.chown(path, self.identity.uid, self.identity.gid)
        return folder

    def _write_private(self, path: str, text: str) -> None:
        """A file for the task's eyes only."""
        unlink(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            if self.identity is not None:
                os.fchown(file.fileno(), self.identity.uid, self.identity.gid)


def unlink(path: str) -> None:
    """Remove a file that may be gone."""
    try:
        os.unlink(path)  # noqa: PTH108 - small imports
    except FileNotFoundError:
        return
