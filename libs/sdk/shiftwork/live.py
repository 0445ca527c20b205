"""The conversation of one process with the platform, in background threads.

Made by ``training`` at the first call that needs it, one per process. Training code only ever
reads two flags and appends to a queue; everything that waits does so here: the long-poll that
brings the preemption request, the sender of metrics, and the fence. The one call that waits on
purpose is ``save_checkpoint``.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, cast

if TYPE_CHECKING:
    from shiftwork.context import Context
    from shiftwork.transport import Answer, Client

FENCE_EXIT_CODE = 69
"""How a process ends that was out of touch for longer than its task allows."""


@dataclass(frozen=True)
class Limits:
    """Every number of the conversation; tests shorten the waits."""

    poll_seconds: float = 30.0
    answer_seconds: float = 10.0
    backoff_seconds_min: float = 0.1
    backoff_seconds_max: float = 5.0
    idle_poll_seconds: float = 0.5
    metrics_queued_max: int = 1000
    metrics_batch_max: int = 200
    metrics_tick_seconds: float = 1.0
    exit_flush_seconds: float = 2.0
    refused_seconds_max: float = 60.0
    warn_after_seconds: float = 5.0
    warn_every_seconds: float = 60.0


class Superseded(Exception):  # noqa: N818 - the name that training scripts catch
    """This attempt is no longer the live one: another has taken the task over, or it is over.

    Stop without saving; what this process would still write counts for nothing.
    """


class Live:
    """One process's conversation. ``preempt`` and ``superseded`` only ever turn true."""

    def __init__(self, context: Context, limits: Limits, warn: Callable[[str], None]) -> None:
        self.preempt = False
        self.superseded = False
        self._context = context
        self._limits = limits
        self._warn = warn
        self._pid = os.getpid()
        self._closing = threading.Event()
        self._touched = time.monotonic()
        self._saving = threading.Lock()
        self._saver: Client | None = None
        self._samples: deque[dict[str, Any]] = deque(maxlen=limits.metrics_queued_max)
        self._sender: threading.Thread | None = None
        self._dropping = False
        # Ranks that lost the platform together must not come back together.
        self._jitter = 0.5 + (self._pid * 2654435761 % 1024) / 1024

    def start(self) -> None:
        """Begin to listen, and to watch the fence if the task has one."""
        self._spawn("poll", self._poll)
        if self._context.fence_after_seconds:
            self._spawn("fence", self._watch_fence)

    def close(self) -> None:
        """Send what is queued, for at most ``exit_flush_seconds``. Called at the process's end."""
        if os.getpid() != self._pid:
            return  # a forked child inherits the exit hook, but neither thread nor queue
        self._closing.set()
        sender = self._sender
        if sender is not None:
            sender.join(self._limits.exit_flush_seconds)
        self.drop()

    def drop(self) -> None:
        """Let go of what a forked child inherits and must not use."""
        saver, self._saver = self._saver, None
        if saver is not None:
            saver.close()

    # --- preemption -------------------------------------------------------------------------

    def _poll(self) -> None:
        with closing(self._client()) as client:
            self._listen(client)

    def _listen(self, client: Client) -> None:
        limits = self._limits
        revision, wait, failures = 0, 0.0, 0
        while not self._closing.is_set():
            asked_at = time.monotonic()
            path = f"/v1/run?wait_seconds={wait:g}&seen={revision}"
            answer = _ask(client, "GET", path, None, wait + limits.answer_seconds)
            if answer is None or answer.status != 200:  # noqa: PLR2004 - OK
                if answer is not None and _says_superseded(answer):
                    self.superseded = True
                    return
                failures += 1
                self._closing.wait(self._backoff(failures))
                continue
            failures = 0
            self._touched = time.monotonic()
            told = answer.fields()
            self.preempt = self.preempt or told.get("preempt") is True
            self.superseded = self.superseded or told.get("superseded") is True
            if self.superseded:
                return
            changed = told.get("revision") != revision
            revision = told["revision"] if isinstance(told.get("revision"), int) else revision
            if wait and not changed and time.monotonic() - asked_at < limits.idle_poll_seconds:
                self._closing.wait(limits.idle_poll_seconds)  # a server that does not wait
            wait = limits.poll_seconds

    # --- checkpoints ------------------------------------------------------------------------

    def save_checkpoint(self, step: int, uri: str, digest: str | None) -> None:
        """Tell the platform, again and again until it has stored it. Raises Superseded."""
        body: dict[str, Any] = {"step": step, "uri": uri}
        if digest:
            body["digest"] = digest
        with self._saving:
            self._save(body)

    def _save(self, body: dict[str, Any]) -> None:
        limits = self._limits
        saver = self._saver = self._saver or self._client()
        began, refused_since = time.monotonic(), None
        warn_at = began + limits.warn_after_seconds
        failures = 0
        while not self.superseded:
            answer = _ask(saver, "POST", "/v1/run/checkpoints", body, limits.answer_seconds)
            now = time.monotonic()
            if answer is not None and 200 <= answer.status < 300:  # noqa: PLR2004 - success
                self._touched = now
                return
            if answer is not None and _says_superseded(answer):
                self.superseded = True
                break
            if answer is not None and answer.status in (400, 413, 422):
                raise ValueError(f"the platform refuses this checkpoint: {_detail(answer)}")
            if answer is not None and answer.status in (401, 403):
                refused_since = refused_since or now
                if now - refused_since > limits.refused_seconds_max:
                    raise Superseded("the platform no longer accepts this attempt's token")
            else:
                refused_since = None
            if now >= warn_at:
                why = "does not answer" if answer is None else f"answers {answer.status}"
                self._warn(
                    f"the platform {why}; still trying to record the checkpoint of step "
                    f"{body['step']} after {now - began:.0f} s"
                )
                warn_at = now + limits.warn_every_seconds
            failures += 1
            time.sleep(self._backoff(failures))
        raise Superseded(
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
            self._sender = self._spawn("metrics", self._send_metrics)

    def _send_metrics(self) -> None:
        with closing(self._client()) as client:
            self._send_all(client)

    def _send_all(self, client: Client) -> None:
        limits = self._limits
        batch: list[dict[str, Any]] = []
        failures = 0
        while True:
            last_try = self._closing.is_set()
            while self._samples and len(batch) < limits.metrics_batch_max:
                batch.append(self._samples.popleft())
            if batch:
                timeout = limits.exit_flush_seconds if last_try else limits.answer_seconds
                body = {"rank": self._context.rank or 0, "samples": batch}
                answer = _ask(client, "POST", "/v1/run/metrics", body, timeout)
                # A refusal is final: the same batch would be refused again.
                done = answer is not None and answer.status < 500 and answer.status != 429  # noqa: PLR2004
                if answer is not None and done:
                    self._touched = time.monotonic()
                    self.superseded = self.superseded or _says_superseded(answer)
                failures = 0 if done else failures + 1
                batch = [] if done else batch
            if last_try and (failures or not self._samples):
                return
            if failures:
                self._closing.wait(self._backoff(failures))
            elif len(self._samples) < limits.metrics_batch_max:
                self._closing.wait(limits.metrics_tick_seconds)

    # --- the fence --------------------------------------------------------------------------

    def _watch_fence(self) -> None:
        allowed = self._context.fence_after_seconds or 0.0
        while not self._closing.is_set():
            left = self._touched + allowed - time.monotonic()
            if left <= 0:
                line = (
                    f"shiftwork: out of touch with the platform for {allowed:g} s: ending this "
                    f"process (exit code {FENCE_EXIT_CODE}), as the task's --fence-after asks\n"
                )
                os.write(2, line.encode())
                os._exit(FENCE_EXIT_CODE)
            self._closing.wait(left)

    # --- parts ------------------------------------------------------------------------------

    def _client(self) -> Client:
        # Imported here so that neither `import shiftwork` nor a training step pays for it.
        from shiftwork.transport import Client  # noqa: PLC0415

        return Client(self._context.url, self._context.run_token)

    def _spawn(self, name: str, body: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=body, name=f"shiftwork-{name}", daemon=True)
        thread.start()
        return thread

    def _backoff(self, failures: int) -> float:
        doubled = self._limits.backoff_seconds_min * 2 ** min(failures - 1, 16)
        return min(doubled, self._limits.backoff_seconds_max) * self._jitter


def _ask(
    client: Client, method: str, path: str, body: dict[str, Any] | None, timeout_seconds: float
) -> Answer | None:
    """The answer, or None if none came: what is not reached now is asked again later."""
    from shiftwork.transport import Unreachable  # noqa: PLC0415 - loaded by _client already

    try:
        return client.call(method, path, body, timeout_seconds=timeout_seconds)
    except Unreachable:
        return None


def _says_superseded(answer: Answer) -> bool:
    if answer.status in (409, 410):
        return True
    told = answer.fields()
    kind = str(told.get("type", "")).rpartition("/")[2].rpartition(":")[2]
    return answer.status >= 400 and (  # noqa: PLR2004 - a refusal
        told.get("superseded") is True or kind == "superseded"
    )


def _detail(answer: Answer) -> str:
    told = answer.fields()
    parts = [str(told.get("detail") or told.get("title") or f"HTTP {answer.status}")]
    errors: Any = told.get("errors")
    for error in cast("list[Any]", errors) if isinstance(errors, list) else []:
        if isinstance(error, dict):
            named = cast("dict[str, Any]", error)
            parts.append(f"{named.get('field')}: {named.get('message')}")
    return "; ".join(parts)


def _rfc3339(at: float) -> str:
    seconds, fraction = divmod(at, 1)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(fraction * 1e6):06d}Z"
