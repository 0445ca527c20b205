"""Submit's settings: defaults and limits of specs, and its own bounds."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from libs.service.settings import BaseServiceSettings
from services.submit.domain.facts import Rules
from services.submit.domain.spec_fields import SETTING


class SubmitSettings(Rules, BaseServiceSettings):
    """Environment variables ``SHIFTWORK_SUBMIT_…``; among them the rules for specs."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_prefix=SETTING)

    # Nothing waits for what is noted here: many events, one transaction.
    batch_gap_seconds: float = Field(default=0.05, ge=0, le=1)

    # What pods may be, in YAML or JSON (docs/pods.md); the launcher reads the same file.
    pod_policy_file: Path | None = None

    # So long after its end a task is forgotten, and its client key may make another one. The
    # scheduler keeps the last states of ended tasks longer.
    tasks_keep_seconds: float = Field(default=365 * 86_400.0, gt=0)

    # How many tasks of one user may wait, run or be paused.
    live_tasks_per_user_max: int = Field(default=5_000, ge=1)
    # How many tasks, newest first, a reemit says again.
    reemit_tasks_max: int = Field(default=20_000, ge=1)

    @model_validator(mode="after")
    def _deadlines_in_order(self) -> SubmitSettings:
        low, high = self.ack_deadline_seconds_min, self.ack_deadline_seconds_max
        if not low <= self.default_ack_deadline_seconds <= high:
            raise self.conflict(
                "{default_ack_deadline_seconds} {given:g} is not between"
                " {ack_deadline_seconds_min} {low:g} and {ack_deadline_seconds_max} {high:g}",
                "choose a {default_ack_deadline_seconds} between them",
                given=self.default_ack_deadline_seconds,
                low=low,
                high=high,
            )
        return self
