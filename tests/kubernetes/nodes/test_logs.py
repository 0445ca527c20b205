"""Pods' output is kept whole while its readers die, its files are rotated, or no agent runs."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from libs.contracts.task_states import TERMINAL_WORDS
from tools.kubernetes_demo.platform import Platform

pytestmark = pytest.mark.kubernetes
AGENT = "app.kubernetes.io/component=log-agent"
COLLECTOR = "app.kubernetes.io/component=log-collector"
# Above what the kubelet lets a file grow to, in lines of 100 bytes, and so many at a time.
ROTATED_BYTES, LINE_BYTES, BURST_LINES = 24 * 2**20, 100, 4000


def counting(lines: int, gap_s: float) -> list[str]:
    """A program that writes numbered lines."""
    count = f"i=0; while [ $i -lt {lines} ]; do echo line $i; i=$((i+1)); sleep {gap_s}; done"
    return ["sh", "-c", count]


def counted(lines: int) -> list[str]:
    return [f"line {number}" for number in range(lines)]


async def until_ended(platform: Platform, task_id: str) -> dict[str, Any]:
    return await platform.until(task_id, "ended", lambda task: task["state"] in TERMINAL_WORDS)


async def kept(platform: Platform, task_id: str) -> list[str]:
    """Every line that is kept of the first rank."""
    logs = await platform.request("GET", f"/v1/tasks/{task_id}/logs", params={"rank": 0})
    return str(logs).split("\n")[:-1]


async def follow(platform: Platform, task_id: str) -> list[dict[str, Any]]:
    """Every event of a reader from the first byte until the task has ended. It reconnects at its
    position when the connection breaks."""
    events: list[dict[str, Any]] = []
    while True:
        asked: dict[str, int] = {"follow": 1, "rank": 0}
        if events:
            asked["offset"] = events[-1]["offset"] + len(events[-1]["text"].encode())
        try:
            async with platform.client.stream(
                "GET", f"/v1/tasks/{task_id}/logs", params=asked, timeout=60
            ) as answer:
                assert answer.status_code == 200
                async for line in answer.aiter_lines():
                    if line == "event: end":
                        return events
                    if line.startswith("data: "):
                        events.append(json.loads(line.removeprefix("data: ")))
        except httpx.TransportError:
            await asyncio.sleep(0.2)


async def test_a_live_reader_misses_nothing_while_the_collector_is_replaced(
    platform: Platform,
) -> None:
    lines = 1500
    task_id = await platform.submit("followed", counting(lines, 0.004), gpus_per_node=0)
    await platform.until_logged(task_id, "line 100")
    reading = asyncio.ensure_future(follow(platform, task_id))
    await platform.until_logged(task_id, "line 400")
    await platform.kube.kill_pods(platform.namespace, COLLECTOR)
    await until_ended(platform, task_id)
    events = await asyncio.wait_for(reading, 90)
    assert "".join(event["text"] for event in events).split("\n")[:-1] == counted(lines)
    assert await kept(platform, task_id) == counted(lines)


async def test_the_secrets_that_a_pod_prints_are_masked_while_the_collector_is_replaced(
    platform: Platform,
) -> None:
    secret, lines = "hf_Zq3vT8xLw2Rk9pQ", 1200
    printing = (
        f"i=0; while [ $i -lt {lines} ]; do echo token $HF_TOKEN line $i; i=$((i+1)); sleep 0.004;"
        " done; echo it failed with $HF_TOKEN >/dev/termination-log; exit 3"
    )
    task_id = await platform.submit(
        "secretive", ["sh", "-c", printing], gpus_per_node=0, env={"HF_TOKEN": secret}
    )
    await platform.until_logged(task_id, "token *** line 100")
    await platform.kube.kill_pods(platform.namespace, COLLECTOR)

    async def shown() -> dict[str, Any]:
        found: dict[str, Any] = await platform.request("GET", f"/v1/tasks/{task_id}")
        return found

    task = await platform.wait(
        shown, lambda found: found["state"] in TERMINAL_WORDS, "it has ended", seconds=90
    )
    await platform.until_logged(task_id, f"token *** line {lines - 1}")
    assert await kept(platform, task_id) == [f"token *** line {number}" for number in range(lines)]
    # What the program says when it ends is in the facts about the run.
    runs = await platform.request("GET", f"/v1/tasks/{task_id}/runs")
    said = json.dumps([task["exit"], task["reason"], runs])
    assert secret not in said
    assert "it failed with ***" in said


async def test_rotated_output_is_complete(platform: Platform) -> None:
    lines = ROTATED_BYTES // LINE_BYTES
    script = (
        "import time\n"
        f"for first in range(0, {lines}, {BURST_LINES}):\n"
        f"    for number in range(first, min({lines}, first + {BURST_LINES})):\n"
        f"        print(f'{{number:0{LINE_BYTES - 1}}}')\n"
        "    time.sleep(0.2)\n"
        "print('written', flush=True)\n"
        "time.sleep(3600)\n"
    )
    task_id = await platform.submit("writer", ["python3", "-c", script], gpus_per_node=0)
    await platform.until_state(task_id, "running")
    size = lines * LINE_BYTES + len("written\n")

    async def look() -> int:
        answer = await platform.request("GET", f"/v1/tasks/{task_id}/logs", params={"list": 1})
        return max((each["size"] for each in answer["logs"]), default=0)

    await platform.wait(look, lambda observed: observed == size, f"{size} bytes are kept")
    assert await rotated_files(platform, task_id) > 0
    wanted = hashlib.sha256()
    for number in range(lines):
        wanted.update(b"%0*d\n" % (LINE_BYTES - 1, number))
    wanted.update(b"written\n")
    got, offset = hashlib.sha256(), 0
    while offset < size:
        asked = {"rank": 0, "offset": offset, "limit_bytes": 2**20}
        piece = str(
            await platform.request("GET", f"/v1/tasks/{task_id}/logs", params=asked)
        ).encode()
        assert piece
        got.update(piece)
        offset += len(piece)
    assert got.hexdigest() == wanted.hexdigest()
    await platform.request("PUT", f"/v1/tasks/{task_id}/goal", json={"goal": "stop"})


async def rotated_files(platform: Platform, task_id: str) -> int:
    """How many files of a task's pod its kubelet has put aside, by the agent of its node."""
    pod = f"{task_id}-1-0"
    node = await platform.kube.run(
        *("get", "pod", pod, "-n", platform.tasks_namespace, "-o", "jsonpath={.spec.nodeName}")
    )
    agent = await platform.kube.run(
        *("get", "pods", "-n", platform.namespace, "-l", AGENT, "-o", "name"),
        *("--field-selector", f"spec.nodeName={node}"),
    )
    pattern = f"/var/log/pods/{platform.tasks_namespace}_{pod}_*/main/0.log.*"
    count = f"import glob; print(len(glob.glob({pattern!r})))"
    run = ("exec", "-n", platform.namespace, agent.strip(), "--", "python", "-c", count)
    return int(await platform.kube.run(*run))


