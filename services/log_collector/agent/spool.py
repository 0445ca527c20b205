"""The agent's spool: gives every log file of task pods a second name as soon as it appears.

Thus neither the kubelet's rotation nor the pod's deletion loses a byte before the collector has it.
``scan`` looks for new files, ``read`` answers the collector, ``done`` and ``prune`` free space.
Everything here blocks and is called by one thread at a time (``main.py`` and ``http_app.py`` take
turns).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from libs.service.clock import Clock
from libs.service.deletion_limit import DAY_SECONDS, DeletionLimit
from libs.service.metrics import Metrics
from libs.service.observability import log
from services.log_collector.agent.folder import AdoptionError
from services.log_collector.agent.kubelet import log_files, pod_of
from services.log_collector.agent.output import Output, Piece, open_output
from services.log_collector.agent.protocol import PodAnswer, PodRead, PodStored
from services.log_collector.agent.segments import Segment

SERVICE = "log_agent"
# A folder's time of change is only as fine as the kernel's tick: after a change it is listed again
# for so long, so that a second change in the same tick is noticed.
UNSETTLED_SECONDS = 0.5
LISTINGS_MAX = 8
# Names of folders that are gone are forgotten when there are so many of them.
FORGET_AFTER = 64
# Several requests for missing pods share one scan.
SCAN_SECONDS_MIN = 0.02
# Answers with so many time stamps are enough for one request.
STAMPS_MAX = 65_536


declare = Metrics("log agent")
READ_BYTES = declare.counter("shiftwork_log_agent_read_bytes_total", "Bytes of output given out")
LOST_BYTES = declare.counter(
    "shiftwork_log_agent_lost_bytes_total",
    "Bytes of log files dropped though log-collector had not read them",
)
GAPS = declare.counter(
    "shiftwork_log_agent_gaps_total", "Places where output was gone before the agent saw it"
)
BAD_LINES = declare.counter(
    "shiftwork_log_agent_bad_lines_total", "Lines of log files that are no entries, left out"
)
SPOOL_BYTES = declare.gauge(
    "shiftwork_log_agent_spool_bytes", "Bytes on disk that only the spool still names"
)
OUTPUTS = declare.gauge("shiftwork_log_agent_outputs", "Outputs in the spool")


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits and timeouts of the spool; see ``settings.py``."""

    bytes_max: int
    keep_seconds: float
    settle_seconds: float
    # Of what was kept too long, at most so many days of history go in an hour; 0: no bound.
    days_per_hour: float


@dataclass(slots=True)
class FolderState:
    """A container's folder at its last scan."""

    changed_ns: int = -1
    changed_at: float = 0.0


@dataclass(slots=True)
class Watched:
    """One pod's output, and the folders that it comes from."""

    output: Output
    folders: dict[str, str] = field(default_factory=dict[str, str])
    problem: str = ""
    bad_lines: int = 0
    gaps: int = 0


