"""Each contract with real processes: ranks find each other on one machine by it alone."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from libs.contracts.messages import Contract, Placement, Role, RunAssigned
from services.launcher.domain.master_ports import PortRange
from services.launcher.runtimes.node_client import NodePlan
from services.launcher.runtimes.process import ProcessRuntime
from tests.kit.clock import START, at
from tests.kit.launcher_builders import a_machine, a_node, a_spec
from tests.services.launcher import contract_program
from tests.services.launcher.launcher_harness import LauncherHarness, limits

NODES = 4
PROGRAM = str(Path(contract_program.__file__))
# Tests run side by side; each worker has ports of its own.
FIRST_PORT = 28_000 + 200 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])


def an_assignment(
    contract: Contract, sizes: dict[str, int], task: str = "task", **env: str
) -> RunAssigned:
    """A run with these replicas, each on a node of its own."""
    command = (sys.executable, PROGRAM, contract.name.lower())
    ranks = [(name, index) for name, count in sizes.items() for index in range(count)]
    roles = tuple(Role(name=name, replicas=count, command=command) for name, count in sizes.items())
    return RunAssigned(
        task_id=task,
        attempt=1,
        owner="ada",
        spec=a_spec(len(ranks), contract=contract, env=env).model_copy(update={"roles": roles}),
        placements=tuple(
            Placement(rank=rank, role=role, role_index=index, node_id=f"local-{rank}", gpus=(0,))
            for rank, (role, index) in enumerate(ranks)
        ),
        start_deadline_at=at(60),
        assigned_at=START,
    )


class Machine:
    """A launcher, and what its tasks print."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        plans = [NodePlan(a_node(f"local-{number}")) for number in range(NODES)]
        machine = a_machine(folder, listing_seconds=0.1, idle_seconds=1.0)
        self.launcher = LauncherHarness(
            make_runtime=lambda: ProcessRuntime(machine, plans),
            limits=limits(ports=PortRange(FIRST_PORT, FIRST_PORT + 199)),
        )

    def rank_folder(self, rank: int, task: str = "task") -> Path:
        return self.folder / f"nodes/local-{rank}/runs/{task}.1/{rank}"

    async def printed(self, contract: Contract, sizes: dict[str, int], **env: str) -> list[object]:
        """What each rank prints, once all have ended well."""
        await self.launcher.handle(an_assignment(contract, sizes, **env))
        exited = await self.launcher.until_exited()
        ranks = range(sum(sizes.values()))
        output = [(self.rank_folder(rank) / "output.log").read_text() for rank in ranks]
        assert [rank.code for rank in exited.exit.ranks] == [0 for _ in ranks], output
        return [json.loads(text) for text in output]


@pytest_asyncio.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    made = Machine(tmp_path / "machine")
    await made.launcher.start()
    await made.launcher.run_loops()
    yield made
    await made.launcher.launcher.runtime.close()
    await made.launcher.store.close()
    await asyncio.sleep(0)


pytestmark = [pytest.mark.enable_socket, pytest.mark.timeout(60)]


@pytest.mark.parametrize("contract", [Contract.TORCH, Contract.COORDINATOR])
async def test_one_rank_listens_for_all(machine: Machine, contract: Contract) -> None:
    assert await machine.printed(contract, {"worker": 3}) == [["1", "2"], [], []]


async def test_tf_config(machine: Machine) -> None:
    found = await machine.printed(Contract.TF_CONFIG, {"chief": 1, "worker": 2, "evaluator": 1})
    everyone = ["chief-0", "evaluator-0", "worker-0", "worker-1"]
    assert found == [
        [name for name in everyone if name != own] for own in ("chief-0", "worker-0", "worker-1")
    ] + [[]]


async def test_rank(machine: Machine) -> None:
    found = await machine.printed(Contract.RANK, {"worker": 2, "master": 1})
    assert found == [["0", "2"], ["0", "1"], ["1", "2"]]


async def test_mpi(machine: Machine) -> None:
    found = await machine.printed(Contract.MPI, {"launcher": 1, "worker": 2})
    assert found == [["127.0.0.1 slots=2", "127.0.0.1:2"], [], []]
    [hostfile] = machine.folder.rglob("hostfile")
    assert hostfile == machine.rank_folder(0) / "hostfile"
    assert stat.S_IMODE(hostfile.stat().st_mode) == 0o600


async def test_none_leaves_the_variables_to_the_task(machine: Machine) -> None:
    found = await machine.printed(Contract.NONE, {"worker": 2}, WORLD_SIZE="seven")
    assert found == [["WORLD_SIZE=seven", "SHIFTWORK_WORLD_SIZE=2"]] * 2
