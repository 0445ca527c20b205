"""The communication of one process with the platform, in background threads.

Made by ``training`` at the first call that needs it, one per process. Training code only ever
reads two flags and appends to queues; everything that waits does so here: the long-poll that
brings the preemption request, the senders of checkpoints and metrics, and the fence. Only
``save_checkpoint`` waits on purpose.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Callable, cast

from shiftwork.context import Context, process_rank

if TYPE_CHECKING:
    from shiftwork.transport import Answer, Connection

# The last is loaded by the first look-up of a host name.
THREADS_IMPORT = ("shiftwork.transport", "encodings.idna")

# What is seldom and matters: no polls, no metrics.
TRACED = ("/v1/run/checkpoints", "/v1/run/yield")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

FENCE_EXIT_CODE = 69
"""The exit code of a process that lost contact for longer than its task allows."""


@dataclass(frozen=True)
class Limits:
    """All limits of the communication; tests shorten the waits."""

    poll_seconds: float = 30.0
    answer_seconds: float = 10.0
    backoff_seconds_min: float = 0.1
    backoff_seconds_max: float = 5.0
    idle_poll_seconds: float = 0.5
    metrics_queued_max: int = 1000
    metrics_batch_max: int = 200
    metrics_batch_names_max: int = 64
    metrics_tick_seconds: float = 1.0
    exit_flush_seconds: float = 2.0
    exit_ready_seconds: float = 5.0
    checkpoints_queued_max: int = 100
    exit_checkpoint_seconds: float = 60.0
    refused_seconds_max: float = 60.0
    warn_after_seconds: float = 5.0
    warn_every_seconds: float = 60.0

    def within(self, fence_after_seconds: float | None) -> Limits:
        """The same limits, with waits so short that one lost answer does not trip the fence.

        An answered poll is a contact. The next poll may be held for a third of the time, including
        the pause that the platform requests before it. Its answer may be awaited for a third, and
        the last third is left for another request.
        """
        if not fence_after_seconds:
            return self
        third = fence_after_seconds / 3
        return replace(
            self,
            poll_seconds=min(self.poll_seconds, third),
            answer_seconds=min(self.answer_seconds, third),
            # With the jitter at most a quarter of the last third.
            backoff_seconds_max=min(self.backoff_seconds_max, third / 6),
        )


class Superseded(Exception):  # noqa: N818 - the name that training scripts catch
    """This attempt is no longer the live one: another one is, or the task has ended.

    Stop without saving; the platform ignores what this process would still write.
    """


@dataclass(eq=False)
class _Saved:
    """A checkpoint on its way to the platform. ``done`` is set when its outcome is known."""

    body: dict[str, Any]
    awaited: bool
    done: threading.Event = field(default_factory=threading.Event)
    # The outcome: one of these.
    stored: bool = False
    superseded: bool = False
    refusal: str = ""


class Live:
    """One process's communication. ``preempt`` and ``superseded`` only ever become true."""

    def __init__(self, context: Context, limits: Limits, warn: Callable[[str], None]) -> None:
        self.preempt = False
        self.superseded = False
        self._context = context
        self._limits = limits = limits.within(context.fence_after_seconds)
        self._rank = process_rank(context, os.environ)
        self._warn = warn
        self._pid = os.getpid()
        self._closing = threading.Event()
        self._touched = time.monotonic()
        # Checkpoints in order: all whose outcome is open, and those that no thread has taken yet.
        self._unsettled: deque[_Saved] = deque()
        self._unsent: SimpleQueue[_Saved] = SimpleQueue()
        self._saving = threading.RLock()
        self._checkpoint_sender: threading.Thread | None = None
        self._flush_by: float | None = None
        self._gave_up = False
        self._samples: deque[dict[str, Any]] = deque(maxlen=limits.metrics_queued_max)
        self._sender: threading.Thread | None = None
        self._dropping = False
        self._refused = False

    def start(self) -> None:
        """Begin to poll, and to watch the fence if the task has one.

        A thread that imports holds locks which a forked child would wait for without end. So this
        loads every module that the threads use before the first of them starts.
        """
        for name in THREADS_IMPORT:
            import_module(name)
        self._spawn("poll", self._poll)
        if self._context.fence_after_seconds:
            self._spawn("fence", self._watch_fence)

    def close(self) -> None:
        """Send what is queued, for a bounded time. Called at the process's end."""
        if os.getpid() != self._pid:
            return  # a forked child inherits the exit hook, but neither threads nor queues
        self.flush_checkpoints()
        self._closing.set()
        sender = self._sender
        if sender is not None:
            sender.join(self._limits.exit_flush_seconds)

    # --- preemption -------------------------------------------------------------------------

    def _poll(self) -> None:
        with closing(self._client()) as client:
            self._listen(client)

    def _listen(self, client: Connection) -> None:
        limits = self._limits
        revision, wait, failures = 0, 0.0, 0
        while not self._closing.is_set():
            sent_at = time.monotonic()
            path = f"/v1/run?wait_seconds={wait:g}&seen={revision}"
            answer = _ask(client, "GET", path, None, wait + limits.answer_seconds)
            if answer is None or answer.status != 200:  # noqa: PLR2004 - OK
                if answer is not None and _is_superseded(answer):
                    self.superseded = True
                    return
                failures += 1
                self._closing.wait(self._backoff(failures))
                wait = 0.0  # be in touch again first
                continue
            failures = 0
            self._touched = time.monotonic()
            reply = answer.fields()
            self.preempt = self.preempt or reply.get("preempt") is True
            self.superseded = self.superseded or reply.get("superseded") is True
            if self.superseded:
                return
            changed = reply.get("revision") != revision
            revision = reply["revision"] if isinstance(reply.get("revision"), int) else revision
            pause = _seconds(reply.get("ask_again_seconds"))
            pause = min(pause * _jitter(), limits.poll_seconds)
            if pause:  # too many processes of this task wait already
                self._closing.wait(pause)
            elif wait and not changed and time.monotonic() - sent_at < limits.idle_poll_seconds:
                self._closing.wait(limits.idle_poll_seconds)  # a server that does not wait
            wait = limits.poll_seconds - pause

    # --- checkpoints ------------------------------------------------------------------------

    def save_checkpoint(
        self, step: int, uri: str, digest: str | None, wait: bool, timeout_seconds: float | None
    ) -> None:
        """Send a checkpoint after those before it, again and again until the platform stores it.

        With ``wait`` it returns then, and raises Superseded, ValueError (refused) or TimeoutError
        (it is still sent). Without, it waits only while ``checkpoints_queued_max`` are on their
        way, and raises Superseded if that is known already.
        """
        if self.superseded:
            raise Superseded(self._over())
        body: dict[str, Any] = {"step": step, "uri": uri}
        if digest:
            body["digest"] = digest
        ends_at = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        self._await_space(step, ends_at)
        saved = _Saved(body, awaited=wait)
        with self._saving:
            self._unsettled.append(saved)
            self._unsent.put(saved)
            self._ensure_checkpoint_sender()
        if not wait:
            return
        if not saved.done.wait(_left(ends_at)):
            saved.awaited = False
            raise TimeoutError(
                f"the platform has not stored the checkpoint of step {step} in "
                f"{timeout_seconds:g} s; it is still sent in the background"
            )
        if saved.superseded:
            raise Superseded(self._over())
        if not saved.stored:
            raise ValueError(saved.refusal)

    # --- what the program asks for ----------------------------------------------------------

    def ask(self, method: str, path: str, body: dict[str, Any] | None, what: str) -> dict[str, Any]:
        """The platform's answer, waited for as long as it takes.

        Raises Superseded, and ValueError if the platform refuses ``what``.
        """
        if self.superseded:
            raise Superseded(self._over())
        with closing(self._client()) as client:
            answer = self._settled(client, method, path, body, what)
        if answer is None:
            raise Superseded(self._over())
        if not _is_success(answer):
            raise ValueError(f"the platform refuses {what}: {_detail(answer)}")
        return answer.fields()

    def yield_now(self, reason: str) -> None:
        """Hand the nodes over, after the checkpoints that are on their way."""
        self.flush_checkpoints()
        self.ask("POST", "/v1/run/yield", {"reason": reason}, "the wish to yield")
        self.preempt = True

    def flush_checkpoints(self) -> None:
        """Wait until every checkpoint is settled, at most ``exit_checkpoint_seconds`` in all."""
        if self._flush_by is None:
            self._flush_by = time.monotonic() + self._limits.exit_checkpoint_seconds
        for saved in list(self._unsettled):
            if saved.done.wait(_left(self._flush_by)):
                continue
            if not self._gave_up:
                self._gave_up = True
                self._warn(
                    f"the checkpoint of step {saved.body['step']} is not recorded: the platform "
                    f"has not answered in {self._limits.exit_checkpoint_seconds:g} s"
                )
            return
        self._flush_by = None

    def _await_space(self, step: int, ends_at: float | None) -> None:
        while len(self._unsettled) >= self._limits.checkpoints_queued_max:
            try:
                oldest = self._unsettled[0]
            except IndexError:
                return
            if not oldest.done.wait(_left(ends_at)):
                raise TimeoutError(
                    f"{len(self._unsettled)} checkpoints are still on their way; that of step "
                    f"{step} is not sent"
                )
            if self.superseded:
                raise Superseded(self._over())

    def _ensure_checkpoint_sender(self) -> None:
        if self._checkpoint_sender is not None:
            return
        try:
            self._checkpoint_sender = self._spawn("checkpoints", self._send_checkpoints)
        except RuntimeError:  # no more threads, or the interpreter is going down
            with closing(self._client()) as client:
                while not self._unsent.empty():
                    self._send_checkpoint(client, self._unsent.get())

    def _send_checkpoints(self) -> None:
        with closing(self._client()) as client:
            while True:
                self._send_checkpoint(client, self._unsent.get())

    def _send_checkpoint(self, client: Connection, saved: _Saved) -> None:
        try:
            self._deliver(client, saved)
        except Exception as error:  # noqa: BLE001 - the next checkpoint must still be sent
            step = saved.body["step"]
            saved.refusal = f"the checkpoint of step {step} cannot be sent ({error!r})"
        self._unsettled.remove(saved)
        if saved.refusal and not saved.awaited:
            self._warn(saved.refusal)
        saved.done.set()

    def _deliver(self, client: Connection, saved: _Saved) -> None:
        what = f"the checkpoint of step {saved.body['step']}"
        answer = self._settled(client, "POST", "/v1/run/checkpoints", saved.body, what)
        saved.superseded = answer is None
        if answer is None:
            return
        saved.stored = _is_success(answer)
        if not saved.stored:
            saved.refusal = f"the platform refuses {what}: {_detail(answer)}"

    def _settled(
        self, client: Connection, method: str, path: str, body: dict[str, Any] | None, what: str
    ) -> Answer | None:
        """The answer that settles a request: success or a refusal; None: this attempt is over.

        It is sent again and again while the platform does not answer or cannot serve it now.
        """
        limits = self._limits
        began, refused_since = time.monotonic(), None
        warn_at = began + limits.warn_after_seconds
        failures = 0
        while not self.superseded:
            answer = _ask(client, method, path, body, limits.answer_seconds)
            now = time.monotonic()
            if answer is not None and _is_superseded(answer):
                self.superseded = True
                break
            if answer is not None and (_is_success(answer) or answer.status in (400, 413, 422)):
                self._touched = now
                return answer
            if answer is not None and answer.status in (401, 403):
                refused_since = refused_since or now
                if now - refused_since > limits.refused_seconds_max:
                    self._warn("the platform no longer accepts this attempt's token")
                    self.superseded = True
                    break
            else:
                refused_since = None
            if now >= warn_at:
                why = "does not answer" if answer is None else f"answers {answer.status}"
                self._warn(
                    f"the platform {why}; still trying to record {what} after {now - began:.0f} s"
                )
                warn_at = now + limits.warn_every_seconds
            failures += 1
            time.sleep(self._backoff(failures))
        return None

    def _over(self) -> str:
        return (
            f"attempt {self._context.attempt} of task {self._context.task} is no longer the "
            "live one"
        )

    # --- metrics ----------------------------------------------------------------------------

    def report(self, values: dict[str, float | str]) -> None:
        """Queue one sample; the oldest goes if the queue is full."""
        if len(self._samples) == self._limits.metrics_queued_max and not self._dropping:
            self._dropping = True
            self._warn("metrics are reported faster than they are sent; the oldest are dropped")
        self._samples.append({"at": _rfc3339(time.time()), "values": values})
        if self._sender is None:
            with suppress(RuntimeError):  # no more threads: metrics are not worth an error
                self._sender = self._spawn("metrics", self._send_metrics)

    def _send_metrics(self) -> None:
        with closing(self._client()) as client:
            self._send_all(client)

    def _send_all(self, client: Connection) -> None:
        limits = self._limits
        batch: list[dict[str, Any]] = []
        failures = 0
        while True:
            last_try = self._closing.is_set()
            self._fill(batch)
            if batch:
                timeout = limits.exit_flush_seconds if last_try else limits.answer_seconds
                body = {"rank": self._rank, "samples": batch}
                answer = _ask(client, "POST", "/v1/run/metrics", body, timeout)
                done = answer is not None and self._settles(answer)
                failures = 0 if done else failures + 1
                batch = [] if done else batch
            if last_try and (failures or not self._samples):
                return
            if failures:
                self._closing.wait(self._backoff(failures))
            elif len(self._samples) < limits.metrics_batch_max:
                self._closing.wait(limits.metrics_tick_seconds)

    def _fill(self, batch: list[dict[str, Any]]) -> None:
        """Add samples up to what one report may hold: so many, with so many names together."""
        names: set[str] = {name for sample in batch for name in sample["values"]}
        while self._samples and len(batch) < self._limits.metrics_batch_max:
            names.update(self._samples[0]["values"])
            if batch and len(names) > self._limits.metrics_batch_names_max:
                return
            batch.append(self._samples.popleft())

    def _settles(self, answer: Answer) -> bool:
        """True unless the same report may be accepted later."""
        if _is_superseded(answer):
            self.superseded = True
            return True
        # A conflict is with another writer, not with another attempt.
        if answer.status >= 500 or answer.status in (408, 409, 429):  # noqa: PLR2004 - the server's
            return False
        self._touched = time.monotonic()
        if answer.status >= 400 and not self._refused:  # noqa: PLR2004 - a refusal
            self._refused = True
            self._warn(f"the platform refuses metrics: {_detail(answer)}")
        return True

    # --- the fence --------------------------------------------------------------------------

    def _watch_fence(self) -> None:
        allowed = self._context.fence_after_seconds or 0.0
        while not self._closing.is_set():
            left = self._touched + allowed - time.monotonic()
            if left <= 0:
                line = (
                    f"shiftwork: out of touch with the platform for {allowed:g} s: ending this "
                    f"process (exit code {FENCE_EXIT_CODE}), as the task's --fence-after requires\n"
                )
                os.write(2, line.encode())
                os._exit(FENCE_EXIT_CODE)
            self._closing.wait(left)

    # --- parts ------------------------------------------------------------------------------

    def _client(self) -> Connection:
        # `start` has loaded it, so that `import shiftwork` does not pay for it.
        from shiftwork.transport import Connection  # noqa: PLC0415

        return Connection(self._context.url, self._context.run_token)

    def _spawn(self, name: str, body: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=body, name=f"shiftwork-{name}", daemon=True)
        thread.start()
        return thread

    def _backoff(self, failures: int) -> float:
        doubled = self._limits.backoff_seconds_min * 2 ** min(failures - 1, 16)
        return min(doubled, self._limits.backoff_seconds_max) * _jitter()


