"""The ranks on one node: started once, ended as whole groups, remembered until forgotten.

Used by ``supervisor.py``, whose children the ranks are. Two rules hold it together: a process runs
only after its start is on disk, and its exit is said only after nothing of its group is left and
the exit is on disk. A main process stays a zombie until then, so that its number, which names the
group, cannot come again meanwhile.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from services.launcher.runtimes.node import groups, proc
from services.launcher.runtimes.node.cgroups import Cgroups
from services.launcher.runtimes.node.journal import Journal
from services.launcher.runtimes.node.spawn import Gated, Identity, Program, spawn

CONTEXT_VARIABLE = "SHIFTWORK_CONTEXT"
DELAY_FIRST_S, DELAY_MOST_S, RECORD_AGAIN_S = 0.001, 0.05, 1.0
# Without control groups, a group is empty when it was found so twice in a row.
EMPTY_LOOKS = 2


class RefusedError(Exception):
    """The order cannot be carried out; the text says why."""


class EndedError(RefusedError):
    """The run was ended, so none of it may start any more."""


@dataclass
class Rank:
    """One rank's process and what is known of it."""

    run: str
    rank: int
    pid: int
    ticks: int
    boot: str
    context: str
    started_at: float
    # False: a supervisor before us started it, and only its parent could have learned its end.
    ours: bool = True
    # How the main process ended, while its group is being ended.
    status: dict[str, Any] | None = None
    exit: dict[str, Any] | None = None
    ending: bool = False
    delay_s: float = DELAY_FIRST_S

    @property
    def name(self) -> str:
        """The name of its control group."""
        return f"{self.run}.{self.rank}"

    def start_record(self) -> dict[str, Any]:
        """Its start, for the journal."""
        return {
            "t": "start",
            "run": self.run,
            "rank": self.rank,
            "pid": self.pid,
            "ticks": self.ticks,
            "boot": self.boot,
            "context": self.context,
            "at": self.started_at,
        }

    def exit_record(self) -> dict[str, Any]:
        """Its end, for the journal."""
        assert self.exit is not None, "only an ended rank has an exit record"
        return {"t": "exit", "run": self.run, "rank": self.rank, "exit": self.exit}


