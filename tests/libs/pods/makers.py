"""Tasks, policies and orders for the tests of pods, with what does not matter filled in."""

from __future__ import annotations

import json
from typing import Any

from libs.contracts.messages import (
    PodRequest,
    PreemptionPolicy,
    PreemptMode,
    Priority,
    RetryPolicy,
    Role,
    TaskSpec,
)
from libs.pods.pod_policy import Permission, PodPolicy
from libs.pods.request_validation import check_pod
from libs.pods.requester import Requester

ADA = Requester(owner="ada", team="vision", group="default", name="train", priority="normal")
# Grants every requester everything.
OPEN = PodPolicy.model_validate(
    {
        "allow": {permission.value: [{}] for permission in Permission},
        "images": [{"names": ["*"]}],
        "resources": [{"names": ["rdma/*", "hugepages-*", "ephemeral-storage"]}],
        "capabilities": [{"names": ["IPC_LOCK", "SYS_ADMIN", "SYS_PTRACE"]}],
        "objects": [{"names": ["*"]}],
        "host_path_roots": ["/data"],
        "nfs_servers": ["*.example"],
        "csi_drivers": ["d"],
    }
)


def a_task(pod: PodRequest | None = None, **more: Any) -> TaskSpec:
    return TaskSpec(
        **{
            "name": "train",
            "group": "default",
            "priority": Priority.NORMAL,
            "roles": (Role(name="worker", replicas=1, command=("python", "train.py")),),
            "gpus_per_node": 1,
            "retry": RetryPolicy(),
            "preemption": PreemptionPolicy(mode=PreemptMode.SDK, ack_deadline_seconds=60),
            "nodes": 1,
            "pod": pod,
            **more,
        }
    )


def a_request(template: Any = None, **more: Any) -> PodRequest:
    text = "" if template is None else json.dumps(template)
    return PodRequest(**{"image": "example/train:1", "template": text, **more})


def errors_of(
    pod: PodRequest,
    policy: PodPolicy | None = None,
    *,
    owner: str = "ada",
    team: str = "vision",
    **more: Any,
) -> list[tuple[str, str]]:
    """Field and value of each error."""
    spec = a_task(pod, **more)
    found = check_pod(
        spec, Requester.of(spec, owner, team), policy or PodPolicy(), needs_image=True
    )
    assert all(each.message and each.fix for each in found)
    return [(each.field, each.value) for each in found]
