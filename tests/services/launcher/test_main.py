"""The whole service as it is wired, with real processes; its neighbours are played by the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import pytest
import pytest_asyncio

from libs.bus.port import BusUnavailableError
from libs.contracts.base import Message
from libs.contracts.messages import (
    AckCheckpoint,
    AckCheckpointReply,
    ExitKind,
    NodeChanged,
    PreemptMode,
    RunExited,
    RunStarted,
)
from libs.contracts.run_token import verify_run_token
from libs.service.clock import SystemClock
from libs.service.runner import Runner
from services.launcher.main import WIRING
from services.launcher.settings import LauncherSettings
from tests.kit.launcher_builders import (
    KEY,
    a_kill,
    a_preemption,
    a_spec,
    an_assignment,
    run_id,
)
from tests.kit.memory import MemoryPlatform

M = TypeVar("M", bound=Message)


class RunningLauncher(MemoryPlatform):
    """A launcher's process and the events that it has published so far."""

    def __init__(self, folder: Path) -> None:
        super().__init__(SystemClock())
        key = folder / "key"
        key.write_text(KEY.decode())
        self.settings = LauncherSettings(
            database_url="postgresql://x@/y",
            nats_url="nats://x:1",
            data_folder=folder / "machine",
            virtual_nodes=2,
            run_token_key_file=key,
            supervisor_idle_seconds=1,
            exit_grace_seconds=0.5,
            tasks_as_root=True,
        )
        self.gateway = self.bus("gateway", [RunStarted, RunExited, NodeChanged])
        self.received: list[Message] = []
        self.running: asyncio.Task[None] | None = None
        self.consumer = self.gateway.consumer()

    @property
    def output(self) -> Path:
        return self.settings.data_folder / "nodes/local-0/runs/task.1/0/output.log"

    def start(self) -> None:
        """A launcher's process."""
        runner = Runner(self.build(WIRING, self.settings), self.settings)
        self.running = asyncio.ensure_future(runner.run())

    async def stop(self) -> None:
        assert self.running is not None
        self.running.cancel()
        await asyncio.wait([self.running])

    async def ack(self, step: int, attempt: int = 1) -> AckCheckpointReply:
        command = AckCheckpoint(task_id="task", attempt=attempt, step=step, uri=f"/c/{step}")
        async with asyncio.timeout(5):
            while True:
                try:
                    reply = await self.gateway.request(command, timeout_s=1)
                except BusUnavailableError:
                    # There is no leader yet.
                    continue
                assert isinstance(reply, AckCheckpointReply)
                return reply

    async def receive(self, kind: type[M], count: int = 1) -> M:
        """Wait for so many events of a type. Returns the last one."""
        async with asyncio.timeout(10):
            while True:
                found = [message for message in self.received if isinstance(message, kind)]
                if len(found) >= count:
                    return found[-1]
                for delivery in await self.consumer.fetch(100, 0.2):
                    assert delivery.envelope is not None
                    self.received.append(delivery.envelope.message)
                    await delivery.ack()

    async def prints(self, text: str) -> None:
        async with asyncio.timeout(5):
            while not self.output.exists() or text not in self.output.read_text():  # noqa: ASYNC110 - a file
                await asyncio.sleep(0.01)


@pytest_asyncio.fixture
async def launcher(tmp_path: Path) -> AsyncIterator[RunningLauncher]:
    made = RunningLauncher(tmp_path)
    made.start()
    await made.receive(NodeChanged, 2)
    yield made
    await made.stop()


def sh(script: str, ranks: int = 1, mode: PreemptMode = PreemptMode.SDK) -> Message:
    spec = a_spec(ranks, command=("sh", "-c", script), mode=mode)
    return an_assignment(spec=spec, ranks=ranks)


async def test_a_gang_runs_to_its_end(launcher: RunningLauncher) -> None:
    await launcher.publish(sh("echo rank $RANK of $WORLD_SIZE at $MASTER_PORT", ranks=2))
    started = await launcher.receive(RunStarted)
    exited = await launcher.receive(RunExited)
    assert len(started.placements) == 2
    assert exited.exit.kind is ExitKind.OK
    assert "rank 0 of 2 at 2" in launcher.output.read_text()


async def test_the_task_gets_a_token_that_the_gateway_accepts(
    launcher: RunningLauncher, tmp_path: Path
) -> None:
    """And that its output does not show."""
    written = tmp_path / "token"
    await launcher.publish(sh(f"echo $SHIFTWORK_RUN_TOKEN | tee {written}"))
    await launcher.receive(RunExited)
    assert verify_run_token(KEY, written.read_text().strip()) == run_id()
    assert launcher.output.read_text() == "***\n"


async def test_the_platforms_python_finds_the_sdk(launcher: RunningLauncher) -> None:
    await launcher.publish(sh("python -c 'import shiftwork; print(shiftwork.__name__)'"))
    exited = await launcher.receive(RunExited)
    if exited.exit.kind is not ExitKind.OK:
        pytest.skip("the SDK is not installed beside this interpreter")
    assert launcher.output.read_text().strip() == "shiftwork"


async def test_preempted_by_acknowledgement(launcher: RunningLauncher) -> None:
    await launcher.publish(sh("echo ready; exec sleep 300"))
    await launcher.receive(RunStarted)
    await launcher.prints("ready")
    await launcher.publish(a_preemption())
    await asyncio.sleep(0.1)
    reply = await launcher.ack(7)
    assert reply.checkpoint is not None
    exited = await launcher.receive(RunExited)
    assert (exited.exit.kind, exited.checkpoint) == (ExitKind.PREEMPTED, reply.checkpoint)
    late = await launcher.ack(8)
    assert late.refusal is not None


async def test_preempted_by_signal(launcher: RunningLauncher) -> None:
    script = "trap 'exit 75' USR1; echo ready; while :; do sleep 0.01; done"
    await launcher.publish(sh(script, mode=PreemptMode.SIGNAL))
    await launcher.receive(RunStarted)
    await launcher.prints("ready")
    await launcher.publish(a_preemption())
    exited = await launcher.receive(RunExited)
    assert (exited.exit.kind, exited.exit.ranks[0].code) == (ExitKind.PREEMPTED, 75)


async def test_a_launcher_that_dies_loses_nothing(launcher: RunningLauncher) -> None:
    await launcher.publish(sh("echo ready; sleep 0.5; echo more; exec sleep 300"))
    await launcher.receive(RunStarted)
    await launcher.prints("ready")
    await launcher.stop()
    await asyncio.sleep(0.6)
    await launcher.publish(a_kill())
    launcher.start()
    exited = await launcher.receive(RunExited)
    assert exited.exit.kind is ExitKind.KILLED
    assert launcher.output.read_text() == "ready\nmore\n"
    assert [type(message) for message in launcher.received].count(RunStarted) == 1


async def test_an_exit_without_a_launcher_is_published_by_the_next_one(
    launcher: RunningLauncher,
) -> None:
    await launcher.publish(sh("echo ready; sleep 0.2; exit 4"))
    await launcher.receive(RunStarted)
    await launcher.stop()
    await asyncio.sleep(0.4)
    launcher.start()
    exited = await launcher.receive(RunExited)
    assert (exited.exit.kind, exited.exit.ranks[0].code) == (ExitKind.FAILED, 4)
    assert exited.exit.detail == "rank 0 ended with code 4"