def _jitter() -> float:
    """0.5 to 1.5: processes that lost the platform together must not come back together.

    It comes from the operating system: process ids are equal in containers, and the program owns
    the seed of ``random``.
    """
    return 0.5 + int.from_bytes(os.urandom(2), "big") / 65536


def _left(ends_at: float | None) -> float | None:
    return None if ends_at is None else max(0.0, ends_at - time.monotonic())


def _seconds(value: Any) -> float:  # noqa: ANN401 - any JSON
    return float(value) if isinstance(value, (int, float)) and value > 0 else 0.0


def _ask(
    client: Connection, method: str, path: str, body: dict[str, Any] | None, timeout_seconds: float
) -> Answer | None:
    """The answer, or None if none came: what is not reached now is asked again later."""
    from shiftwork.transport import Unreachable  # noqa: PLC0415 - loaded by _client already

    try:
        return client.call(
            method,
            path,
            body,
            headers=_trace_of_run() if path in TRACED else None,
            timeout_seconds=timeout_seconds,
        )
    except Unreachable:
        return None


def _trace_of_run() -> dict[str, str]:
    """The header by which a request belongs to the trace of this run, if the run has one."""
    traceparent = os.environ.get("TRACEPARENT", "")
    return {"traceparent": traceparent} if _TRACEPARENT.fullmatch(traceparent) else {}


def _is_success(answer: Answer) -> bool:
    return 200 <= answer.status < 300  # noqa: PLR2004 - success


def _is_superseded(answer: Answer) -> bool:
    """True for the problem type ``superseded``; its status (409, 410) also has other causes."""
    kind = str(answer.fields().get("type", "")).rpartition("/")[2].rpartition(":")[2]
    return answer.status >= 400 and kind == "superseded"  # noqa: PLR2004 - a refusal


def _detail(answer: Answer) -> str:
    reply = answer.fields()
    parts = [str(reply.get("detail") or reply.get("title") or f"HTTP {answer.status}")]
    errors: Any = reply.get("errors")
    for error in cast("list[Any]", errors) if isinstance(errors, list) else []:
        if isinstance(error, dict):
            named = cast("dict[str, Any]", error)
            parts.append(f"{named.get('field')}: {named.get('message')}")
    return "; ".join(parts)


def _rfc3339(at: float) -> str:
    seconds, fraction = divmod(at, 1)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(fraction * 1e6):06d}Z"
