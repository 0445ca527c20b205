"""The calls of a training script; the public names of ``shiftwork``.

Each call uses the process's connection to the platform (``live``), which is made when it is first
needed, and reads a flag or hands over a value. Off the platform there is no connection, and every
call works and does nothing.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import sys
import threading
from base64 import b64decode, b64encode
from typing import Any, Callable, SupportsFloat

from shiftwork import context as _context
from shiftwork.context import Checkpoint, Context
from shiftwork.live import Limits, Live, Superseded
from shiftwork.termination import Termination

__all__ = [
    "PREEMPTED_EXIT_CODE",
    "Superseded",
    "checkpoint_saved",
    "exit_preempted",
    "life_state",
    "rank",
    "ready",
    "report",
    "resume_from",
    "set_life_state",
    "set_priority",
    "should_preempt",
    "world_size",
    "yield_now",
]

PREEMPTED_EXIT_CODE = 75
"""The reserved exit code of a process that leaves after an acknowledged preemption."""

# In UTF-8, as the platform has it.
URI_BYTES_MAX = 1024
DIGEST_CHARACTERS_MAX = 256
METRICS_PER_REPORT_MAX = 64
YIELD_REASON_CHARACTERS_MAX = 200
LIFE_STATE_BYTES_MAX = 65_536
METRIC_NAME_CHARACTERS_MAX = 128
WARNED_NAMES_MAX = 256


class _Process:
    """What this process knows and holds; a forked child starts with a new one."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        # Also held while the process forks: a child must not begin with half-loaded modules.
        self.lock = threading.RLock()
        self.termination = Termination()
        self.context: Context | None = None
        self.live: Live | None = None
        self.preempt = False
        self.superseded = False
        self.ready = False
        # What ``report`` has warned of.
        self.warned: set[str] = set()

    def known(self) -> Context:
        """The context, read once."""
        found = self.context
        if found is None:
            found = _context.of_this_process()
            self.context = found
            if found.problem:
                _warn(found.problem)
        return found

    def conversation(self) -> Live | None:
        """The conversation, begun at the first need; None off the platform."""
        if self.live is not None:
            return self.live
        if not self.known().on_platform:
            return None
        with self.lock:
            if self.live is None:
                self.live = self._begin(self.known())
        return self.live

    def _begin(self, context: Context) -> Live:
        live = Live(context, self.limits, _warn)
        live.preempt, live.superseded = self.preempt, self.superseded
        try:
            live.start()
        except RuntimeError as error:  # no more threads, or the interpreter is going down
            _warn(f"no background thread ({error}): preemption will not be noticed")
        atexit.register(live.close)
        return live

    def forked(self) -> _Process:
        """The same for a child of ``fork``: threads and sockets stay with the parent."""
        child = _Process(self.limits)
        child.context = self.context
        child.ready = self.ready
        child.preempt = self.preempt or (self.live is not None and self.live.preempt)
        child.superseded = self.superseded or (self.live is not None and self.live.superseded)
        child.termination = self.termination.after_fork_in_child()
        return child


_process = _Process(Limits())


def _before_fork() -> None:
    _process.lock.acquire()
    _process.termination.before_fork()


def _after_fork_in_parent() -> None:
    _process.termination.after_fork_in_parent()
    _process.lock.release()


def _after_fork_in_child() -> None:
    global _process  # noqa: PLW0603 - one per process, and this is another process
    _process = _process.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )


def should_preempt(agree: Callable[[bool], bool] | None = None) -> bool:
    """True once the platform requests this task's nodes: save a checkpoint and leave.

    Answers at once from memory, never from the network; call it at every step. Every rank receives
    the request by itself, perhaps a step apart: where ranks must leave at the same step, give
    ``agree``, the program's own all-reduce ("does any rank say so?"). It is then called at every
    step, on every rank, on and off the platform, and its result is returned.

    SIGTERM (a drained node, a spot instance that is taken back, Slurm) is the same request, on and
    off the platform: from the first call in the main thread on, the signal no longer ends the
    process. A handler that the program has installed before that still runs, and one that it
    installs later replaces this one.
    """
    _process.termination.watch()
    live = _process.conversation()
    wanted = _process.termination.requested or (
        live is not None and (live.preempt or live.superseded)
    )
    return wanted if agree is None else bool(agree(wanted))


