"""The process runtime: ranks as processes of this machine, under one supervisor per node.

Used by ``loop.py`` through ``port.Runtime``. Only the supervisors, which outlive the launcher, know
what runs. This side connects, starts a supervisor where none answers, and sends requests.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import structlog

from libs.contracts.ids import RunId
from libs.contracts.messages import Node, NodeSampled
from libs.contracts.runtimes import LIMITS_LABEL, LIMITS_NOT_ENFORCED, PROCESS
from services.launcher.domain.model import (
    Fault,
    Listing,
    ObservedNode,
    ObservedRank,
    ObservedRun,
    RankState,
)
from services.launcher.domain.rank_faults import describe
from services.launcher.runtimes.exec_port import ExecOrder
from services.launcher.runtimes.node_client import Machine, NodeClient, NodePlan
from services.launcher.runtimes.node_exec import NodeExec, open_node_exec, shell_of
from services.launcher.runtimes.port import (
    LaunchRefusedError,
    RankOrder,
    RunOrder,
    RuntimeDeniedError,
    RuntimeUnavailableError,
    StartFailedError,
)
from services.launcher.runtimes.process_sampler import ProcessSampler
from services.launcher.runtimes.sample_port import HeldGpus
from services.launcher.task_users import TaskUser, own_environment

# At most this many runs without a readable id are logged, each once.
UNREADABLE_MAX = 100

_log = structlog.stdlib.get_logger(__name__)


class ProcessRuntime:
    """``port.Runtime`` on this machine."""

    name = PROCESS
    shares_ports = True
    probes = False

    def __init__(self, machine: Machine, nodes: Iterable[NodePlan]) -> None:
        self._machine = machine
        self._clients = {plan.node.id: NodeClient(plan, machine, retired=False) for plan in nodes}
        self._sampler = ProcessSampler(
            machine.folder,
            {node_id: client.plan.devices for node_id, client in self._clients.items()},
            socket.gethostname(),
        )
        self._hint: Callable[[], None] = lambda: None
        self._unreadable: set[tuple[str, str]] = set()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What this machine cannot do for its ranks, for ``doctor``."""
        found = [text for client in self._clients.values() for text in client.warnings]
        return tuple(dict.fromkeys(found))

    async def lead(self, epoch: int) -> None:
        """See ``port.Runtime``. Nodes that are no longer configured but remember runs are kept as
        retired ones until those are over."""
        for folder in sorted((self._machine.folder / "nodes").glob("*")):
            if folder.name not in self._clients and (folder / "journal").is_file():
                plan = NodePlan(Node(id=folder.name, ready=True))
                self._clients[folder.name] = NodeClient(plan, self._machine, retired=True)
        for client in self._clients.values():
            client.epoch, client.hint = epoch, self._hint
            client.hang_up()

    async def run(self) -> None:
        """See ``port.Runtime``. The supervisors need no background work."""
        await asyncio.Event().wait()

    async def launch(self, order: RunOrder) -> None:
        """See ``port.Runtime``."""
        if order.image_roles:
            text = f"role {order.image_roles[0]} has args alone"
            raise LaunchRefusedError(Fault.NO_COMMAND, describe(Fault.NO_COMMAND, text))
        user = await self._user_of(order.owner)
        by_node: dict[str, list[dict[str, Any]]] = {}
        for rank in order.ranks:
            by_node.setdefault(rank.node_id, []).append(self._rank(rank, user))
        await _all(
            self._client(node_id).launch(str(order.run_id), ranks)
            for node_id, ranks in by_node.items()
        )

    async def signal(self, run_id: RunId, node_ids: frozenset[str], signal: int) -> None:
        """See ``port.Runtime``."""
        await self._call_nodes(node_ids, {"op": "signal", "run": str(run_id), "signal": signal})

    async def end(
        self,
        run_id: RunId,
        node_ids: frozenset[str],
        *,
        grace_seconds: float,
        ranks: frozenset[int] | None = None,
        asks: bool = False,
    ) -> None:
        """See ``port.Runtime``. Whole groups are killed at once unless ``asks``. A supervisor of
        an earlier version asks nobody, and ends all of the run's ranks there."""
        order: dict[str, Any] = {"op": "end", "run": str(run_id)}
        if ranks is not None:
            order["ranks"] = sorted(ranks)
        if asks:
            order["grace"] = grace_seconds
        await self._call_nodes(node_ids, order)

    async def forget(self, run_id: RunId, node_ids: frozenset[str], *, keep: bool) -> None:
        """See ``port.Runtime``. Output is a file, which is kept in any case."""
        del keep
        await self._call_nodes(node_ids, {"op": "forget", "run": str(run_id)})

    @asynccontextmanager
    async def open_exec(self, order: ExecOrder) -> AsyncGenerator[NodeExec]:
        """See ``exec_port.ExecRuntime``."""
        client, user = self._client(order.place.node_id), await self._user_of(order.owner)
        shell = await asyncio.to_thread(shell_of, os.getuid() if user is None else user.uid)
        seconds = self._machine.call_seconds
        async with open_node_exec(client.folder, client.epoch, order, shell, seconds) as process:
            yield process

    async def fence(self, node_id: str) -> None:
        """See ``port.Runtime``."""
        await self._client(node_id).fence()

    async def list(self) -> Listing:
        """See ``port.Runtime``."""
        clients = list(self._clients.values())
        answers = await asyncio.gather(
            *(client.list() for client in clients), return_exceptions=True
        )
        nodes: dict[str, ObservedNode] = {}
        ranks: dict[RunId, dict[int, ObservedRank]] = {}
        where: dict[RunId, set[str]] = {}
        for client, answer in zip(clients, answers, strict=True):
            node_id = client.plan.node.id
            if isinstance(answer, RuntimeUnavailableError):
                nodes[node_id] = self._node(client, ready=False)
                continue
            if isinstance(answer, BaseException):
                raise answer
            if client.retired and not answer:
                # Its last run is over and forgotten.
                await client.close()
                del self._clients[node_id]
                continue
            nodes[node_id] = self._node(client, ready=True)
            for run, seen in answer.items():
                run_id = self._run_id(run, node_id)
                if run_id is None:
                    continue
                where.setdefault(run_id, set()).add(node_id)
                found = ranks.setdefault(run_id, {})
                found |= {int(rank): _observed(int(rank), node_id, seen[rank]) for rank in seen}
        runs = {
            run_id: ObservedRun(run_id, found, frozenset(where[run_id]))
            for run_id, found in ranks.items()
        }
        return Listing(nodes, runs)

    async def sample(self, now: datetime, held: HeldGpus) -> Sequence[NodeSampled]:
        """See ``sample_port.SampledRuntime``. It uses the listing that the scan made anyway."""
        clients = [client for client in self._clients.values() if not client.retired]
        answers = await asyncio.gather(
            *(client.list() for client in clients), return_exceptions=True
        )
        nodes = {
            client.plan.node.id: answer
            for client, answer in zip(clients, answers, strict=True)
            if not isinstance(answer, BaseException)
        }
        return await asyncio.to_thread(self._sampler.sample, nodes, held, now)

    def _run_id(self, text: str, node_id: str) -> RunId | None:
        """Parse a run id from a supervisor. Logs an error and returns None if it is none: no row
        can own such a run, and the others continue."""
        try:
            return RunId.parse(text)
        except ValueError as problem:
            if (node_id, text) not in self._unreadable and len(self._unreadable) < UNREADABLE_MAX:
                self._unreadable.add((node_id, text))
                _log.error("run set apart", node=node_id, problem=str(problem))
            return None

    def on_change(self, hint: Callable[[], None]) -> None:
        """See ``port.Runtime``."""
        self._hint = hint
        for client in self._clients.values():
            client.hint = hint

    async def close(self) -> None:
        """See ``port.Runtime``. Supervisors with nothing to run leave."""
        self._sampler.close()
        await asyncio.gather(*(client.close() for client in self._clients.values()))

    async def _call_nodes(self, node_ids: frozenset[str], request: Mapping[str, Any]) -> None:
        await _all(self._client(node_id).call(request) for node_id in sorted(node_ids))

    def _client(self, node_id: str) -> NodeClient:
        client = self._clients.get(node_id)
        if client is None:
            raise RuntimeUnavailableError(f"node {node_id} is not one of this runtime")
        return client

    def _node(self, client: NodeClient, *, ready: bool) -> ObservedNode:
        plan = client.plan.node
        labels = {**plan.labels, **({LIMITS_LABEL: LIMITS_NOT_ENFORCED} if client.warnings else {})}
        node = plan.model_copy(update={"ready": ready, "labels": labels})
        return ObservedNode(node, problem=client.problem, retired=client.retired)

    async def _user_of(self, owner: str) -> TaskUser | None:
        users = self._machine.users
        if users is None:
            return None
        found = users.known(owner)
        if found is not None:
            return found
        try:
            # An owner's first task: its number is written to the disk.
            return await asyncio.to_thread(users.of, owner)
        except (OSError, ValueError) as problem:
            raise RuntimeUnavailableError(f"no user for the tasks of {owner}: {problem}") from None

    def _rank(self, rank: RankOrder, user: TaskUser | None) -> dict[str, Any]:
        devices = self._client(rank.node_id).plan.devices
        visible = ",".join(devices[gpu] for gpu in rank.gpus) if devices else ""
        return {
            "rank": rank.rank,
            "argv": rank.argv,
            "env": {**(user.environment if user else own_environment()), **rank.env}
            | {"CUDA_VISIBLE_DEVICES": visible},
            "user": (user.uid, user.gid, user.groups) if user else None,
            "cwd": rank.cwd,
            "context": rank.context,
            "files": rank.files,
            "paths": rank.paths,
            "cpus": rank.cpus,
            "memory_bytes": rank.memory_bytes,
            "start": rank.start,
            "notice": rank.notice,
            "secrets": rank.secrets,
        }


