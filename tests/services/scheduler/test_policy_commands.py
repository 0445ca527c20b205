"""Policies by command and by file: precedence, events, and a dry run that changes nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

import pytest
import pytest_asyncio

from libs.contracts.base import Message
from libs.contracts.messages import (
    DryRunPolicy,
    DryRunPolicyReply,
    ListPolicies,
    ListPoliciesReply,
    PolicyChanged,
    PolicySource,
    Reason,
    ReasonCode,
    RefusalCode,
    SetPolicy,
    SetPolicyReply,
)
from libs.store.memory import MemoryStore
from libs.store.port import Leadership
from services.scheduler import store as rows
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model.decisions import Plan
from services.scheduler.domain.model.group_policy import GroupPolicy, PolicySettings, VirtualCluster
from services.scheduler.policy_commands import PolicyCommands, use_file
from services.scheduler.tables import TABLES
from tests.kit.builders import a_task, some_nodes
from tests.kit.clock import at
from tests.kit.memory import MemoryPlatform

R = TypeVar("R", bound=Message)
TASK = a_task("t1")


@dataclass
class PolicyHarness:
    """The tables and the commands; deciding is a stand-in that records its input."""

    store: MemoryStore
    of_file: dict[str, GroupPolicy] = field(default_factory=dict[str, GroupPolicy])
    leadership: Leadership | None = None
    epoch: int = 0
    read: int = 0
    seconds_max: float = 30.0

    def commands(self) -> PolicyCommands:
        return PolicyCommands(
            of_file=self.of_file,
            default_policy="timeshare",
            document_bytes_max=100_000,
            effects_max=10,
            page_max=3,
            dry_run_seconds_max=self.seconds_max,
            rows=self.store,
            snapshot_with=self.snapshot_with,
            decide=decide,
        )

    def snapshot_with(self, policies: Mapping[str, GroupPolicy]) -> Snapshot:
        stored = self.store.resident(GroupPolicy).values()
        present = {row.group: row for row in stored}
        return Snapshot.of(
            tasks=[TASK], nodes=some_nodes(1), policies=[*{**present, **policies}.values()]
        )

    async def lead(self) -> None:
        """Begin to lead, as a new process would after the last one."""
        if self.leadership is not None:
            await self.leadership.release()
        self.leadership = await self.store.lead()
        self.epoch = self.leadership.epoch
        await rows.load(self.store, PolicySettings())
        await use_file(self.store, self.of_file, self.epoch)

    async def ask(self, command: Message, kind: type[R]) -> R:
        query = self.commands().queries().get(type(command))
        if query is not None:
            reply = await query(command)
            assert isinstance(reply, kind)
            return reply
        async with self.store.transaction(epoch=self.epoch) as tx:
            reply = await self.commands().table()[type(command)](tx, command)
        assert isinstance(reply, kind)
        return reply

    async def set(
        self, document: str, group: str = "", asked_by: str = "ada", *, check_only: bool = False
    ) -> SetPolicyReply:
        command = SetPolicy(
            document=document, group=group, asked_by=asked_by, check_only=check_only
        )
        return await self.ask(command, SetPolicyReply)

    async def listed(self) -> dict[str, tuple[str, PolicySource, int]]:
        reply = await self.ask(ListPolicies(), ListPoliciesReply)
        return {each.group: (each.policy, each.source, each.version) for each in reply.policies}

    async def published(self) -> list[PolicyChanged]:
        found = [row for row in await self.store.outgoing(1000) if row[0] > self.read]
        self.read = max((number for number, _ in found), default=self.read)
        return [each.message for _, each in found if isinstance(each.message, PolicyChanged)]


def decide(snapshot: Snapshot, now: datetime) -> Plan:
    """The task waits; under fifo for another reason than under anything else."""
    fifo = snapshot.pools["default"].policy.policy == "fifo"
    code = ReasonCode.WAITS_FOR_QUOTA if fifo else ReasonCode.WAITS_FOR_CAPACITY
    return Plan(1, now, (), {"t1": Reason(code=code)})


@pytest_asyncio.fixture
async def harness() -> AsyncIterator[PolicyHarness]:
    store = MemoryPlatform().store(TABLES)
    made = PolicyHarness(store)
    await made.lead()
    async with store.transaction(epoch=made.epoch) as tx:
        tx.put(*some_nodes(4))
    yield made
    await store.close()


async def test_a_policy_is_set_and_published_once(harness: PolicyHarness) -> None:
    reply = await harness.set("groups: {default: {policy: fifo}}")
    assert (reply.refusal, reply.versions, reply.changed) == (None, {"default": 1}, ("default",))
    (event,) = await harness.published()
    assert (event.group, event.version, event.changed_at) == ("default", 1, at(0))
    assert (event.policy.policy, event.policy.changed_by) == ("fifo", "ada")
    assert json.loads(event.policy.document)["policy"] == "fifo"
    again = await harness.set("policy: fifo", group="default", asked_by="bob")
    assert (again.versions, again.changed) == ({"default": 1}, ())
    assert await harness.published() == []


async def test_all_of_a_document_is_set_or_nothing(harness: PolicyHarness) -> None:
    reply = await harness.set("groups: {default: {policy: fifo}, dev: {policy: x, protected: -1}}")
    assert reply.refusal is not None
    assert reply.refusal.code is RefusalCode.INVALID
    assert [each.field for each in reply.refusal.errors] == [
        "groups.dev.policy",
        "groups.dev.protected",
    ]
    assert "and 1 more" in reply.refusal.detail
    assert await harness.published() == []
    assert await harness.listed() == {"default": ("timeshare", PolicySource.DEFAULT, 0)}


async def test_guarantees_are_held_to_the_nodes_that_are_known(harness: PolicyHarness) -> None:
    four = "groups: {default: {virtual_clusters: [{name: a, nodes: 4, users: [u]}]}}"
    five = four.replace("nodes: 4", "nodes: 4.5")
    refused = await harness.set(five)
    assert refused.refusal is not None
    assert refused.refusal.errors[0].field == "groups.default.virtual_clusters"
    assert (await harness.set(four)).refusal is None
    strange = await harness.set(five.replace("default", "elsewhere"))
    assert [each.field for each in strange.warnings] == ["groups.elsewhere"]


async def test_taking_away_leaves_the_defaults_and_keeps_the_version(
    harness: PolicyHarness,
) -> None:
    await harness.set("groups: {default: {policy: fifo}}")
    gone = await harness.set("groups: {default: null, never: null}")
    assert (gone.versions, gone.changed) == ({"default": 2, "never": 0}, ("default",))
    assert await harness.listed() == {"default": ("timeshare", PolicySource.DEFAULT, 2)}
    assert (await harness.set("groups: {default: null}")).changed == ()
    assert (await harness.set("groups: {default: {policy: fifo}}")).versions == {"default": 3}
    last = [event.policy.source for event in await harness.published()]
    assert last == [PolicySource.COMMAND, PolicySource.DEFAULT, PolicySource.COMMAND]


async def test_a_command_beats_the_file_until_it_is_taken_away(harness: PolicyHarness) -> None:
    harness.of_file["default"] = GroupPolicy("default", policy="easy", from_file=True)
    await harness.lead()
    assert await harness.listed() == {"default": ("easy", PolicySource.FILE, 1)}
    assert [event.policy.changed_by for event in await harness.published()] == ["policy file"]
    await harness.lead()
    assert await harness.published() == []
    await harness.set("groups: {default: {policy: fifo}}")
    harness.of_file["default"] = GroupPolicy("default", policy="backfill", from_file=True)
    await harness.lead()
    assert await harness.listed() == {"default": ("fifo", PolicySource.COMMAND, 2)}
    await harness.set("groups: {default: null}")
    assert await harness.listed() == {"default": ("backfill", PolicySource.FILE, 3)}


async def test_what_the_file_no_longer_contains_is_removed(harness: PolicyHarness) -> None:
    harness.of_file["default"] = GroupPolicy("default", policy="easy", from_file=True)
    await harness.lead()
    harness.of_file.clear()
    await harness.lead()
    assert await harness.listed() == {"default": ("timeshare", PolicySource.DEFAULT, 2)}
    await harness.lead()
    assert [event.version for event in await harness.published()] == [1, 2]


async def test_a_command_that_repeats_the_file_is_a_change(harness: PolicyHarness) -> None:
    """From then on the file may change without changing the group."""
    harness.of_file["default"] = GroupPolicy("default", policy="easy", from_file=True)
    await harness.lead()
    reply = await harness.set("groups: {default: {policy: easy}}")
    assert reply.changed == ("default",)
    assert (await harness.listed())["default"][1] is PolicySource.COMMAND


async def test_rows_come_back_whole(harness: PolicyHarness) -> None:
    document = """
