"""The control plane does what tests rely on: rights, quotas, scheduling, and restarts."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from tests.kit.kubernetes import StartControlPlane
from tools.cluster import simulated
from tools.cluster.api import Api, ApiError, wait_until
from tools.cluster.control_plane import API_SERVER, ControlPlane
from tools.cluster.processes import is_running

pytestmark = pytest.mark.kubernetes

GPU = "nvidia.com/gpu"


def pod(name: str, *, node: str, image: str = "none", gpus: int = 1) -> dict[str, Any]:
    """A pod that is pinned as the platform pins its pods."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    main = {"name": "main", "image": image, "resources": {"limits": {GPU: str(gpus)}}}
    return {
        "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "containers": [main], "affinity": affinity},
    }


class Space:
    """A name space and a node of one test."""

    def __init__(self, plane: ControlPlane, name: str) -> None:
        self.name = name
        self.node = f"{name}-node"
        self.api = plane.api
        self.pods = f"/api/v1/namespaces/{name}/pods"
        plane.ensure_namespace(name, {"pod-security.kubernetes.io/enforce": "baseline"})
        simulated.add_nodes(plane.api, [self.node], gpus=4)

    def status(self, name: str) -> dict[str, Any]:
        return self.api.get(f"{self.pods}/{name}")["status"]

    def until_phase(self, name: str, phase: str) -> dict[str, Any]:
        wait_until(lambda: self.status(name).get("phase") == phase, f"{name} {phase}", seconds=20)
        return self.status(name)

    def names(self) -> set[str]:
        return {one["metadata"]["name"] for one in self.api.items(self.pods)}


@pytest.fixture
def space(control_plane: ControlPlane, request: pytest.FixtureRequest) -> Space:
    test = request.function.__name__.removeprefix("test_").replace("_", "-")[:40].strip("-")
    return Space(control_plane, f"{test}-{crc32(request.node.name.encode()):08x}")


def test_a_pod_runs_where_it_is_pinned_and_goes_when_deleted(space: Space) -> None:
    space.api.create(space.pods, pod("one", node=space.node))
    space.until_phase("one", "Running")
    assert space.api.get(f"{space.pods}/one")["spec"]["nodeName"] == space.node
    space.api.delete(f"{space.pods}/one")
    wait_until(lambda: not space.names(), "gone", seconds=10)
    assert space.api.delete(f"{space.pods}/one") is False


def test_gpus_that_are_taken_are_not_given_again(space: Space) -> None:
    for name in ("first", "second"):
        space.api.create(space.pods, pod(name, node=space.node, gpus=3))
        wait_until(lambda n=name: space.status(n).get("conditions"), name, seconds=10)
    why = [c["reason"] for c in space.status("second")["conditions"]]
    assert why == ["Unschedulable"]


