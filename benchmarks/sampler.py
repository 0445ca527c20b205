"""Where a process spends its processor time, by sampling: a tracing profiler would be most of it.

Every few milliseconds of processor time the stack is noted. Written at the end as text: the
functions by their own samples, then by those of everything they called.
"""

from __future__ import annotations

import contextlib
import signal
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from types import FrameType

EVERY_SECONDS = 0.002
LINES_MAX = 120


class Sampler:
    """Counts of functions, as ``file:function``."""

    def __init__(self) -> None:
        self.samples = 0
        self.own: Counter[str] = Counter()
        self.with_callees: Counter[str] = Counter()

    def note(self, _signal: int, frame: FrameType | None) -> None:
        """One sample; called by the signal."""
        self.samples += 1
        names: list[str] = []
        while frame is not None:
            code = frame.f_code
            names.append(f"{'/'.join(code.co_filename.rsplit('/', 2)[-2:])}:{code.co_qualname}")
            frame = frame.f_back
        if names:
            self.own[names[0]] += 1
            self.with_callees.update(set(names))

    def text(self) -> str:
        """Both lists, in percent of all samples."""
        found = [f"{self.samples} samples of {EVERY_SECONDS} s"]
        for title, counts in (("own", self.own), ("with callees", self.with_callees)):
            found.append(f"== {title}")
            found += [
                f"{100 * count / max(1, self.samples):6.2f} {name}"
                for name, count in counts.most_common(LINES_MAX)
            ]
        return "\n".join(found) + "\n"


@contextlib.contextmanager
def sampling(into: str | None) -> Generator[None]:
    """Sample while the context is open; None: do not."""
    if not into:
        yield
        return
    sampler = Sampler()
    signal.signal(signal.SIGPROF, sampler.note)
    signal.setitimer(signal.ITIMER_PROF, EVERY_SECONDS, EVERY_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        Path(into).write_text(sampler.text())
