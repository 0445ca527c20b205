"""Finds the node agents, and reads their answers: what launcher and log-collector share.

Rights: ``pods`` list in the agents' namespace. A node is the one that the API server names for the
agent's pod, whatever the agent itself says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import aiohttp

from libs.kube.client import KubeClient, namespaced

# The name of a port that goes before the one in the settings.
PORT_NAME = "agent"


class LongAnswerError(ValueError):
    """An answer is longer than it may be."""


@dataclass(frozen=True, slots=True)
class AgentPod:
    """A node agent: where it runs and where it listens."""

    node_id: str
    host: str
    # 0: as in the settings.
    port: int
    ready: bool

    def url(self, port: int) -> str:
        """Where it answers; ``port``: unless its pod names another one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port or port}"


async def list_agents(client: KubeClient, namespace: str, label: str) -> list[AgentPod]:
    """The running agents. Fails as ``client`` does."""
    found: list[AgentPod | None] = []
    async for items, _ in client.pages(namespaced(namespace, "pods"), labelSelector=label):
        found += map(_agent, items)
    return [agent for agent in found if agent is not None]


def by_node(agents: Sequence[AgentPod]) -> dict[str, AgentPod]:
    """The agent of each node. While one is replaced there may be two: the ready one answers."""
    return {agent.node_id: agent for agent in sorted(agents, key=lambda agent: agent.ready)}


def headers(token_file: Path) -> Mapping[str, str]:
    """Of a request to an agent. OSError if the token cannot be read."""
    token = token_file.read_text().strip()
    return {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}


async def read_answer(answer: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """The whole body. Raises ``LongAnswerError`` instead of holding more than it may have."""
    parts: list[bytes] = []
    size = 0
    while data := await answer.content.readany():
        size += len(data)
        if size > bytes_max:
            raise LongAnswerError(f"it is longer than {bytes_max} bytes")
        parts.append(data)
    return b"".join(parts)


def _agent(item: Mapping[str, Any]) -> AgentPod | None:
    status: dict[str, Any] = item.get("status") or {}
    spec: dict[str, Any] = item.get("spec") or {}
    host, node_id = str(status.get("podIP") or ""), str(spec.get("nodeName") or "")
    gone = (item.get("metadata") or {}).get("deletionTimestamp") is not None
    if not host or not node_id or gone or status.get("phase") != "Running":
        return None
    conditions: Sequence[dict[str, Any]] = status.get("conditions") or ()
    ready = any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)
    return AgentPod(node_id, host, _port(spec), ready)


def _port(spec: Mapping[str, Any]) -> int:
    """The port named ``agent``, where a container has one; else 0."""
    for container in cast("list[dict[str, Any]]", spec.get("containers") or []):
        for port in cast("list[dict[str, Any]]", container.get("ports") or []):
            if port.get("name") == PORT_NAME:
                return int(port.get("containerPort") or 0)
    return 0
