"""Publishes what the runtime measures of its nodes and ranks. Wired in ``main.py``.

It is on the way of nothing: it waits for no decision, and none waits for it. A sample that fails or
is lost is a gap in the series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from libs.bus.port import Bus
from libs.contracts.envelope import Envelope
from libs.contracts.messages import NodeSampled, NodeValues
from libs.service import observability
from libs.service.loop import Loop
from libs.service.metrics import Metrics
from libs.store.port import Store
from services.launcher.domain.model import Run
from services.launcher.runtimes.sample_port import HeldGpus, SampledRuntime

declare = Metrics("launcher")
SAMPLES = declare.counter(
    "shiftwork_launcher_samples_total", "Samples of nodes that were published"
)
FAILED_SAMPLES = declare.counter(
    "shiftwork_launcher_samples_failed_total", "Rounds of samples that failed by a defect"
)
# A message for each node has so many ranks at most; others follow in further messages.
RANKS_PER_MESSAGE_MAX = 500


@dataclass
class Sampling:
    """One leader's rounds of samples."""

    bus: Bus
    store: Store
    runtime: SampledRuntime
    now: Callable[[], datetime]
    seconds: float

    def loop(self) -> Loop:
        """The loop that samples at whole multiples of the interval."""
        return Loop("sample", self.step, tick_seconds=self.seconds, wake_on_commit=False)

    async def step(self, _epoch: int) -> float:
        """Publish one sample of every node; returns the time until the next round."""
        try:
            held = held_gpus(self.store.resident(Run).values())
            sampled = await self.runtime.sample(self.now(), held)
            for message in pieces(sampled):
                envelope_id = f"{message.node_id}-{message.sampled_at.timestamp():.3f}"
                await self.bus.send_telemetry(
                    Envelope(envelope_id, "launcher", message.sampled_at, message)
                )
            SAMPLES.inc(len(sampled))
        except Exception:  # noqa: BLE001 - measuring must never end the leader's work
            FAILED_SAMPLES.inc()
            observability.log("launcher").exception("a round of samples failed")
        return self.seconds - self.now().timestamp() % self.seconds


def held_gpus(runs: Iterable[Run]) -> HeldGpus:
    """The GPUs that each rank of each run holds on its node."""
    return {
        (run.task_id, run.attempt, place.rank): place.gpus
        for run in runs
        for place in run.placements
    }


def pieces(sampled: Iterable[NodeSampled]) -> Iterator[NodeSampled]:
    """The messages for these samples, none of them with too many ranks."""
    for whole in sampled:
        first, rest = whole.ranks[:RANKS_PER_MESSAGE_MAX], whole.ranks[RANKS_PER_MESSAGE_MAX:]
        yield whole.model_copy(update={"ranks": first})
        while rest:
            first, rest = rest[:RANKS_PER_MESSAGE_MAX], rest[RANKS_PER_MESSAGE_MAX:]
            yield whole.model_copy(update={"ranks": first, "values": NodeValues(), "gpus": ()})
