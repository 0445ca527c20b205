"""The settings of a node's log agent: paths and limits."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from libs.pods.kubernetes_names import AGENT_PORT, MAIN, TASKS_NAMESPACE
from services.log_collector.agent.spool import Limits


class AgentSettings(BaseSettings):
    """Environment variables ``SHIFTWORK_LOG_AGENT_…``."""

    model_config = SettingsConfigDict(
        frozen=True, extra="ignore", env_prefix="SHIFTWORK_LOG_AGENT_"
    )

    # The node's folder of container logs, and the agent's own beside it: hard links join them, so
    # both are in one file system and one mount.
    pods_dir: Path = Path("/var/log/pods")
    spool_dir: Path = Path("/var/log/shiftwork")
    # Whose logs: pods of this namespace, and the container of each that is the task's.
    namespace: str = Field(default=TASKS_NAMESPACE, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    container: str = Field(default=MAIN, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")

    # Every address of the pod: log-collector comes from other nodes.
    host: str = "0.0.0.0"  # noqa: S104 - see above
    port: int = Field(default=AGENT_PORT, ge=0, le=65535)
    # What log-collector shows as `Authorization: Bearer …`.
    token_file: Path

    # Whether the node and pods of runs on it are measured when the launcher asks; and the host's
    # files for it, mounted here. What is not there is not measured.
    sample: bool = True
    cgroup_dir: Path = Path("/host/cgroup")
    net_dev_file: Path = Path("/host/net-dev")
    pod_resources_socket: Path = Path("/host/pod-resources/kubelet.sock")

    # The interval of scans for new log files: the kubelet rotates no faster than every ten seconds.
    poll_seconds: float = Field(default=0.25, gt=0, le=5)
    # A rotated file is left for the next one when it has been quiet for so long.
    settle_seconds: float = Field(default=1.0, ge=0, le=60)
    # The spool may hold so many bytes that the kubelet has removed, and outputs of pods that are
    # gone for so long. Beyond that the oldest is dropped, read or not.
    spool_bytes_max: int = Field(default=20 * 1024**3, ge=65_536)
    keep_seconds: float = Field(default=3 * 86_400.0, gt=0)
    # At most so many days of history of what is too old go in an hour (0: no bound), because the
    # node's clock may be wrong; less than elsewhere, because it is kept for days only.
    prune_days_per_hour: float = Field(default=0.25, ge=0, le=10_000)
    prune_seconds: float = Field(default=10.0, gt=0, le=3600)

    log_format: Literal["json", "console"] = "json"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def limits(self) -> Limits:
        """The spool's limits."""
        return Limits(
            bytes_max=self.spool_bytes_max,
            keep_seconds=self.keep_seconds,
            settle_seconds=self.settle_seconds,
            days_per_hour=self.prune_days_per_hour,
        )
