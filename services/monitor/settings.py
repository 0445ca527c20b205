"""The monitor's settings."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_settings import SettingsConfigDict

from libs.service.settings import BaseServiceSettings
from services.monitor.domain.receivers import Network
from services.monitor.domain.retries import Pauses


def _networks(text: str) -> str:
    """ValueError, naming it, for one that is no network."""
    for each in text.split():
        ip_network(each)
    return text


class MonitorSettings(BaseServiceSettings):
    """Environment variables ``SHIFTWORK_MONITOR_…``."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_prefix="SHIFTWORK_MONITOR_")

    # No task waits for what is recorded here: many events, one transaction.
    batch_gap_seconds: float = Field(default=0.1, ge=0, le=1)

    # How long after its end the monitor remembers a task.
    ended_tasks_keep_seconds: float = Field(default=7 * 86_400.0, gt=0)
    # A task that has been in the queue for so long is notified as waiting.
    waiting_seconds: float = Field(default=3_600.0, gt=0)
    # How often the tasks that wait are compared with that.
    waiting_tick_seconds: float = Field(default=30.0, gt=0)

    notifications_per_owner_max: int = Field(default=20, ge=0, le=1000)
    notifications_max: int = Field(default=1000, ge=0, le=10_000)
    # Messages of one notification that wait; beyond, new ones are given up at once.
    waiting_messages_max: int = Field(default=500, ge=1, le=10_000)
    # How long messages are kept that were delivered or given up.
    messages_keep_seconds: float = Field(default=7 * 86_400.0, gt=0)
    # Networks inside the site that webhooks may reach, also without encryption, separated by
    # spaces, such as "10.1.0.0/16". All others: https to addresses of the internet.
    webhook_networks: Annotated[str, AfterValidator(_networks)] = ""
    # A file with the authority (PEM) that vouches for receivers; without: the machine's own.
    webhook_ca_file: Path | None = None
    webhook_seconds_max: float = Field(default=10.0, gt=0, le=120)
    # Requests at once, each to another receiver.
    webhooks_at_once: int = Field(default=32, ge=1, le=256)
    delivery_tick_seconds: float = Field(default=5.0, gt=0, le=60)
    # Tries of one message, and the pauses between them: each is three times the one before.
    delivery_tries_max: int = Field(default=12, ge=1, le=100)
    delivery_pause_seconds: float = Field(default=5.0, gt=0)
    delivery_pause_seconds_max: float = Field(default=8 * 3600.0, gt=0)
    # A receiver that has taken nothing for so long gets nothing more until its owner sets it again.
    delivery_failing_seconds_max: float = Field(default=3 * 86_400.0, gt=0)

    def networks(self) -> tuple[Network, ...]:
        """The networks inside the site that webhooks may reach."""
        return tuple(ip_network(each) for each in self.webhook_networks.split())

    def pauses(self) -> Pauses:
        """When deliveries are tried again, and given up."""
        return Pauses(
            first_seconds=self.delivery_pause_seconds,
            most_seconds=self.delivery_pause_seconds_max,
            tries_max=self.delivery_tries_max,
            failing_seconds_max=self.delivery_failing_seconds_max,
        )
