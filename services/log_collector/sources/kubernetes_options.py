"""The options of the Kubernetes source. Settings of the service; needs no client."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field

from libs.contracts.ids import RunId, TaskId
from libs.pods import kubernetes_names
from libs.pods.kubernetes_names import AGENT_LABEL, AGENT_NAMESPACE, AGENT_PORT, TASKS_NAMESPACE
from services.log_collector.domain import OutputKey


class KubernetesOptions(BaseModel):
    """The namespaces and addresses of pods, their logs and the log agents."""

    # The cluster of the pods. Without a path: the cluster that this runs in, else KUBECONFIG.
    kube_config: Path | None = None
    kube_namespace: str = TASKS_NAMESPACE
    # Where the log agents of the nodes are, how they are found, and what is shown to them.
    agent_namespace: str = AGENT_NAMESPACE
    agent_label: str = AGENT_LABEL
    agent_port: int = Field(default=AGENT_PORT, ge=1, le=65535)
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


def pod_name(key: OutputKey) -> str:
    """The pod of a rank."""
    return kubernetes_names.pod_name(RunId(TaskId(key.task_id), key.attempt), key.rank)
