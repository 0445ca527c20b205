"""``make demo`` shows a preemption of real training in under a minute and removes all its files.

A real training task runs at low priority; a gang of higher priority needs every node; the task
saves, leaves, and resumes when the gang has ended. Its final weights are compared with those of
the same training run alone, outside the platform: they must be bit-identical.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import uvloop

from libs.contracts.services import SERVICES
from libs.contracts.task_states import TERMINAL_WORDS
from libs.contracts.wording import counted
from libs.service import observability
from libs.service.loop import pause
from libs.signals.gpus import find_gpus
from services.allinone.client import admin_client, items
from services.allinone.data_folder import DataFolder, Options
from services.allinone.event_sentences import sentence
from services.allinone.platform import Platform
from services.launcher.runtimes.supervisor_shutdown import end_supervisors

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STEPS, STEP_SECONDS, SEED = 500, 0.012, 7
GANG_STEPS, GANG_STEP_SECONDS = 40, 0.05
# The demo submits the gang after the training has made this many steps.
STEPS_BEFORE_GANG = 120
DEMO_SECONDS_MAX = 180.0
# The events that the demo must show, in this order: (type of event, name of task).
EXPECTED_EVENTS = (
    ("run.preemption_requested", "digits"),
    ("run.checkpoint_saved", "digits"),
    ("run.exited", "digits"),
    ("run.started", "gang"),
    ("run.resumed", "digits"),
)


class DemoError(Exception):
    """The demo did not show what it promises."""


@dataclass(frozen=True)
class Demo:
    """The client, folder, number of nodes and start time of the demo."""

    client: httpx.AsyncClient
    folder: Path
    nodes: int
    began: float


def write_line(text: str = "") -> None:
    """Print a line of the demo."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def main() -> int:
    """Run the demo; return 0 on success, 1 on failure and 130 if it is interrupted."""
    folder = Path(tempfile.mkdtemp(prefix="shiftwork-demo-"))
    data_folder = DataFolder(folder / "platform")
    # Without a GPU the demo uses virtual nodes; otherwise it uses this machine as it is.
    virtual = not find_gpus().gpus
    options = Options(port=0, nodes=2, slots=2) if virtual else Options(port=0)
    # Root is acceptable: the demo runs only its own tasks and ends them when it exits.
    options = replace(options, tasks_as_root=True)
    try:
        data_folder.take()
        with data_folder.log.open("a", encoding="utf-8") as log:
            observability.set_up_logs("json", "info", log)
            return await _on_platform(folder, Platform(data_folder, options, os.getpid()))
    finally:
        await asyncio.to_thread(end_supervisors, data_folder.machine)
        data_folder.release()
        shutil.rmtree(folder, ignore_errors=True)


