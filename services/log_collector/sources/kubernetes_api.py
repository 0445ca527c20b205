"""The API server as log-collector needs it: the log agents' addresses, and pods' log streams.

Rights: in the agents' namespace ``pods`` list, in the tasks' namespace ``pods/log`` get. Used by
``kubernetes.py`` and its siblings.
"""

from __future__ import annotations

import contextlib
import re
from http.client import responses
from pathlib import Path

import aiohttp

from libs.kube.agents import AgentPod, list_agents
from libs.kube.client import (
    HTTP_OK,
    ApiError,
    CallLimits,
    KubeClient,
    namespaced,
    reason_and_message,
)
from libs.kube.transport import BROKEN, ConfigurationError, Transport, failed
from libs.pods.kubernetes_names import MAIN

# What the kubelet answers, with status 200 and as if it were output, when there is no log file. The
# whole answer has to match: a program may print the beginning of it.
NO_LOG = re.compile(
    rb"unable to retrieve container logs for [a-z0-9.-]+://[0-9a-f]+\n?"
    rb'|failed to try resolving symlinks in path "[^"\n]+": [^\n]+\n?'
)
ERROR_BYTES_MAX = 2048
# 400: the container has not started; 404: no such pod.
ABSENT = frozenset({400, 404})


class ClusterError(Exception):
    """The API server does not answer, or refuses; the text has the reason."""


class AbsentError(Exception):
    """There is no log: no such pod, or its container has not started."""


async def connect(path: Path | None) -> Transport:
    """The way to the cluster. Raises ``ClusterError`` if no readable configuration exists."""
    # Following streams hold connections; how many there are is bounded where they are opened.
    made = Transport(path, connections_max=0)
    try:
        await made.connect()
    except ConfigurationError as error:
        where = path or "this pod and KUBECONFIG"
        raise ClusterError(
            f"no cluster is described by {where}: {error}. Run in a pod with a service account, or"
            " set SHIFTWORK_LOG_COLLECTOR_KUBE_CONFIG to a kubeconfig file"
        ) from error
    return made


class KubeApi:
    """One connection to the API server."""

    def __init__(self, transport: Transport, *, timeout_seconds: float) -> None:
        # A failed call is not retried here; the next refresh repeats it.
        limits = CallLimits(seconds=timeout_seconds, tries_max=1)
        self._client = KubeClient(transport, limits, unavailable=ClusterError)
        self._seconds = timeout_seconds

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def agents(self, namespace: str, label: str) -> list[AgentPod]:
        """The running log agents. ClusterError."""
        try:
            return await list_agents(self._client, namespace, label)
        except (ApiError, ClusterError) as error:
            why = _refused(error.status, error.message) if isinstance(error, ApiError) else error
            what = f"pods labelled {label} in namespace {namespace}"
            raise ClusterError(f"{what} cannot be listed: {why}") from error

    async def log(self, namespace: str, pod: str, *, follow: bool) -> aiohttp.ClientResponse:
        """A pod's log from its beginning, open for reading; close it after use.

        With ``follow`` this returns when there is a first byte. AbsentError, ClusterError.
        """
        problem = f"the log of pod {pod} cannot be read: "
        try:
            response = await self._client.open(
                f"{namespaced(namespace, 'pods', pod)}/log",
                read_seconds=None if follow else self._seconds,
                container=MAIN,
                follow=str(follow).lower(),
            )
            if response.status == HTTP_OK:
                return response
            with contextlib.closing(response):
                body = await response.content.read(ERROR_BYTES_MAX)
        except ClusterError as error:
            raise ClusterError(f"{problem}{error}") from error
        except BROKEN as error:
            raise ClusterError(f"{problem}{failed(error)}") from error
        found = _refused(response.status, reason_and_message(body)[1])
        if response.status in ABSENT:
            raise AbsentError(found)
        raise ClusterError(problem + found)


def _refused(status: int, message: str) -> str:
    return f"{status} {responses.get(status, '')}: {message}"