groups:
  default:
    demotions: [{level: high, to: low, after: 1h}]
    shares: {users: {ann: 2}}
    virtual_clusters: [{name: a, nodes: 1.5, users: [u]}, {name: b, nodes: 1, teams: [t]}]
    protected: 90
"""
    assert (await harness.set(document)).refusal is None
    await harness.lead()
    row = harness.store.resident(GroupPolicy)["default"]
    assert row.virtual_clusters[0] == VirtualCluster("a", 1.5, users=("u",))
    assert row.demotions[0].after_seconds == 3600.0
    assert row.shares.users == {"ann": 2.0}
    assert row.protected_seconds == 90.0


async def test_policies_come_in_pages(harness: PolicyHarness) -> None:
    many = ", ".join(f"g{number}: {{policy: fifo}}" for number in range(4))
    await harness.set(f"groups: {{{many}}}")
    found: list[str] = []
    more = True
    while more:
        after = found[-1] if found else ""
        page = await harness.ask(ListPolicies(after=after, limit=99), ListPoliciesReply)
        assert 1 <= len(page.policies) <= 3
        found += [each.group for each in page.policies]
        more = page.more
    assert found == ["default", "g0", "g1", "g2", "g3"]


async def test_a_page_is_no_longer_than_the_bus_carries(harness: PolicyHarness) -> None:
    users = ", ".join(f"user-{number}" for number in range(6000))
    for group in ("a", "b", "c"):
        big = f"virtual_clusters: [{{name: all, nodes: 1, users: [{users}]}}]"
        assert (await harness.set(big, group=group)).refusal is None
    page = await harness.ask(ListPolicies(), ListPoliciesReply)
    assert page.more or len(page.policies) == 4
    assert sum(len(each.document) for each in page.policies) < 500_000


async def test_one_group_is_shown_or_not_there(harness: PolicyHarness) -> None:
    one = await harness.ask(ListPolicies(group="default"), ListPoliciesReply)
    assert [each.group for each in one.policies] == ["default"]
    assert one.more is False
    none = await harness.ask(ListPolicies(group="nowhere"), ListPoliciesReply)
    assert none.refusal is not None
    assert none.refusal.code is RefusalCode.NOT_FOUND


async def test_a_dry_run_reports_what_differs_and_changes_nothing(harness: PolicyHarness) -> None:
    command = DryRunPolicy(document="policy: fifo", group="default")
    reply = await harness.ask(command, DryRunPolicyReply)
    (effect,) = reply.effects
    assert effect.now.reason is not None
    assert effect.now.reason.code is ReasonCode.WAITS_FOR_CAPACITY
    assert effect.then.reason is not None
    assert effect.then.reason.code is ReasonCode.WAITS_FOR_QUOTA
    assert (reply.more, reply.decided_at) == (0, at(0))
    assert await harness.published() == []
    assert (await harness.listed())["default"][2] == 0
    same = await harness.ask(DryRunPolicy(document="{}", group="default"), DryRunPolicyReply)
    assert same.effects == ()


async def test_a_dry_run_that_takes_too_long_is_refused(harness: PolicyHarness) -> None:
    harness.seconds_max = 0.001
    command = DryRunPolicy(document="policy: fifo", group="default")
    reply = await harness.ask(command, DryRunPolicyReply)
    assert reply.refusal is not None
    assert reply.refusal.code is RefusalCode.UNAVAILABLE


async def test_a_dry_run_of_taking_away_goes_back_to_what_there_was(harness: PolicyHarness) -> None:
    await harness.set("groups: {default: {policy: fifo}}")
    command = DryRunPolicy(document="groups: {default: null}")
    (effect,) = (await harness.ask(command, DryRunPolicyReply)).effects
    assert effect.then.reason is not None
    assert effect.then.reason.code is ReasonCode.WAITS_FOR_CAPACITY
    harness.of_file["default"] = GroupPolicy("default", policy="fifo", from_file=True)
    assert (await harness.ask(command, DryRunPolicyReply)).effects == ()


async def test_a_dry_run_refuses_what_setting_refuses(harness: PolicyHarness) -> None:
    command = DryRunPolicy(document="groups: {default: {polcy: fifo}}")
    reply = await harness.ask(command, DryRunPolicyReply)
    assert reply.refusal is not None
    assert reply.refusal.errors[0].fix == "did you mean policy?"


@pytest.mark.parametrize("document", ["groups: {default: {policy: fifo}}", "groups: {a: null}"])
async def test_setting_twice_is_setting_once(harness: PolicyHarness, document: str) -> None:
    first, second = await harness.set(document), await harness.set(document)
    assert first.versions == second.versions
    assert second.changed == ()


async def test_check_only_validates_the_people_that_a_document_names_and_sets_nothing(
    harness: PolicyHarness,
) -> None:
    reply = await harness.set(
        "groups: {default: {shares: {users: {ann: 2}, teams: {red: 1}}, virtual_clusters:"
        " [{name: a, nodes: 0, users: [bob, ann], teams: [blue]}]}}",
        check_only=True,
    )
    assert reply.refusal is None
    assert reply.users == {
        "groups.default.shares.users.ann": "ann",
        "groups.default.virtual_clusters[0].users[0]": "bob",
    }
    assert reply.teams == {
        "groups.default.shares.teams.red": "red",
        "groups.default.virtual_clusters[0].teams[0]": "blue",
    }
    assert reply.groups == {"groups.default": "default"}
    assert (reply.versions, await harness.published()) == ({}, [])
    gone = await harness.set("groups: {default: {}, old: null}", check_only=True)
    assert gone.groups == {"groups.default": "default", "groups.old": "old"}
    wrong = await harness.set(
        "groups: {default: {policy: x, shares: {users: {ann: 2}}}}", check_only=True
    )
    assert wrong.refusal is not None
    assert wrong.users == {"groups.default.shares.users.ann": "ann"}
