"""Ports that roles declare: where they are, in the environment, in the pods and in RunStarted."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from libs.contracts.messages import (
    Contract,
    Endpoint,
    Placement,
    Port,
    Reemit,
    Role,
    RunAssigned,
    RunStarted,
)
from services.launcher.domain.master_ports import PortRange
from services.launcher.domain.model import PortLease, Run, RunState
from services.launcher.hosts import Network, PortKey, pod_hosts, port_keys, run_port
from services.launcher.loop import is_free
from services.launcher.run_orders import build_order
from services.launcher.runtimes.fake_cluster import Script
from services.launcher.runtimes.node_client import NodePlan
from services.launcher.runtimes.process import ProcessRuntime
from tests.kit.clock import START, at
from tests.kit.launcher_builders import a_kill, a_machine, a_node, a_run, a_spec
from tests.kit.virtual_time import virtually
from tests.services.launcher.launcher_harness import (
    SITE,
    LauncherHarness,
    limits,
    running_cluster,
)

PORTS = PortRange(20_000, 27_999)
BOARD = Port(name="board", port=6006)
RPC = Port(name="rpc-in")
ENDLESS = Script(steps=100_000, step_seconds=0.5)
# Tests run side by side; each worker has ports of its own.
FIRST_PORT = 29_600 + 200 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])


def an_assignment(
    task: str = "task", workers: int = 1, command: tuple[str, ...] = ("x",)
) -> RunAssigned:
    """A chief with two ports and workers with one."""
    roles = (
        Role(name="chief", replicas=1, command=command, ports=(BOARD, RPC)),
        Role(name="worker", replicas=workers, command=command, ports=(RPC,)),
    )
    ranks = [("chief", 0), *(("worker", index) for index in range(workers))]
    return RunAssigned(
        task_id=task,
        attempt=1,
        owner="ada",
        spec=a_spec(len(ranks), contract=Contract.NONE).model_copy(update={"roles": roles}),
        placements=tuple(
            Placement(rank=rank, role=role, role_index=index, node_id=f"local-{rank}", gpus=(0,))
            for rank, (role, index) in enumerate(ranks)
        ),
        start_deadline_at=at(60),
        assigned_at=START,
    )


def run_of(assigned: RunAssigned) -> Run:
    run = a_run(RunState.ASSIGNED, spec=assigned.spec)
    return replace(run, task_id=assigned.task_id, placements=assigned.placements)


def test_on_one_machine_every_declared_port_of_every_rank_is_leased() -> None:
    run = run_of(an_assignment(workers=2))
    keys = port_keys(run)
    assert keys == (
        PortKey(0, "board"),
        PortKey(0, "rpc-in"),
        PortKey(1, "rpc-in"),
        PortKey(2, "rpc-in"),
    )
    leased = {key: 23_000 + number for number, key in enumerate(keys)}
    hosts = Network().hosts(run, leased)
    env = [
        {name: text for name, text in rank.env.items() if name.startswith("SHIFTWORK_PORT_")}
        for rank in build_order(run, hosts, SITE).ranks
    ]
    assert env == [
        {"SHIFTWORK_PORT_BOARD": "23000", "SHIFTWORK_PORT_RPC_IN": "23001"},
        {"SHIFTWORK_PORT_RPC_IN": "23002"},
        {"SHIFTWORK_PORT_RPC_IN": "23003"},
    ]
    assert Network().endpoints(run, leased) == (
        Endpoint(rank=0, role="chief", name="board", address="127.0.0.1", port=23_000),
        Endpoint(rank=0, role="chief", name="rpc-in", address="127.0.0.1", port=23_001),
        Endpoint(rank=1, role="worker", name="rpc-in", address="127.0.0.1", port=23_002),
        Endpoint(rank=2, role="worker", name="rpc-in", address="127.0.0.1", port=23_003),
    )


def test_in_pods_a_port_has_its_own_number_or_one_of_the_range() -> None:
    run = run_of(an_assignment())
    own = run_port(run.id, PORTS)
    found = Network(shares_ports=False, ports=PORTS).endpoints(run, {})
    assert [(each.address, each.name, each.port) for each in found] == [
        ("task-1-0.task-1", "board", 6006),
        ("task-1-0.task-1", "rpc-in", own + 1),
        ("task-1-1.task-1", "rpc-in", own + 1),
    ]


def test_in_pods_no_port_takes_the_number_of_another() -> None:
    ports = PortRange(5000, 5003)
    names = ("a", "b", "c")
    role = Role(
        name="worker",
        replicas=1,
        command=("x",),
        ports=(Port(name="fixed", port=5001), *(Port(name=name) for name in names[:2])),
    )
    run = replace(a_run(RunState.ASSIGNED), spec=a_spec().model_copy(update={"roles": (role,)}))
    [host] = pod_hosts(run, ports)
    assert len({host.port, *host.ports.values()}) == 4
    assert host.ports["fixed"] == 5001


def test_a_pod_that_serves_others_has_a_name_although_it_is_alone() -> None:
    role = Role(name="worker", replicas=1, command=("x",), ports=(BOARD,))
    run = replace(a_run(RunState.ASSIGNED), spec=a_spec().model_copy(update={"roles": (role,)}))
    assert [host.address for host in pod_hosts(run, PORTS)] == ["task-1-0.task-1"]


# The launcher's rows


async def lease_rows(harness: LauncherHarness) -> list[PortLease]:
    async with harness.store.transaction(epoch=harness.epoch) as tx:
        return await tx.select(PortLease)


def test_two_tasks_that_declare_the_same_port_get_different_ones() -> None:
    async def main() -> None:
        async with running_cluster(LauncherHarness(script=ENDLESS)) as harness:
            await harness.handle(an_assignment("taska"), an_assignment("taskb"))
            first = await harness.until_started(task="taska")
            second = await harness.until_started(task="taskb")
            found = [each.port for started in (first, second) for each in started.endpoints]
            assert len(set(found)) == len(found) == 6
            # A launcher that knows only the rows keeps them apart, too.
            await harness.restart()
            await harness.handle(an_assignment("taskc"))
            third = await harness.until_started(task="taskc")
            assert not {each.port for each in third.endpoints} & set(found)
            assert {each.port for each in await lease_rows(harness)} == {
                *found,
                *(each.port for each in third.endpoints),
            }

    virtually(main())


def test_the_ports_of_a_run_that_is_over_are_free_again() -> None:
    async def main() -> None:
        few = limits(ports=PortRange(23_000, 23_002))
        async with running_cluster(LauncherHarness(script=ENDLESS, limits=few)) as harness:
            await harness.handle(an_assignment("taska"), an_assignment("taskb"))
            await harness.until_started(task="taska")
            await harness.run_loops(5)
            assert await harness.published(RunStarted, task_id="taskb") == []
            await harness.handle(a_kill(task="taska"))
            await harness.until_started(task="taskb")

    virtually(main())


def test_a_repeated_start_has_its_endpoints() -> None:
    async def main() -> None:
        async with running_cluster(LauncherHarness(script=ENDLESS)) as harness:
            await harness.handle(an_assignment())
            started = await harness.until_started()
            assert len(started.endpoints) == 3
            await harness.command(Reemit())
            assert await harness.published(RunStarted) == [started, started]

    virtually(main())


# Real processes

SERVE = """
import os, socket, threading
names = [name for name in os.environ if name.startswith("SHIFTWORK_PORT_")]
def serve(name):
    with socket.create_server(("127.0.0.1", int(os.environ[name]))) as listener:
        while True:
            connection, _ = listener.accept()
            text = f"{os.environ['SHIFTWORK_TASK']} {os.environ['SHIFTWORK_RANK']} {name}"
            connection.sendall(text.encode())
            connection.close()