async def _on_platform(folder: Path, platform: Platform) -> int:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    began = time.monotonic()
    write_line(f"Starting NATS, PostgreSQL and {len(SERVICES)} services")
    running = asyncio.ensure_future(platform.run())
    try:
        ready = asyncio.ensure_future(platform.ready.wait())
        await asyncio.wait((running, ready), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        write_line(f"Ready after {time.monotonic() - began:.1f} s at {platform.url}")
        async with admin_client(platform.data_folder, platform.url) as client:
            nodes = await _nodes(client)
            demo = Demo(client, folder, len(nodes), time.monotonic())
            async with asyncio.timeout(DEMO_SECONDS_MAX):
                await preempt_and_resume(demo)
    except asyncio.CancelledError:
        write_line("interrupted; ending everything")
        return 130
    except (DemoError, httpx.HTTPError, TimeoutError) as problem:
        write_line(f"The demo failed: {problem or type(problem).__name__}")
        write_line("".join(platform.data_folder.log.read_text().splitlines(keepends=True)[-20:]))
        return 1
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return 0


async def _nodes(client: httpx.AsyncClient) -> list[Any]:
    """Wait until the launcher has published the nodes, and return them."""
    while not (nodes := await items(client, "/v1/nodes")):
        await pause(0.05)
    listed = ", ".join(f"{node['id']} ({counted(node['gpus'], 'slot')})" for node in nodes)
    write_line(f"Nodes: {listed}")
    return nodes


async def preempt_and_resume(demo: Demo) -> None:
    """Run both tasks, from the first submission to the comparison of the weights."""
    write_line()
    uninterrupted = asyncio.ensure_future(_train_uninterrupted(demo.folder / "alone"))
    try:
        digits = await _submit(demo, "digits", "low", 1, _digits(demo.folder / "shared"))
        write_line("Submitted digits (low priority): a network on real handwritten digits")
        timeline = asyncio.ensure_future(_timeline(demo, digits))
        try:
            await _until_step(demo, digits, STEPS_BEFORE_GANG)
            gang = await _submit(demo, "gang", "high", demo.nodes, _gang(demo.folder / "gang"))
            write_line(f"Submitted gang (high priority): needs all {demo.nodes} nodes, now")
            write_line()
            await _until_ended(demo, gang)
            await _until_ended(demo, digits)
            events = await timeline
        finally:
            timeline.cancel()
        expected = await uninterrupted
    finally:
        uninterrupted.cancel()
    _compare(demo, events, expected)


def _digits(out: Path) -> list[str]:
    return [
        *("python", str(EXAMPLES / "digits.py"), "--out", str(out)),
        *("--steps", str(STEPS), "--seed", str(SEED), "--step-seconds", str(STEP_SECONDS)),
    ]


def _gang(out: Path) -> list[str]:
    return [
        *("python", str(EXAMPLES / "gang.py"), "--out", str(out)),
        *("--steps", str(GANG_STEPS), "--step-seconds", str(GANG_STEP_SECONDS)),
    ]


async def _train_uninterrupted(out: Path) -> str:
    """Train uninterrupted, outside the platform; return the digest of the weights."""
    command = [*_digits(out)[1:-1], "0"]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise DemoError(f"the uninterrupted training failed: {errors.decode()[-500:]}")
    return _digest(out)


def _digest(out: Path) -> str:
    return str(json.loads((out / "final.json").read_text())["sha256"])


async def _submit(demo: Demo, name: str, priority: str, nodes: int, command: list[str]) -> str:
    body = {
        "name": name,
        "priority": priority,
        "nodes": nodes,
        "command": command,
        "working_directory": str(demo.folder),
    }
    answer = await demo.client.post("/v1/tasks", json=body, headers={"idempotency-key": name})
    if answer.is_error:
        raise DemoError(f"{name} was refused: {answer.text}")
    return str(answer.json()["id"])


async def _until_step(demo: Demo, task_id: str, step: int) -> None:
    while True:
        latest = await items(demo.client, f"/v1/tasks/{task_id}/metrics")
        if any(point["latest"].get("step", 0) >= step for point in latest):
            return
        await _checked_state(demo, task_id)
        await pause(0.05)


async def _checked_state(demo: Demo, task_id: str) -> str:
    task = (await demo.client.get(f"/v1/tasks/{task_id}")).raise_for_status().json()
    if task["state"] in TERMINAL_WORDS and task["state"] != "succeeded":
        logs = await demo.client.get(f"/v1/tasks/{task_id}/logs", params={"rank": 0, "tail": 15})
        raise DemoError(f"{task['name']} {task['state']}: {task['reason']['text']}\n{logs.text}")
    return str(task["state"])


async def _until_ended(demo: Demo, task_id: str) -> None:
    while await _checked_state(demo, task_id) not in TERMINAL_WORDS:
        await pause(0.05)


async def _timeline(demo: Demo, digits: str) -> list[tuple[str, str]]:
    """Print the events as they happen until ``digits`` has ended; return them in order."""
    events: list[tuple[str, str]] = []
    async for event in _events(demo.client):
        event_type, data = event["type"], event["data"]
        name = "digits" if data.get("task_id") == digits else "gang"
        text = sentence(event_type, data)
        if text is not None and "task_id" in data:
            events.append((event_type, name))
            write_line(f"  {time.monotonic() - demo.began:7.3f} s  {name:7} {text}")
        if event_type == "task.state_changed" and name == "digits" and data.get("finished_at"):
            return events
    return events


async def _events(client: httpx.AsyncClient) -> AsyncGenerator[dict[str, Any]]:
    """Yield the platform's events from the first one on, as they arrive."""
    accept = {"accept": "text/event-stream"}
    async with client.stream("GET", "/v1/events", params={"from": 0}, headers=accept) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


def _compare(demo: Demo, events: list[tuple[str, str]], expected: str) -> None:
    """Check the order of the events, and the weights. Raises ``DemoError`` at a difference."""
    remaining = iter(events)
    missing = [each for each in EXPECTED_EVENTS if each not in remaining]
    if missing:
        raise DemoError(f"not seen in this order: {missing[0]}")
    got = _digest(demo.folder / "shared")
    write_line()
    write_line(f"weights after preemption and resume  sha256 {got}")
    write_line(f"weights of an uninterrupted run      sha256 {expected}")
    if got != expected:
        raise DemoError("the weights differ")
    write_line("The final weights are bit-identical to an uninterrupted run.")


if __name__ == "__main__":
    raise SystemExit(uvloop.run(main()))
