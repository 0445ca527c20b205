"""Runs whose objects are kept beside the tests, each under a policy that shows something."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from libs.contracts.messages import (
    Checkpoint,
    Contract,
    DebugProgram,
    EnvSource,
    Placement,
    PodRequest,
    Port,
    ReadyProbe,
    RestartRule,
    RestartScope,
    Role,
    RunMode,
)
from libs.pods.pod_policy import PodPolicy
from services.launcher.domain.master_ports import MASTER_PORTS
from services.launcher.domain.model import RunState
from services.launcher.hosts import pod_hosts
from services.launcher.manifests import PodSite, RunManifests, build_manifests
from services.launcher.role_overrides import in_debug_mode
from services.launcher.run_orders import Site, build_order
from services.launcher.runtimes.port import RunOrder
from tests.kit.clock import START
from tests.kit.launcher_builders import KEY, a_run, a_spec

GIB = 1 << 30
SITE = Site(
    url="http://shiftwork-gateway.shiftwork:8642",
    token_key=KEY,
    path="",
    lang="",
    master_addr="",
)
PODS = PodSite()
NODE_LABELS = {
    "n0": {"topology.kubernetes.io/zone": "a", "kubernetes.io/hostname": "n0"},
    "n1": {"topology.kubernetes.io/zone": "b", "kubernetes.io/hostname": "n1"},
}
# What a site may configure; nothing of it loosens the restricted profile.
SITES_POLICY: dict[str, Any] = {
    "default_image": "localhost/shiftwork/task:1",
    "image_pull_policy": "IfNotPresent",
    "image_pull_secrets": ["registry"],
    "sdk_image": "localhost/shiftwork/platform:1",
    "resources": [{"names": ["rdma/*", "hugepages-2Mi"]}],
    "shm_bytes": 4 * GIB,
    "identities": {"ada": {"user": 5001, "group": 5000, "groups": [6001]}},
    "read_only_root": True,
    "service_account": "tasks",
    "priority_class": "training",
    "scheduler_name": "default-scheduler",
    "runtime_class": "nvidia",
    "tolerate": ["nvidia.com/gpu", "pool=training"],
    "labels": {"example.com/kind": "training"},
    "annotations": {"example.com/cost": "research"},
    "env": {"LANG": "C.UTF-8", "NCCL_SOCKET_IFNAME": "eth0"},
    "storage": [
        {
            "name": "home",
            "mount_path": "/home/{owner}",
            "source": {"claim": {"name": "user.{owner}.home"}},
            "default": True,
        },
        {
            "name": "settings",
            "mount_path": "/etc/site.conf",
            "source": {"config_map": {"name": "site", "key": "site.conf"}},
            "default": True,
            "read_only": True,
        },
        {"name": "scratch", "mount_path": "/scratch", "source": {"empty_dir": {}}},
    ],
}
# What loosens it, for one team.
GRANTING_POLICY: dict[str, Any] = {
    "default_image": "localhost/shiftwork/task:1",
    "allow": {
        name: [{"teams": ["vision"]}]
        for name in ("privileged", "host_network", "host_path", "run_as_root", "unconfined")
    },
    "capabilities": [{"names": ["IPC_LOCK"], "teams": ["vision"]}],
    "host_path_roots": ["/data"],
    "nfs_servers": ["*.example"],
    "storage": [
        {
            "name": "sets",
            "mount_path": "/sets",
            "source": {"nfs": {"server": "nas.example", "path": "/sets"}},
            "read_only": True,
            "default": True,
        },
        {
            "name": "fast",
            "mount_path": "/fast",
            "source": {"host_path": {"path": "/data/fast", "type": "DirectoryOrCreate"}},
            "default": True,
        },
    ],
}


@dataclass(frozen=True)
class Case:
    """One run."""

    order: RunOrder
    policy: PodPolicy
    # Whether a namespace that enforces "restricted" takes its pods.
    restricted: bool = True
    node_labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Any])

    def objects(self, site: PodSite = PODS) -> RunManifests:
        return build_manifests(self.order, self.policy, site, self.node_labels)


def an_order(
    ranks: int = 1,
    *,
    gpus: int = 1,
    pod: PodRequest | None = None,
    resume_from: Checkpoint | None = None,
    role: str = "worker",
    **spec: Any,
) -> RunOrder:
    run = a_run(
        RunState.ASSIGNED,
        spec=a_spec(ranks, pod=pod, gpus_per_node=gpus).model_copy(update=spec),
        placements=tuple(
            Placement(
                rank=rank,
                role=role,
                role_index=rank,
                node_id=f"n{rank}",
                gpus=tuple(range(gpus)),
            )
            for rank in range(ranks)
        ),
        owner="ada",
        team="vision",
        resume_from=resume_from,
    )
    return build_order(run, pod_hosts(run, MASTER_PORTS), SITE)


def restarted(order: RunOrder) -> RunOrder:
    """The same for ranks that were restarted in place twice."""
    ranks = tuple(
        replace(rank, start=2, env={**rank.env, "SHIFTWORK_RESTARTS": "2"}) for rank in order.ranks
    )
    return replace(order, ranks=ranks)


def in_debug(**spec: Any) -> RunOrder:
    """The order of an attempt in debug mode, as the launcher keeps its specification."""
    wanted = a_spec().model_copy(update={**spec, "run_mode": RunMode.DEBUG})
    return an_order(roles=in_debug_mode(wanted, 1).roles)


SIDECAR = {
    "metadata": {"labels": {"example.com/board": "yes"}},
    "spec": {
        "containers": [
            {
                "name": "main",
                "env": [{"name": "BOARD", "value": "/logs"}],
                "volumeMounts": [{"name": "logs", "mountPath": "/logs"}],
            },
            {
                "name": "board",
                "image": "example/tensorboard:2",
                "args": ["--logdir", "/logs"],
                "ports": [{"containerPort": 6006}],
                "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
                "readinessProbe": {"httpGet": {"path": "/", "port": 6006}},
                "volumeMounts": [{"name": "logs", "mountPath": "/logs", "readOnly": True}],
            },
        ],
        "initContainers": [
            {"name": "fetch", "image": "example/fetch:1", "command": ["fetch", "/logs"]}
        ],
        "volumes": [{"name": "logs", "emptyDir": {"sizeLimit": "1Gi"}}],
    },
}
HOST = {
    "spec": {
        "hostNetwork": True,
        "securityContext": {"runAsUser": 0},
        "containers": [
            {
                "name": "main",
                "securityContext": {
                    "privileged": True,
                    "seccompProfile": {"type": "Unconfined"},
                },
                "volumeMounts": [{"name": "dev", "mountPath": "/host/data"}],
            }
        ],
        "volumes": [{"name": "dev", "hostPath": {"path": "/data", "type": "Directory"}}],
    }
}

CASES: dict[str, Case] = {
    "one-rank-without-gpu": Case(
        an_order(gpus=0, pod=PodRequest(image="python:3"), cpus=1.5, memory_bytes=GIB),
        PodPolicy(),
    ),
    "gang-of-two": Case(
        an_order(2, gpus=8, pod=None, env={"PYTHONPATH": "/code", "MESSAGE": "$(HOME) costs $$5"}),
        PodPolicy.model_validate(
            {"default_image": "example/train:1", "sdk_image": "localhost/shiftwork/platform:1"}
        ),
        node_labels=NODE_LABELS,
    ),
    "all-that-a-site-may-configure": Case(
        an_order(
            pod=PodRequest(
                image="example/train@sha256:" + "0" * 64,
                image_pull_policy="Always",
                image_pull_secrets=("user.ada.registry",),
                storage=("scratch",),
                resources={"rdma/hca": "1", "hugepages-2Mi": "64Mi"},
                shm_bytes=8 * GIB,
                env_from=(
                    EnvSource(name="WANDB", secret="user.ada.wandb", key="key", optional=True),
                    EnvSource(name="MODE", config_map="team.vision.settings", key="mode"),
                    EnvSource(name="POD_IP", field="status.podIP"),
                    EnvSource(name="LIMIT", field="limits.memory"),
                ),
            ),
            cpus=8.0,
            memory_bytes=64 * GIB,
            working_directory="/home/ada/project",
            tolerations=("reserved=vision", "spot"),
            resume_from=Checkpoint(
                no=3, attempt=1, step=70, uri="/home/ada/c3", digest="abc", saved_at=START
            ),
        ),
        PodPolicy.model_validate(SITES_POLICY),
        node_labels=NODE_LABELS,
    ),
    "roles-with-images": Case(
        an_order(
            roles=(
                Role(
                    name="worker",
                    replicas=1,
                    command=("serve", "--port=$PORT"),
                    image="example/ps:1",
                ),
            ),
        ),
        PodPolicy(default_image="example/train:1"),
    ),
    "a-role-of-its-own": Case(
        an_order(
            pod=PodRequest(
                image="example/train:1",
                storage=("scratch",),
                capabilities=(),
                env_from=(EnvSource(name="IP", field="status.podIP"),),
                template=json.dumps(SIDECAR),
            ),
            cpus=4.0,
            memory_bytes=8 * GIB,
            roles=(
                Role(
                    name="worker",
                    replicas=1,
                    args=("--port=$(PORT)",),
                    cpus_request=0.5,
                    memory_request_bytes=GIB,
                    pod=PodRequest(
                        image="example/serve:1",
                        image_pull_policy="Always",
                        resources={"rdma/hca": "1"},
                        shm_bytes=GIB,
                        template=json.dumps({"metadata": {"labels": {"example.com/board": "no"}}}),
                    ),
                ),
            ),
        ),
        PodPolicy.model_validate({**SITES_POLICY, "metadata_keys": ["*", "example.com/*"]}),
    ),
    "a-request-without-a-limit": Case(
        an_order(gpus=0, cpus_request=0.5, pod=PodRequest(image="python:3")),
        PodPolicy.model_validate({"cpu_only": {"cpus": 2, "memory_bytes": GIB}}),
    ),
    "tf-config-of-two": Case(
        an_order(2, contract=Contract.TF_CONFIG), PodPolicy(default_image="example/train:1")
    ),
    "mpi-launcher": Case(
        an_order(
            role="launcher",
            contract=Contract.MPI,
            roles=(Role(name="launcher", replicas=1, command=("mpirun", "x")),),
        ),
        PodPolicy(default_image="example/train:1"),
    ),
    "probed-and-restarted": Case(
        restarted(
            an_order(
                roles=(
                    Role(
                        name="worker",
                        replicas=1,
                        command=("serve",),
                        ports=(Port(name="rpc", port=7000),),
                        ready=ReadyProbe(port="rpc", path="/up", period_seconds=1.5),
                        restart=RestartRule(scope=RestartScope.RANK),
                    ),
                ),
            )
        ),
        PodPolicy(default_image="example/train:1"),
    ),
    "declared-ports": Case(
        an_order(
            roles=(
                Role(
                    name="worker",
                    replicas=1,
                    command=("serve",),
                    ports=(Port(name="board", port=6006), Port(name="rpc")),
                ),
            ),
        ),
        PodPolicy(default_image="example/train:1"),
    ),
    "debug-mode": Case(
        in_debug(
            roles=(
                Role(
                    name="worker",
                    replicas=1,
                    command=("python", "train.py"),
                    args=("--name", "a b"),
                    ports=(Port(name="rpc", port=7000),),
                    ready=ReadyProbe(port="rpc"),
                    restart=RestartRule(scope=RestartScope.RANK),
                ),
            ),
        ),
        PodPolicy(default_image="example/train:1"),
    ),
    "debug-mode-with-a-program": Case(
        in_debug(
            roles=(
                Role(
                    name="worker",
                    replicas=1,
                    args=("--of-the-image",),
                    debug=DebugProgram(command=("/usr/sbin/sshd",), args=("-D",)),
                ),
            ),
        ),
        PodPolicy(default_image="example/train:1"),
    ),
    "a-template-with-a-sidecar": Case(
        an_order(pod=PodRequest(template=json.dumps(SIDECAR))),
        PodPolicy(default_image="example/train:1", metadata_keys=("example.com/*",)),
    ),
    "granted-beyond-restricted": Case(
        an_order(pod=PodRequest(template=json.dumps(HOST), capabilities=("IPC_LOCK",))),
        PodPolicy.model_validate(GRANTING_POLICY),
        restricted=False,
    ),
}
