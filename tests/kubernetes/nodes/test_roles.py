"""Gangs of roles that differ, in pods on real nodes: packed, preempted and resumed."""

from __future__ import annotations

import pytest

from tools.kubernetes_demo.platform import Platform

pytestmark = pytest.mark.kubernetes

# A chief that reaches every worker and parameter server at each step, and decides; the others serve
# until they are ended. Standard library only, on the variables of the contract tf_config.
CLUSTER = """
import json, os, pathlib, shiftwork, socket, sys, time
config = json.loads(os.environ["TF_CONFIG"])
own = config["task"]
host, _, port = config["cluster"][own["type"]][own["index"]].rpartition(":")
if own["type"] != "chief":
    door = socket.create_server(("", int(port)))
    while True:
        door.accept()[0].close()
others = [each for kind, found in config["cluster"].items() if kind != "chief" for each in found]
def reach(address):
    host, _, port = address.rpartition(":")
    for _ in range(300):
        try:
            return socket.create_connection((host, int(port)), 2).close()
        except OSError:
            time.sleep(0.1)
    sys.exit(f"{address} does not answer")
saved = shiftwork.resume_from()
step = int(pathlib.Path(saved.uri).read_text()) if saved else 0
print(f"from {step} with {len(others)}", flush=True)
while step < 60:
    for address in others:
        reach(address)
    step += 1
    time.sleep(0.2)
    if shiftwork.should_preempt():
        path = pathlib.Path("FOLDER") / f"{os.environ['SHIFTWORK_TASK']}-{step}"
        path.write_text(str(step))
        shiftwork.checkpoint_saved(step, str(path))
        sys.exit(75)
print("done", flush=True)
"""


async def test_a_chief_decides_beside_servers_that_never_exit(platform: Platform) -> None:
    command = ["python3", "-c", CLUSTER.replace("FOLDER", platform.mount)]
    roles = [
        {"name": "chief", "replicas": 1, "gpus": 1, "command": command},
        {"name": "worker", "replicas": 2, "gpus": 1, "command": command},
        {"name": "ps", "replicas": 1, "auxiliary": True, "command": command},
    ]
    task = await platform.submit(
        "cluster",
        contract="tf_config",
        roles=roles,
        completion={"success": ["chief[0]"]},
        priority="low",
    )
    await platform.until_logged(task, "from 0 with 3")
    started = await platform.until_recorded("run.started", task)
    places = started.data["placements"]
    # Three ranks with a GPU each, on two nodes of two GPUs.
    assert len({place["node_id"] for place in places if place["role"] != "ps"}) == 2
    gpus = [(place["node_id"], gpu) for place in places for gpu in place["gpus"]]
    assert len(set(gpus)) == len(gpus) == 3

    newcomer = await platform.submit("urgent", ["sleep", "2"], priority="high", nodes=2)
    await platform.until_state(newcomer, "succeeded")
    ended = await platform.until_state(task, "succeeded")
    assert ended["attempt"] == 2
    step = ended["checkpoint"]["step"]
    await platform.until_logged(task, f"from {step} with 3", attempt=2)
    exits = [e for e in platform.diary if (e.task_id, e.fact) == (task, "run.exited")]
    assert [each.data["exit"]["kind"] for each in exits] == ["preempted", "ok"]


async def test_ranks_of_one_gpu_share_a_node(platform: Platform) -> None:
    script = "import os, time; print('up', os.environ['SHIFTWORK_NODE'], flush=True); time.sleep(2)"
    role = {"replicas": 2, "gpus": 1, "command": ["python3", "-c", script]}
    task = await platform.submit("packed", roles=[role])
    started = await platform.until_recorded("run.started", task)
    places = started.data["placements"]
    assert len({place["node_id"] for place in places}) == 1
    assert len({gpu for place in places for gpu in place["gpus"]}) == 2
    await platform.until_state(task, "succeeded")


async def test_replicas_that_are_to_be_spread_have_a_node_each(platform: Platform) -> None:
    role = {"replicas": 2, "gpus": 1, "spread": True, "command": ["sleep", "1"]}
    task = await platform.submit("spread", roles=[role])
    started = await platform.until_recorded("run.started", task)
    assert len({place["node_id"] for place in started.data["placements"]}) == 2
    await platform.until_state(task, "succeeded")