class Spool:
    """The outputs of one node's task pods."""

    def __init__(
        self,
        pods_dir: Path,
        spool_dir: Path,
        *,
        namespace: str,
        container: str,
        limits: Limits,
        clock: Clock,
        monotonic: Callable[[], float],
    ) -> None:
        self._pods_dir, self._spool_dir = str(pods_dir), spool_dir / namespace
        self._namespace, self._container = namespace, container
        self._limits, self._clock, self._monotonic = limits, clock, monotonic
        self._held = False
        self._old = DeletionLimit(limits.days_per_hour)
        self._watched: dict[str, Watched] = {}
        # Pods of ours that are there: their folders by name, and each folder's uid.
        self._pods: dict[str, dict[str, str]] = {}
        self._names: dict[str, tuple[str, str] | None] = {}
        self._folder_states: dict[str, FolderState] = {}
        self._scanned_at = float("-inf")
        # Why nothing can be read; empty if it can.
        self.problem = "the first scan is not done"
        self.log = log(SERVICE)

    def load(self) -> None:
        """Load what an earlier process left, and do the first scan."""
        self._spool_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in sorted(self._spool_dir.iterdir()):
            if path.is_dir():
                self._watched[path.name] = Watched(self._open(path.name))
        self.scan()

    @property
    def outputs(self) -> int:
        """How many outputs are there."""
        return len(self._watched)

    # -- scanning

    def scan(self) -> None:
        """Find new log files, and pods that are gone."""
        self._scanned_at = self._monotonic()
        try:
            names = os.listdir(self._pods_dir)  # noqa: PTH208 - the hot path: no Path objects
        except OSError as error:
            self._note_problem(
                f"{self._pods_dir} cannot be listed: {error.strerror}. Mount the node's folder"
            )
            return
        self._pods = {}
        for name in names:
            if name not in self._names:
                self._names[name] = pod_of(name, self._namespace)
            found = self._names[name]
            if found is not None:
                self._pods.setdefault(found[0], {})[name] = found[1]
        if len(self._names) > 2 * len(names) + FORGET_AFTER:
            self._names = {name: self._names[name] for name in names}
            there = {self._container_folder(name) for name in names}
            self._folder_states = {
                path: state for path, state in self._folder_states.items() if path in there
            }
        problem = ""
        for pod in self._pods:
            problem = self._scan_pod(pod) or problem
        self._note_problem(problem)
        for pod in [pod for pod in self._watched if pod not in self._pods]:
            try:
                self._note_gone(pod)
            except OSError as error:
                self._note_problem(f"{self._spool_dir} cannot be written: {error.strerror}")

    def _note_problem(self, problem: str) -> None:
        if problem and problem != self.problem:
            self.log.error("logs cannot be collected", problem=problem)
        self.problem = problem

    def _scan_pod(self, pod: str) -> str:
        """Link what is new of one pod; returns why that is not possible."""
        watched = self._watched.get(pod)
        if watched is not None and watched.output.folder.record.done:
            return ""
        for name, uid in self._pods.get(pod, {}).items():
            folder = self._container_folder(name)
            try:
                if self._has_changed(folder):
                    self._adopt(pod, folder, uid)
            except FileNotFoundError:
                continue  # no container yet, or it has just gone
            except AdoptionError as error:
                self._folder_states.pop(folder, None)
                return str(error)
            except OSError as error:
                self._folder_states.pop(folder, None)
                return f"{folder} cannot be read: {error.strerror}"
        return ""

    def _has_changed(self, folder: str) -> bool:
        changed_ns = os.stat(folder).st_mtime_ns  # noqa: PTH116 - the hot path
        state = self._folder_states.get(folder)
        if state is None:
            state = self._folder_states[folder] = FolderState()
        now = self._monotonic()
        if state.changed_ns != changed_ns:
            state.changed_ns, state.changed_at = changed_ns, now
            return True
        return now - state.changed_at < UNSETTLED_SECONDS

    def _adopt(self, pod: str, folder: str, uid: str) -> None:
        for _ in range(LISTINGS_MAX):
            files = log_files(folder, uid)
            if not files:
                return
            watched = self._watched.get(pod)
            if watched is None:
                watched = self._watched[pod] = Watched(self._open(pod))
            record = watched.output.folder.record
            if record.done:
                return
            if record.ended_at:
                record.ended_at = 0.0
                watched.output.folder.save()
            try:
                if watched.output.folder.adopt(files):
                    return
            finally:
                self._count_gaps(pod, watched)
        self._folder_states.pop(folder, None)  # it keeps changing: continue at the next scan

    def _count_gaps(self, pod: str, watched: Watched) -> None:
        new = watched.output.folder.gaps - watched.gaps
        if new:
            watched.gaps += new
            GAPS.inc(new)
            self.log.error("output is missing: it was removed before the agent found it", pod=pod)

    def _note_gone(self, pod: str) -> None:
        """The kubelet has removed the pod's folder: nothing more comes."""
        watched = self._watched[pod]
        folder = watched.output.folder
        if folder.record.done:
            self._remove(pod)
        elif not folder.record.ended_at:
            folder.record.ended_at = self._clock.now().timestamp()
            folder.save()

    def _container_folder(self, name: str) -> str:
        return f"{self._pods_dir}/{name}/{self._container}"

    def _open(self, pod: str) -> Output:
        return open_output(
            self._spool_dir / pod,
            settle_seconds=self._limits.settle_seconds,
            unpacked_bytes_max=self._limits.bytes_max,
            monotonic=self._monotonic,
        )

    def _remove(self, pod: str) -> None:
        self._watched.pop(pod).output.folder.remove()

    # -- answering

    def read(self, requests: Sequence[PodRead], bytes_max: int) -> list[PodAnswer | None]:
        """Answer the requests in order; None for those left when ``bytes_max`` was reached."""
        unknown = any(request.pod not in self._watched for request in requests)
        late = self._monotonic() - self._scanned_at >= SCAN_SECONDS_MIN
        if any(request.ended for request in requests) or (unknown and late):
            self.scan()
        answers: list[PodAnswer | None] = []
        left, stamps_left = bytes_max, STAMPS_MAX
        for request in requests:
            if left <= 0 or stamps_left <= 0:
                answers.append(None)
                continue
            answer = self._answer(request, min(left, request.bytes_max))
            left, stamps_left = left - len(answer.data), stamps_left - len(answer.stamps)
            answers.append(answer)
        READ_BYTES.inc(bytes_max - left)
        return answers

    def _answer(self, request: PodRead, bytes_max: int) -> PodAnswer:
        try:
            problem = self._scan_pod(request.pod) or (
                "" if request.pod in self._watched else self.problem
            )
            if problem:
                return PodAnswer(problem=problem)
            watched = self._watched.get(request.pod)
            if watched is None or watched.output.folder.record.done:
                return PodAnswer(absent=True, complete=watched is not None)
            piece = _read_after(watched.output, request, bytes_max)
        except OSError as error:
            return PodAnswer(problem=f"the spool cannot be read: {error}")
        bad = watched.output.bad_lines - watched.bad_lines
        if bad:
            watched.bad_lines += bad
            BAD_LINES.inc(bad)
            self.log.warning("lines of a log file are no entries", pod=request.pod, lines=bad)
        if piece.moved:
            return PodAnswer(moved=True, problem=piece.moved)
        ended = bool(watched.output.folder.record.ended_at)
        complete = ended and not piece.unsure and len(piece.data) < bytes_max
        return PodAnswer(piece.data, unsure=piece.unsure, complete=complete, stamps=piece.stamps)

    # -- freeing space

    def done(self, kept: Sequence[PodStored]) -> None:
        """Drop what the collector has for good."""
        for each in kept:
            watched = self._watched.get(each.pod)
            if watched is None or watched.output.folder.record.done:
                continue
            folder = watched.output.folder
            if each.done:
                folder.finish()
                if each.pod not in self._pods:
                    self._remove(each.pod)
            elif each.offset > folder.record.kept:
                folder.record.kept = each.offset
                if not watched.output.forget():
                    folder.save(sync=False)

    def prune(self) -> None:
        """Drop what is too old or too much. Logs an error for output that was not read."""
        try:
            self._prune()
        except OSError as error:
            self.log.error("the spool cannot be pruned", problem=str(error))  # noqa: TRY400

    def _prune(self) -> None:
        ends = [watched.output.folder.record.ended_at for watched in self._watched.values()]
        wanted = self._clock.now().timestamp() - self._limits.keep_seconds
        before = self._old.before(min(filter(None, ends), default=None), wanted, self._monotonic())
        self._report_held()
        for pod, watched in list(self._watched.items()):
            ended_at = watched.output.folder.record.ended_at
            if ended_at and ended_at < before:
                if not watched.output.is_read:
                    self._report_lost(pod, watched.output.folder.sole_bytes(), "it is too old")
                self._remove(pod)
        held = sum(watched.output.folder.sole_bytes() for watched in self._watched.values())
        if held > self._limits.bytes_max:
            held = self._lose(held)
        SPOOL_BYTES.set(held)
        OUTPUTS.set(len(self._watched))

    def _report_held(self) -> None:
        """Warn once that output is kept for too long, because the clock may be wrong."""
        held = self._old.held_seconds > DAY_SECONDS
        if held and not self._held:
            self.log.warning(
                "old output is dropped slowly: check this node's clock",
                held_back_seconds=round(self._old.held_seconds),
            )
        self._held = held

    def _lose(self, held: int) -> int:
        """Drop the oldest files until the rest fits: of pods that are gone before others."""
        for pod, segment in self._droppable():
            if held <= self._limits.bytes_max:
                break
            size = self._watched[pod].output.lose(segment)
            self._report_lost(pod, size, "the spool is full")
            held -= size
        return held

    def _droppable(self) -> list[tuple[str, Segment]]:
        found: list[tuple[float, float, int, str, Segment]] = []
        for pod, watched in self._watched.items():
            folder = watched.output.folder
            ended_at = folder.record.ended_at
            for number, segment in folder.segments.items():
                if segment.placeholder is not None:
                    continue
                info = Path(segment.path).stat()
                spare = ended_at or folder.after(number) is not None
                if spare and info.st_nlink == 1 and info.st_size:
                    when = ended_at or float("inf")
                    found.append((when, info.st_mtime, number, pod, segment))
        found.sort(key=lambda each: each[:3])
        return [(pod, segment) for _, _, _, pod, segment in found]

    def _report_lost(self, pod: str, size: int, why: str) -> None:
        LOST_BYTES.inc(size)
        self.log.error(
            "output is lost: log-collector had not read it", pod=pod, bytes=size, why=why
        )


def _read_after(output: Output, request: PodRead, bytes_max: int) -> Piece:
    """Read, after checking that the preceding bytes are those that the collector has."""
    before = (
        request.before[-request.offset :]
        if request.offset < len(request.before)
        else request.before
    )
    begin = output.folder.record.first_offset
    if not before or request.offset - len(before) < begin:
        return output.read(request.offset, bytes_max)
    piece = output.read(request.offset - len(before), len(before) + bytes_max)
    if piece.moved or (piece.unsure and len(piece.data) < len(before)):
        return Piece(unsure=piece.unsure, moved=piece.moved)
    if piece.data[: len(before)] != before:
        return Piece(
            moved=f"the bytes before {request.offset} are not those that were kept: log files were"
            " rotated away before the log agent saw the first of them"
        )
    return Piece(piece.data[len(before) :], piece.unsure)