def checkpoint_saved(
    step: int,
    uri: str,
    digest: str | None = None,
    *,
    wait: bool = True,
    timeout: float | None = None,
) -> None:
    """Report that the checkpoint of ``step`` is durable at ``uri``; return when that is stored.

    The write must be complete (flushed, synced, renamed) before the call. While the platform is
    out of reach the report is sent again and again. One rank reports for the whole gang.

    Args:
        step: training steps done, 0 or more; ``resume_from().step`` will return it.
        uri: where the checkpoint lies, for the next attempt to read, in at most 1024 bytes; put the
            attempt or the step into it, so that no attempt writes over another's.
        digest: of the contents, such as ``sha256:…``; handed back by ``resume_from``.
        wait: False returns at once; the checkpoint is sent in the background, in order, and at
            the latest by ``exit_preempted`` or the end of the program, which wait for it up to a
            minute. A refusal is then a line on stderr. With 100 checkpoints on their way the call
            waits for the oldest.
        timeout: seconds after which the call stops waiting; None waits until it is stored.

    Raises:
        Superseded: this attempt is no longer the live one; stop.
        TimeoutError: it is not stored in time. It is still sent in the background.
        ValueError: an argument is out of range, or the platform refuses it.
        TypeError: an argument has the wrong type.
    """
    number = step_number(step)
    _text("uri", uri, URI_BYTES_MAX)
    if digest is not None:
        _text("digest", digest, DIGEST_CHARACTERS_MAX)
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"timeout must be 0 or more seconds, not {timeout}")
    live = _process.conversation()
    if live is not None:
        live.save_checkpoint(number, uri, digest, wait, timeout)


def resume_from() -> Checkpoint | None:
    """The checkpoint to start from: the last one the platform stored, or None to start afresh."""
    return _process.known().resume_from


def report(**metrics: SupportsFloat) -> None:
    """Show numbers (``loss=0.3, step=100``) on the task's page. Never waits, never fails.

    Sent in batches in the background; the oldest are dropped if they come too fast. What is not
    of a number's type is left out, and names beyond the first 64 of a call: each with one warning
    on standard error. NaN and infinity are shown.
    """
    live = _process.conversation()
    if live is None:
        return
    values: dict[str, float | str] = {}
    for name, value in list(metrics.items())[:METRICS_PER_REPORT_MAX]:
        number = _number(value)
        if number is None:
            _warn_once(name, f"a {type(value).__name__} is no number; give an int or a float")
        else:
            values[name[:METRIC_NAME_CHARACTERS_MAX]] = number
    for name in list(metrics)[METRICS_PER_REPORT_MAX:]:
        _warn_once(name, f"a call takes {METRICS_PER_REPORT_MAX} names; give it in another call")
    if values:
        live.report(values)


def _warn_once(name: str, why: str) -> None:
    """Warn that ``report`` leaves a name out: once, and of so many names at most."""
    warned = _process.warned
    if name not in warned and len(warned) < WARNED_NAMES_MAX:
        warned.add(name)
        _warn(f"report() leaves out {name[:METRIC_NAME_CHARACTERS_MAX]}: {why}")


def ready() -> None:
    """Say that this rank is ready, for the roles that start after that.

    Never waits, never fails: the report is sent in the background, again and again while the
    platform is out of reach. The end of the program waits for it a few seconds. Further calls do
    nothing.
    """
    process = _process
    if not process.known().on_platform:
        return
    with process.lock:
        first, process.ready = not process.ready, True
    if first:
        from shiftwork.readiness import report_ready  # noqa: PLC0415 - few programs need it

        report_ready(process.known(), process.limits, _warn)


def rank() -> int:
    """This process's rank: the global one under torchrun, else the replica's; 0 if alone."""
    return _context.process_rank(_process.known(), os.environ)


def world_size() -> int:
    """How many ranks there are, counted as ``rank`` counts; 1 if alone."""
    return _context.process_world_size(_process.known(), os.environ)


def exit_preempted() -> None:
    """Leave after ``checkpoint_saved``: SystemExit with the code reserved for it, 75.

    Waits first, up to a minute, for checkpoints that are still on their way. Off the platform
    nobody has asked, and the call returns, unless SIGTERM has.
    """
    if _process.live is not None:
        _process.live.flush_checkpoints()
    if _process.known().on_platform or _process.termination.requested:
        if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("LOCAL_RANK") == "0":
            _warn(
                f"leaving with code {PREEMPTED_EXIT_CODE}, as asked; torchrun reports this as "
                "ChildFailedError below, the platform does not count it as a failure"
            )
        raise SystemExit(PREEMPTED_EXIT_CODE)


