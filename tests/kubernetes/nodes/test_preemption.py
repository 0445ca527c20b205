"""Preemption on real nodes, beside what the demo shows: silence, signals, a lost node."""

from __future__ import annotations

import pytest

from tests.harness.kubernetes import NodesCluster
from tools.kubernetes_demo.stage import Stage

pytestmark = pytest.mark.kubernetes


async def test_a_silent_program_is_ended_at_its_deadline_and_runs_again(stage: Stage) -> None:
    script = "import time\nprint('up', flush=True)\nwhile True: time.sleep(1)"
    victim = await stage.submit(
        "silent",
        ["python3", "-c", script],
        priority="low",
        nodes=2,
        preemption={"ack_deadline_seconds": 3},
    )
    await stage.until_logged(victim, "up")
    newcomer = await stage.submit("urgent", ["sleep", "2"], priority="high", nodes=2)
    await stage.until_state(newcomer, "succeeded")
    again = await stage.until(victim, "running again", lambda task: task["attempt"] > 1)
    assert again["exit"] is None or again["state"] != "failed"
    facts = [entry.fact for entry in stage.diary if entry.task_id == victim]
    assert facts.index("run.preemption_requested") < facts.index("run.exited")
    assert "run.checkpoint_saved" not in facts


async def test_a_program_that_knows_signals_only(stage: Stage) -> None:
    script = "trap 'echo told; exit 75' USR1; echo up; while :; do sleep 0.1; done"
    victim = await stage.submit(
        "signalled",
        ["sh", "-c", script],
        priority="low",
        nodes=2,
        preemption={"mode": "signal", "ack_deadline_seconds": 30},
    )
    await stage.until_logged(victim, "up")
    newcomer = await stage.submit("urgent", ["sleep", "2"], priority="high", nodes=2)
    await stage.until_state(newcomer, "succeeded")
    await stage.until_logged(victim, "told", attempt=1)
    exits = [e for e in stage.diary if (e.task_id, e.fact) == (victim, "run.exited")]
    assert exits[0].data["exit"]["kind"] == "EXIT_KIND_PREEMPTED"


async def test_a_node_whose_kubelet_stops(stage: Stage, installed: NodesCluster) -> None:
    """Lost, run elsewhere; what still runs there acknowledges nothing and keeps its GPUs."""
    script = (
        "import shiftwork, time\n"
        "step = 0\n"
        "print('up', flush=True)\n"
        "while True:\n"
        "    time.sleep(0.5); step += 1\n"
        "    try:\n"
        "        shiftwork.checkpoint_saved(step, f'memory:{step}')\n"
        "    except shiftwork.Superseded:\n"
        "        print('superseded', flush=True); time.sleep(3600)\n"
    )
    victim = await stage.submit("stranded", ["python3", "-c", script], preemption={"mode": "sdk"})
    await stage.until_logged(victim, "up")
    first = str((await stage.until_told("run.started", victim)).data["placements"][0]["node_id"])
    installed.stop_kubelet(first)
    try:
        again = await stage.until(victim, "run again", lambda t: t["attempt"] == 2, seconds=180)
        assert again["attempt"] == 2
        exits = [e for e in stage.diary if (e.task_id, e.fact) == (victim, "run.exited")]
        assert [e.data["exit"]["kind"] for e in exits] == ["EXIT_KIND_LOST"]
        await stage.until_state(victim, "running")
        mark = len(stage.diary)
        # The old attempt still runs on the silent node, and says so in vain.
        await stage.until_told("run.checkpoint_saved", victim, after=mark)
        saved = [e for e in stage.diary[mark:] if e.fact == "run.checkpoint_saved"]
        assert {e.data["attempt"] for e in saved if e.task_id == victim} == {2}
        node = await stage.request("GET", f"/v1/nodes/{first}")
        assert not node["ready"]
    finally:
        installed.start_kubelet(first)

    async def look() -> dict[str, object]:
        found: dict[str, object] = await stage.request("GET", f"/v1/nodes/{first}")
        return found

    back = await stage.wait(
        look, lambda n: bool(n["ready"]) and not n["unusable_gpus"], "the node's GPUs come free"
    )
    assert back["ready"]
