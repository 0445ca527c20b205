"""Roles in order and restarts in place, with real processes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from libs.contracts.messages import (
    AckCheckpointReply,
    Completion,
    Contract,
    DebugProgram,
    ExitKind,
    Placement,
    Port,
    RankRestarted,
    ReadyProbe,
    RestartRule,
    RestartScope,
    RestartWhen,
    Role,
    RunAssigned,
    RunDelayed,
    RunMode,
    StartCondition,
    StartsAfter,
)
from services.launcher.domain.master_ports import PortRange
from services.launcher.domain.model import ObservedRank
from services.launcher.domain.start_delays import DelayPolicy
from services.launcher.runtimes.node_client import NodePlan
from services.launcher.runtimes.process import ProcessRuntime
from tests.kit.clock import START, at
from tests.kit.launcher_builders import a_kill, a_machine, a_node, a_preemption, a_spec, run_id
from tests.services.launcher.launcher_harness import LauncherHarness, limits

pytestmark = [pytest.mark.enable_socket, pytest.mark.timeout(90)]

# Tests run side by side; each worker has ports of its own.
FIRST_PORT = 31_600 + 100 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])

# A server that answers one line over HTTP, some time after its start. It fails as often as
# FAILURES says, each time before it listens. It ends on SIGTERM only if ENDS is set.
SERVER = """
import os, signal, socket, sys, time
if "ENDS" not in os.environ:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
restarts = int(os.environ.get("SHIFTWORK_RESTARTS", "0"))
print("server", restarts, flush=True)
if restarts < int(os.environ.get("FAILURES", "0")):
    sys.exit(3)
time.sleep(float(os.environ["WARM_UP_SECONDS"]))
with socket.create_server(("127.0.0.1", int(os.environ["SHIFTWORK_PORT_RPC"]))) as listener:
    while True:
        connection, _ = listener.accept()
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 200 OK\\r\\n\\r\\n")
        connection.close()
"""


def server(**more: object) -> Role:
    return Role(
        name="ps",
        replicas=1,
        command=(sys.executable, "-c", SERVER),
        ports=(Port(name="rpc"),),
        **more,  # type: ignore[arg-type]
    )


def an_assignment(*roles: Role, completion: Completion | None = None) -> RunAssigned:
    ranks = [(role.name, number) for role in roles for number in range(role.replicas)]
    spec = a_spec(len(ranks), contract=Contract.NONE, completion=completion)
    return RunAssigned(
        task_id="task",
        attempt=1,
        owner="ada",
        spec=spec.model_copy(update={"roles": roles}),
        placements=tuple(
            Placement(rank=rank, role=role, role_index=index, node_id=f"local-{rank}", gpus=(0,))
            for rank, (role, index) in enumerate(ranks)
        ),
        start_deadline_at=at(60),
        assigned_at=START,
    )


@pytest_asyncio.fixture
async def machine(tmp_path: Path) -> AsyncIterator[LauncherHarness]:
    """A launcher of real processes on three nodes."""
    place = a_machine(tmp_path / "machine", listing_seconds=0.1, idle_seconds=1.0)
    plans = [NodePlan(a_node(f"local-{number}")) for number in range(3)]
    now = DelayPolicy(first=at(0) - START, again=at(0) - START)
    harness = LauncherHarness(
        make_runtime=lambda: ProcessRuntime(place, plans),
        limits=limits(ports=PortRange(FIRST_PORT, FIRST_PORT + 99), delays=now),
    )
    await harness.start()
    await harness.run_loops()
    yield harness
    await harness.handle(a_kill())
    await harness.until_exited()
    await harness.launcher.runtime.close()
    await harness.store.close()


async def seen_ranks(machine: LauncherHarness) -> Mapping[int, ObservedRank]:
    """The ranks as the nodes list them."""
    listing = await machine.launcher.runtime.list()
    return listing.runs[run_id()].ranks if run_id() in listing.runs else {}


def output(folder: Path, rank: int) -> str:
    runs = folder / "machine" / "nodes" / f"local-{rank}" / "runs"
    path = runs / "task.1" / str(rank) / "output.log"
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("path", ["", "/up"])
async def test_workers_start_when_the_server_listens_and_leave_before_it(
    machine: LauncherHarness, path: str
) -> None:
    probe = ReadyProbe(port="rpc", path=path, period_seconds=0.1, within_seconds=60)
    after = StartsAfter(role="ps", condition=StartCondition.READY)
    stay = "import time; print('worker', flush=True); time.sleep(300)"
    worker = Role(
        name="worker", replicas=2, command=(sys.executable, "-c", stay), starts_after=(after,)
    )
    roles = server(ready=probe, env={"WARM_UP_SECONDS": "1"}), worker
    await machine.handle(an_assignment(*roles))
    await machine.until_started()
    begun = await seen_ranks(machine)
    assert set(begun) == {0}
    # The launcher dies while the workers wait.
    await machine.restart()
    while len(begun) < 3:
        await machine.run_loops()
        begun = await seen_ranks(machine)
    delayed = await machine.published(RunDelayed)
    text = "role worker waits until role ps is ready (0 of 1 rank so far)"
    assert text in [each.detail for each in delayed]
    times = {rank: seen.started_at.timestamp() for rank, seen in begun.items() if seen.started_at}
    assert min(times[1], times[2]) > times[0] + 1
    await machine.handle(a_kill())
    # The launcher dies in the midst of the end.
    machine.calls_left = 2
    ends: dict[int, float] = {}
    while len(ends) < 3:
        ends |= {
            rank: seen.exited_at.timestamp()
            for rank, seen in (await seen_ranks(machine)).items()
            if seen.exited_at
        }
        await machine.run_loops()
    assert max(ends[1], ends[2]) < ends[0]
    ended = await machine.until_exited()
    assert ended.exit.kind is ExitKind.KILLED
    assert {rank.signal for rank in ended.exit.ranks} == {9}


@pytest.mark.slow
async def test_a_server_is_started_again_in_its_place(
    machine: LauncherHarness, tmp_path: Path
) -> None:
    rule = RestartRule(when=RestartWhen.ON_FAILURE, scope=RestartScope.RANK)
    wait = f"""
