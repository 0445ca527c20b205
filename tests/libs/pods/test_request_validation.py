"""What a task requests of its pods beside a template: images, storage, resources, variables."""

from __future__ import annotations

from typing import Any

import pytest

from libs.contracts.messages import Contract, EnvSource, PodRequest, Role
from libs.pods.pod_policy import PodPolicy
from tests.libs.pods.makers import OPEN, a_request, errors_of

POLICY = PodPolicy.model_validate(
    {
        "images": [
            {"names": ["registry.example/{team}/*"]},
            {"names": ["registry.example/private/*"], "users": ["root-ish"]},
        ],
        "resources": [
            {"names": ["rdma/*", "hugepages-2Mi"], "groups": ["default"]},
            {"names": ["example.com/fpga"], "teams": ["speech"]},
        ],
        "capabilities": [{"names": ["IPC_LOCK"], "teams": ["vision"]}],
        "shm_bytes_max": 8 << 30,
        "storage": [
            {
                "name": "sets",
                "mount_path": "/data",
                "read_only": True,
                "source": {"claim": {"name": "sets"}},
            },
            {
                "name": "sets-of-ada",
                "mount_path": "/data",
                "source": {"claim": {"name": "x"}},
                "users": ["ada"],
            },
            {
                "name": "secret-of-bob",
                "mount_path": "/bob",
                "source": {"claim": {"name": "bob"}},
                "users": ["bob"],
            },
        ],
    }
)
IMAGE = "registry.example/vision/train:1"


def asked(**more: Any) -> PodRequest:
    return a_request(**{"image": IMAGE, **more})


def env(**more: Any) -> dict[str, Any]:
    return {"env_from": (EnvSource(**{"name": "KEY", **more}),)}


GOOD: list[dict[str, Any]] = [
    {},
    {"image_pull_policy": "Always"},
    {"image_pull_secrets": ("user.ada.registry", "team.vision.registry")},
    {"storage": ("sets",)},
    {"resources": {"rdma/hca": "1"}},
    {"shm_bytes": 8 << 30},
    {"capabilities": ("IPC_LOCK",)},
    env(secret="user.ada.wandb", key="api-key"),
    env(config_map="team.vision.settings", key="x", optional=True),
    env(field="status.podIP"),
    env(field="metadata.labels['shiftwork.dev/rank']"),
    env(field="limits.memory"),
]


@pytest.mark.parametrize("more", GOOD, ids=str)
def test_permitted_requests_are_accepted(more: dict[str, Any]) -> None:
    assert errors_of(asked(**more), POLICY) == []


BAD: list[tuple[dict[str, Any], str]] = [
    ({"image": "docker.io/library/python:3"}, "image"),
    ({"image": "registry.example/speech/train:1"}, "image"),
    ({"image": "registry.example/private/x:1"}, "image"),
    ({"image": "-x"}, "image"),
    ({"image": "a b"}, "image"),
    ({"image_pull_policy": "Sometimes"}, "image_pull_policy"),
    ({"image_pull_secrets": ("tabc-1",)}, "image_pull_secrets[0]"),
    ({"image_pull_secrets": ("shiftwork-registry",)}, "image_pull_secrets[0]"),
    ({"image_pull_secrets": ("user.bob.registry",)}, "image_pull_secrets[0]"),
    ({"image_pull_secrets": ("Not A Name",)}, "image_pull_secrets[0]"),
    ({"storage": ("sets", "nothing")}, "storage[1]"),
    ({"storage": ("secret-of-bob",)}, "storage[0]"),
    ({"storage": ("sets", "sets-of-ada")}, "storage[1]"),
    ({"resources": {"nvidia.com/gpu": "1"}}, "resources.nvidia.com/gpu"),
    ({"resources": {"cpu": "1"}}, "resources.cpu"),
    ({"resources": {"memory": "1Gi"}}, "resources.memory"),
    ({"resources": {"nvidia.com/mig-1g.5gb": "1"}}, "resources.nvidia.com/mig-1g.5gb"),
    ({"resources": {"example.com/fpga": "1"}}, "resources.example.com/fpga"),
    ({"resources": {"rdma/hca": "0"}}, "resources.rdma/hca"),
    ({"resources": {"rdma/hca": "1.5"}}, "resources.rdma/hca"),
    ({"resources": {"rdma/hca": "1Ki"}}, "resources.rdma/hca"),
    ({"resources": {"rdma/hca": "-1"}}, "resources.rdma/hca"),
    ({"resources": {"/": "1"}}, "resources./"),
    ({"resources": {"hugepages-2Mi": "2Mi"}}, "resources.hugepages-2Mi"),
    ({"shm_bytes": 0}, "shm_bytes"),
    ({"shm_bytes": 9 << 30}, "shm_bytes"),
    ({"capabilities": ("CAP_IPC_LOCK",)}, "capabilities[0]"),
    ({"capabilities": ("IPC_LOCK", "SYS_ADMIN")}, "capabilities[1]"),
    ({"capabilities": ("ALL",)}, "capabilities[0]"),
    (env(secret="tabc-1", key="run-token"), "env_from[0].secret"),
    (env(secret="tabc-1-c1", key="context-5"), "env_from[0].secret"),
    (env(secret="shiftwork-keys", key="admin-token"), "env_from[0].secret"),
    (env(secret="user.ada-b.key", key="x"), "env_from[0].secret"),
    (env(secret="user.ada.key"), "env_from[0].key"),
    (env(secret="user.ada.key", key="a/b"), "env_from[0].key"),
    (env(config_map="kube-root-ca.crt", key="x"), "env_from[0].config_map"),
    (env(field="spec.containers"), "env_from[0].field"),
    (env(field="status.podIP", secret="user.ada.x", key="x"), "env_from[0]"),
    (env(), "env_from[0]"),
    (env(name="SHIFTWORK_RUN_TOKEN", field="status.podIP"), "env_from[0].name"),
    (env(name="1A", field="status.podIP"), "env_from[0].name"),
    (
        {"env_from": tuple(EnvSource(name="A", field="status.podIP") for _ in "ab")},
        "env_from[1].name",
    ),
    ({"capabilities": ("IPC_LOCK",) * 65}, "capabilities"),
]


