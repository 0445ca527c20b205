"""The agent as a process of its own, killed without warning."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from services.log_collector.agent import protocol
from services.log_collector.agent.protocol import PodAnswer, PodRead
from services.log_collector.agent.settings import AgentSettings
from tests.services.log_collector.fake_agents import TOKEN
from tests.services.log_collector.fake_kubelet import Kubelet

ROOT = Path(__file__).resolve().parents[4]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Process:
    def __init__(self, kubelet: Kubelet) -> None:
        token = kubelet.log_dir / "token"
        token.write_text(TOKEN)
        self.port = free_port()
        self.environment = os.environ | {
            "SHIFTWORK_LOG_AGENT_PODS_DIR": str(kubelet.pods_dir),
            "SHIFTWORK_LOG_AGENT_SPOOL_DIR": str(kubelet.log_dir / "shiftwork"),
            "SHIFTWORK_LOG_AGENT_HOST": "127.0.0.1",
            "SHIFTWORK_LOG_AGENT_PORT": str(self.port),
            "SHIFTWORK_LOG_AGENT_TOKEN_FILE": str(token),
            "SHIFTWORK_LOG_AGENT_POLL_SECONDS": "0.02",
            "SHIFTWORK_LOG_AGENT_SETTLE_SECONDS": "0.05",
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "services.log_collector.agent"]
        self.process = subprocess.Popen(
            command, env=self.environment, cwd=ROOT, stderr=subprocess.PIPE
        )

    def stop(self, number: int = signal.SIGKILL) -> tuple[int, bytes]:
        assert self.process is not None
        self.process.send_signal(number)
        _, output = self.process.communicate(timeout=20)
        return self.process.returncode, output

    async def ask(self, offset: int, *, ended: bool = False) -> PodAnswer:
        deadline = time.monotonic() + 20
        body = protocol.encode_reads([PodRead("t-1-0", offset, 50_000, ended=ended)], 1 << 20)
        async with httpx.AsyncClient() as client:
            while True:
                try:
                    got = await client.post(
                        f"http://127.0.0.1:{self.port}/read",
                        content=body,
                        headers={"authorization": f"Bearer {TOKEN}"},
                    )
                except httpx.TransportError:
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.02)
                    continue
                assert got.status_code == 200
                (answer,) = protocol.decode_answers(got.content)[1]
                assert answer is not None
                assert not answer.problem
                return answer


@pytest.fixture
def kubelet(tmp_path: Path) -> Kubelet:
    return Kubelet(tmp_path / "log")


@pytest.fixture
def process(kubelet: Kubelet) -> Iterator[Process]:
    made = Process(kubelet)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.stop()


@pytest.mark.slow
async def test_kill_after_kill_no_byte_is_lost_or_doubled(
    kubelet: Kubelet, process: Process
) -> None:
    rng, data = random.Random(7), b""
    container = kubelet.create("t-1-0")
    for _ in range(6):
        process.start()
        await process.ask(0)
        for _ in range(rng.randrange(1, 6)):
            size = rng.choice([10, 1000, 70_000])
            container.write(rng.randbytes(size).replace(b"\r", b"."))
            if rng.random() < 0.5:
                data += (await process.ask(len(data))).data
            if rng.random() < 0.4:
                container.rotate()
        process.stop()
        container.write(b"while it was away\n")
        container.rotate()
    container.end()
    process.start()
    while True:
        answer = await process.ask(len(data), ended=True)
        data += answer.data
        if not answer.data and not answer.unsure:
            break
        await asyncio.sleep(0.02)
    assert data == bytes(container.output)
    code, output = process.stop(signal.SIGTERM)
    assert code == 0
    assert b'"event": "stopped"' in output


def test_settings_that_cannot_work_are_named_at_once(process: Process, tmp_path: Path) -> None:
    del process.environment["SHIFTWORK_LOG_AGENT_TOKEN_FILE"]
    process.start()
    assert process.process is not None
    _, output = process.process.communicate(timeout=30)
    assert process.process.returncode == 2
    assert b"SHIFTWORK_LOG_AGENT_TOKEN_FILE: Field required. Set it in" in output


def test_every_limit_has_a_default(tmp_path: Path) -> None:
    settings = AgentSettings(token_file=tmp_path / "token")
    limits = settings.limits()
    assert settings.port == 8650
    assert (limits.bytes_max, limits.keep_seconds, limits.settle_seconds) == (
        20 * 1024**3,
        3 * 86_400.0,
        1.0,
    )
