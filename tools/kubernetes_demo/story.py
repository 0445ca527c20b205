"""The demo's steps. Called by ``__main__``; each one raises DemoError if its promise is not kept.

1. A real training is preempted by a gang, resumes on another node, and ends with the same bits.
2. The same, and in the middle of the preemption the launcher's and the scheduler's pods are killed.
3. A ``torch.distributed`` gang trains across both nodes, its ranks finding each other by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tools.kubernetes_demo.platform import DemoError, Entry, Platform, print_line

EXAMPLES = "/opt/shiftwork/examples"
STEPS, STEP_SECONDS, SEED = 400, 0.02, 7
GANG_STEPS, GANG_STEP_SECONDS = 60, 0.05
# The gang comes once training has really begun.
STEPS_BEFORE_GANG = 80
TORCH_STEPS = 30
# What happens to the victim and the newcomer, each in this order. ``pod.off`` is ended or gone: a
# program that leaves by itself ends its pod, which is deleted as soon as the end is recorded; one
# that stays has its pod deleted first.
PROMISES = (
    (
        ("run.preemption_requested", "victim"),
        ("run.checkpoint_saved", "victim"),
        ("pod.off", "victim"),
        ("run.exited", "victim"),
        ("pod.running", "newcomer"),
        ("run.resumed", "victim"),
    ),
    (
        ("run.checkpoint_saved", "victim"),
        ("pod.gone", "victim"),
        ("pod.running", "newcomer"),
    ),
)
_OFF = ("pod.ended", "pod.gone")


@dataclass(frozen=True)
class Reference:
    """The nodes, and the digest of the training without interruption."""

    nodes: tuple[str, ...]
    expected: str


async def alone(platform: Platform) -> str:
    """The training, uninterrupted: the digest that the others are compared with."""
    print_line("The same training, first without interruption:")
    task_id = await platform.submit("alone", _digits(platform, "alone"), priority="low")
    await platform.until_state(task_id, "succeeded")
    return await platform.weights(task_id)


async def preempted(
    platform: Platform, reference: Reference, name: str, *, kill: tuple[str, ...] = ()
) -> None:
    """A training is preempted by a gang of all nodes and resumes on another node.

    ``kill``: components whose pods are killed between the request and the end of the victim.
    """
    print_line()
    killed = f"; then the pods of {' and '.join(kill)} are killed" if kill else ""
    print_line(f"A training at low priority; a gang of high priority takes every node{killed}:")
    digits = await platform.submit(name, _digits(platform, name), priority="low")
    await platform.until_step(digits, STEPS_BEFORE_GANG)
    before = (await platform.task(digits))["attempt"]
    first = _nodes_of(platform, digits, before)
    start = len(platform.diary)
    gang = await platform.submit(
        f"{name}-gang", _gang(platform, name), priority="high", nodes=len(reference.nodes)
    )
    if kill:
        await platform.until_recorded("run.preemption_requested", digits, after=start)
        for component in kill:
            selector = f"app.kubernetes.io/component={component}"
            for pod in await platform.kube.kill_pods(platform.namespace, selector):
                print_line(f"            killed    {pod}")
    await platform.until_state(gang, "running", "succeeded")
    # So that the victim has to move.
    await _schedulable(platform, first[0], schedulable=False)
    try:
        await platform.until_state(gang, "succeeded")
        await platform.until_state(digits, "succeeded")
    finally:
        await _schedulable(platform, first[0], schedulable=True)
    await platform.until_recorded("run.resumed", digits, after=start)
    _keeps_promise(platform.diary[start:], digits, gang)
    second = _nodes_of(platform, digits, before + 1)
    if set(first) & set(second):
        raise DemoError(f"{name} resumed on {second}, where it was before")
    got = await platform.weights(digits)
    print_line(f"  weights after moving from {first[0]} to {second[0]}   sha256 {got}")
    print_line(f"  weights of the uninterrupted training{' ' * 9}sha256 {reference.expected}")
    if got != reference.expected:
        raise DemoError("the weights differ")
    print_line("  bit-identical")


async def torch_gang(platform: Platform, reference: Reference, image: str) -> None:
    """A distributed training over gloo, one rank on each node."""
    print_line()
    print_line("torch.distributed over gloo, one rank on each node, meeting at rank 0's DNS name:")
    out = f"{platform.mount}/{platform.run}/torch"
    command = ["python3", f"{EXAMPLES}/torch_gang.py", "--out", out, "--steps", str(TORCH_STEPS)]
    pod = {"image": image, "storage": [platform.storage]}
    task_id = await platform.submit("torch", command, nodes=len(reference.nodes), pod=pod)
    await platform.until_state(task_id, "succeeded")
    nodes = _nodes_of(platform, task_id, 1)
    if len(set(nodes)) != len(reference.nodes):
        raise DemoError(f"the gang ran on {nodes}")
    digests = {rank: await platform.weights(task_id, rank) for rank in range(len(nodes))}
    if len(set(digests.values())) != 1:
        raise DemoError(f"the ranks differ: {digests}")
    print_line(f"  every rank ended with the same weights: sha256 {digests[0]}")


def _digits(platform: Platform, name: str) -> list[str]:
    return [
        *("python3", f"{EXAMPLES}/digits.py", "--out", f"{platform.mount}/{platform.run}/{name}"),
        *("--steps", str(STEPS), "--seed", str(SEED), "--step-seconds", str(STEP_SECONDS)),
    ]


def _gang(platform: Platform, name: str) -> list[str]:
    return [
        *(
            "python3",
            f"{EXAMPLES}/gang.py",
            "--out",
            f"{platform.mount}/{platform.run}/{name}-gang",
        ),
        *("--steps", str(GANG_STEPS), "--step-seconds", str(GANG_STEP_SECONDS)),
    ]


def _nodes_of(platform: Platform, task_id: str, attempt: int) -> list[str]:
    """The nodes of an attempt, from the platform's events."""
    for entry in platform.diary:
        if entry.task_id == task_id and entry.fact in ("run.assigned", "run.resumed"):
            data: Any = entry.data
            if data["attempt"] == attempt:
                return [place["node_id"] for place in data["placements"]]
    raise DemoError(f"attempt {attempt} of {platform.names[task_id]} was never placed")


async def _schedulable(platform: Platform, node_id: str, *, schedulable: bool) -> None:
    body = {"schedulable": schedulable}
    await platform.request("PUT", f"/v1/nodes/{node_id}/schedulable", json=body)


def _keeps_promise(diary: list[Entry], victim: str, newcomer: str) -> None:
    """Compare the diary with what was promised. Raises ``DemoError`` with the first difference."""
    roles = {victim: "victim", newcomer: "newcomer"}
    recorded = [
        (fact, roles[entry.task_id])
        for entry in sorted(diary, key=lambda entry: entry.at)
        if entry.task_id in roles
        for fact in ([entry.fact, "pod.off"] if entry.fact in _OFF else [entry.fact])
    ]
    for promise in PROMISES:
        rest = iter(recorded)
        missing = [each for each in promise if each not in rest]
        if missing:
            raise DemoError(f"not seen in this order: {missing[0]} of {promise}")
    partly = [e for e in diary if e.task_id == newcomer and e.fact == "run.started"]
    running = {e.data["pod"] for e in diary if (e.task_id, e.fact) == (newcomer, "pod.running")}
    if not partly or len(running) < len(partly[0].data["placements"]):
        raise DemoError(f"the gang ran with {sorted(running)} only")