@pytest.mark.parametrize(("more", "field"), BAD, ids=str)
def test_wrong_requests_are_refused(more: dict[str, Any], field: str) -> None:
    assert [found for found, _ in errors_of(asked(**more), POLICY)] == [f"pod.{field}"]


def test_the_platforms_own_objects_are_nobodys_even_where_everything_is_granted() -> None:
    for name in ("tabc-1", "tabc-12-c3", "shiftwork-nats"):
        assert errors_of(asked(**env(secret=name, key="x")), OPEN) == [
            ("pod.env_from[0].secret", name)
        ]


def test_images_of_roles_are_validated_too() -> None:
    roles = (
        Role(name="a", replicas=1, command=("x",), image=IMAGE),
        Role(name="b", replicas=1, command=("x",), image="evil:1"),
    )
    found = errors_of(PodRequest(), POLICY, roles=roles)
    assert found == [("roles[1].image", "evil:1")]


def test_an_image_is_required() -> None:
    assert errors_of(PodRequest(), PodPolicy()) == [("pod.image", "")]
    assert errors_of(PodRequest(), PodPolicy(default_image="x:1")) == []
    role = Role(name="a", replicas=1, command=("x",), image="x:1")
    assert errors_of(PodRequest(), PodPolicy(), roles=(role,)) == []


def test_hugepages_come_with_memory() -> None:
    huge = asked(resources={"hugepages-2Mi": "64Mi"})
    assert errors_of(huge, POLICY, memory_bytes=1 << 30) == []
    assert errors_of(huge, POLICY, cpus=1.0) == []
    sized = POLICY.model_copy(update={"cpu_only": POLICY.cpu_only.model_copy(update={"cpus": 2.0})})
    assert errors_of(huge, sized, gpus_per_node=0) == []
    assert errors_of(huge, sized, gpus_per_node=1) != []


def test_shared_memory_counts_in_the_tasks_memory() -> None:
    assert errors_of(asked(shm_bytes=2 << 30), POLICY, memory_bytes=1 << 30) == [
        ("pod.shm_bytes", str(2 << 30))
    ]


def test_a_variable_is_given_in_one_place() -> None:
    found = errors_of(asked(**env(field="status.podIP")), POLICY, env={"KEY": "x"})
    assert found == [("pod.env_from[0].name", "KEY")]


def test_the_contract_of_a_task_says_which_variables_are_the_platforms() -> None:
    pod = a_request(
        {"spec": {"containers": [{"name": "main", "env": [{"name": "TF_CONFIG", "value": "{}"}]}]}},
        env_from=(EnvSource(name="RANK", field="status.podIP"),),
    )
    template = "pod.template.spec.containers[0].env[0].name"
    assert errors_of(pod) == [("pod.env_from[0].name", "RANK")]
    assert errors_of(pod, contract=Contract.TF_CONFIG) == [(template, "TF_CONFIG")]
    assert errors_of(pod, contract=Contract.NONE) == []
    prefix = a_request(
        {"spec": {"containers": [{"name": "main", "envFrom": [{"prefix": "PET_"}]}]}}
    )
    at = "pod.template.spec.containers[0].envFrom[0].prefix"
    assert (at, "PET_") in errors_of(prefix)
    assert (at, "PET_") not in errors_of(prefix, contract=Contract.NONE)