@dataclass
class Ranks:
    """The table. ``now`` gives the time of day in seconds."""

    # RUNS/<run>/<rank>/ has a rank's output and context; WORK/<run>/ is the run's own folder,
    # shared by its ranks on this machine.
    runs_folder: str
    work_folder: str
    journal: Journal
    cgroups: Cgroups
    now: Callable[[], float]
    identity: Identity | None = None
    table: dict[tuple[str, int], Rank] = field(default_factory=dict[tuple[str, int], Rank])
    # Runs that may not start any more.
    ended: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self.boot = proc.boot_id()
        for record in self.journal.records:
            self._replay(record)
        self.journal.records = []
        self.journal.rewrite(self._records())

    @property
    def running(self) -> bool:
        """Whether any rank is not over."""
        return any(rank.exit is None for rank in self.table.values())

    def launch(self, run: str, orders: Sequence[Mapping[str, Any]]) -> None:
        """Start the ranks of a run that do not exist yet, all of them or none."""
        if run in self.ended:
            raise EndedError(f"run {run} was ended")
        fresh: list[tuple[Rank, Gated]] = []
        new = [order for order in orders if (run, order["rank"]) not in self.table]
        try:
            for order in new:
                fresh.append(self._prepare(run, order))  # noqa: PERF401 - kept when one fails
            self.journal.append(*(rank.start_record() for rank, _ in fresh))
        except OSError as error:
            self._abandon(fresh)
            raise RefusedError(f"cannot start run {run}: {error}") from error
        for rank, gated in fresh:
            self.table[run, rank.rank] = rank
            gated.open()

    def signal(self, run: str, number: int) -> None:
        """Send a signal to each rank's main process that has not ended."""
        for rank in self._of(run):
            if rank.ours and rank.status is None and rank.exit is None:
                # Not reaped, so the number is still its own.
                os.kill(rank.pid, number)

    def end(self, run: str) -> None:
        """Begin to end everything of a run; ``tend`` goes on until nothing is left."""
        for rank in self._of(run):
            rank.ending = True
        if run not in self.ended:
            self.journal.append({"t": "ended", "run": run})
            self.ended.add(run)

    def forget(self, run: str) -> None:
        """Drop the records of a run that is over."""
        ranks = self._of(run)
        if any(rank.exit is None for rank in ranks):
            raise RefusedError(f"run {run} is not over")
        if not ranks and run not in self.ended:
            return
        self.journal.append({"t": "forgot", "run": run})
        self._drop(run)
        for rank in ranks:
            _unlink(rank.context)
        if self.journal.has_grown:
            self.journal.rewrite(self._records())

    def listing(self) -> dict[str, Any]:
        """Every run that is remembered, as sent to the launcher."""
        runs: dict[str, Any] = {run: {} for run in self.ended}
        for rank in self.table.values():
            runs.setdefault(rank.run, {})[str(rank.rank)] = {
                "started_at": rank.started_at,
                **(rank.exit or {}),
            }
        return runs

    def tend(self) -> tuple[bool, float | None]:
        """Learn who ended, end their groups, record the exits. Returns whether anything is over
        that was not, and in how many seconds to look again (None: at the next signal)."""
        self._learn()
        over: list[Rank] = []
        delays: list[float] = []
        for rank in self.table.values():
            if rank.exit is not None or not (rank.ending or rank.status):
                continue
            if self._clear(rank):
                rank.exit = self._exit_of(rank)
                over.append(rank)
            else:
                delays.append(rank.delay_s)
                rank.delay_s = min(DELAY_MOST_S, rank.delay_s * 2)
        if over and not self._record(over):
            return False, RECORD_AGAIN_S
        for rank in over:
            if rank.ours:
                os.waitpid(rank.pid, 0)
            self.cgroups.remove(rank.name)
        return bool(over), min(delays, default=None)

    def _record(self, over: Sequence[Rank]) -> bool:
        """Put exits on disk; on a full disk they are not over yet, and nothing is forgotten."""
        try:
            self.journal.append(*(rank.exit_record() for rank in over))
        except OSError as error:
            print(f"cannot record exits: {error}", file=sys.stderr)  # noqa: T201 - the program's log
            for rank in over:
                rank.exit = None
            return False
        return True

    # How a rank begins

    def _prepare(self, run: str, order: Mapping[str, Any]) -> tuple[Rank, Gated]:
        number: int = order["rank"]
        folder = self._folders(run, number)
        context = f"{folder}/context.json"
        self._write_private(context, order["context"])
        program = Program(
            argv=order["argv"],
            env={**order["env"], CONTEXT_VARIABLE: context},
            cwd=order["cwd"] or f"{self.work_folder}/{run}",
            output=f"{folder}/output.log",
            identity=self.identity,
        )
        name = f"{run}.{number}"
        groups = self.cgroups.create(name, order["cpus"], order["memory_bytes"])
        # The version 2 group, if there is one, is the first.
        group = groups[0] if self.cgroups.unified else ""
        gated = spawn(program, cgroup=group, warning=self._warning(order))
        seen = proc.stat(gated.pid)
        assert seen is not None, "an unreaped child has an entry in /proc"
        rank = Rank(run, number, gated.pid, seen.ticks, self.boot, context, self.now())
        try:
            self.cgroups.join(groups[1:] if gated.joined else groups, gated.pid)
        except OSError:
            self._abandon([(rank, gated)])
            raise
        return rank, gated

    def _abandon(self, fresh: Sequence[tuple[Rank, Gated]]) -> None:
        """Let children go that may not become ranks: they read the end of their pipes. All pipes
        are closed first, because a later child holds copies of the earlier ones' ends."""
        for _, gated in fresh:
            os.close(gated.gate)
        for rank, _ in fresh:
            os.waitpid(rank.pid, 0)
            self.cgroups.remove(rank.name)

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
        _unlink(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            if self.identity is not None:
                os.fchown(file.fileno(), self.identity.uid, self.identity.gid)

    # How a rank ends

    def _learn(self) -> None:
        """See which main processes ended (without reaping them), and reap adopted orphans."""
        mains: set[int] = set()
        for rank in self.table.values():
            if not rank.ours or rank.exit is not None:
                continue
            mains.add(rank.pid)
            if rank.status is None:
                rank.status = _status(rank.pid)
        for pid in groups.own_children():
            if pid not in mains:
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    continue

    def _clear(self, rank: Rank) -> bool:
        """Kill what is left of a rank's group; True when nothing is."""
        if rank.ours and rank.status is None:
            _quietly(os.killpg, rank.pid, signal.SIGKILL)
        populated = self.cgroups.populated(rank.name)
        if populated:
            self.cgroups.kill(rank.name)
            return False
        if populated is None:
            for _ in range(EMPTY_LOOKS):
                members = self._members(rank)
                for member in members:
                    proc.kill(member)
                if members:
                    return False
        return not rank.ours or rank.status is not None

    def _exit_of(self, rank: Rank) -> dict[str, Any]:
        if not rank.ours:
            return {"lost": True, "note": "its supervisor died", "exited_at": self.now()}
        assert rank.status is not None, "an ended rank of ours has its status"
        found = {**rank.status, "exited_at": self.now()}
        if "signal" in found and self.cgroups.ran_out_of_memory(rank.name):
            found["note"] = "out of its memory limit"
        return found

    def _marker(self, rank: Rank) -> bytes:
        return f"{CONTEXT_VARIABLE}={rank.context}".encode()

    def _members(self, rank: Rank) -> list[proc.Stat]:
        if not rank.ours:
            known = (rank.pid, rank.ticks) if rank.boot == self.boot else None
            return groups.left_over(known, self._marker(rank))
        others = {
            other.pid
            for other in self.table.values()
            if other is not rank and other.ours and other.exit is None
        }
        return groups.members(rank.pid, others, self._marker(rank))

    # What is remembered

    def _of(self, run: str) -> list[Rank]:
        return [rank for rank in self.table.values() if rank.run == run]

    def _drop(self, run: str) -> None:
        self.ended.discard(run)
        for rank in self._of(run):
            del self.table[run, rank.rank]

    def _records(self) -> list[Mapping[str, Any]]:
        records: list[Mapping[str, Any]] = [{"t": "ended", "run": run} for run in self.ended]
        for rank in self.table.values():
            records.append(rank.start_record())
            if rank.exit is not None:
                records.append(rank.exit_record())
        return records

    def _replay(self, record: Mapping[str, Any]) -> None:
        run: str = record["run"]
        if record["t"] == "ended":
            self.ended.add(run)
        elif record["t"] == "forgot":
            self._drop(run)
        elif record["t"] == "start":
            self.table[run, record["rank"]] = Rank(
                run,
                record["rank"],
                record["pid"],
                record["ticks"],
                record["boot"],
                record["context"],
                record["at"],
                ours=False,
                ending=True,
            )
        elif record["t"] == "exit":
            self.table[run, record["rank"]].exit = dict(record["exit"])


def _status(pid: int) -> dict[str, Any] | None:
    """How a child ended, without reaping it; None while it runs."""
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    return {"code" if found.si_code == os.CLD_EXITED else "signal": found.si_status}


def _quietly(call: Callable[[int, int], None], target: int, number: int) -> None:
    """Send a signal to who may be gone already."""
    try:
        call(target, number)
    except ProcessLookupError:
        return


def _unlink(path: str) -> None:
    try:
        os.unlink(path)  # noqa: PTH108 - small imports
    except FileNotFoundError:
        return
