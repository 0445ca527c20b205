"""Starts the ranks of one node once, ends them as whole groups, and records them until forgotten.

Used by ``supervisor.py``, whose children the ranks are. Two rules hold it together: a process runs
only after its start is on disk, and its exit is listed only after nothing of its group is left, its
output is in its file and the exit is on disk. A main process stays a zombie until then, so that its
number, which names the group, cannot come again meanwhile. Nothing here waits for the disk: what
follows a record is done when ``tend`` finds that the record is written.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from libs.contracts.ids import RunId
from services.launcher.runtimes.node import proc, rank_processes
from services.launcher.runtimes.node.cgroups import Cgroups
from services.launcher.runtimes.node.exec_sessions import SESSIONS_MAX, ExecSession, ExecSessions
from services.launcher.runtimes.node.journal import Journal, Record, Then
from services.launcher.runtimes.node.output_writer import SECRETS
from services.launcher.runtimes.node.outputs import Outputs
from services.launcher.runtimes.node.spawn import Gated, Identity, Program, spawn
from services.launcher.runtimes.node.supervisor_log import report

CONTEXT_VARIABLE = "SHIFTWORK_CONTEXT"
DELAY_FIRST_S, DELAY_MOST_S, RECORD_AGAIN_S = 0.001, 0.05, 1.0
# A process that may not be ended (a setuid program of another user) is tried again this often.
REFUSED_DELAY_S = 1.0
# Without control groups, a group is empty when it was found so twice in a row.
EMPTY_SCANS = 2


def _ignore(_: Exception | None) -> None:
    """Nothing follows the record, or nobody waits for the answer."""


def context_path(runs_folder: str, run: str, rank: int) -> str:
    """The path of a rank's context file. The rank's folder is writable for the supervisor."""
    return f"{runs_folder}/{run}/{rank}/context.json"


def rank_of_context(rest: str) -> tuple[str, int] | None:
    """The run and rank of a ``context_path`` below its runs folder; None for any other text."""
    run, _, more = rest.partition("/")
    number, _, _ = more.partition("/")
    try:
        found = str(RunId.parse(run)), int(number)
    except ValueError:
        return None
    return found if context_path("", *found) == f"/{rest}" else None


class RefusedError(Exception):
    """The order cannot be carried out; the text has the reason."""


class EndedError(RefusedError):
    """The run was ended, so none of it may start any more."""


# Called when an order is carried out for good (None), or with the reason why it is not.
Done = Callable[[RefusedError | None], None]


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
    # Its user.
    uid: int
    # False: a supervisor before us started it, and only its parent could have learned its end.
    ours: bool = True
    # How the main process ended, while its group is being ended.
    status: dict[str, Any] | None = None
    exit: dict[str, Any] | None = None
    ending: bool = False
    # It was asked to end, and is killed then, in seconds of the monotonic clock.
    kill_at_s: float = 0.0
    delay_s: float = DELAY_FIRST_S
    # The number of its output, while that is not finished.
    output: int = 0
    # It waits until its start is on disk.
    gated: Gated | None = None
    # Its program and control groups, for sessions in it; None if it is not ours.
    program: Program | None = None
    groups: Sequence[str] = ()
    # Its exit is on the way to the disk.
    recording: bool = False
    # Some process of it may not be ended by us, and that has been reported.
    refused: bool = False
    # How often the rank had been restarted in place before this process.
    start: int = 0

    @property
    def folder(self) -> str:
        """The folder of its files."""
        return os.path.dirname(self.context)  # noqa: PTH120 - small imports

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
            "uid": self.uid,
            "start": self.start,
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
    outputs: Outputs
    cgroups: Cgroups
    now: Callable[[], float]
    table: dict[tuple[str, int], Rank] = field(default_factory=dict[tuple[str, int], Rank])
    # Runs that may not start any more.
    ended: set[str] = field(default_factory=set[str])
    # The leader's epoch that commands this node, and whether the journal has been given it.
    epoch: int = 0
    epoch_ordered: bool = True
    # Exits could not be recorded; they are tried again then, in seconds of the monotonic clock.
    record_at_s: float = 0.0
    # Commands and terminals that people run in ranks.
    sessions: ExecSessions = field(default_factory=ExecSessions)
    # How many ranks are over since the start.
    _over: int = 0

    def __post_init__(self) -> None:
        self.boot = proc.boot_id()
        for record in self.journal.records:
            try:
                self._replay(record)
            except (KeyError, TypeError, ValueError) as error:
                report(f"a record of the journal means nothing to us: {record} ({error!r})")
        self.journal.records = []
        if self.journal.damaged or self.journal.torn:
            self._find_forgotten()
        self.journal.begin(self._records())
        for rank in self.table.values():
            if rank.exit is None:
                rank.output = self.outputs.adopt(rank.folder)
        self.cgroups.sweep({rank.name for rank in self.table.values() if rank.exit is None})

    @property
    def running(self) -> bool:
        """Whether any rank is not over."""
        return any(rank.exit is None or rank.recording for rank in self.table.values())

    def commanded_by(self, epoch: int) -> None:
        """Note the epoch of a new leader. Nothing that it orders counts before the epoch is on
        disk, because records are written in their order."""
        self.epoch, self.epoch_ordered = epoch, False
        self._append()

    def launch(self, run: str, orders: Sequence[Mapping[str, Any]], done: Done = _ignore) -> None:
        """Start the ranks of a run that do not exist yet, all of them or none. A rank that is over
        is started again if its order has a higher start than its last process. If we die before
        the new start is on disk, the old end is what is known."""
        if run in self.ended:
            raise EndedError(f"run {run} was ended")
        fresh: list[Rank] = []
        new = [order for order in orders if self._is_new(run, order)]
        replaced = [self.table[key] for each in new if (key := (run, each["rank"])) in self.table]
        try:
            for order in new:
                fresh.append(self._start(run, order))  # noqa: PERF401 - kept when one fails
        except OSError as error:
            self._abandon(fresh)
            raise RefusedError(f"cannot start run {run}: {error}") from error
        self.table |= {(run, rank.rank): rank for rank in fresh}

        def recorded(error: OSError | None) -> None:
            if error is not None:
                self._abandon(fresh)
                self.table |= {(run, rank.rank): rank for rank in replaced}
            for rank in fresh if error is None else ():
                assert rank.gated is not None, "only this opens the gate"
                rank.gated.open(run=not rank.ending)
                rank.gated = None
            # Orders that were queued earlier have their answers by now.
            if any(self._is_missing(run, order) for order in orders):
                done(RefusedError(f"cannot start run {run}: {error or 'its record failed'}"))
            else:
                done(None)

        self._append(*(rank.start_record() for rank in fresh), then=recorded)

    def _is_new(self, run: str, order: Mapping[str, Any]) -> bool:
        """Whether the order is for a process that does not exist yet. ``RefusedError`` while an
        earlier process of the rank is not over."""
        known = self.table.get((run, order["rank"]))
        if known is None:
            return True
        if _start_of(order) <= known.start:
            return False
        if known.exit is None or known.recording:
            raise RefusedError(f"rank {known.rank} of run {run} is not over")
        return True

    def _is_missing(self, run: str, order: Mapping[str, Any]) -> bool:
        known = self.table.get((run, order["rank"]))
        return known is None or known.start < _start_of(order)

    def signal(self, run: str, number: int) -> None:
        """Send a signal to each rank's main process that has not ended. One that has become
        another user's is reported in the log: trying again would not help."""
        for rank in self._of(run):
            if rank.ours and rank.status is None and rank.exit is None and rank.gated is None:
                # Not reaped, so the number is still its own.
                self._check_permitted(rank, proc.sent(os.kill, rank.pid, number))

    def open_session(
        self,
        order: Mapping[str, Any],
        connection: object,
        done: Callable[[Mapping[str, Any]], None],
    ) -> list[int]:
        """Start a command in a rank that runs; see ``ExecSessions.start``."""
        run, number = order["run"], int(order["rank"])
        rank = self.table.get((run, number))
        if rank is None or rank.gated is not None:
            raise RefusedError(f"rank {number} of run {run} does not run here")
        if rank.program is None or rank.ending or rank.status or rank.exit:
            raise RefusedError(f"rank {number} of run {run} is over")
        if len(self.sessions.table) >= SESSIONS_MAX:
            raise RefusedError(f"{SESSIONS_MAX} sessions are open on this node; close one")
        session = ExecSession(order["name"], run, number, 0, rank.uid, connection, done)
        groups = rank.groups

        def join(pid: int, joined: bool) -> None:
            self.cgroups.join(list(groups[1:] if joined else groups), pid)

        group = groups[0] if self.cgroups.unified else ""
        return self.sessions.start(session, rank.program, order, cgroup=group, join=join)

    def end(
        self,
        run: str,
        done: Done = _ignore,
        only: Sequence[int] | None = None,
        grace_s: float = 0.0,
    ) -> None:
        """Start ending all processes of a run, or those of some ranks; ``tend`` continues until
        nothing of them is left. With a grace period, the main processes get SIGTERM first. None of
        the run starts any more. Which ranks end is not recorded: if we die, all of them are ended.
        """
        for rank in self._of(run):
            if only is None or rank.rank in only:
                self._begin_end(rank, grace_s)
        new = run not in self.ended
        self.ended.add(run)

        def recorded(error: OSError | None) -> None:
            if error is not None:
                self.ended.discard(run)
            if run not in self.ended:
                done(RefusedError(f"cannot record the end of run {run}: {error or 'try again'}"))
            else:
                done(None)

        self._append(*([{"t": "ended", "run": run}] if new else []), then=recorded)

    def _begin_end(self, rank: Rank, grace_s: float) -> None:
        """Ask a rank to end, or have it killed at once. A repeated order only shortens its time."""
        kill_at_s = time.monotonic() + grace_s
        if rank.ending:
            rank.kill_at_s = min(rank.kill_at_s, kill_at_s)
        elif grace_s > 0 and rank.ours and rank.gated is None and rank.status is None:
            rank.kill_at_s = kill_at_s
            self._check_permitted(rank, proc.sent(os.kill, rank.pid, signal.SIGTERM))
        rank.ending = True

    def forget(self, run: str, done: Done = _ignore) -> None:
        """Drop the records of a run that is over."""
        if any(rank.exit is None or rank.recording for rank in self._of(run)):
            raise RefusedError(f"run {run} is not over")
        if not self._of(run) and run not in self.ended:
            done(None)
            return

        def recorded(error: OSError | None) -> None:
            if error is not None:
                done(RefusedError(f"cannot forget run {run}: {error}"))
                return
            ranks = self._of(run)
            self._drop(run)
            for rank in ranks:
                _unlink(rank.context)
                _unlink(f"{rank.folder}/{SECRETS}")
            if self.journal.has_grown:
                self.journal.rewrite(self._records())
            done(None)

        self._append({"t": "forgot", "run": run}, then=recorded)

    def listing(self) -> dict[str, Any]:
        """Every run that is remembered, as sent to the launcher."""
        runs: dict[str, Any] = {run: {} for run in self.ended}
        for rank in self.table.values():
            if rank.gated is not None:
                continue
            over = {} if rank.recording else rank.exit or {}
            found = {"started_at": rank.started_at, "start": rank.start, **over}
            if rank.exit is None:
                # Where its processes are found, for the sampler.
                found |= {"pid": rank.pid, "ticks": rank.ticks, "groups": list(rank.groups)}
            runs.setdefault(rank.run, {})[str(rank.rank)] = found
        return runs

    def tend(self) -> tuple[bool, float | None]:
        """Process completed records, find ranks that ended, end their groups and record the exits.
        Returns whether a rank is newly over, and in how many seconds to call again (None: at the
        next signal)."""
        over = self._over
        self.journal.poll()
        delays = [delay for delay in (self.outputs.poll(),) if delay is not None]
        self._learn()
        delays += self.sessions.tend(self._members_of_session)
        found: list[Rank] = []
        for rank in self.table.values():
            if rank.exit is not None or rank.gated is not None:
                continue
            if not (rank.ending or rank.status):
                continue
            if rank.status is None and (left_s := rank.kill_at_s - time.monotonic()) > 0:
                delays.append(left_s)
                continue
            if not self._clear(rank):
                delays.append(rank.delay_s)
                most = REFUSED_DELAY_S if rank.refused else DELAY_MOST_S
                rank.delay_s = min(most, rank.delay_s * 2)
            elif self.outputs.finish(rank.output, ending=rank.ending):
                found.append(rank)
        wait_s = self.record_at_s - time.monotonic()
        if found and wait_s > 0:
            delays.append(wait_s)
        elif found:
            self._record(found)
        return self._over != over, min(delays, default=None)

    def _record(self, found: Sequence[Rank]) -> None:
        """Put exits on disk; on a full disk they are not over yet, and nothing is forgotten."""
        for rank in found:
            rank.exit, rank.recording = self._exit_of(rank), True

        def recorded(error: OSError | None) -> None:
            for rank in found:
                rank.recording = False
            if error is not None:
                report(f"cannot record exits: {error}")
                self.record_at_s = time.monotonic() + RECORD_AGAIN_S
                for rank in found:
                    rank.exit = None
                return
            for rank in found:
                if rank.ours:
                    os.waitpid(rank.pid, 0)
                self.cgroups.remove(rank.name)
            self._over += len(found)

        self._append(*(rank.exit_record() for rank in found), then=recorded)

    def _append(self, *records: Record, then: Then = _ignore) -> None:
        """Order records to be written, behind the current epoch."""
        first: list[Record] = [] if self.epoch_ordered else [self._epoch_record()]
        self.epoch_ordered = True

        def written(error: OSError | None) -> None:
            if error is not None and first:
                report(f"cannot record epoch {self.epoch}, which is tried again: {error}")
                self.epoch_ordered = False
            then(error)

        self.journal.append(*first, *records, then=written)

    def _epoch_record(self) -> Record:
        return {"t": "epoch", "epoch": self.epoch}

    # How a rank begins

    def _start(self, run: str, order: Mapping[str, Any]) -> Rank:
        """Start a child that waits at its gate. If that fails, raises ``OSError`` and leaves
        nothing."""
        # A launcher that names no user is of an earlier version: nothing runs as our own user then.
        user = order["user"]
        identity = Identity(*user) if user is not None else None
        uid = os.geteuid() if identity is None else identity.uid
        number: int = order["rank"]
        folder = self._folders(run, number, identity)
        context = context_path(self.runs_folder, run, number)
        self._write_private(context, order["context"], identity)
        # Launchers of earlier versions order no files.
        for file, text in order.get("files", {}).items():
            self._write_private(f"{folder}/{file}", text, identity)
        # For the writer of output alone, also for one that follows us.
        secrets = json.dumps([order["env"][name] for name in order.get("secrets", ())])
        self._write_private(f"{folder}/{SECRETS}", secrets, None)
        paths = {name: f"{folder}/{file}" for name, file in order.get("paths", {}).items()}
        name = f"{run}.{number}"
        groups = self.cgroups.create(name, order["cpus"], order["memory_bytes"])
        # The version 2 group, if there is one, is the first.
        group = groups[0] if self.cgroups.unified else ""
        output, end = self.outputs.create(folder)
        try:
            program = Program(
                argv=order["argv"],
                env={**order["env"], **paths, CONTEXT_VARIABLE: context},
                cwd=order["cwd"] or f"{self.work_folder}/{run}",
                output=end,
                identity=identity,
                processes_max=self.cgroups.user_pids_max,
            )
            gated = spawn(program, cgroup=group, notices=self._notices(order))
        except OSError:
            self.outputs.finish(output)
            raise
        finally:
            os.close(end)
        seen = proc.stat(gated.pid)
        assert seen is not None, "an unreaped child has an entry in /proc"
        rank = Rank(run, number, gated.pid, seen.ticks, self.boot, context, self.now(), uid)
        rank.output, rank.gated, rank.start = output, gated, _start_of(order)
        rank.program, rank.groups = program, groups
        try:
            self.cgroups.join(groups[1:] if gated.joined else groups, gated.pid)
        except OSError:
            self._abandon([rank])
            raise
        return rank

    def _abandon(self, fresh: Sequence[Rank]) -> None:
        """Release children that may not become ranks: they read the end of their pipes and exit.
        All pipes are closed first, because a later child holds copies of the earlier ones' ends."""
        for rank in fresh:
            assert rank.gated is not None, "it is not a rank yet"
            os.close(rank.gated.gate)
        for rank in fresh:
            os.waitpid(rank.pid, 0)
            self.cgroups.remove(rank.name)
            self.outputs.finish(rank.output)
            self.table.pop((rank.run, rank.rank), None)

    def _notices(self, order: Mapping[str, Any]) -> Iterator[str]:
        """The platform's own lines at the beginning of its output."""
        if order.get("notice"):
            yield order["notice"]
        wants = order["cpus"] is not None or order["memory_bytes"] is not None
        if wants and not self.cgroups.can_limit:
            yield "the CPU and memory limits of this task are not enforced on this machine"

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
        """Write a file that only the task may read, or only we (``identity`` None) if the task runs
        as another user."""
        _unlink(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            if identity is not None:
                os.fchown(file.fileno(), identity.uid, identity.gid)

    # How a rank ends

    def _learn(self) -> None:
        """See which main processes ended (without reaping them), and reap adopted orphans."""
        # Children whose end other code awaits.
        others = {self.outputs.writer_pid, *self.sessions.pids}
        for rank in self.table.values():
            if not rank.ours or (rank.exit is not None and not rank.recording):
                continue
            others.add(rank.pid)
            if rank.status is None:
                rank.status = proc.ending(rank.pid)
        for pid in rank_processes.own_children():
            if pid not in others:
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    continue

    def _clear(self, rank: Rank) -> bool:
        """Kill what is left of a rank's group; True when nothing is. What we may not end (a setuid
        program of another user, where there is no control group) is waited for: its rank is not
        over, and no other rank is held up."""
        if self.sessions.end_of(rank.run, rank.rank):
            # One may be about to begin: it has nothing yet by which it could be found.
            return False
        if rank.ours and rank.status is None:
            self._check_permitted(rank, proc.sent(os.killpg, rank.pid, signal.SIGKILL))
        populated = self.cgroups.populated(rank.name)
        if populated:
            self.cgroups.kill(rank.name)
            return False
        if populated is None:
            for _ in range(EMPTY_SCANS):
                members = self._members(rank)
                for member in members:
                    self._check_permitted(rank, proc.kill(member))
                if members:
                    return False
        return not rank.ours or rank.status is not None

    def _check_permitted(self, rank: Rank, permitted: bool) -> None:
        if not permitted and not rank.refused:
            rank.refused = True
            name = f"run {rank.run}, rank {rank.rank}"
            report(f"a process of {name} gets no signals from us: it is another user's")

    def _exit_of(self, rank: Rank) -> dict[str, Any]:
        if not rank.ours:
            return {"lost": True, "note": "its supervisor died", "exited_at": self.now()}
        assert rank.status is not None, "an ended rank of ours has its status"
        found = {**rank.status, "exited_at": self.now()}
        # A shell that ran the program exits with 137 and gets no signal itself.
        if found.get("code") != 0 and self.cgroups.ran_out_of_memory(rank.name):
            found |= {"note": "out of its memory limit", "fault": "OUT_OF_MEMORY"}
        return found

    def _marker(self, rank: Rank) -> rank_processes.Marker:
        return rank_processes.Marker(f"{CONTEXT_VARIABLE}={rank.context}".encode(), rank.uid)

    def _members(self, rank: Rank) -> list[proc.Stat]:
        if not rank.ours:
            known = (rank.pid, rank.ticks) if rank.boot == self.boot else None
            return rank_processes.left_over(known, self._marker(rank))
        others = {
            other.pid
            for other in self.table.values()
            if other is not rank and other.ours and (other.exit is None or other.recording)
        }
        return rank_processes.members(rank.pid, others, self._marker(rank), self.outputs.writer_pid)

    def _members_of_session(self, session: ExecSession) -> list[proc.Stat]:
        others = self.sessions.pids - {session.pid}
        others |= {rank.pid for rank in self.table.values() if rank.ours}
        marker = rank_processes.Marker(session.variable, session.uid)
        return rank_processes.members(session.pid, others, marker, self.outputs.writer_pid)

    def _find_forgotten(self) -> None:
        """After a fault of the journal: enter running ranks whose start record is lost, so that
        they are ended like all others of an earlier supervisor."""
        begins = f"{CONTEXT_VARIABLE}={self.runs_folder}/".encode()
        for one, rest in rank_processes.started_with(begins):
            # The starter of the process chose this text. It selects what to end, and is never used
            # as a path.
            named = rank_of_context(rest)
            if named is None or named in self.table:
                continue
            context = context_path(self.runs_folder, *named)
            uid = self._owner_of(context)
            if proc.user(one.pid) != uid:
                continue
            run, number = named
            report(f"run {run}, rank {number} runs although its start is lost; it is ended")
            rank = Rank(run, number, one.pid, one.ticks, self.boot, context, self.now(), uid)
            rank.ours, rank.ending = False, True
            self.table[named] = rank

    def _owner_of(self, context: str) -> int:
        """The user of a rank, from its context file: only a rank that runs as us can remove it."""
        try:
            return os.lstat(context).st_uid
        except OSError:
            return os.geteuid()

    # Records

    def _of(self, run: str) -> list[Rank]:
        return [rank for rank in self.table.values() if rank.run == run]

    def _drop(self, run: str) -> None:
        self.ended.discard(run)
        for rank in self._of(run):
            del self.table[run, rank.rank]

    def _records(self) -> list[Record]:
        records: list[Record] = [self._epoch_record()]
        records += [{"t": "ended", "run": run} for run in self.ended]
        for rank in self.table.values():
            if rank.gated is not None:
                continue
            records.append(rank.start_record())
            if rank.exit is not None and not rank.recording:
                records.append(rank.exit_record())
        return records

    def _replay(self, record: Record) -> None:
        if record["t"] == "epoch":
            self.epoch = record["epoch"]
            return
        run = str(RunId.parse(record["run"]))
        if record["t"] == "ended":
            self.ended.add(run)
        elif record["t"] == "forgot":
            self._drop(run)
        elif record["t"] == "start":
            number = int(record["rank"])
            context = context_path(self.runs_folder, run, number)
            self.table[run, number] = Rank(
                run,
                number,
                record["pid"],
                record["ticks"],
                record["boot"],
                context,
                record["at"],
                # Records of earlier versions name no user.
                record.get("uid", self._owner_of(context)),
                ours=False,
                ending=True,
                # Those of earlier versions were never restarted.
                start=record.get("start", 0),
            )
        elif record["t"] == "exit" and (run, record["rank"]) in self.table:
            # Without its start record, which may be damaged, its exit means nothing.
            self.table[run, record["rank"]].exit = dict(record["exit"])


def _start_of(order: Mapping[str, Any]) -> int:
    """How often the rank was restarted before. Launchers of earlier versions restart none."""
    return int(order.get("start", 0))


def _unlink(path: str) -> None:
    """Remove a file that may be gone."""
    try:
        os.unlink(path)  # noqa: PTH108 - small imports
    except FileNotFoundError:
        return
