"""The API server as log-collector needs it: the log agents' addresses, and pods' log streams.

Rights: in the agents' namespace ``pods`` list, in the tasks' namespace ``pods/log`` get. One of the
platform's doors to ``kubernetes_asyncio``; used by ``kubernetes.py`` and its siblings.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import aiohttp
from kubernetes_asyncio import client, config
from kubernetes_asyncio.config import ConfigException

from services.log_collector.sources.kubernetes_options import CONTAINER

# What the kubelet answers, with status 200 and as if it were output, when there is no log file. The
# whole answer has to match: a program may print the beginning of it.
NO_LOG = re.compile(
    rb"unable to retrieve container logs for [a-z0-9.-]+://[0-9a-f]+\n?"
    rb'|failed to try resolving symlinks in path "[^"\n]+": [^\n]+\n?'
)
ERROR_BYTES_MAX = 2048
CONNECT_SECONDS = 5.0
LISTED_MAX = 500
HTTP_OK = 200
# 400: the container has not started; 404: no such pod.
ABSENT = frozenset({400, 404})
BROKEN = (aiohttp.ClientError, TimeoutError, OSError)


class ClusterError(Exception):
    """The API server does not answer, or refuses; the text has the reason."""


class AbsentError(Exception):
    """There is no log: no such pod, or its container has not started."""


@dataclass(frozen=True, slots=True)
class AgentPod:
    """A log agent: where it runs and where it listens."""

    node_id: str
    host: str
    port: int
    ready: bool


async def configuration_of(path: Path | None) -> client.Configuration:
    """How the cluster is reached. Raises ``ClusterError`` if no readable configuration exists."""
    made = client.Configuration()
    try:
        if path is not None:
            await config.load_kube_config(config_file=str(path), client_configuration=made)
            return made
        try:
            config.load_incluster_config(client_configuration=made)
        except ConfigException:
            await config.load_kube_config(client_configuration=made)
    except (ConfigException, OSError, ValueError, TypeError) as error:
        where = path or "this pod and KUBECONFIG"
        raise ClusterError(
            f"no cluster is described by {where}: {error}. Run in a pod with a service account, or"
            " set SHIFTWORK_LOG_COLLECTOR_KUBE_CONFIG to a kubeconfig file"
        ) from error
    return made


class KubeApi:
    """One connection to the API server."""

    def __init__(self, made: client.Configuration, *, timeout_seconds: float) -> None:
        # Following streams hold connections; how many there are is bounded where they are opened.
        made.connection_pool_maxsize = 0
        self._api = client.ApiClient(made)
        self._core = client.CoreV1Api(self._api)
        self._seconds = timeout_seconds

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()

    async def agents(self, namespace: str, label: str) -> list[AgentPod]:
        """The running log agents. ClusterError."""
        found: list[AgentPod] = []
        page = ""
        while True:
            answer = await self._list(namespace, label, page)
            for item in cast("list[dict[str, Any]]", answer.get("items") or []):
                agent = _agent(item)
                if agent is not None:
                    found.append(agent)
            about: dict[str, Any] = answer.get("metadata") or {}
            page = str(about.get("continue") or "")
            if not page:
                return found

    async def _list(self, namespace: str, label: str, page: str) -> dict[str, Any]:
        what = f"pods labelled {label} in namespace {namespace}"
        try:
            async with asyncio.timeout(self._seconds):
                answer = await self._core.list_namespaced_pod(  # pyright: ignore[reportGeneralTypeIssues] - typed as if loaded
                    namespace,
                    label_selector=label,
                    limit=LISTED_MAX,
                    _continue=page,
                    _preload_content=False,
                )
                response = cast("aiohttp.ClientResponse", answer)
                async with response:
                    if response.status != HTTP_OK:
                        raise ClusterError(f"{what} cannot be listed: {await _refusal(response)}")
                    return cast("dict[str, Any]", json.loads(await response.read()))
        except BROKEN as error:
            raise ClusterError(f"{what} cannot be listed: {_text(error)}") from error
        except ValueError as error:
            raise ClusterError(f"{what}: the answer is no JSON: {error}") from error

    async def log(self, namespace: str, pod: str, *, follow: bool) -> aiohttp.ClientResponse:
        """A pod's log from its beginning, open for reading; close it after use.

        With ``follow`` this returns when there is a first byte. AbsentError, ClusterError.
        """
        timeout = aiohttp.ClientTimeout(
            sock_connect=CONNECT_SECONDS, sock_read=None if follow else self._seconds
        )
        try:
            answer = await self._core.read_namespaced_pod_log(  # pyright: ignore[reportGeneralTypeIssues] - typed as if loaded
                pod,
                namespace,
                container=CONTAINER,
                follow=follow,
                _preload_content=False,
                _request_timeout=timeout,
            )
        except BROKEN as error:
            raise ClusterError(f"the log of pod {pod} cannot be read: {_text(error)}") from error
        response = cast("aiohttp.ClientResponse", answer)
        if response.status == HTTP_OK:
            return response
        try:
            found = await _refusal(response)
        except BROKEN as error:
            found = _text(error)
        finally:
            response.close()
        if response.status in ABSENT:
            raise AbsentError(found)
        raise ClusterError(f"the log of pod {pod} cannot be read: {found}")


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
            if port.get("name") == "agent":
                return int(port.get("containerPort") or 0)
    return 0


async def _refusal(response: aiohttp.ClientResponse) -> str:
    """The API server's message about a refused request."""
    body = await response.content.read(ERROR_BYTES_MAX)
    try:
        message = str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        message = body.decode(errors="replace").strip()
    return f"{response.status} {response.reason}: {message}"


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
