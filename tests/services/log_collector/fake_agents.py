"""The API server's two answers that log-collector needs, over real HTTP, from a node's real files.

The log endpoint does what the kubelet does: the current log file from its beginning, entry by
entry, followed across rotations until the container has ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from libs.service.http import stop_accepting
from services.log_collector.agent.http_app import Token
from services.log_collector.agent.main import run
from services.log_collector.agent.settings import AgentSettings
from services.log_collector.sources.kubernetes import KubernetesSource
from services.log_collector.sources.kubernetes_options import KubernetesOptions
from tests.services.log_collector.fake_kubelet import NAMESPACE, Container, Kubelet

TOKEN, AGENTS_NAMESPACE, API_TOKEN = "agents-token", "shiftwork", "api-token"


class Agent:
    """The log agent of one node, in this process; it can be restarted."""

    def __init__(self, kubelet: Kubelet, **changes: Any) -> None:
        self.token_file = kubelet.log_dir / "token"
        self.token_file.write_text(TOKEN + "\n")
        fields: dict[str, Any] = {
            "pods_dir": kubelet.pods_dir,
            "spool_dir": kubelet.log_dir / "shiftwork",
            "host": "127.0.0.1",
            "port": 0,
            "token_file": self.token_file,
            "poll_seconds": 0.02,
            "settle_seconds": 0.05,
        }
        self.settings = AgentSettings(**(fields | changes))
        self.port = 0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        bound = asyncio.Event()

        def on_bound(port: int) -> None:
            self.port = port
            bound.set()

        settings = self.settings.model_copy(update={"port": self.port})
        token = Token(settings.token_file)
        self._task = asyncio.ensure_future(run(settings, token, on_bound=on_bound))
        waiting = asyncio.ensure_future(bound.wait())
        await asyncio.wait((self._task, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None


@dataclass
class ApiServer:
    """Nodes with their kubelets, and the agents that run as pods."""

    kubelets: dict[str, Kubelet] = field(default_factory=dict[str, Kubelet])
    agents: dict[str, Agent] = field(default_factory=dict[str, Agent])
    # Answers every request with this status, if set.
    refuses: int = 0
    # Cuts each log after so many bytes, once for each entry here.
    cuts: list[int] = field(default_factory=list[int])
    requests: list[str] = field(default_factory=list[str])
    port: int = 0

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/api/v1/namespaces/{namespace}/pods", self._pods)
        app.router.add_get("/api/v1/namespaces/{namespace}/pods/{pod}/log", self._log)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01)
        await self._runner.setup()
        self._listening = socket.create_server(("127.0.0.1", self.port))
        await web.SockSite(self._runner, self._listening).start()
        self.port = self._listening.getsockname()[1]

    async def stop(self) -> None:
        await stop_accepting(self._listening)
        await self._runner.cleanup()

    def _check(self, request: web.Request) -> None:
        self.requests.append(request.path_qs)
        if self.refuses:
            raise _refusal(self.refuses)
        if request.headers.get("authorization") != f"Bearer {API_TOKEN}":
            raise _refusal(401)

    async def _pods(self, request: web.Request) -> web.Response:
        self._check(request)
        assert request.match_info["namespace"] == AGENTS_NAMESPACE
        assert request.query["labelSelector"] == "app.kubernetes.io/component=log-agent"
        items = [
            {
                "metadata": {"name": f"log-agent-{node}"},
                "spec": {
                    "nodeName": node,
                    "containers": [{"ports": [{"name": "agent", "containerPort": agent.port}]}],
                },
                "status": {
                    "phase": "Running",
                    "podIP": "127.0.0.1",
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }
            for node, agent in self.agents.items()
            if agent.port
        ]
        return web.json_response({"metadata": {}, "items": items})

    async def _log(self, request: web.Request) -> web.StreamResponse:
        self._check(request)
        assert request.match_info["namespace"] == NAMESPACE
        assert request.query["container"] == "main"
        pod = request.match_info["pod"]
        found = [each.containers.get(pod) for each in self.kubelets.values()]
        container = next((each for each in found if each is not None), None)
        if container is None or not container.folder.exists():
            raise _refusal(404)
        follow = request.query.get("follow", "").lower() == "true"
        response = web.StreamResponse(headers={"content-type": "text/plain"})
        left = self.cuts.pop(0) if self.cuts else 1 << 62
        async for text in _entries(container, follow=follow):
            if not response.prepared:
                await response.prepare(request)
            await response.write(text[:left])
            left -= len(text)
            if left <= 0:
                assert request.transport is not None
                request.transport.close()
                return response
        if not response.prepared:
            await response.prepare(request)
        await response.write_eof()
        return response


def _refusal(status: int) -> web.HTTPException:
    kinds: dict[int, type[web.HTTPException]] = {
        401: web.HTTPUnauthorized,
        403: web.HTTPForbidden,
        404: web.HTTPNotFound,
        500: web.HTTPInternalServerError,
    }
    text = json.dumps({"kind": "Status", "message": f"said by the API server ({status})"})
    return kinds[status](text=text, content_type="application/json")


async def _entries(container: Container, *, follow: bool) -> AsyncIterator[bytes]:
    """What the kubelet sends of a container's log."""
    file = container.path.open("rb")
    try:
        while True:
            ended = container.ended
            line = file.readline()
            if line.endswith(b"\n"):
                _, _, tag, text = line.split(b" ", 3)
                yield text[:-1] if tag == b"P" else text
                continue
            file.seek(-len(line), 1)
            if follow and container.path.stat().st_ino != os.fstat(file.fileno()).st_ino:
                file.close()
                file = container.path.open("rb")
            elif ended or not follow:
                return
            else:
                await asyncio.sleep(0.005)
    finally:
        file.close()


def kubeconfig(folder: Path, port: int) -> Path:
    path = folder / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "it",
                "clusters": [{"name": "it", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
                "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
                "users": [{"name": "it", "user": {"token": API_TOKEN}}],
            }
        )
    )
    return path


def cluster_of(folder: Path, port: int, **changes: Any) -> KubernetesOptions:
    token = folder / "collectors-token"
    token.write_text(TOKEN)
    fields: dict[str, Any] = {
        "kube_config": kubeconfig(folder, port),
        "kube_namespace": NAMESPACE,
        "agent_namespace": AGENTS_NAMESPACE,
        "agent_label": "app.kubernetes.io/component=log-agent",
        "agent_port": 1,
        "agent_token_file": token,
        "agent_timeout_seconds": 3.0,
        "agent_requests_max": 8,
        "agent_requests_per_second": 1000.0,
        "agent_refresh_seconds": 0.2,
        "fallback_seconds": 0.0,
        "stream_count_max": 8,
        "stream_turn_seconds": 0.1,
        "stream_retry_seconds": 0.05,
    }
    return KubernetesOptions(**(fields | changes))


@asynccontextmanager
async def running(source: KubernetesSource) -> AsyncIterator[KubernetesSource]:
    """A source with its part in the background."""
    (background,) = source.tasks()
    task = asyncio.ensure_future(background())
    try:
        yield source
    finally:
        task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError), ended
