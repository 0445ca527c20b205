"""The interface to what measures nodes and the ranks on them. A runtime without ``sample`` is not
sampled. Adapters: ``process_sampler``, ``kubernetes/pod_sampler``.

Used by ``services/launcher/sampling.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol, runtime_checkable

from libs.contracts.messages import NodeSampled

# The GPUs that the plan gave to each rank of each run that is not over: task, attempt, rank.
HeldGpus = Mapping[tuple[str, int, int], tuple[int, ...]]


@runtime_checkable
class SampledRuntime(Protocol):
    """A runtime that measures its nodes."""

    async def sample(self, now: datetime, held: HeldGpus) -> Sequence[NodeSampled]:
        """Measure every node that answers, and the ranks in ``held`` that run there, with the GPUs
        of the node that each of them uses. Raises nothing because of a node, a driver or a
        process."""
        ...
