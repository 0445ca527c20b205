"""The monitor's settings."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from libs.service.settings import BaseServiceSettings


class MonitorSettings(BaseServiceSettings):
    """Environment variables ``SHIFTWORK_MONITOR_…``."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_prefix="SHIFTWORK_MONITOR_")

    # No task waits for what is recorded here: many events, one transaction.
    batch_gap_seconds: float = Field(default=0.1, ge=0, le=1)

    # How long after its end the monitor remembers a task.
    ended_tasks_keep_seconds: float = Field(default=7 * 86_400.0, gt=0)