def yield_now(reason: str = "") -> None:
    """Hand the task's nodes over without being asked; return when the platform has stored that.

    Call it after ``checkpoint_saved``, then leave with ``exit_preempted``: the task goes back to
    the queue, other tasks are considered first, and it resumes from its last checkpoint, or from
    the beginning if it saved none. One rank may call it for the gang: ``should_preempt`` turns true
    on the others. Ranks that have not left after the exit grace (10 s by default) are ended. While
    the platform is out of reach the request is sent again and again.

    Args:
        reason: for people, in a few words; ``shiftwork events`` shows it. What is beyond 200
            characters is cut.

    Raises:
        Superseded: this attempt is no longer the live one; stop.
        TypeError: the reason is no text.
    """
    _check_is_text("reason", reason)
    live = _process.conversation()
    if live is not None:
        # Requests with a NUL, or half of a surrogate pair, are refused.
        text = reason.replace("\0", " ").encode(errors="replace").decode()
        live.yield_now(text[:YIELD_REASON_CHARACTERS_MAX])


def set_life_state(value: Any) -> None:  # noqa: ANN401 - bytes, or any JSON
    """Keep a small value for the task's later attempts, and for tasks that go on with it.

    It replaces the value before, whole or not at all; of several ranks the last one wins. Large
    data belongs in checkpoints. Returns when the platform has stored it.

    Args:
        value: bytes, or what JSON can hold: text, numbers, lists, dicts with texts as keys. At most
            65536 bytes.

    Raises:
        Superseded: this attempt is no longer the live one; stop.
        ValueError: the value is too large, or is no JSON (NaN, for example).
        TypeError: the value has a type that JSON does not have.
    """
    is_binary = isinstance(value, (bytes, bytearray))
    data = bytes(value) if is_binary else json.dumps(value, allow_nan=False).encode()
    if len(data) > LIFE_STATE_BYTES_MAX:
        raise ValueError(
            f"a life state has at most {LIFE_STATE_BYTES_MAX} bytes, not {len(data)}; keep large "
            "data in a checkpoint"
        )
    live = _process.conversation()
    if live is not None:
        kind = "application/octet-stream" if is_binary else "application/json"
        body = {"data": b64encode(data).decode(), "media_type": kind}
        live.ask("PUT", "/v1/run/state", body, "the life state")


def life_state() -> Any:  # noqa: ANN401 - what the program gave
    """What ``set_life_state`` was last given, by this attempt or an earlier one; None if nothing.

    Asks the platform each time, and waits until it answers. None off the platform.

    Raises:
        Superseded: this attempt is no longer the live one; stop.
    """
    live = _process.conversation()
    if live is None:
        return None
    found = live.ask("GET", "/v1/run/state", None, "to read the life state")
    if found.get("data") is None:
        return None
    data = b64decode(str(found["data"]))
    return json.loads(data) if found.get("media_type") == "application/json" else data


def set_priority(priority: str) -> None:
    """Give this task another priority, with the rights of its owner; return when that is stored.

    Args:
        priority: as on the command line: ``extreme_high`` ... ``idle``, ``auto``.

    Raises:
        Superseded: this attempt is no longer the live one; stop.
        ValueError: there is no such level, or the owner may not have it.
        TypeError: the level is no text.
    """
    _check_is_text("priority", priority)
    from shiftwork.cli.task_options import PRIORITIES  # noqa: PLC0415 - needed here alone

    if priority not in PRIORITIES:
        raise ValueError(f"priority must be one of {', '.join(PRIORITIES)}, not {priority!r}")
    live = _process.conversation()
    if live is not None:
        live.ask("PUT", "/v1/run/priority", {"priority": priority}, f"priority {priority}")


def task() -> str:
    """The id of the task; empty off the platform."""
    return _process.known().task


def attempt() -> int:
    """Which attempt of the task this is; 0 off the platform."""
    return _process.known().attempt


def requested_by_platform() -> bool:
    """True if the platform itself has asked for the nodes: not SIGTERM, not a newer attempt."""
    return _process.live is not None and _process.live.preempt


def step_number(step: int) -> int:
    """A step as a number that every part of the platform takes; for the adapters.

    Raises TypeError or ValueError if it is none.
    """
    try:
        number = step.__index__()
    except AttributeError:
        raise TypeError(f"step must be a whole number, not {step!r}") from None
    if not 0 <= number < 2**63:
        raise ValueError(f"step must be 0 or more, not {number}")
    return number


def _check_is_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text, not {value!r}")


def _text(name: str, value: str, bytes_max: int) -> None:
    _check_is_text(name, value)
    size = len(value.encode())
    if not 0 < size <= bytes_max:
        raise ValueError(f"{name} must have 1 to {bytes_max} bytes, not {size}")


def _number(value: SupportsFloat) -> float | str | None:
    """The number as JSON takes it: what is infinite or no number is a text."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return number


def _warn(text: str) -> None:
    sys.stderr.write(f"shiftwork: {text}\n")
