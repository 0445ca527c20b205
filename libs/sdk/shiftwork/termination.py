"""Treats SIGTERM as a request to leave; a drained node or a spot instance sends it to processes.

``training.should_preempt`` watches for it. In a program that never calls it, SIGTERM keeps its
former effect.
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType


class Termination:
    """Whether SIGTERM has come to this process. ``requested`` only ever turns true."""

    def __init__(self, requested: bool = False) -> None:
        self.requested = requested
        self._watching = False
        self._previous: Any = signal.SIG_DFL
        # While the process forks: the signals that the forking thread had blocked before.
        self._blocked: set[signal.Signals | int] | None = None

    def watch(self) -> None:
        """Handle SIGTERM from now on, where that is possible: from the main thread, unless the
        signal is ignored or handled by something that is not Python.
        """
        if self._watching or threading.current_thread() is not threading.main_thread():
            return
        self._watching = True
        previous = signal.getsignal(signal.SIGTERM)
        if previous is None or previous is signal.SIG_IGN:
            return
        self._previous = previous
        try:
            signal.signal(signal.SIGTERM, self._on_signal)
        except ValueError:  # an interpreter that may not handle signals
            self._previous = signal.SIG_DFL

    def before_fork(self) -> None:
        """Hold SIGTERM back: Python forgets a signal that reaches a child before it is set up."""
        if self._watching:
            self._blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def after_fork_in_parent(self) -> None:
        """Let SIGTERM through again."""
        blocked, self._blocked = self._blocked, None
        if blocked is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def after_fork_in_child(self) -> Termination:
        """Return the object for a child of ``fork``, which SIGTERM ends again, because pools and
        data loaders end their workers with it. A child that calls ``should_preempt`` watches too.
        """
        if signal.getsignal(signal.SIGTERM) == self._on_signal:
            signal.signal(signal.SIGTERM, self._previous)
        self.after_fork_in_parent()
        return Termination(self.requested)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Once more changes nothing: launchers such as torchrun pass on what the process got, too.
        self.requested = True
        if callable(self._previous):
            self._previous(number, frame)
