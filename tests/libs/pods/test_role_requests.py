"""The pod request of a role: merged over the task's, and validated under the same policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from libs.contracts.messages import EnvSource, PodRequest, Role
from libs.pods.pod_policy import PodPolicy
from libs.pods.role_requests import MERGES, image_of, request_of
from tests.libs.pods.makers import OPEN, a_request, a_task, errors_of

GIB = 1 << 30
POLICY = PodPolicy.model_validate(
    {
        "images": [{"names": ["example/*"]}],
        "resources": [{"names": ["rdma/*", "hugepages-2Mi"]}],
        "capabilities": [{"names": ["IPC_LOCK"]}],
        "storage": [
            {"name": "sets", "mount_path": "/data", "source": {"empty_dir": {}}},
            {"name": "other", "mount_path": "/data", "source": {"empty_dir": {}}},
            {"name": "fast", "mount_path": "/fast", "source": {"empty_dir": {}}},
        ],
    }
)


def source(name: str, field: str = "status.podIP") -> EnvSource:
    return EnvSource(name=name, field=field)


def a_role(pod: PodRequest | None, **more: Any) -> Role:
    return Role(**{"name": "b", "replicas": 1, "command": ("x",), "pod": pod, **more})


def roles(pod: PodRequest, **more: Any) -> tuple[Role, ...]:
    return (Role(name="a", replicas=1, command=("x",)), a_role(pod, **more))


def test_what_a_role_says_is_merged_field_by_field() -> None:
    common = PodRequest(
        image="example/a",
        image_pull_policy="Always",
        image_pull_secrets=("user.ada.a",),
        storage=("sets",),
        resources={"rdma/a": "1", "rdma/b": "1"},
        shm_bytes=5,
        capabilities=("IPC_LOCK",),
        env_from=(source("A"), source("B")),
        template=json.dumps({"metadata": {"labels": {"x": "1", "y": "1"}}}),
    )
    own = PodRequest(
        image="example/b",
        image_pull_policy="Never",
        image_pull_secrets=("user.ada.b", "user.ada.a"),
        storage=("fast",),
        resources={"rdma/b": "2"},
        shm_bytes=6,
        capabilities=("SYS_PTRACE",),
        env_from=(source("B", "metadata.name"), source("C")),
        template=json.dumps({"metadata": {"labels": {"y": "2"}}}),
    )
    spec = a_task(common)
    found = request_of(spec, a_role(own))
    assert found == PodRequest(
        image="example/b",
        image_pull_policy="Never",
        image_pull_secrets=("user.ada.a", "user.ada.b"),
        storage=("sets", "fast"),
        resources={"rdma/a": "1", "rdma/b": "2"},
        shm_bytes=6,
        capabilities=("IPC_LOCK", "SYS_PTRACE"),
        env_from=(source("A"), source("B", "metadata.name"), source("C")),
        template=found.template,
    )
    assert json.loads(found.template) == {"metadata": {"labels": {"x": "1", "y": "2"}}}
    # What it leaves out is the task's.
    assert request_of(spec, a_role(PodRequest())) == common
    assert request_of(spec, a_role(None)) == common
    assert request_of(a_task(None), a_role(own)) == own


def test_the_image_of_a_role() -> None:
    spec = a_task(PodRequest(image="example/a"))
    assert image_of(spec, a_role(None)) == "example/a"
    assert image_of(spec, a_role(PodRequest(image="example/b"))) == "example/b"
    assert image_of(spec, a_role(None, image="example/c")) == "example/c"


def test_every_field_has_a_rule_and_the_documentation_names_it() -> None:
    assert set(MERGES) == set(PodRequest.model_fields)
    page = (Path(__file__).parents[3] / "docs" / "pods.md").read_text()
    for name, merge in MERGES.items():
        assert f"| `{name}` | {merge.value} |" in page


VOLUME = {"spec": {"volumes": [{"name": "logs", "emptyDir": {}}]}}
MOUNT = {
    "spec": {
        "containers": [{"name": "main", "volumeMounts": [{"name": "logs", "mountPath": "/logs"}]}]
    }
}
PRIVILEGED = {"spec": {"containers": [{"name": "main", "securityContext": {"privileged": True}}]}}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"image": "evil:1"}, "image"),
    ({"image_pull_policy": "Sometimes"}, "image_pull_policy"),
    ({"image_pull_secrets": ("tabc-1",)}, "image_pull_secrets[0]"),
    ({"storage": ("fast", "nothing")}, "storage[1]"),
    # It is mounted where the task's own grant is.
    ({"storage": ("other",)}, "storage[0]"),
    ({"resources": {"nvidia.com/gpu": "1"}}, "resources.nvidia.com/gpu"),
    ({"resources": {"hugepages-2Mi": "2Mi"}}, "resources.hugepages-2Mi"),
    ({"shm_bytes": 0}, "shm_bytes"),
    ({"capabilities": ("ALL",)}, "capabilities[0]"),
    ({"capabilities": ("IPC_LOCK",) * 65}, "capabilities"),
    ({"env_from": (source("A"), source("A"))}, "env_from[1].name"),
    ({"env_from": (EnvSource(name="A", secret="user.bob.x", key="x"),)}, "env_from[0].secret"),
    ({"template": "no"}, "template"),
    (
        {"template": json.dumps(PRIVILEGED)},
        "template.spec.containers[0].securityContext.privileged",
    ),
]


@pytest.mark.parametrize(("own", "field"), BAD, ids=str)
def test_wrong_requests_of_a_role_are_refused_by_its_path(own: dict[str, Any], field: str) -> None:
    common = PodRequest(image="example/a", storage=("sets",))
    found = errors_of(common, POLICY, roles=roles(PodRequest(**own)))
    assert [path for path, _ in found] == [f"roles[1].pod.{field}"]


def test_permitted_requests_of_a_role_are_accepted() -> None:
    common = a_request(VOLUME, storage=("sets",), env_from=(source("A"),))
    own = PodRequest(
        storage=("fast",),
        env_from=(source("A", "metadata.name"),),
        resources={"hugepages-2Mi": "2Mi"},
        shm_bytes=GIB,
        template=json.dumps(MOUNT),
    )
    assert errors_of(common, POLICY, roles=roles(own, memory_bytes=GIB)) == []


def test_two_images_of_one_role_are_refused() -> None:
    own = roles(PodRequest(image="example/b"), image="example/c")
    found = errors_of(PodRequest(image="example/a"), POLICY, roles=own)
    assert found == [("roles[1].pod.image", "example/b")]


def test_an_image_of_each_role_is_enough() -> None:
    own = PodRequest(image="example/b")
    each = (a_role(own), a_role(own, name="c"))
    assert errors_of(PodRequest(), POLICY, roles=each) == []
    assert errors_of(PodRequest(), POLICY, roles=(*each, a_role(None, name="d"))) == [
        ("pod.image", "")
    ]


def test_shared_memory_of_a_role_counts_in_its_own_limit() -> None:
    common = PodRequest(image="example/a", shm_bytes=2 * GIB)
    small = {"memory_bytes": GIB}
    assert errors_of(common, POLICY, roles=roles(PodRequest(shm_bytes=GIB), **small)) == []
    found = errors_of(common, POLICY, roles=roles(PodRequest(shm_bytes=3 * GIB), **small))
    assert [path for path, _ in found] == ["roles[1].pod.shm_bytes"]
    found = errors_of(common, POLICY, roles=roles(PodRequest(), **small))
    assert [path for path, _ in found] == ["pod.shm_bytes"]
    # A request is no limit.
    asks = roles(PodRequest(shm_bytes=3 * GIB), memory_request_bytes=GIB)
    assert errors_of(common, POLICY, roles=asks) == []


def test_a_role_cannot_mount_a_volume_that_is_nowhere() -> None:
    own = roles(PodRequest(template=json.dumps(MOUNT)))
    assert errors_of(a_request(), OPEN, roles=own) != []
    assert errors_of(a_request(VOLUME), OPEN, roles=own) == []


def test_errors_in_the_template_of_the_task_are_reported_once() -> None:
    own = roles(PodRequest(template=json.dumps(MOUNT)))
    (found,) = errors_of(a_request(PRIVILEGED | {}), POLICY, roles=own[:1])
    assert found[0].startswith("pod.template")
    paths = [path for path, _ in errors_of(PodRequest(image="example/a", template="no"), roles=own)]
    assert paths[0] == "pod.template"
    assert paths.count("pod.template") == 1
