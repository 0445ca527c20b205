"""log-collector's settings: sources, archive and limits."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from libs.service.settings import BaseServiceSettings
from services.log_collector.domain import Answers, Bounds, IndexGrain, Pace
from services.log_collector.sources.kubernetes_options import KubernetesOptions


class LogCollectorSettings(BaseServiceSettings):
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

    # The cluster of the pods. Without a path: the cluster that this runs in, else KUBECONFIG.
    kube_config: Path | None = None
    kube_namespace: str = "shiftwork-tasks"
    # Where the log agents of the nodes are, how they are found, and what is shown to them.
    agent_namespace: str = "shiftwork"
    agent_label: str = "app.kubernetes.io/component=log-agent"
    agent_port: int = Field(default=8650, ge=1, le=65535)
    agent_token_file: Path | None = None
    agent_timeout_seconds: float = Field(default=5.0, gt=0, le=60)
    # Parallel requests to nodes, and requests per second: more nodes mean fewer requests to each.
    agent_requests_max: int = Field(default=32, ge=1, le=1024)
    agent_requests_per_second: float = Field(default=400.0, gt=0)
    agent_refresh_seconds: float = Field(default=10.0, gt=0, le=300)
    # Without an answer for so long, a node's pods are read through the API server instead: so many
    # streams at a time, each for at least so long.
    fallback_seconds: float = Field(default=15.0, ge=0)
    stream_count_max: int = Field(default=64, ge=1, le=1024)
    stream_turn_seconds: float = Field(default=10.0, ge=0)
    stream_retry_seconds: float = Field(default=2.0, gt=0)

    # How much is read in one pass: for one output, and in all.
    read_bytes_max: int = Field(default=1_048_576, ge=4096)
    pass_bytes_max: int = Field(default=16_777_216, ge=4096)
    # The limit of one rank's kept output; its last line reports the limit.
    output_bytes_max: int = Field(default=16 * 1024**3, ge=1024)
    # What is kept is on disk and in the database after at most so long or so many bytes.
    record_seconds: float = Field(default=5.0, gt=0, le=60)
    record_bytes: int = Field(default=67_108_864, ge=4096)
    # A rank that has ended and cannot be read is given up after so long.
    unreadable_seconds_max: float = Field(default=300.0, ge=0)
    # A disk that refuses is tried again after so long.
    retry_seconds: float = Field(default=5.0, gt=0, le=300)

    # Live readers: the size of one piece, and of the part of a burst that they get.
    piece_bytes_max: int = Field(default=65_536, ge=1024, le=65_536)
    live_bytes_max: int = Field(default=262_144, ge=1024)

    # The intervals of reading the sources, in seconds.
    active_seconds: float = Field(default=0.05, gt=0, le=10)
    idle_seconds_min: float = Field(default=0.1, gt=0, le=60)
    idle_seconds_max: float = Field(default=1.0, gt=0, le=60)
    idle_seconds_for_each: float = Field(default=0.001, ge=0)
    linger_seconds: float = Field(default=2.0, ge=0)

    # The index of times: one entry covers at most so many bytes, and so long once it has the least
    # of bytes, at most the longer time. `logs --since` is as fine as that.
    index_seconds: float = Field(default=10.0, gt=0)
    index_bytes: int = Field(default=16_777_216, ge=4096)
    index_bytes_min: int = Field(default=32_768, ge=0)
    index_seconds_max: float = Field(default=120.0, gt=0)

    # Answers: bytes of one (below the bus's payload limit), and what is searched for last lines.
    reply_bytes_max: int = Field(default=524_288, ge=1024, le=524_288)
    # Time stamps of one answer: it ends where the next one would begin.
    reply_timestamps_max: int = Field(default=4096, ge=1, le=4096)
    tail_lines_max: int = Field(default=100_000, ge=1)
    tail_bytes_max: int = Field(default=16_777_216, ge=1024)
    list_outputs_max: int = Field(default=4096, ge=1, le=4096)
    list_runs_max: int = Field(default=1000, ge=1)

    # Output of ended runs is dropped after so long.
    keep_days: float = Field(default=90.0, gt=0)
    drop_runs_max: int = Field(default=100, ge=1)

    @model_validator(mode="after")
    def _source_is_complete(self) -> Self:
        if self.source == "files" and self.runs_dir is None:
            raise ValueError("source files needs runs_dir: the nodes' folder of the launcher")
        if self.source == "kubernetes" and self.agent_token_file is None:
            raise ValueError("source kubernetes needs agent_token_file: the log agents' token")
        return self

    def cluster(self) -> KubernetesOptions:
        """How output is read from pods."""
        assert self.agent_token_file is not None
        return KubernetesOptions(
            kube_config=self.kube_config,
            namespace=self.kube_namespace,
            agent_namespace=self.agent_namespace,
            agent_label=self.agent_label,
            agent_port=self.agent_port,
            agent_token_file=self.agent_token_file,
            timeout_seconds=self.agent_timeout_seconds,
            requests_max=self.agent_requests_max,
            requests_per_second=self.agent_requests_per_second,
            refresh_seconds=self.agent_refresh_seconds,
            fallback_seconds=self.fallback_seconds,
            streams_max=self.stream_count_max,
            stream_turn_seconds=self.stream_turn_seconds,
            stream_retry_seconds=self.stream_retry_seconds,
        )

    def pace(self) -> Pace:
        """The intervals of reading the sources."""
        return Pace(
            active=self.active_seconds,
            idle_min=self.idle_seconds_min,
            idle_max=self.idle_seconds_max,
            idle_for_each=self.idle_seconds_for_each,
            linger=self.linger_seconds,
        )

    def grain(self) -> IndexGrain:
        """How fine the index is."""
        return IndexGrain(
            seconds=self.index_seconds,
            bytes=self.index_bytes,
            bytes_min=self.index_bytes_min,
            seconds_max=max(self.index_seconds, self.index_seconds_max),
        )

    def bounds(self) -> Bounds:
        """The collector's limits."""
        return Bounds(
            read_bytes_max=self.read_bytes_max,
            pass_bytes_max=self.pass_bytes_max,
            output_bytes_max=self.output_bytes_max,
            record_seconds=self.record_seconds,
            record_bytes=self.record_bytes,
            unreadable_seconds_max=self.unreadable_seconds_max,
            piece_bytes_max=self.piece_bytes_max,
            live_bytes_max=self.live_bytes_max,
            retry_seconds=self.retry_seconds,
        )

    def answers(self) -> Answers:
        """The bounds of answers to readers."""
        return Answers(
            reply_bytes_max=self.reply_bytes_max,
            tail_lines_max=self.tail_lines_max,
            tail_bytes_max=self.tail_bytes_max,
            list_outputs_max=self.list_outputs_max,
            list_runs_max=self.list_runs_max,
            timestamps_max=self.reply_timestamps_max,
        )
