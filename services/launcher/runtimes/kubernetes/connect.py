"""The launcher's client of a cluster: counted, with the errors of ``port.py``."""

from __future__ import annotations

from pathlib import Path

from libs.kube.client import CallLimits, KubeClient
from libs.kube.transport import Transport
from libs.service.metrics import Metrics
from services.launcher.runtimes.port import RuntimeUnavailableError

# Beside the calls there are four watches, and commands in containers.
EXTRA_CONNECTIONS = 16

declare = Metrics("launcher in Kubernetes")
CALLS = declare.counter(
    "shiftwork_launcher_kube_calls_total", "Calls to the API server", ["verb", "answer"]
)


def connect_client(
    kubeconfig: Path | None, limits: CallLimits, transport: Transport | None = None
) -> KubeClient:
    """A client of the cluster in the kubeconfig, else of the cluster that this process runs in."""
    return KubeClient(
        transport or Transport(kubeconfig, limits.parallel_max + EXTRA_CONNECTIONS),
        limits,
        unavailable=RuntimeUnavailableError,
        count=lambda verb, answer: CALLS.labels(verb, answer).inc(),
    )
