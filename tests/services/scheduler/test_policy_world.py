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
from tests.services.scheduler.scheduler_harness import SchedulerHarness

LENDS = """
groups:
  default:
    policy: fifo
    virtual_clusters:
      - {name: lab, nodes: 1, users: [bob]}
"""


async def a_scheduler(policy_file: Path | None = None) -> SchedulerHarness:
    """One node; ann's task runs there, bob's waits behind it at the same level."""
    made = await SchedulerHarness(policy_file=policy_file).start(a_node("n0"))
    await made.handle(submitted_event(a_task("first", owner="ann")))
    await made.settle()
    await made.handle(started_event(await made.task("first")))
    await made.handle(submitted_event(a_task("second", owner="bob")))
    await made.settle()
    return made


async def test_what_a_dry_run_predicts_is_what_then_happens() -> None:
    scheduler = await a_scheduler()
    assert isinstance(
        await scheduler.ask(SetPolicy(document="groups: {default: {policy: fifo}}")), SetPolicyReply
    )
    await scheduler.settle()
    assert (await scheduler.task("first")).state is TaskState.RUNNING
    await scheduler.published()

    tried = await scheduler.ask(DryRunPolicy(document=LENDS))
    assert isinstance(tried, DryRunPolicyReply)
    kinds = {each.task_id: (each.now.kind, each.then.kind) for each in tried.effects}
    assert kinds["first"] == ("", "preempt")
    effect = next(each for each in tried.effects if each.task_id == "first")
    assert effect.then.beneficiary == "second"
    (outlook,) = tried.outlooks
    assert (outlook.now.preemptions, outlook.then.preemptions) == (0, 1)
    assert outlook.then.gpus_handed_over == 8
    await scheduler.settle()
    assert await scheduler.published() == []
    assert (await scheduler.task("first")).state is TaskState.RUNNING

    reply = await scheduler.ask(SetPolicy(document=LENDS, asked_by="ada"))
    assert isinstance(reply, SetPolicyReply)
    assert reply.changed == ("default",)
    await scheduler.settle()
    published = await scheduler.published()
    assert [each.task_id for each in published if isinstance(each, PreemptionRequested)] == [
        "first"
    ]
    assert (await scheduler.task("first")).state is TaskState.PREEMPTING


async def test_a_policy_survives_a_restart_and_is_published_again() -> None:
    scheduler = await a_scheduler()
    await scheduler.ask(SetPolicy(document=LENDS, asked_by="ada"))
    await scheduler.settle()
    await scheduler.restart()
    await scheduler.published()
    await scheduler.ask(Reemit(service="scheduler"))
    events = [each for each in await scheduler.published() if isinstance(each, PolicyChanged)]
    assert [(each.group, each.version, each.policy.changed_by) for each in events] == [
        ("default", 1, "ada")
    ]
    await scheduler.settle()
    assert (await scheduler.task("first")).state is TaskState.PREEMPTING


async def test_the_policy_file_rules_from_the_start(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(LENDS)
    scheduler = await a_scheduler(path)
    listed = await scheduler.ask(ListPolicies())
    assert isinstance(listed, ListPoliciesReply)
    assert [(each.group, each.source) for each in listed.policies] == [
        ("default", PolicySource.FILE)
    ]
    assert (await scheduler.task("first")).state is TaskState.PREEMPTING