for name in names:
    threading.Thread(target=serve, args=(name,)).start()
"""


@pytest_asyncio.fixture
async def machine(tmp_path: Path) -> AsyncIterator[LauncherHarness]:
    """A launcher of real processes."""
    place = a_machine(tmp_path / "machine", listing_seconds=0.1, idle_seconds=1.0)
    plans = [NodePlan(a_node(f"local-{number}")) for number in range(2)]
    harness = LauncherHarness(
        make_runtime=lambda: ProcessRuntime(place, plans),
        limits=limits(ports=PortRange(FIRST_PORT, FIRST_PORT + 199)),
    )
    await harness.start()
    await harness.run_loops()
    yield harness
    for task in ("taska", "taskb"):
        await harness.handle(a_kill(task=task))
        await harness.until_exited(task=task)
    await harness.launcher.runtime.close()
    await harness.store.close()


async def answer(endpoint: Endpoint) -> str:
    """What a rank says at its port, as soon as it listens."""
    async with asyncio.timeout(20):
        while True:
            try:
                reader, writer = await asyncio.open_connection(endpoint.address, endpoint.port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.05)
                continue
            text = (await reader.read()).decode()
            writer.close()
            return text


@pytest.mark.enable_socket
@pytest.mark.timeout(90)
async def test_every_endpoint_of_two_equal_tasks_is_reached(machine: LauncherHarness) -> None:
    with socket.create_server(("127.0.0.1", FIRST_PORT)):
        command = (sys.executable, "-c", SERVE)
        tasks = ("taska", "taskb")
        await machine.handle(*(an_assignment(task, command=command) for task in tasks))
        found: list[str] = []
        for task in tasks:
            started = await machine.until_started(task=task)
            found += [await answer(each) for each in started.endpoints]
            # Somebody else's port is skipped.
            assert FIRST_PORT not in {each.port for each in started.endpoints}
    assert found == [
        f"{task} {rank} SHIFTWORK_PORT_{name}"
        for task in tasks
        for rank, name in ((0, "BOARD"), (0, "RPC_IN"), (1, "RPC_IN"))
    ]


def test_the_port_of_a_run_of_pods_is_none_that_a_role_declares() -> None:
    run = run_of(an_assignment())
    assert run.spec is not None
    own = run_port(run.id, PORTS)
    board = Port(name="board", port=own)
    role = Role(name="chief", replicas=1, command=("x",), ports=(board,))
    spec = run.spec.model_copy(
        update={"roles": (role, *run.spec.roles[1:]), "contract": Contract.TORCH}
    )
    first, *_ = pod_hosts(replace(run, spec=spec), PORTS)
    assert first.ports["board"] == own
    assert first.port not in (0, own)


def test_a_port_in_use_over_ipv6_alone_is_not_free() -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as other:
        other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        other.bind(("::1", 0))
        other.listen()
        assert not is_free(other.getsockname()[1])
