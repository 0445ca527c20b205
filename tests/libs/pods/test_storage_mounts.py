"""Storage grants: which of them a task gets, and what they are in its pods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from libs.pods.pod_policy import PodPolicy
from libs.pods.storage_mounts import mounts_of
from tests.libs.pods.makers import ADA, a_request, errors_of

Json = dict[str, Any]


def a_grant(name: str = "a", **more: Any) -> Json:
    return {"name": name, "mount_path": f"/{name}", "source": {"claim": {"name": name}}, **more}


def policy(*grants: Json) -> PodPolicy:
    return PodPolicy.model_validate(
        {"host_path_roots": ["/data"], "nfs_servers": ["*.example"], "storage": list(grants)}
    )


SOURCES: list[tuple[Json, Json, Json]] = [
    (
        {"source": {"claim": {"name": "user.{owner}.home"}}},
        {"persistentVolumeClaim": {"claimName": "user.ada.home"}},
        {},
    ),
    (
        {"source": {"claim": {"name": "c"}}, "read_only": True, "sub_path": "{team}/x"},
        {"persistentVolumeClaim": {"claimName": "c", "readOnly": True}},
        {"readOnly": True, "subPath": "vision/x"},
    ),
    (
        {"source": {"host_path": {"path": "/data/{group}/{owner}"}}},
        {"hostPath": {"path": "/data/default/ada", "type": "Directory"}},
        {},
    ),
    (
        {"source": {"host_path": {"path": "/data/s", "type": ""}}, "read_only": True},
        {"hostPath": {"path": "/data/s"}},
        {"readOnly": True},
    ),
    (
        {"source": {"nfs": {"server": "nas.example", "path": "/x"}}, "read_only": True},
        {"nfs": {"server": "nas.example", "path": "/x", "readOnly": True}},
        {"readOnly": True},
    ),
    (
        {"source": {"config_map": {"name": "settings", "key": "site.conf"}}},
        {"configMap": {"name": "settings"}},
        {"subPath": "site.conf"},
    ),
    (
        {"source": {"empty_dir": {"medium": "Memory", "size_bytes": 1024}}},
        {"emptyDir": {"medium": "Memory", "sizeLimit": "1024"}},
        {},
    ),
    ({"source": {"empty_dir": {}}}, {"emptyDir": {}}, {}),
]


@pytest.mark.parametrize(("grant", "volume", "mount"), SOURCES, ids=str)
def test_what_a_grant_is_in_a_pod(grant: Json, volume: Json, mount: Json) -> None:
    [found] = mounts_of(["a"], ADA, policy(a_grant(**grant)))
    assert found.volume == {"name": "storage-a", **volume}
    assert found.mount == {"name": "storage-a", "mountPath": "/a", **mount}


def names(asked: list[str], *grants: Json, **facts: Any) -> list[str]:
    found = mounts_of(asked, replace(ADA, **facts), policy(*grants))
    return [each.volume["name"].removeprefix("storage-") for each in found]


def test_default_grants_are_mounted_always_and_others_on_request() -> None:
    grants = (a_grant("a", default=True), a_grant("b"), a_grant("c", users=["bob"], default=True))
    assert names([], *grants) == ["a"]
    assert names(["b"], *grants) == ["a", "b"]
    assert names([], *grants, owner="bob") == ["a", "c"]


def test_of_two_at_one_path_the_more_personal_one_is_mounted() -> None:
    everyones = a_grant("everyones", mount_path="/x", default=True)
    teams = a_grant("teams", mount_path="/x", default=True, teams=["vision"])
    sometimes = a_grant(
        "sometimes", mount_path="/x", default=True, teams=["vision"], when={"task_names": ["t*"]}
    )
    adas = a_grant("adas", mount_path="/x", default=True, users=["ada"])
    asked = a_grant("asked", mount_path="/x")
    assert names([], everyones, teams) == ["teams"]
    assert names([], everyones, teams, sometimes) == ["sometimes"]
    assert names([], everyones, teams, sometimes, name="other") == ["teams"]
    assert names([], adas, sometimes, everyones) == ["adas"]
    assert names(["asked"], adas, asked) == ["asked"]
    assert names([], everyones, a_grant("second", mount_path="/x", default=True)) == ["everyones"]


def test_a_grant_by_team_does_not_apply_to_a_task_without_a_team() -> None:
    shared = a_grant(mount_path="/t/{team}", source={"claim": {"name": "team.{team}.data"}})
    assert names(["a"], shared) == ["a"]
    assert names(["a"], shared, team="") == []
    pod = a_request(storage=("a",))
    assert errors_of(pod, policy(shared)) == []
    assert errors_of(pod, policy(shared), team="") == [("pod.storage[0]", "a")]
