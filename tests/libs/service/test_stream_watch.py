"""The stream of events is watched before it is full."""

from __future__ import annotations

from random import Random

from prometheus_client import REGISTRY

from libs.bus.memory import MemoryBus
from libs.bus.memory_broker import MemoryBroker
from libs.contracts import messages as m
from libs.contracts.envelope import Envelope
from libs.service.stream_watch import StreamWatch
from tests.kit.clock import START
from tests.kit.virtual_time import virtually


def test_a_filling_stream_is_a_warning_until_its_events_are_received() -> None:
    async def main() -> None:
        broker = MemoryBroker(Random(1))
        quota = MemoryBus(broker, "quota", [m.GoalChanged])
        submit, gateway = MemoryBus(broker, "submit"), MemoryBus(broker, "gateway")
        watch = StreamWatch("gateway", gateway)
        event = m.GoalChanged(task_id="t", goal=m.Goal.PAUSE, revision=1, changed_at=START)
        sent = [Envelope(f"e{number}", "submit", START, event) for number in range(10)]
        await submit.publish(sent)
        size = len(sent[0].body())

        broker.stream_bytes_max = size * 20
        await watch.step(1)
        assert not watch.warning
        broker.stream_bytes_max = size * 12
        await watch.step(1)
        assert "83% full" in watch.warning
        assert REGISTRY.get_sample_value("shiftwork_event_stream_bytes") == size * 10
        assert REGISTRY.get_sample_value("shiftwork_event_stream_limit_bytes") == size * 12

        waiting = "shiftwork_consumer_waiting", {"consumer": "quota"}
        assert REGISTRY.get_sample_value(*waiting) == 10

        consumer = quota.consumer()
        await consumer.ack(await consumer.fetch(10, 1.0))
        await watch.step(1)
        assert not watch.warning
        assert REGISTRY.get_sample_value(*waiting) == 0

        # A durable that is removed is no longer behind.
        await submit.publish([Envelope("last", "submit", START, event)])
        await watch.step(1)
        assert REGISTRY.get_sample_value(*waiting) == 1
        broker._durables.clear()
        await watch.step(1)
        assert REGISTRY.get_sample_value(*waiting) is None

    virtually(main())
