"""quota's settings."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from libs.service.settings import BaseServiceSettings


class QuotaSettings(BaseServiceSettings):
    """Environment variables ``SHIFTWORK_QUOTA_…``."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_prefix="SHIFTWORK_QUOTA_")

    # Nothing waits for what is noted here: many events, one transaction.
    batch_gap_seconds: float = Field(default=0.1, ge=0, le=1)

    # How often rows whose time is over are removed, at the latest.
    expire_tick_seconds: float = Field(default=60.0, gt=0, le=3600)
    # So long after its end a run leaves the ledger. Its use was published long before.
    ledger_keep_seconds: float = Field(default=400 * 86_400.0, gt=0)
    # How many entries of the ledger, newest first, a reemit publishes again.
    reemit_runs_max: int = Field(default=20_000, ge=0)
