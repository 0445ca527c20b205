"""Preemption on real nodes, beside what the demo shows: silence, signals, a lost node."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.kit.kubernetes import NodesCluster
from tools.kubernetes_demo.platform import Platform

pytestmark = pytest.mark.kubernetes
# Saves all the time, and stays when ``Superseded`` reports that another attempt has taken its
# place. It notes that in a file, for the output of an attempt after its end is not collected.
STUBBORN = """
import shiftwork, time
step = 0
print("up", flush=True)
while True:
    time.sleep(0.5)
    step += 1
    try:
        shiftwork.checkpoint_saved(step, f"memory:{step}")
    except shiftwork.Superseded:
        open("NOTE", "w").close()
        time.sleep(3600)
"""


async def test_a_silent_program_is_ended_at_its_deadline_and_runs_again(platform: Platform) -> None:
    script = "import time\nprint('up', flush=True)\nwhile True: time.sleep(1)"
    victim = await platform.submit(
        "silent",
        ["python3", "-c", script],
        priority="low",
        nodes=2,
        preemption={"ack_deadline_seconds": 3},
    )
    await platform.until_logged(victim, "up")
    newcomer = await platform.submit("urgent", ["sleep", "2"], priority="high", nodes=2)
    await platform.until_state(newcomer, "succeeded")
    again = await platform.until(victim, "running again", lambda task: task["attempt"] > 1)
    assert again["exit"] is None or again["state"] != "failed"
    await platform.until_recorded("run.exited", victim)
    facts = [entry.fact for entry in platform.diary if entry.task_id == victim]
    assert facts.index("run.preemption_requested") < facts.index("run.exited")
    assert "run.checkpoint_saved" not in facts


async def test_a_program_that_handles_signals_only(platform: Platform) -> None:
    script = "trap 'echo signalled; exit 75' USR1; echo up; while :; do sleep 0.1; done"
    victim = await platform.submit(
        "signalled",
        ["sh", "-c", script],
        priority="low",
        nodes=2,
        preemption={"mode": "signal", "ack_deadline_seconds": 30},
    )
    await platform.until_logged(victim, "up")
    newcomer = await platform.submit("urgent", ["sleep", "2"], priority="high", nodes=2)
    await platform.until_state(newcomer, "succeeded")
    await platform.until_logged(victim, "signalled", attempt=1)
    exited = await platform.until_recorded("run.exited", victim)
    assert exited.data["exit"]["kind"] == "preempted"


async def test_a_node_whose_kubelet_stops(platform: Platform, installed: NodesCluster) -> None:
    """Lost, run elsewhere; what still runs there acknowledges nothing and keeps its GPUs."""
    name = f"superseded-{platform.run}"
    program = STUBBORN.replace("NOTE", f"{platform.mount}/{name}")
    victim = await platform.submit("stranded", ["python3", "-c", program], nodes=1, gpus_per_node=1)
    await platform.until_logged(victim, "up")
    [place] = (await platform.until_recorded("run.started", victim)).data["placements"]
    first, gpu = str(place["node_id"]), int(place["gpus"][0])

    async def look() -> dict[str, Any]:
        node: dict[str, Any] = await platform.request("GET", f"/v1/nodes/{first}")
        return node

    await asyncio.to_thread(installed.stop_kubelet, first)
    try:
        resumed = await platform.until_recorded("run.resumed", victim)
        assert resumed.data["placements"][0]["node_id"] != first
        exits = [e for e in platform.diary if (e.task_id, e.fact) == (victim, "run.exited")]
        assert [e.data["exit"]["kind"] for e in exits] == ["lost"]
        # The containers of the silent node go on, and learn that they are superseded.
        file = installed.shared_folder / name
        while not file.exists():  # noqa: ASYNC110 - there is no event for files
            await asyncio.sleep(0.2)
        file.unlink()
        await platform.until_recorded("run.checkpoint_saved", victim, after=len(platform.diary))
        accepted = [
            e.data
            for e in platform.diary
            if (e.task_id, e.fact) == (victim, "run.checkpoint_saved")
        ]
        later = accepted[[e["attempt"] for e in accepted].index(2) :]
        assert {e["attempt"] for e in later} == {2}
        node = await look()
        assert not node["ready"]
        assert gpu in node["unusable_gpus"]
        assert (f"{victim}-1-0", "pod.gone") not in pods_of(platform)
    finally:
        await asyncio.to_thread(installed.start_kubelet, first)
    await platform.wait(
        look, lambda n: bool(n["ready"]) and not n["unusable_gpus"], "the node's GPUs come free"
    )
    # Only what was seen to end is free.
    assert {(f"{victim}-1-0", "pod.ended"), (f"{victim}-1-0", "pod.gone")} & pods_of(platform)


def pods_of(platform: Platform) -> set[tuple[str, str]]:
    """Every pod with each state in which it was observed so far."""
    entries = (entry for entry in platform.diary if entry.fact.startswith("pod."))
    return {(str(entry.data["pod"]), entry.fact) for entry in entries}
