"""The cluster as the demo sees it: ``kubectl`` as a child process, a watch of pods, a tunnel.

Used by ``platform.py``. Every child that is started here is ended here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from libs.kube.client import CallLimits, KubeClient, namespaced
from libs.kube.transport import Transport

_FORWARDING = re.compile(rb"Forwarding from 127\.0\.0\.1:(\d+)")
RESTART_SECONDS = 0.3
WATCH_SECONDS_MAX = 3600.0


class KubeError(Exception):
    """kubectl failed."""


@dataclass(frozen=True)
class Sighting:
    """One pod at one time, as the watch reported it."""

    at: float
    name: str
    node: str
    phase: str
    # Its deletion was asked for; its object may still be there.
    leaving: bool
    # Its object is no longer there.
    gone: bool

    @property
    def holds(self) -> bool:
        """Whether its containers may hold devices of the node."""
        return not self.gone and self.phase in ("Pending", "Running")


@dataclass(frozen=True)
class Kube:
    """One cluster, by its kubeconfig."""

    kubectl: str
    config: str

    async def run(self, *arguments: str) -> str:
        """What kubectl prints; KubeError with its words if it fails."""
        process = await self._start(*arguments, errors=PIPE)
        out, errors = await process.communicate()
        if process.returncode != 0:
            raise KubeError(f"kubectl {' '.join(arguments)}: {errors.decode().strip()}")
        return out.decode()

    async def apply(self, wanted: object) -> None:
        """Have an object be as it is given."""
        process = await self._start("apply", "-f", "-", errors=PIPE, given=PIPE)
        _, errors = await process.communicate(json.dumps(wanted).encode())
        if process.returncode != 0:
            raise KubeError(f"kubectl apply: {errors.decode().strip()}")

    async def pods_of(self, namespace: str, selector: str) -> list[str]:
        """Names of the pods with these labels."""
        found = await self.run("get", "pods", "-n", namespace, "-l", selector, "-o", "name")
        return [line.removeprefix("pod/") for line in found.split()]

    async def kill_pods(self, namespace: str, selector: str) -> list[str]:
        """End pods without any grace, as a machine that fails does; their names."""
        names = await self.pods_of(namespace, selector)
        await self.run(
            *("delete", "pods", "-n", namespace, "-l", selector),
            *("--grace-period=0", "--force", "--wait=false"),
        )
        return names

    async def watch_pods(self, namespace: str) -> AsyncGenerator[Sighting]:
        """Every change of a pod in the namespace, from now on."""
        client = KubeClient(Transport(Path(self.config), 1), CallLimits())
        try:
            path = namespaced(namespace, "pods")
            async with client.watch(path, WATCH_SECONDS_MAX, watch="true") as events:
                async for event in events:
                    yield _sighting(event)
        finally:
            await client.close()

    @contextlib.asynccontextmanager
    async def tunnel(self, namespace: str, service: str, port: int) -> AsyncGenerator[str]:
        """An address on this machine that leads to a service, while the context is open.

        A tunnel leads to one pod; when that pod dies a new one is dug to another, at the same
        address.
        """
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        keeping = asyncio.ensure_future(self._keep_tunnel(namespace, service, port, ready))
        try:
            await asyncio.wait((keeping, ready), return_when=asyncio.FIRST_COMPLETED)
            if keeping.done():
                keeping.result()
            yield ready.result()
        finally:
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping

    async def _keep_tunnel(
        self, namespace: str, service: str, port: int, ready: asyncio.Future[str]
    ) -> None:
        local = "0"
        while True:
            process = await self._start(
                *("port-forward", "-n", namespace, f"service/{service}", f"{local}:{port}")
            )
            assert process.stdout is not None
            try:
                async for line in process.stdout:
                    found = _FORWARDING.match(line)
                    if found and not ready.done():
                        local = found.group(1).decode()
                        ready.set_result(f"http://127.0.0.1:{local}")
            finally:
                await _end(process)
            await asyncio.sleep(RESTART_SECONDS)

    async def _start(self, *arguments: str, errors: int = DEVNULL, given: int = DEVNULL) -> Process:
        return await asyncio.create_subprocess_exec(
            *(self.kubectl, "--kubeconfig", self.config, *arguments),
            stdin=given,
            stdout=PIPE,
            stderr=errors,
        )


def _sighting(event: dict[str, Any]) -> Sighting:
    pod = event["object"]
    return Sighting(
        at=time.monotonic(),
        name=pod["metadata"]["name"],
        node=pod["spec"].get("nodeName", ""),
        phase=pod.get("status", {}).get("phase", ""),
        leaving="deletionTimestamp" in pod["metadata"],
        gone=event["type"] == "DELETED",
    )


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.terminate()
    await process.wait()
