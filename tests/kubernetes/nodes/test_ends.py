"""How the end of a program in a pod is reported to its owner."""

from __future__ import annotations

from typing import Any

import pytest

from libs.contracts.task_states import TERMINAL_WORDS
from tools.kubernetes_demo.platform import Platform

pytestmark = pytest.mark.kubernetes


async def ended(platform: Platform, task_id: str) -> dict[str, Any]:
    """The task once it has ended, however that is."""

    async def look() -> dict[str, Any]:
        found: dict[str, Any] = await platform.request("GET", f"/v1/tasks/{task_id}")
        return found

    return await platform.wait(
        look, lambda task: task["state"] in TERMINAL_WORDS, f"{task_id} ends"
    )


@pytest.mark.parametrize("code", [0, 3, 137])
async def test_exit_codes(platform: Platform, code: int) -> None:
    task_id = await platform.submit("leaver", ["sh", "-c", f"exit {code}"], gpus_per_node=0)
    task = await ended(platform, task_id)
    assert task["state"] == ("failed" if code else "succeeded")
    assert task["exit"]["code"] == code


async def test_memory_that_runs_out_is_reported(platform: Platform) -> None:
    eat = "x = []\nwhile True: x.append(bytearray(8_000_000))"
    task_id = await platform.submit(
        "eater", ["python3", "-c", eat], gpus_per_node=0, memory_bytes=96 * 2**20
    )
    task = await ended(platform, task_id)
    assert task["state"] == "failed"
    assert "memory" in task["exit"]["text"].lower()


async def test_an_image_that_does_not_exist_is_reported_and_leaves_nothing(
    platform: Platform,
) -> None:
    pod = {"image": "localhost/shiftwork/nowhere:never"}
    task_id = await platform.submit("nowhere", ["true"], gpus_per_node=0, pod=pod)

    async def look() -> str:
        return str(await platform.request("GET", f"/v1/tasks/{task_id}/explain"))

    await platform.wait(look, lambda text: "nowhere:never" in text, "the image is named")
    await platform.request("PUT", f"/v1/tasks/{task_id}/goal", json={"goal": "stop"})
    await ended(platform, task_id)
    await platform.until_nothing_left(task_id)


async def test_a_program_that_is_not_in_the_image_is_reported(platform: Platform) -> None:
    task_id = await platform.submit("absent", ["/no/such/program"], gpus_per_node=0)
    task = await ended(platform, task_id)
    assert task["state"] == "failed"
    assert "/no/such/program" in task["exit"]["text"]


async def test_a_stopped_task_has_time_to_close(platform: Platform) -> None:
    """Grace: what the program does after SIGTERM is done."""
    script = "trap 'sleep 2; echo closed well; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    # It is asked to save first, which it does not know how to do.
    asked = {"ack_deadline_seconds": 1}
    task_id = await platform.submit(
        "closer", ["sh", "-c", script], gpus_per_node=0, preemption=asked
    )
    await platform.until_state(task_id, "running")
    await platform.until_logged(task_id, "up")
    await platform.request("PUT", f"/v1/tasks/{task_id}/goal", json={"goal": "stop"})
    await ended(platform, task_id)
    await platform.until_logged(task_id, "closed well")


async def test_output_is_complete_across_a_restart_of_the_collector(platform: Platform) -> None:
    lines = 1800
    script = f"i=0; while [ $i -lt {lines} ]; do echo line $i; i=$((i+1)); sleep 0.003; done"
    task_id = await platform.submit("talker", ["sh", "-c", script], gpus_per_node=0)
    await platform.until_logged(task_id, "line 200")
    await platform.kube.kill_pods(platform.namespace, "app.kubernetes.io/component=log-collector")
    await platform.until_logged(task_id, "line 900")
    await platform.kube.kill_pods(platform.namespace, "app.kubernetes.io/component=log-agent")
    await ended(platform, task_id)
    await platform.until_logged(task_id, f"line {lines - 1}")
    logs = await platform.request("GET", f"/v1/tasks/{task_id}/logs", params={"rank": 0})
    assert str(logs).split("\n")[:-1] == [f"line {number}" for number in range(lines)]
