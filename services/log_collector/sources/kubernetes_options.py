"""The options of the Kubernetes source. Made by ``settings.py``; needs no client."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services.log_collector.domain import OutputKey

# The container of a pod that runs the task.
CONTAINER = "main"


@dataclass(frozen=True, slots=True)
class KubernetesOptions:
    """Where pods, their logs and the log agents are; see ``settings.py`` for each."""

    kube_config: Path | None
    namespace: str
    agent_namespace: str
    agent_label: str
    agent_port: int
    agent_token_file: Path
    timeout_seconds: float
    requests_max: int
    requests_per_second: float
    refresh_seconds: float
    fallback_seconds: float
    streams_max: int
    stream_turn_seconds: float
    stream_retry_seconds: float


def pod_name(key: OutputKey) -> str:
    """The pod of a rank: the launcher's naming."""
    return f"{key.task_id}-{key.attempt}-{key.rank}"
