"""log-collector's settings: sources, archive and limits."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic_settings import SettingsConfigDict

from libs.service.settings import BaseServiceSettings
from services.log_collector.domain import Answers, Bounds, Pace
from services.log_collector.error_lines import ErrorSearch
from services.log_collector.plain import PlainOptions
from services.log_collector.sealing import Options
from services.log_collector.sources.kubernetes_options import KubernetesOptions


class Parts(KubernetesOptions, Bounds, Pace, Answers, ErrorSearch, Options, PlainOptions):
    """The settings that the source, the collector and the answers to readers take."""

    model_config = ConfigDict(frozen=True)


class LogCollectorSettings(Parts, BaseServiceSettings):
    """Environment variables ``SHIFTWORK_LOG_COLLECTOR_…``."""

    model_config = SettingsConfigDict(
        frozen=True, extra="ignore", env_prefix="SHIFTWORK_LOG_COLLECTOR_"
    )

    # Nothing waits for what is noted here: many events, one transaction.
    batch_gap_seconds: float = Field(default=0.02, ge=0, le=1)

    # Where ranks' output comes from: files of the process runtime, or pods.
    source: Literal["files", "kubernetes"] = "files"
    # Where the supervisors of the nodes put the ranks' output (files only), and where it is kept.
    runs_dir: Path | None = None
    logs_dir: Path

    # Output of ended runs is dropped after so long.
    keep_days: float = Field(default=90.0, gt=0)
    drop_runs_max: int = Field(default=100, ge=1)
    # What the ended runs of one user may take where output is kept, compressed: beyond it those
    # that ended first are dropped.
    bytes_per_user_max: int = Field(default=1024**4, ge=1024)

    @model_validator(mode="after")
    def _source_is_complete(self) -> Self:
        if self.source == "files" and self.runs_dir is None:
            raise self.conflict(
                "{source} is files, and {runs_dir} is not set",
                "set {runs_dir} to the nodes' folder of the launcher",
            )
        if self.source == "kubernetes" and self.agent_token_file is None:
            raise self.conflict(
                "{source} is kubernetes, and {agent_token_file} is not set",
                "set {agent_token_file} to the file with the log agents' token",
            )
        if self.bucket_url and not (self.bucket_key_id_file and self.bucket_secret_file):
            raise self.conflict(
                "{bucket_url} needs {bucket_key_id_file} and {bucket_secret_file}: files with the"
                " access key's id and secret",
                "set them, or unset {bucket_url}",
            )
        return self
