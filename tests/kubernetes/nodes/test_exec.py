"""Terminals and commands in pods on real nodes, by the real command line."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tools.kubernetes_demo.platform import Platform

pytestmark = pytest.mark.kubernetes
PROGRAM = Path(sys.executable).with_name("shiftwork")


async def run(platform: Platform, *arguments: str, data: bytes = b"") -> tuple[int, bytes, bytes]:
    """``shiftwork exec`` with pipes: its exit code, output and error."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        str(PROGRAM),
        *("exec", *arguments),
        env={
            **os.environ,
            "SHIFTWORK_URL": str(platform.client.base_url),
            "SHIFTWORK_TOKEN": platform.client.headers["authorization"].split()[1],
        },
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
    )
    async with asyncio.timeout(60):
        out, error = await process.communicate(data)
    assert process.returncode is not None
    return process.returncode, out, error


async def running(platform: Platform, *command: str) -> str:
    task_id = await platform.submit("inside", list(command), gpus_per_node=0)

    async def look() -> str:
        return str((await platform.request("GET", f"/v1/tasks/{task_id}"))["state"])

    await platform.wait(look, lambda state: state == "running", f"{task_id} runs")
    return task_id


async def test_a_command_in_a_pod(platform: Platform) -> None:
    task_id = await running(platform, "sleep", "600")
    line = "echo rank $SHIFTWORK_RANK of $SHIFTWORK_TASK; echo error >&2; exit 7"
    code, out, error = await run(platform, task_id, "--", "sh", "-c", line)
    assert (code, out.decode(), error) == (7, f"rank 0 of {task_id}\n", b"error\n")
    data = os.urandom(300_000)
    assert (await run(platform, task_id, "--", "cat", data=data))[:2] == (0, data)
    code, _, error = await run(platform, task_id, "--rank", "1", "--", "true")
    assert (code, b"has no rank 1" in error) == (255, True)


async def test_hanging_up_leaves_nothing_in_the_pod(platform: Platform) -> None:
    task_id = await running(platform, "sleep", "600")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        str(PROGRAM),
        *("exec", task_id, "--", "sh", "-c", "echo on; sleep 4242; :"),
        env={
            **os.environ,
            "SHIFTWORK_URL": str(platform.client.base_url),
            "SHIFTWORK_TOKEN": platform.client.headers["authorization"].split()[1],
        },
        stdin=pipe,
        stdout=pipe,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"on\n"
    process.kill()
    await process.wait()

    async def look() -> bytes:
        listing = "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done"
        return (await run(platform, task_id, "--", "sh", "-c", listing))[1]

    await platform.wait(look, lambda found: b"sleep 4242" not in found, "the command is ended")
