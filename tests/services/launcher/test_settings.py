from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from libs.signals.gpus import Gpu
from services.launcher.local_nodes import pids_max, plan_nodes
from services.launcher.settings import LauncherSettings


def some(tmp_path: Path, **more: Any) -> LauncherSettings:
    key = tmp_path / "key"
    key.write_text("k" * 64 + "\n")
    fixed = {"database_url": "postgresql://x@/y", "nats_url": "nats://x:1"}
    return LauncherSettings(**{**fixed, "run_token_key_file": key, **more})


def test_pods_follow_the_policy(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("gpu_resource: example.com/gpu\nshm_bytes: 1048576\n")
    settings = some(tmp_path, runtime="kubernetes", pod_policy_file=policy)
    assert settings.pod_policy().gpu_resource == "example.com/gpu"
    assert settings.pod_policy().shm_bytes == 1 << 20
    # A setting goes before the policy.
    settings = some(tmp_path, pod_policy_file=policy, kube_gpu_resource="other.com/gpu")
    assert settings.pod_policy().gpu_resource == "other.com/gpu"
    assert some(tmp_path).pod_policy().gpu_resource == "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"kube_namespace": "Not_A_Namespace"}, "kube_namespace"),
        ({"node_group": "not a group"}, "node_group"),
        ({"kube_group_label": "a label"}, "'a label' is no label's key"),
        ({"pod_policy_file": "nowhere.yaml"}, "cannot be read"),
        ({"runtime": "slurm"}, "runtime"),
    ],
)
def test_wrong_settings_of_kubernetes(tmp_path: Path, more: dict[str, Any], match: str) -> None:
    with pytest.raises(ValidationError, match=match):
        some(tmp_path, **more)


def test_virtual_nodes_share_the_machine(tmp_path: Path) -> None:
    plans = plan_nodes(some(tmp_path, virtual_nodes=3, slots_per_node=2), ())
    assert [plan.node.id for plan in plans] == ["local-0", "local-1", "local-2"]
    assert {plan.node.gpus for plan in plans} == {2}
    assert all(plan.devices == () for plan in plans)
    [whole] = plan_nodes(some(tmp_path), ())
    assert plans[0].node.cpus == pytest.approx(whole.node.cpus / 3)
    assert plans[0].node.memory_bytes == whole.node.memory_bytes // 3


def test_real_gpus_are_used_by_their_names(tmp_path: Path) -> None:
    gpus = [Gpu(index, f"GPU-{index}", "H100", 80 << 30) for index in range(2)]
    [plan] = plan_nodes(some(tmp_path, node_labels={"rack": "r1"}), gpus)
    assert plan.devices == ("GPU-0", "GPU-1")
    assert (plan.node.gpus, plan.node.gpu_model) == (2, "H100")
    assert plan.node.labels == {"rack": "r1"}


def test_a_nodes_file_describes_differences_between_nodes(tmp_path: Path) -> None:
    path = tmp_path / "nodes.yaml"
    path.write_text(
        "local-0: {group: dev, labels: {zone: a, disk: nvme}, taints: [reserved=vision]}\n"
        "local-1: {labels: {zone: b}}\n"
    )
    common: dict[str, Any] = {"node_labels": {"disk": "hdd"}, "node_taints": ("reserved=nlp", "x")}
    plans = plan_nodes(some(tmp_path, virtual_nodes=3, nodes_file=path, **common), ())
    nodes = [plan.node for plan in plans]
    assert [node.group for node in nodes] == ["dev", "default", "default"]
    assert nodes[0].labels == {"zone": "a", "disk": "nvme"}
    assert nodes[0].taints == ("reserved=vision", "x")
    assert nodes[1].labels == {"zone": "b", "disk": "hdd"}
    assert (nodes[2].labels, nodes[2].taints) == ({"disk": "hdd"}, ("reserved=nlp", "x"))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("local-9: {}", "local-9 is no node of this machine; these are: local-0, local-1"),
        ("local-0: {label: {a: b}}", "local-0.label: Extra inputs are not permitted"),
        ("local-0: {labels: {a: b c}}", "'b c' is no value of label a"),
        ("local-0: {taints: ['=']}", "'=' is no taint"),
        ("local-0: {group: Dev}", "'Dev' is no group"),
        ("[1, 2]", "the file: Input should be a valid dictionary"),
        ("{", "neither YAML nor JSON"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "nodes.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=match):
        plan_nodes(some(tmp_path, virtual_nodes=2, nodes_file=path), ())


def test_a_missing_nodes_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.yaml cannot be read"):
        plan_nodes(some(tmp_path, nodes_file=tmp_path / "none.yaml"), ())


def test_labels_of_every_node_are_validated(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="no label's key"):
        some(tmp_path, node_labels={"a b": "c"})
    with pytest.raises(ValidationError, match="is no taint"):
        some(tmp_path, node_taints=("a=",))


def test_ranges_are_validated(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="give a range"):
        some(tmp_path, master_port_first=3000, master_port_last=2000)
    with pytest.raises(ValidationError, match="after the lease"):
        some(tmp_path, lease_seconds=10, fence_seconds=5)


def test_every_number_has_a_limit() -> None:
    for name, field in LauncherSettings.model_fields.items():
        if field.annotation in (int, float):
            assert field.metadata, name


def test_the_key_comes_from_its_file(tmp_path: Path) -> None:
    assert some(tmp_path).run_token_key() == b"k" * 64


@pytest.mark.parametrize(
    ("pid_max", "allowed"), [(4_194_304, 32_768), (32_768, 8192), (2048, 512), (3, 1)]
)
def test_no_task_may_have_all_the_processes_of_a_machine(
    tmp_path: Path, pid_max: int, allowed: int
) -> None:
    (tmp_path / "pid_max").write_text(f"{pid_max}\n")
    assert pids_max(some(tmp_path), tmp_path / "pid_max") == allowed
