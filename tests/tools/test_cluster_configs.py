"""The configuration of a cluster's programs. The programs validate it where they are installed."""

from __future__ import annotations

import json
import tarfile
import tomllib
from io import BytesIO
from ipaddress import ip_address
from pathlib import Path

import pytest

from tools.cluster import configs, stages
from tools.cluster.access import CONTROL_PLANE_USERS, node_users, token_file
from tools.cluster.images import single_program_image
from tools.cluster.layout import Layout
from tools.cluster.plane_arguments import Options, Place, api_server

LAYOUT = Layout(folder=Path("/var/lib/x"))


def test_nodes_have_addresses_and_pods_of_their_own() -> None:
    nodes = Layout(node_count=5).nodes
    assert len({node.address for node in nodes}) == len({node.pods for node in nodes}) == 5
    for node in nodes:
        assert ip_address(node.address) in LAYOUT.node_subnet
        assert node.pods.subnet_of(LAYOUT.pod_subnet)
        assert ip_address(LAYOUT.host_address) not in node.pods
        assert len(node.cable) <= 15  # what Linux allows for the name of a link


def test_a_layout_is_found_again(tmp_path: Path) -> None:
    layout = Layout(folder=tmp_path, node_count=3, gpus=0)
    layout.write()
    assert Layout.read(tmp_path) == layout
    assert Layout.read(tmp_path / "none") == Layout(folder=tmp_path / "none")


def test_a_node_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(KeyError, match="no node 'node-9'; there are node-1, node-2"):
        LAYOUT.node("node-9")


def test_containerd_is_configured_in_its_own_words() -> None:
    node = LAYOUT.nodes[1]
    text = configs.containerd(
        node, snapshotter="native", runc="/usr/sbin/runc", cni_programs="/usr/lib/cni"
    )
    config = tomllib.loads(text)
    runtime = config["plugins"]["io.containerd.cri.v1.runtime"]
    assert config["root"] == "/var/lib/x/nodes/node-2/containerd"
    assert runtime["cni"] == {"bin_dirs": ["/usr/lib/cni"], "conf_dir": f"{node.folder}/cni"}
    assert runtime["containerd"]["runtimes"]["runc"]["options"]["BinaryName"] == "/usr/sbin/runc"


@pytest.mark.parametrize("version", [1, 2])
def test_kubelets_know_dns_and_collect_no_images(version: int) -> None:
    node = LAYOUT.nodes[0]
    settings = json.loads(configs.kubelet(LAYOUT, node, cgroup_version=version))
    assert settings["clusterDNS"] == ["10.96.0.10"]
    assert settings["imageGCHighThresholdPercent"] == 100
    assert settings["cgroupRoot"] == "/shiftwork-cluster/node-1"
    assert ("failCgroupV1" in settings) == (version == 1)


def test_pods_of_two_nodes_never_share_an_address() -> None:
    first, second = (json.loads(configs.cni(node)) for node in LAYOUT.nodes)
    ranges = [one["plugins"][0]["ipam"]["ranges"] for one in (first, second)]
    assert ranges == [[[{"subnet": "10.244.1.0/24"}]], [[{"subnet": "10.244.2.0/24"}]]]


def test_tokens_are_lines_of_the_api_servers_file() -> None:
    users = {**CONTROL_PLANE_USERS, **node_users(("node-1",))}
    text = token_file({name: f"secret-{name}" for name in users}, users)
    lines = text.splitlines()
    assert 'secret-admin,shiftwork:admin,admin,"system:masters"' in lines
    assert 'secret-kubelet-node-1,system:node:node-1,kubelet-node-1,"system:nodes"' in lines
    assert len(lines) == len(users)


def test_the_api_server_listens_on_the_given_address_and_audits_on_demand() -> None:
    ports = dict.fromkeys(("etcd", "etcd-peer", "kube-apiserver"), 1)
    place = Place(Path("/x"), ports)
    quiet = api_server(Options(), place)
    assert "--bind-address=127.0.0.1" in quiet
    assert "--endpoint-reconciler-type=none" in quiet
    assert not any("audit" in flag for flag in quiet)
    loud = api_server(Options(listen="10.243.0.1", audit=True, api_server_flags=("--v=4",)), place)
    assert "--endpoint-reconciler-type=lease" in loud
    assert "--audit-log-path=/x/audit.jsonl" in loud
    assert loud[-1] == "--v=4"
    # Secrets are in files; what others see in a list of processes holds none.
    assert not any("token=" in flag for flag in loud)


def test_an_image_of_one_program_is_the_same_every_time(tmp_path: Path) -> None:
    binary = tmp_path / "pause"
    binary.write_bytes(b"not a program")
    image = single_program_image(binary, "localhost/x:1")
    binary.touch()
    assert single_program_image(binary, "localhost/x:1") == image
    with tarfile.open(fileobj=BytesIO(image)) as archive:
        manifest = json.loads(archive.extractfile("manifest.json").read())  # type: ignore[union-attr]
        layer = archive.extractfile(manifest[0]["Layers"][0])
        assert layer is not None
        with tarfile.open(fileobj=BytesIO(layer.read())) as files:
            assert [(one.name, one.mode) for one in files] == [("pause", 0o755)]
    assert manifest[0]["RepoTags"] == ["localhost/x:1"]


def test_every_misbehaviour_is_a_stage_for_its_own_pods_only() -> None:
    made = stages.misbehaviours()
    names = [stage["metadata"]["name"] for stage in made]
    assert len(set(names)) == len(names)
    for stage in made:
        assert stage["spec"]["selector"]["matchExpressions"][0]["key"] == stages.BEHAVIOUR
        assert "%(" not in json.dumps(stage)
