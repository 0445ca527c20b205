"""Wait until all of a release serves, saying what is not ready and why.

Called by ``shiftwork k8s up``. A release that was taken down with its nodes drained has them opened
again.

Helm's ``--wait`` is not used: it is silent until it gives up, and names no pod.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from time import monotonic, sleep

from shiftwork.cli.failures import UNREACHABLE, Failure

from libs.contracts.wording import counted
from services.allinone.client import client_of
from services.allinone.kubernetes import reach, workload_status
from services.allinone.kubernetes.kubectl import Kubectl
from services.allinone.stopping import open_nodes

Report = Callable[[str], None]

POLL_SECONDS = 1.0
# The last output of a container is shown when it keeps ending, or is not ready for so long.
SILENT_SECONDS = 30.0
LINES = 5
# The nodes that `down` closed, in a ConfigMap that no release owns.
DRAINED = "drained-by-down"


def wait(kubectl: Kubectl, report: Report, show: Report, seconds_max: float) -> None:
    """Wait until every part is ready. Raises Failure if a part has failed, or after the timeout.

    ``report`` gets a line whenever the state of a part changes, ``show`` gets a summary.
    """
    began, reported = monotonic(), dict[str, str]()
    shown: set[tuple[str, int]] = set()
    while True:
        found = _parts(kubectl, report, retry=monotonic() - began <= seconds_max)
        waiting = [part for part in found if not part.is_ready]
        show(_summary(found, waiting))
        for part in found:
            if reported.get(part.name) != part.line:
                reported[part.name] = part.line
                report(part.line)
        late = monotonic() - began > SILENT_SECONDS
        for part in waiting:
            _report_output(kubectl, part, report, shown, late=late)
        failed = next((part for part in waiting if part.failed), None)
        if failed is not None:
            raise Failure(
                f"{failed.component} {failed.problem}",
                where=f"Job {failed.name} ({kubectl.to.where})",
                fix="repair the problem in its output above, then `shiftwork k8s up` again",
            )
        if found and not waiting:
            return
        if monotonic() - began > seconds_max:
            raise Failure(
                f"not ready after {seconds_max:g} s: " + "; ".join(part.line for part in waiting),
                where=kubectl.to.where,
                fix="it goes on by itself: `shiftwork k8s status`; to wait longer: --timeout 30m",
            )
        sleep(POLL_SECONDS)


def _parts(kubectl: Kubectl, report: Report, *, retry: bool) -> Sequence[workload_status.Part]:
    """Return every part; with ``retry``, none while the API server cannot be reached."""
    try:
        return workload_status.parts(kubectl.items(workload_status.KINDS))
    except Failure as problem:
        if problem.code != UNREACHABLE or not retry:
            raise
        report(problem.what)
        return ()


def _summary(found: Sequence[workload_status.Part], waiting: Sequence[workload_status.Part]) -> str:
    ready = len(found) - len(waiting)
    names = ", ".join(part.line for part in waiting[:3])
    return f"{ready} of {len(found)} parts are ready" + (f"; {names}" if names else "")


def _report_output(
    kubectl: Kubectl,
    part: workload_status.Part,
    report: Report,
    shown: set[tuple[str, int]],
    *,
    late: bool,
) -> None:
    """What a container in trouble wrote at its end, once for each end."""
    for pod in part.troubled[:1]:
        key = (pod.name, pod.restarts)
        ended = part.kind == "Job" or "crashes" in pod.why
        if not pod.container or key in shown or not (ended or late):
            continue
        shown.add(key)
        for line in last_lines(kubectl, pod):
            report(f"  {pod.name}: {line}")


def last_lines(
    kubectl: Kubectl, pod: workload_status.UnhealthyPod, lines: int = LINES
) -> list[str]:
    """The end of a container's output: of the one that ended, else of the one that runs."""
    base = ("logs", pod.name, "-n", kubectl.to.namespace, "-c", pod.container, f"--tail={lines}")
    for more in (("--previous",), ()) if pod.restarts else ((),):
        try:
            output = kubectl.run(*base, *more).splitlines()
        except Failure:
            continue
        if output:
            return output
    return []


def remember_drained(kubectl: Kubectl, it: reach.Installed, nodes: Sequence[str]) -> None:
    """Keep which nodes a stop closes, where the next start finds it, beside those that the start
    before could not open again."""
    before = _drained(kubectl, it) or []
    it_is = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{it.prefix}-{DRAINED}", "namespace": kubectl.to.namespace},
        "data": {"nodes": json.dumps(sorted({*before, *nodes}))},
    }
    kubectl.run("apply", "-f", "-", stdin=json.dumps(it_is))


def reopen(kubectl: Kubectl, it: reach.Installed, report: Report) -> None:
    """Open the nodes that the last stop drained."""
    nodes = _drained(kubectl, it)
    if nodes is None:
        return
    report(f"opening {counted(len(nodes), 'node')} that `down` had closed")
    with reach.front_door(kubectl, it) as (url, token):
        closed = asyncio.run(_open(url, token, nodes))
    if closed:
        node, problem = next(iter(closed.items()))
        raise Failure(
            f"{len(closed)} of {counted(len(nodes), 'node')} stay closed; {node}: {problem}",
            where=it.to.where,
            fix="`shiftwork k8s up` again, or `shiftwork node uncordon NODE`",
        )
    name = f"{it.prefix}-{DRAINED}"
    kubectl.run("delete", "configmap", name, "-n", kubectl.to.namespace, "--ignore-not-found")


def _drained(kubectl: Kubectl, it: reach.Installed) -> list[str] | None:
    kept = kubectl.maybe("configmap", f"{it.prefix}-{DRAINED}", "-n", kubectl.to.namespace)
    return None if kept is None else json.loads(kept["data"]["nodes"])


async def _open(url: str, token: str, nodes: Sequence[str]) -> dict[str, str]:
    async with client_of(url, token) as client:
        return await open_nodes(client, nodes)