def test_pod_security_and_quota_refuse(space: Space) -> None:
    space.api.create(
        f"/api/v1/namespaces/{space.name}/resourcequotas",
        {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}},
    )
    quota = f"/api/v1/namespaces/{space.name}/resourcequotas/q"
    wait_until(lambda: space.api.get(quota).get("status", {}).get("hard"), "quota", seconds=20)
    privileged = pod("bad", node=space.node)
    privileged["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    with pytest.raises(ApiError, match=r"(?s)403.*PodSecurity"):
        space.api.create(space.pods, privileged)
    space.api.create(space.pods, pod("one", node=space.node))
    with pytest.raises(ApiError, match=r"403.*exceeded quota"):
        space.api.create(space.pods, pod("two", node=space.node))


def test_a_limited_user_may_do_what_is_granted_and_no_more(
    control_plane: ControlPlane, space: Space
) -> None:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    with Api(control_plane.service_account(space.name, "looker", rules)) as looker:
        assert looker.items(space.pods) == []
        with pytest.raises(ApiError, match="403"):
            looker.create(space.pods, pod("one", node=space.node))
        with pytest.raises(ApiError, match="403"):
            looker.items("/api/v1/nodes")
    unknown = control_plane.folder / "unknown"
    unknown.write_text(control_plane.kubeconfig_of_token("nonsense"))
    with Api(unknown) as nobody, pytest.raises(ApiError, match="401"):
        nobody.items(space.pods)


@pytest.mark.parametrize(
    ("image", "phase", "code", "reason"),
    [
        ("simulated/exits:0", "Succeeded", 0, "Completed"),
        ("example.com/simulated/exits:17", "Failed", 17, "Error"),
        ("simulated/oom", "Failed", 137, "OOMKilled"),
    ],
)
def test_the_image_selects_how_pods_end(
    space: Space, image: str, phase: str, code: int, reason: str
) -> None:
    name = f"p{code}"
    space.api.create(space.pods, pod(name, node=space.node, image=image))
    status = space.until_phase(name, phase)
    ended = status["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (code, reason)


def test_the_image_selects_pods_that_do_not_start_or_leave(space: Space) -> None:
    for name in ("missing", "hangs", "stubborn"):
        space.api.create(space.pods, pod(name, node=space.node, image=f"simulated/{name}"))
    space.until_phase("stubborn", "Running")

    def waits() -> bool:
        states = space.status("missing").get("containerStatuses")
        return bool(states) and states[0]["state"]["waiting"]["reason"] == "ImagePullBackOff"

    wait_until(waits, "ImagePullBackOff", seconds=10)
    assert space.status("hangs")["phase"] == "Pending"
    began = time.monotonic()
    for name in ("hangs", "stubborn"):
        space.api.delete(f"{space.pods}/{name}", grace_seconds=3)
    wait_until(lambda: space.names() == {"missing"}, "both gone", seconds=10, every=0.05)
    assert 2 <= time.monotonic() - began < 6


def test_a_silent_node_keeps_its_pods_until_it_is_back(space: Space) -> None:
    space.api.create(space.pods, pod("one", node=space.node))
    space.until_phase("one", "Running")
    simulated.silence(space.api, space.node)
    assert space.node not in simulated.ready_nodes(space.api)
    space.api.delete(f"{space.pods}/one", grace_seconds=1)
    time.sleep(2)
    assert space.names() == {"one"}
    simulated.revive(space.api, space.node)
    wait_until(lambda: not space.names(), "gone with the node's return", seconds=10)


def test_what_an_owner_leaves_behind_is_collected(space: Space) -> None:
    maps = f"/api/v1/namespaces/{space.name}/configmaps"
    owner = space.api.create(maps, {"metadata": {"name": "run"}})
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "run",
        "uid": owner["metadata"]["uid"],
    }
    owned = pod("one", node=space.node)
    owned["metadata"]["ownerReferences"] = [reference]
    space.api.create(space.pods, owned)
    space.api.delete(f"{maps}/run")
    wait_until(lambda: not space.names(), "collected", seconds=20)


def test_programs_come_back_where_they_were(control_plane_start: StartControlPlane) -> None:
    plane = control_plane_start()
    space = Space(plane, "back")
    space.api.create(space.pods, pod("one", node=space.node))
    space.until_phase("one", "Running")
    url = plane.url
    plane.restart(API_SERVER, kill=True)
    assert plane.url == url
    assert space.names() == {"one"}
    plane.stop()
    assert plane.processes.names() == []
    plane.start()
    assert [one["metadata"]["name"] for one in plane.api.items(space.pods)] == ["one"]


def test_expired_watches_get_410(control_plane_start: StartControlPlane) -> None:
    plane = control_plane_start(controllers=False, scheduler=False, simulated_nodes=False)
    spaces = "/api/v1/namespaces"
    known = plane.api.get(spaces)["metadata"]["resourceVersion"]

    assert plane.api.watched(spaces, seconds=1, resourceVersion=known) == []
    plane.expire()
    (event,) = plane.api.watched(spaces, seconds=1, resourceVersion=known)
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


def test_the_audit_log_records_who_wrote_what(space: Space, control_plane: ControlPlane) -> None:
    space.api.create(space.pods, pod("audited", node=space.node))

    def written() -> list[tuple[str, str]]:
        lines = control_plane.audit_log.read_text("utf-8").splitlines()
        entries = [json.loads(line) for line in lines if '"audited"' in line]
        return [
            (one["verb"], one["user"]["username"])
            for one in entries
            if one["objectRef"].get("namespace") == space.name
        ]

    wait_until(lambda: ("create", "shiftwork:admin") in written(), "the entry", seconds=10)


def test_nothing_stays_when_its_user_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from tools.cluster.control_plane import ControlPlane, Options\n"
        "few = Options(controllers=False, scheduler=False, simulated_nodes=False)\n"
        "plane = ControlPlane(Path(sys.argv[1]), few)\n"
        "plane.start(); plane.end_with(os.getpid(), remove=True)\n"
        "print('up', flush=True); time.sleep(600)\n"
    )
    root = Path(__file__).resolve().parents[2]
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "plane")], stdout=subprocess.PIPE, cwd=root
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    processes = ControlPlane(tmp_path / "plane").processes
    names = {name: processes.identity(name) for name in processes.names()}
    assert set(names) == {"guard", "etcd", API_SERVER}
    child.kill()
    child.wait()
    child.stdout.close()
    wait_until(lambda: not (tmp_path / "plane").exists(), "all ended", seconds=40)
    wait_until(lambda: not any(is_running(one) for one in names.values() if one), "the guard too")