async def _all(calls: Iterable[Any]) -> None:
    """Make every call, side by side; then raise the first failure, a denial before others."""
    outcomes: Sequence[object] = await asyncio.gather(*calls, return_exceptions=True)
    unable = [outcome for outcome in outcomes if isinstance(outcome, StartFailedError)]
    if len(unable) > 1:
        nodes = frozenset[str]().union(*(failure.node_ids for failure in unable))
        outcomes = [*outcomes, StartFailedError(nodes, str(unable[0]))]
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    # The failure that names the most nodes is the most useful.
    failures.sort(key=_worth)
    if failures:
        raise failures[0]


def _worth(failure: BaseException) -> tuple[bool, int]:
    nodes = len(failure.node_ids) if isinstance(failure, StartFailedError) else 0
    return not isinstance(failure, RuntimeDeniedError), -nodes


def _observed(rank: int, node_id: str, seen: Mapping[str, Any]) -> ObservedRank:
    lost, exited_at = seen.get("lost", False), seen.get("exited_at")
    over = RankState.LOST if lost else RankState.EXITED
    return ObservedRank(
        rank=rank,
        node_id=node_id,
        state=RankState.RUNNING if exited_at is None else over,
        code=seen.get("code"),
        signal=seen.get("signal"),
        started_at=datetime.fromtimestamp(seen["started_at"], UTC),
        exited_at=None if exited_at is None else datetime.fromtimestamp(exited_at, UTC),
        note=seen.get("note", ""),
        # A supervisor of an earlier version restarts nothing.
        start=seen.get("start", 0),
        # A supervisor that is newer than this may know more of them.
        fault=Fault.__members__.get(seen.get("fault", "")),
    )
