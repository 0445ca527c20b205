"""Policies in the scheduler as it is wired: tried, set, and decided by at once."""

from __future__ import annotations

from pathlib import Path

from libs.contracts.messages import (
    DryRunPolicy,
    DryRunPolicyReply,
    ListPolicies,
    ListPoliciesReply,
    PolicyChanged,
    PolicySource,
    PreemptionRequested,
    Reemit,
    SetPolicy,
    SetPolicyReply,
    TaskState,
)
from tests.kit.builders import a_node, a_task, started_event, submitted_event
from tests.services.scheduler.scheduler_harness import World, inventory_of, node_changed

LENDS = """
groups:
  default:
    policy: fifo
    virtual_clusters:
      - {name: lab, nodes: 1, users: [bob]}
"""


async def a_world(policy_file: Path | None = None) -> World:
    """One node; ann's task runs there, bob's waits behind it at the same level."""
    made = await World(policy_file=policy_file).start()
    await made.hear(node_changed(a_node("n0")), inventory_of(a_node("n0")))
    await made.hear(submitted_event(a_task("first", owner="ann")))
    await made.settle()
    await made.hear(started_event(await made.task("first")))
    await made.hear(submitted_event(a_task("second", owner="bob")))
    await made.settle()
    return made


async def test_what_a_dry_run_says_is_what_then_happens() -> None:
    world = await a_world()
    assert isinstance(
        await world.ask(SetPolicy(document="groups: {default: {policy: fifo}}")), SetPolicyReply
    )
    await world.settle()
    assert (await world.task("first")).state is TaskState.RUNNING
    await world.said()

    tried = await world.ask(DryRunPolicy(document=LENDS))
    assert isinstance(tried, DryRunPolicyReply)
    kinds = {each.task_id: (each.now.kind, each.then.kind) for each in tried.effects}
    assert kinds["first"] == ("", "preempt")
    effect = next(each for each in tried.effects if each.task_id == "first")
    assert effect.then.beneficiary == "second"
    (outlook,) = tried.outlooks
    assert (outlook.now.preemptions, outlook.then.preemptions) == (0, 1)
    assert outlook.then.gpus_handed_over == 8
    await world.settle()
    assert await world.said() == []
    assert (await world.task("first")).state is TaskState.RUNNING

    reply = await world.ask(SetPolicy(document=LENDS, asked_by="ada"))
    assert isinstance(reply, SetPolicyReply)
    assert reply.changed == ("default",)
    await world.settle()
    said = await world.said()
    assert [each.task_id for each in said if isinstance(each, PreemptionRequested)] == ["first"]
    assert (await world.task("first")).state is TaskState.PREEMPTING


async def test_a_policy_survives_a_restart_and_is_said_again() -> None:
    world = await a_world()
    await world.ask(SetPolicy(document=LENDS, asked_by="ada"))
    await world.settle()
    await world.restart()
    await world.said()
    await world.ask(Reemit(service="scheduler"))
    events = [each for each in await world.said() if isinstance(each, PolicyChanged)]
    assert [(each.group, each.version, each.policy.changed_by) for each in events] == [
        ("default", 1, "ada")
    ]
    await world.settle()
    assert (await world.task("first")).state is TaskState.PREEMPTING


async def test_the_policy_file_rules_from_the_start(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(LENDS)
    world = await a_world(path)
    listed = await world.ask(ListPolicies())
    assert isinstance(listed, ListPoliciesReply)
    assert [(each.group, each.source) for each in listed.policies] == [
        ("default", PolicySource.FILE)
    ]
    assert (await world.task("first")).state is TaskState.PREEMPTING
