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

    async def exits() -> list[str]:
        found = [e for e in platform.diary if (e.task_id, e.fact) == (task, "run.exited")]
        return [each.data["exit"]["kind"] for each in found]

    # The diary may learn of an end after the task's state shows it.
    await platform.wait(exits, lambda kinds: len(kinds) > 1, "both ends are recorded", 10)
    assert await exits() == ["preempted", "ok"]


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


# Workers that serve after a while, and a launcher that finds all of them at its first try.
SERVES = """
import os, socket, time
time.sleep(3)
door = socket.create_server(("", int(os.environ["SHIFTWORK_PORT_WORK"])))
print("serves", flush=True)
while True:
    door.accept()[0].close()
"""
LAUNCHES = """
import os, pathlib, shiftwork, socket, sys, time
for rank in (1, 2):
    name = os.environ["MASTER_ADDR"].replace("-0.", f"-{rank}.", 1)
    socket.create_connection((name, 7070), 5).close()
saved = shiftwork.resume_from()
print(f"found both, from {saved.step if saved else 0}", flush=True)
step = saved.step if saved else 0
while step < 40:
    step += 1
    time.sleep(0.2)
    if shiftwork.should_preempt():
        shiftwork.checkpoint_saved(step, f"memory:{step}")
        sys.exit(75)
"""


async def test_a_launcher_starts_once_its_workers_are_ready(platform: Platform) -> None:
    roles = [
        {
            "name": "launcher",
            "replicas": 1,
            "auxiliary": True,
            "command": ["python3", "-c", LAUNCHES],
            "starts_after": [{"role": "worker", "condition": "ready"}],
        },
        {
            "name": "worker",
            "replicas": 2,
            "gpus": 1,
            "command": ["python3", "-c", SERVES],
            "ports": [{"name": "work", "port": 7070}],
            "ready": {"port": "work"},
        },
    ]
    completion = {"success": ["launcher[0]"]}
    task = await platform.submit("ordered", roles=roles, completion=completion, priority="low")
    await platform.until_logged(task, "found both, from 0")
    newcomer = await platform.submit("urgent", ["sleep", "2"], priority="high", nodes=2)
    await platform.until_state(newcomer, "succeeded")
    ended = await platform.until_state(task, "succeeded")
    step = ended["checkpoint"]["step"]
    await platform.until_logged(task, f"found both, from {step}", attempt=2)
    # The launcher's pod was created after those of the workers ran.
    running = [entry for entry in platform.diary if entry.fact == "pod.running"]
    first = [
        str(entry.data["pod"]) for entry in running if entry.data["pod"].startswith(f"{task}-1-")
    ]
    assert first[-1] == f"{task}-1-0"


async def test_a_rank_is_restarted_in_its_place_while_the_others_go_on(platform: Platform) -> None:
    fails_once = (
        "import os, sys, time; restarts = os.environ.get('SHIFTWORK_RESTARTS', '0');"
        " print('restarts', restarts, flush=True); time.sleep(1);"
        " sys.exit(3) if restarts == '0' else time.sleep(3600)"
    )
    chief = "import time; print('up', flush=True); time.sleep(15); print('done', flush=True)"
    roles = [
        {"name": "chief", "replicas": 1, "gpus": 1, "command": ["python3", "-c", chief]},
        {
            "name": "server",
            "replicas": 1,
            "gpus": 1,
            "command": ["python3", "-c", fails_once],
            "restart": {"scope": "rank"},
        },
    ]
    task = await platform.submit("restarted", roles=roles, completion={"success": ["chief[0]"]})
    restarted = await platform.until_recorded("run.rank_restarted", task)
    assert (restarted.data["rank"], restarted.data["restarts"]) == (1, 1)
    ended = await platform.until_state(task, "succeeded")
    assert ended["attempt"] == 1
    query = {"rank": 1}
    logs = str(await platform.request("GET", f"/v1/tasks/{task}/logs", params=query))
    assert "restarts 1" in logs.splitlines()