@asynccontextmanager
async def no_agents(platform: Platform) -> AsyncGenerator[None]:
    """No node has a log agent."""
    agents = (await platform.kube.run("get", "ds", "-n", platform.namespace, "-o", "name")).split()
    assert len(agents) == 1

    async def only_on(label: str | None) -> None:
        selector = {"spec": {"template": {"spec": {"nodeSelector": {"shiftwork.dev/test": label}}}}}
        await platform.kube.run(
            *("patch", agents[0], "-n", platform.namespace, "--type", "merge", "-p"),
            json.dumps(selector),
        )

    async def look() -> list[str]:
        return await platform.kube.pods_of(platform.namespace, AGENT)

    await only_on("nowhere")
    try:
        await platform.wait(look, lambda names: not names, "no agent is left")
        yield
    finally:
        await only_on(None)
        await platform.kube.run(
            *("rollout", "status", agents[0], "-n", platform.namespace, "--timeout", "60s")
        )


async def test_without_agents_the_api_server_is_read(platform: Platform) -> None:
    lines = 1200
    async with no_agents(platform):
        task_id = await platform.submit("streamed", counting(lines, 0.01), gpus_per_node=0)
        await platform.until_logged(task_id, f"line {lines - 1}")
        await until_ended(platform, task_id)
        assert await kept(platform, task_id) == counted(lines)
    # And what began without agents goes on with them.
    task_id = await platform.submit("again", counting(10, 0.01), gpus_per_node=0)
    await platform.until_logged(task_id, "line 9")
    await until_ended(platform, task_id)
    assert await kept(platform, task_id) == counted(10)
