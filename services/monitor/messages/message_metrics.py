"""Metrics of messages: what became of them, and what waits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from libs.contracts.messages import NotificationChannel
from libs.service.loop import Loop
from libs.service.metrics import Metrics
from libs.store.port import Store
from services.monitor import store
from services.monitor.domain.retries import Result

declare = Metrics("monitor")
SENT = declare.counter(
    "shiftwork_monitor_messages_sent_total", "Messages that their receiver took", ["channel"]
)
FAILED = declare.counter(
    "shiftwork_monitor_message_tries_failed_total",
    "Times that a webhook or a mail was not delivered",
    ["channel", "why"],
)
GIVEN_UP = declare.counter(
    "shiftwork_monitor_messages_given_up_total",
    "Messages that are not tried any more; they can be replayed",
    ["channel", "why"],
)
WAITING = declare.gauge(
    "shiftwork_monitor_messages_waiting",
    "Messages that wait to be sent, up to 1,000",
    ["channel"],
)
OLDEST = declare.gauge(
    "shiftwork_monitor_messages_oldest_age_seconds",
    "Age of the oldest message that waits; 0: there is none",
    ["channel"],
)
OVERDUE = declare.gauge(
    "shiftwork_monitor_messages_overdue_seconds",
    "For how long the message that is due first has been due; 0: none is due",
    ["channel"],
)
COUNTED_MAX = 1000
CHANNELS = {NotificationChannel.WEBHOOK: "webhook", NotificationChannel.MAIL: "mail"}


class GivenUp(StrEnum):
    """Why a message is not tried any more."""

    # The receiver did not take it, for as often or as long as the settings say.
    FAILED = "failed"
    # The notification was paused, or as many messages as may wait were waiting.
    NO_ROOM = "paused or full"
    # Its owner may not be sent it, or has removed the notification.
    NOT_WANTED = "not permitted or removed"
    # The stored message cannot be read.
    UNREADABLE = "unreadable"


# Series that are there before their first event: an increase from nothing would not be seen.
for _channel in CHANNELS.values():
    SENT.labels(_channel)
    for _result in Result:
        if _result not in (Result.DELIVERED, Result.FORBIDDEN):
            FAILED.labels(_channel, _result)
    for _why in GivenUp:
        GIVEN_UP.labels(_channel, _why)


def note(channel: NotificationChannel, result: Result, messages: int) -> None:
    """Count a try of so many messages in one webhook or mail."""
    if result is Result.DELIVERED:
        SENT.labels(CHANNELS[channel]).inc(messages)
    elif result is not Result.FORBIDDEN:
        FAILED.labels(CHANNELS[channel], result).inc()


def note_given_up(channel: NotificationChannel, why: GivenUp, messages: int = 1) -> None:
    """Count messages that are given up."""
    GIVEN_UP.labels(CHANNELS[channel], why).inc(messages)


@dataclass(frozen=True, slots=True)
class WaitingMessages:
    """The gauges of what waits, on the leader."""

    store: Store
    tick_seconds: float

    def loop(self) -> Loop:
        """The loop of the leader."""
        return Loop("messages", self.step, tick_seconds=self.tick_seconds, wake_on_commit=False)

    async def step(self, _epoch: int) -> float | None:
        """Set them."""
        async with self.store.transaction() as tx:
            for channel, word in CHANNELS.items():
                oldest = await store.oldest_waiting(tx, channel)
                age = (tx.now - oldest.happened_at).total_seconds() if oldest else 0.0
                OLDEST.labels(word).set(max(0.0, age))
                due = await store.due(tx, channel, 1)
                late = (tx.now - due[0].due_at).total_seconds() if due else 0.0
                OVERDUE.labels(word).set(max(0.0, late))
                WAITING.labels(word).set(await store.count_waiting(tx, channel, COUNTED_MAX))
        return None

    def clear(self) -> None:
        """Another process shows them from now on."""
        for gauge in (WAITING, OLDEST, OVERDUE):
            gauge.clear()
