"""A namespace, nodes and runtimes of one test on the shared control plane.

The API server, the scheduler and the controllers are real; kwok plays the kubelets, and what it
cannot play (commands in containers, statuses of rare ends) is written into the pods' status here,
as a kubelet would.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from libs.contracts.ids import RunId
from libs.contracts.messages import PodRequest
from libs.kube.transport import Query, Transport
from services.launcher.domain.model import Listing, RankState
from services.launcher.runtimes.kubernetes.runtime import KubernetesRuntime, build_runtime
from services.launcher.runtimes.port import RunOrder
from services.launcher.settings import LauncherSettings
from tests.kit.launcher_builders import KEY, a_spec, an_order, run_id
from tools.cluster import simulated
from tools.cluster.api import STRATEGIC, Api
from tools.cluster.control_plane import ControlPlane

_NUMBERS = itertools.count(1)
RUNS, HANGS = "simulated/runs", "simulated/hangs"


def now() -> datetime:
    return datetime.now(UTC)


@dataclass
class Crash:
    """Raises at one call, before or after it took effect."""

    left: int
    after: bool = False
    calls: list[str] = field(default_factory=list)


class CrashError(Exception):
    """The launcher's process is gone."""


class PlayedTransport:
    """The network, in which the launcher can die at any call; and commands in containers, which
    kwok does not run, as a kubelet would carry them out."""

    def __init__(self, inner: Transport, api: Api) -> None:
        self._inner, self._api = inner, api
        self.crash: Crash | None = None

    async def send(self, method: str, path: str, **more: Any) -> Any:
        crash = self.crash
        if crash is None or not is_order(method, path, more.get("query") or {}):
            return await self._inner.send(method, path, **more)
        crash.calls.append(f"{method} {path}")
        crash.left -= 1
        if crash.left < 0 or (crash.left == 0 and not crash.after):
            raise CrashError(f"{method} {path}")
        answer = await self._inner.send(method, path, **more)
        if crash.left == 0:
            raise CrashError(f"{method} {path}")
        return answer

    async def open(self, path: str, **more: Any) -> Any:
        return await self._inner.open(path, **more)

    @asynccontextmanager
    async def socket(
        self, path: str, *, query: Query, protocol: str, seconds: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        assert protocol == "v4.channel.k8s.io"
        assert seconds > 0
        words = [value for key, value in query if key == "command"]
        signal = re.fullmatch(r"kill -(\d+) 1", words[-1])
        assert signal is not None, words
        pod = path.removesuffix("/exec")
        play_end(self._api, pod, code=128 + int(signal[1]), signal=int(signal[1]))

        async def messages() -> AsyncIterator[bytes]:
            yield b"\x03" + json.dumps({"status": "Success"}).encode()

        yield messages()

    async def renew(self) -> None:
        await self._inner.renew()

    async def close(self) -> None:
        await self._inner.close()


def is_order(method: str, path: str, query: Query) -> bool:
    """Whether a call is part of an order, and not of a scan."""
    if "selfsubjectaccessreviews" in path:
        return False
    of_run = "shiftwork.dev/task=" in str(dict(query).get("labelSelector", ""))
    return method != "GET" or of_run or path.endswith("/shiftwork-launcher")


def play_status(api: Api, pod_path: str, status: Mapping[str, Any]) -> None:
    """Write a pod's status as a kubelet would."""
    api.patch(f"{pod_path}/status", {"status": status}, STRATEGIC)


def play_end(api: Api, pod_path: str, *, code: int, signal: int = 0, reason: str = "") -> None:
    """The pod's main container ended."""
    timestamp = now().isoformat(timespec="seconds").replace("+00:00", "Z")
    ended = {
        "exitCode": code,
        "signal": signal,
        "reason": reason or ("Completed" if code == 0 else "Error"),
        "startedAt": timestamp,
        "finishedAt": timestamp,
    }
    play_status(
        api,
        pod_path,
        {
            "phase": "Succeeded" if code == 0 else "Failed",
            "containerStatuses": [container({"terminated": ended})],
        },
    )


def container(state: Mapping[str, Any], image: str = "played") -> dict[str, Any]:
    """The main container's status."""
    return {
        "name": "main",
        "image": image,
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": state,
    }


@dataclass
class ClusterHarness:
    """One test's part of the control plane."""

    plane: ControlPlane
    folder: Path
    node_names: tuple[str, ...] = ("local-0", "local-1")
    gpus: int = 8
    settings: Mapping[str, Any] = field(default_factory=dict)
    handles: list[KubernetesRuntime] = field(default_factory=list)
    transports: list[PlayedTransport] = field(default_factory=list)
    running: list[asyncio.Future[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        number = next(_NUMBERS)
        self.namespace = f"test-{self.folder.name.lower().replace('_', '-')[-30:]}-{number}"
        self.mark = f"w{number}"
        self.api = self.plane.api
        self.plane.ensure_namespace(
            self.namespace, {"pod-security.kubernetes.io/enforce": "restricted"}
        )
        simulated.add_nodes(
            self.api, self.node_names, gpus=self.gpus, labels={"shiftwork.dev/test": self.mark}
        )
        (self.folder / "key").write_text(KEY.decode())

    # Runtimes

    def launcher_settings(self, **more: Any) -> LauncherSettings:
        return LauncherSettings(
            **{
                "database_url": "-",
                "nats_url": "-",
                "run_token_key_file": self.folder / "key",
                "runtime": "kubernetes",
                "kube_config": self.plane.kubeconfig,
                "kube_namespace": self.namespace,
                "kube_node_selector": f"shiftwork.dev/test={self.mark}",
                "kube_pods_keep_seconds": 0,
                "kube_sweep_tick_seconds": 0.2,
                "patience_seconds": 2,
                "kube_first_look_seconds": 10,
                **self.settings,
                **more,
            }
        )

    def handle(self, **more: Any) -> KubernetesRuntime:
        """Another launcher's handle on the same cluster."""
        settings = self.launcher_settings(**more)
        transport = PlayedTransport(Transport(settings.kube_config, 64), self.api)
        made = build_runtime(settings, now=now, transport=transport)
        self.transports.append(transport)
        self.handles.append(made)
        self.running.append(asyncio.ensure_future(made.run()))
        return made

    async def stop(self, number: int = -1) -> None:
        """A launcher's process is gone."""
        running = self.running[number]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await self.handles[number].close()

    async def close(self) -> None:
        for number in range(len(self.handles)):
            await self.stop(number)
        await asyncio.to_thread(self._clear)

    def _clear(self) -> None:
        for name in self.node_names:
            self.api.delete(f"/api/v1/nodes/{name}")
        for pod in self.api.items(self.path("pods")):
            self.api.delete(self.path("pods", pod["metadata"]["name"]), grace_seconds=0)
        self.api.delete(f"/api/v1/namespaces/{self.namespace}")

    # The cluster

    def path(self, kind: str, name: str = "") -> str:
        path = f"/api/v1/namespaces/{self.namespace}/{kind}"
        return f"{path}/{name}" if name else path

    def names(self, kind: str) -> list[str]:
        """What there is of a kind, but what Kubernetes and the leader have there."""
        found = [thing["metadata"]["name"] for thing in self.api.items(self.path(kind))]
        return sorted(set(found) - {"kube-root-ca.crt", "shiftwork-launcher"})

    def left(self) -> dict[str, list[str]]:
        """Everything of runs that is there."""
        kinds = ("pods", "configmaps", "secrets", "services")
        return {kind: names for kind in kinds if (names := self.names(kind))}

    def pods_created(self) -> list[str]:
        """Every pod that was ever created here, by the API server's own record."""
        found = list[str]()
        for line in self.plane.audit_log.read_text().splitlines():
            entry = json.loads(line)
            about: Mapping[str, str] = entry.get("objectRef") or {}
            if (
                entry.get("verb") == "create"
                and about.get("resource") == "pods"
                and about.get("namespace") == self.namespace
                and not about.get("subresource")
                and entry.get("responseStatus", {}).get("code") == 201
            ):
                found.append(about.get("name", ""))
        return found

    def pod(self, name: str) -> dict[str, Any]:
        return self.api.get(self.path("pods", name))

    def silence(self, node_id: str) -> None:
        simulated.silence(self.api, node_id)

    def revive(self, node_id: str) -> None:
        simulated.revive(self.api, node_id)

    # Orders

    def order(
        self,
        run: RunId | None = None,
        ranks: int = 1,
        *,
        image: str = RUNS,
        gpus: int = 1,
        nodes: Iterable[str] | None = None,
    ) -> RunOrder:
        """A gang of so many ranks, round the nodes; ``image`` selects how it behaves."""
        run = run or run_id()
        order = an_order(run, ["train"], ranks=ranks)
        spec = a_spec(ranks, gpus_per_node=gpus, pod=PodRequest(image=image))
        names = list(nodes or self.node_names)
        placed = tuple(
            replace(
                rank,
                node_id=names[rank.rank % len(names)],
                role="worker",
                gpus=tuple(
                    range((rank.rank // len(names)) * gpus, (rank.rank // len(names)) * gpus + gpus)
                ),
                env={"SHIFTWORK_RUN_TOKEN": "srt_test"},
            )
            for rank in order.ranks
        )
        return replace(order, ranks=placed, owner="ada", spec=spec)


# A cluster that lost its API server a few times recovers slowly: its scheduler and kwok double
# their delay each time, up to half a minute.
RECOVERS_SECONDS = 120.0


async def until(
    runtime: KubernetesRuntime,
    true: Callable[[Listing], bool],
    *,
    seconds: float = RECOVERS_SECONDS,
) -> Listing:
    """Poll the runtime until the condition holds."""
    async with asyncio.timeout(seconds):
        while not true(listing := await runtime.list()):  # noqa: ASYNC110 - hints may be missed
            await asyncio.sleep(0.02)
        return listing


async def eventually(true: Callable[[], Any], *, seconds: float = RECOVERS_SECONDS) -> Any:
    """Poll the cluster itself until the condition holds."""
    async with asyncio.timeout(seconds):
        while not (found := await asyncio.to_thread(true)):  # noqa: ASYNC110 - there are no hints
            await asyncio.sleep(0.05)
        return found


def all_in(listing: Listing, state: RankState, run: RunId | None = None, ranks: int = 1) -> bool:
    """Whether the whole gang is in this state."""
    observed = listing.runs.get(run or run_id())
    return (
        observed is not None
        and len(observed.ranks) == ranks
        and all(rank.state is state for rank in observed.ranks.values())
    )


Step = Callable[[], Awaitable[None]]
