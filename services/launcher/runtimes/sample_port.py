"""The interface to what measures nodes and the ranks on them. A runtime without ``sample`` is not
sampled. Adapter: ``process_sampler``.

Used by ``services/launcher/sampling.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol, runtime_checkable

from libs.contracts.messages import NodeSampled


@runtime_checkable
class SampledRuntime(Protocol):
    """A runtime that measures its nodes."""

    async def sample(self, now: datetime) -> Sequence[NodeSampled]:
        """Measure every node that answers, and the ranks that run there. Which GPUs a rank holds is
        filled in by the caller. Raises nothing because of a node, a driver or a process."""
        ...