import os, pathlib, time
print("worker", os.getpid(), flush=True)
while not pathlib.Path({str(tmp_path / "done")!r}).exists():
    time.sleep(0.05)
"""
    worker = Role(name="worker", replicas=1, command=(sys.executable, "-c", wait))
    ps = server(restart=rule, env={"WARM_UP_SECONDS": "0", "FAILURES": "2", "ENDS": "1"})
    rules = Completion(success=("worker[all]",))
    await machine.handle(an_assignment(ps, worker, completion=rules))
    await machine.until_started()
    await machine.until(lambda: "server 2" in output(tmp_path, 0))
    (tmp_path / "done").touch()
    ended = await machine.until_exited()
    assert (ended.exit.kind, ended.exit.detail) == (ExitKind.OK, "worker[all] succeeded")
    assert output(tmp_path, 0).splitlines() == [
        "server 0",
        "shiftwork: restarted (1 of 3)",
        "server 1",
        "shiftwork: restarted (2 of 3)",
        "server 2",
    ]
    # The worker lived on.
    assert output(tmp_path, 1).count("worker") == 1
    restarted = await machine.published(RankRestarted)
    assert [(each.rank, each.role, each.restarts, each.restarts_max) for each in restarted] == [
        (0, "ps", 1, 3),
        (0, "ps", 2, 3),
    ]
    assert restarted[0].detail == "rank 0 ended with code 3"


# Writes down that it was asked to end, and does.
ENDS_WHEN_ASKED = """
import signal, sys, time
def end(*_):
    print("asked", time.time(), flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("up", flush=True)
time.sleep(300)
"""
IGNORES = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
print("up", flush=True)
while True:
    time.sleep(300)
"""


def program(text: str, name: str = "worker", **more: object) -> Role:
    role = Role(name=name, replicas=1, command=(sys.executable, "-c", text))
    return role.model_copy(update=more)


async def all_up(machine: LauncherHarness, folder: Path, ranks: int) -> None:
    await machine.until(lambda: all("up" in output(folder, rank) for rank in range(ranks)))


def asked_at(folder: Path, rank: int) -> float:
    lines = [line for line in output(folder, rank).splitlines() if line.startswith("asked")]
    assert len(lines) == 1, f"rank {rank} was asked {len(lines)} times"
    return float(lines[0].split()[1])


async def test_after_the_acknowledgement_roles_are_asked_to_end_in_the_reverse_order(
    machine: LauncherHarness, tmp_path: Path
) -> None:
    leaves = f"""
import pathlib, time
print("up", flush=True)
while not pathlib.Path({str(tmp_path / "saved")!r}).exists():
    time.sleep(0.01)
"""
    chief = program(leaves, "chief")
    ps = program(ENDS_WHEN_ASKED, "ps")
    worker = program(ENDS_WHEN_ASKED, starts_after=(StartsAfter(role="ps"),))
    await machine.handle(an_assignment(chief, ps, worker))
    await all_up(machine, tmp_path, 3)
    await machine.handle(a_preemption())
    (tmp_path / "saved").touch()
    begun = time.monotonic()
    assert isinstance(await machine.acknowledge("task", 1, 5), AckCheckpointReply)
    ended = await machine.until_exited()
    assert time.monotonic() - begun < 1.5
    assert ended.exit.kind is ExitKind.PREEMPTED
    assert [rank.code for rank in ended.exit.ranks] == [0, 0, 0]
    assert asked_at(tmp_path, 2) < asked_at(tmp_path, 1)


async def test_a_gang_without_an_order_may_leave_by_itself_after_the_acknowledgement(
    machine: LauncherHarness, tmp_path: Path
) -> None:
    leaves = ENDS_WHEN_ASKED.replace(
        "time.sleep(300)",
        f"""
import pathlib
while not pathlib.Path({str(tmp_path / "saved")!r}).exists():
    time.sleep(0.01)
time.sleep(1)
""",
    )
    await machine.handle(an_assignment(program(leaves, replicas=2)))
    await all_up(machine, tmp_path, 2)
    await machine.handle(a_preemption())
    await machine.acknowledge("task", 1, 5)
    (tmp_path / "saved").touch()
    ended = await machine.until_exited()
    assert ended.exit.kind is ExitKind.PREEMPTED
    assert [output(tmp_path, rank).count("asked") for rank in range(2)] == [0, 0]


async def test_a_rank_that_does_not_leave_after_the_acknowledgement_is_asked_once(
    machine: LauncherHarness, tmp_path: Path
) -> None:
    await machine.handle(an_assignment(program(ENDS_WHEN_ASKED)))
    await all_up(machine, tmp_path, 1)
    await machine.handle(a_preemption())
    await machine.acknowledge("task", 1, 5)
    # The launcher dies when it has ordered the end.
    machine.calls_left, machine.crash_after = 2, True
    ended = await machine.until_exited()
    assert (ended.exit.kind, ended.exit.ranks[0].code) == (ExitKind.PREEMPTED, 0)
    assert asked_at(tmp_path, 0)


async def test_a_kill_cuts_short_the_time_of_ranks_that_are_left_after_a_success(
    machine: LauncherHarness, tmp_path: Path
) -> None:
    done = program("print('up', flush=True)", "chief")
    rules = Completion(success=("chief[0]",))
    await machine.handle(an_assignment(done, program(IGNORES), completion=rules))
    await machine.until(lambda: "asked" in output(tmp_path, 1))
    begun = time.monotonic()
    await machine.handle(a_kill())
    ended = await machine.until_exited()
    assert time.monotonic() - begun < 5
    assert (ended.exit.kind, ended.exit.ranks[1].signal) == (ExitKind.OK, 9)


@pytest.mark.parametrize("now", [False, True])
async def test_a_debug_program_is_asked_to_end_unless_its_owner_wants_that_at_once(
    machine: LauncherHarness, tmp_path: Path, now: bool
) -> None:
    role = program("raise SystemExit(1)")
    debug = DebugProgram(command=(sys.executable, "-c", ENDS_WHEN_ASKED))
    assigned = an_assignment(role.model_copy(update={"debug": debug}))
    spec = assigned.spec.model_copy(update={"run_mode": RunMode.DEBUG})
    await machine.handle(assigned.model_copy(update={"spec": spec}))
    await all_up(machine, tmp_path, 1)
    await machine.handle(a_kill().model_copy(update={"now": now}))
    ended = await machine.until_exited()
    assert ended.exit.kind is ExitKind.KILLED
    (rank,) = ended.exit.ranks
    assert (rank.code, rank.signal) == ((None, 9) if now else (0, None))
    assert output(tmp_path, 0).count("asked") == (0 if now else 1)


async def test_an_owner_who_cannot_wait_for_a_debug_program_ends_it(
    machine: LauncherHarness, tmp_path: Path
) -> None:
    debug = DebugProgram(command=(sys.executable, "-c", IGNORES))
    assigned = an_assignment(program("").model_copy(update={"debug": debug}))
    spec = assigned.spec.model_copy(update={"run_mode": RunMode.DEBUG})
    await machine.handle(assigned.model_copy(update={"spec": spec}))
    await all_up(machine, tmp_path, 1)
    await machine.handle(a_kill())
    await machine.until(lambda: "asked" in output(tmp_path, 0))
    begun = time.monotonic()
    await machine.handle(a_kill().model_copy(update={"now": True}))
    ended = await machine.until_exited()
    assert time.monotonic() - begun < 3
    assert ended.exit.ranks[0].signal == 9
