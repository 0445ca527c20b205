"""The monitor's settings."""

from __future__ import annotations

import itertools
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from libs.service.settings import BaseServiceSettings
from services.monitor.series.resolution import Resolution, check_steps


class MonitorSettings(BaseServiceSettings):
    """Environment variables ``SHIFTWORK_MONITOR_…``."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_prefix="SHIFTWORK_MONITOR_")

    # No task waits for what is recorded here: many events, one transaction.
    batch_gap_seconds: float = Field(default=0.1, ge=0, le=1)

    # How long after its end the monitor remembers a task.
    ended_tasks_keep_seconds: float = Field(default=7 * 86_400.0, gt=0)

    # The distances of points in series, each a multiple of the one before, and how long points of
    # each are kept. The first is that of the launcher's samples.
    series_step_seconds: tuple[int, ...] = (10, 60, 600)
    series_keep_seconds: tuple[float, ...] = (6 * 3600.0, 2 * 86_400.0, 14 * 86_400.0)
    # New points are written so often: so much is missing after the monitor was killed.
    series_write_seconds: float = Field(default=60.0, gt=0, le=600)
    series_rows_at_once: int = Field(default=200, ge=1, le=5000)
    # In memory there is one block for each node, and one for each run on each node.
    series_blocks_max: int = Field(default=100_000, ge=1)
    # An answer has so many points of one series, and so many in all of its series; so many stored
    # blocks are read for it.
    series_points_max: int = Field(default=500, ge=10, le=5000)
    series_reply_points_max: int = Field(default=40_000, ge=1000, le=50_000)
    series_blocks_read_max: int = Field(default=2000, ge=100)
    # A sample counts as the present state of a node or task for so long.
    newest_seconds: float = Field(default=60.0, gt=0, le=3600)

    def resolutions(self) -> tuple[Resolution, ...]:
        """The steps of series, the finest first."""
        pairs = zip(self.series_step_seconds, self.series_keep_seconds, strict=True)
        return tuple(Resolution(step, keep) for step, keep in pairs)

    @model_validator(mode="after")
    def _check_series(self) -> Self:
        steps, keeps = self.series_step_seconds, self.series_keep_seconds
        if not steps or len(steps) != len(keeps) or min(steps) < 1:
            raise ValueError("series_step_seconds and series_keep_seconds: give as many of both")
        check_steps(steps)
        if any(later < before for before, later in itertools.pairwise(keeps)):
            raise ValueError("series_keep_seconds: keep a coarser step as long as a finer one")
        return self
