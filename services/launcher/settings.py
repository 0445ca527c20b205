"""What the launcher is told."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from libs.service.settings import BaseServiceSettings
from services.launcher.nodes_file import check_labels, check_taints


class LauncherSettings(BaseServiceSettings):
    """Environment variables ``SHIFTWORK_LAUNCHER_…``."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_prefix="SHIFTWORK_LAUNCHER_")

    runtime: Literal["process"] = "process"
    # Holds the supervisors' records, ranks' output and the runs' own folders.
    data_folder: Path = Path("/var/lib/shiftwork/launcher")
    # Virtual nodes local-0 … with so many slots each; 0 nodes: this machine with its own GPUs.
    virtual_nodes: int = Field(default=0, ge=0, le=4096)
    slots_per_node: int = Field(default=2, ge=0, le=1024)
    node_group: str = Field(default="default", pattern=r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
    # Of every node of this machine; ``nodes_file`` says what differs between them, in YAML or JSON:
    # local-0: {group: dev, labels: {zone: a, leaf: a1}, taints: [reserved=vision]}
    node_labels: dict[str, str] = Field(default_factory=dict)
    node_taints: tuple[str, ...] = ()
    nodes_file: Path | None = None

    # What tasks are told. The gateway as they reach it:
    task_url: str = "http://127.0.0.1:8642"
    run_token_key_file: Path
    # Run by root: the user that tasks run as (empty: root itself, as doctor warns).
    task_user: str = ""
    # Begins with this interpreter's folder, so that `python train.py` finds the SDK.
    task_path: str = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    task_lang: str = "C.UTF-8"
    master_addr: str = "127.0.0.1"
    # Below the ports that the kernel hands out by itself.
    master_port_first: int = Field(default=20_000, ge=1024, le=65_535)
    master_port_last: int = Field(default=27_999, ge=1024, le=65_535)

    # How long a gang may take to exit after its acknowledgement.
    exit_grace_seconds: float = Field(default=10.0, ge=0, le=3600)
    # A silent node is not ready after the lease; what ran there is made sure of after the fence.
    lease_seconds: float = Field(default=5.0, gt=0, le=3600)
    fence_seconds: float = Field(default=15.0, gt=0, le=86_400)
    look_tick_seconds: float = Field(default=1.0, gt=0, le=60)
    reconcile_tick_seconds: float = Field(default=5.0, gt=0, le=60)
    actions_parallel_max: int = Field(default=64, ge=1, le=1024)
    # A failed action is tried again after this, doubling up to the most.
    retry_first_seconds: float = Field(default=0.2, gt=0, le=60)
    retry_most_seconds: float = Field(default=5.0, gt=0, le=300)
    supervisor_call_seconds: float = Field(default=3.0, gt=0, le=60)
    supervisor_idle_seconds: float = Field(default=30.0, gt=0, le=86_400)
    # The output files of a forgotten run are kept so long (the log-collector has its own copies).
    output_keep_seconds: float = Field(default=14 * 86_400.0, gt=0)
    # Ended runs and their checkpoints are remembered so long after the task's last run.
    past_keep_seconds: float = Field(default=30 * 86_400.0, gt=0)
    prune_tick_seconds: float = Field(default=600.0, gt=0)
    prune_rows_max: int = Field(default=500, ge=1, le=10_000)
    reemit_runs_max: int = Field(default=20_000, ge=0)

    @model_validator(mode="after")
    def _ranges(self) -> LauncherSettings:
        if self.master_port_first > self.master_port_last:
            raise ValueError(
                f"master_port_first {self.master_port_first} is above master_port_last"
                f" {self.master_port_last}; give a range"
            )
        if self.fence_seconds < self.lease_seconds:
            raise ValueError("fence_seconds is below lease_seconds; a fence comes after the lease")
        check_labels(self.node_labels)
        check_taints(self.node_taints)
        return self

    def run_token_key(self) -> bytes:
        """The key of the run tokens, read now."""
        return self.run_token_key_file.read_text().strip().encode()
