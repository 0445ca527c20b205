"""How an installation fares: release, services, leaders, nodes and tasks, as one document.

Called by ``shiftwork k8s status``. What cannot be asked stands as null with the reason beside it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
from shiftwork.cli.failures import Failure

from libs.contracts.services import SERVICES
from libs.contracts.task_states import LIVE_WORDS
from services.allinone.client import client_of, items
from services.allinone.kubernetes import reach, workload_status
from services.allinone.kubernetes.helm import Helm
from services.allinone.kubernetes.kubectl import Json, Kubectl, Target

LEADS = re.compile(r"^shiftwork_leads\{[^}]*\} 1(\.0)?$", re.MULTILINE)
# Asked inside the pod, so that no network policy stands between.
ASK = (
    "import os,urllib.request as r;"
    "p=next((v for k,v in os.environ.items() if k.endswith('_HTTP_PORT')),'8080');"
    "print(r.urlopen('http://127.0.0.1:'+p+'/metrics',timeout=5).read().decode())"
)
DEPLOYMENTS = tuple(service.replace("_", "-") for service in SERVICES)
_AT_ONCE = 6


def document(to: Target) -> Json:
    """Everything. Failure if nothing is installed or the cluster does not answer."""
    helm, kubectl = Helm(to), Kubectl(to)
    release = helm.release()
    if release is None:
        raise Failure(
            f"there is no release {to.release}",
            where=to.where,
            fix="`shiftwork k8s up`, or name another: --namespace N --release R",
        )
    found = workload_status.parts(kubectl.items(workload_status.KINDS))
    parts = [part for part in found if part.kind != "Job" or not part.is_ready]
    leaders = _leaders(kubectl, parts)
    it = reach.installed(to, helm)
    from_api = _asked(kubectl, it)
    return {
        "release": {
            "name": to.release,
            "namespace": to.namespace,
            "revision": release["version"],
            "status": release["info"]["status"],
            "deployed_at": release["info"].get("last_deployed"),
        },
        "ready": all(part.is_ready for part in parts) and release["info"]["status"] == "deployed",
        "services": [_service(part, leaders.get(part.name)) for part in parts],
        **from_api,
    }


def _service(part: workload_status.Part, leader: str | None) -> Json:
    return {
        "name": part.component,
        "kind": part.kind,
        "ready": part.ready,
        "wanted": part.wanted,
        "leader": leader,
        "restarts": part.restarts,
        "problems": [
            *([part.problem] if part.problem else []),
            *(f"{each.name} {each.why}" for each in part.troubled),
        ],
    }


def _leaders(kubectl: Kubectl, parts: Sequence[workload_status.Part]) -> dict[str, str]:
    """Workload -> its pod that leads; workloads without a known leader are left out."""
    candidates = [
        (part.name, pod) for part in parts if part.component in DEPLOYMENTS for pod in part.pods
    ]
    pods = [pod for _, pod in candidates]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        leads = list(pool.map(partial(_leads, kubectl), pods))
    return {name: pod for (name, pod), yes in zip(candidates, leads, strict=True) if yes}


def _leads(kubectl: Kubectl, pod: str) -> bool:
    try:
        output = kubectl.run("exec", pod, "-n", kubectl.to.namespace, "--", "python", "-c", ASK)
    except Failure:
        return False
    return LEADS.search(output) is not None


def _asked(kubectl: Kubectl, it: reach.Installed) -> Json:
    """Nodes and tasks, from the API itself."""
    try:
        with reach.front_door(kubectl, it) as (url, token):
            return asyncio.run(_counted(url, token))
    except (Failure, httpx.HTTPError, OSError) as problem:
        why = problem.what if isinstance(problem, Failure) else str(problem)
        return {"nodes": None, "tasks": None, "problem": f"the API cannot be asked: {why}"}


async def _counted(url: str, token: str) -> Json:
    async with client_of(url, token) as client:
        nodes = await items(client, "/v1/nodes", limit=1000)
        tasks = await items(client, "/v1/tasks", state=",".join(LIVE_WORDS), limit=1000)
    states: dict[str, int] = {}
    for task in tasks:
        states[task["state"]] = states.get(task["state"], 0) + 1
    return {"nodes": _nodes(nodes), "tasks": states, "problem": ""}


def _nodes(nodes: Sequence[dict[str, Any]]) -> Json:
    ready = [node for node in nodes if node["ready"]]
    return {
        "seen": len(nodes),
        "ready": len(ready),
        "schedulable": sum(1 for node in ready if node["schedulable"]),
        "gpus": sum(node["gpus"] for node in ready),
        "free_gpus": sum(node["free_gpus"] for node in ready if node["schedulable"]),
    }
