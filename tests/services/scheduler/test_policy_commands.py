"""Policies by command and by file: who wins, what is told, and a dry run that changes nothing."""

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
class World:
    """The tables and the commands; deciding is a stand-in that says what it was asked."""

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
            told = await query(command)
            assert isinstance(told, kind)
            return told
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

    async def said(self) -> list[PolicyChanged]:
        found = [row for row in await self.store.outgoing(1000) if row[0] > self.read]
        self.read = max((number for number, _ in found), default=self.read)
        return [each.message for _, each in found if isinstance(each.message, PolicyChanged)]


def decide(snapshot: Snapshot, now: datetime) -> Plan:
    """The task waits; under fifo for another reason than under anything else."""
    fifo = snapshot.pools["default"].policy.policy == "fifo"
    code = ReasonCode.WAITS_FOR_QUOTA if fifo else ReasonCode.WAITS_FOR_CAPACITY
    return Plan(1, now, (), {"t1": Reason(code=code)})


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    store = MemoryPlatform().store(TABLES)
    made = World(store)
    await made.lead()
    async with store.transaction(epoch=made.epoch) as tx:
        tx.put(*some_nodes(4))
    yield made
    await store.close()


async def test_a_policy_is_set_and_said_once(world: World) -> None:
    reply = await world.set("groups: {default: {policy: fifo}}")
    assert (reply.refusal, reply.versions, reply.changed) == (None, {"default": 1}, ("default",))
    (event,) = await world.said()
    assert (event.group, event.version, event.changed_at) == ("default", 1, at(0))
    assert (event.policy.policy, event.policy.changed_by) == ("fifo", "ada")
    assert json.loads(event.policy.document)["policy"] == "fifo"
    again = await world.set("policy: fifo", group="default", asked_by="bob")
    assert (again.versions, again.changed) == ({"default": 1}, ())
    assert await world.said() == []


async def test_all_of_a_document_is_set_or_nothing(world: World) -> None:
    reply = await world.set("groups: {default: {policy: fifo}, dev: {policy: x, protected: -1}}")
    assert reply.refusal is not None
    assert reply.refusal.code is RefusalCode.INVALID
    assert [each.field for each in reply.refusal.errors] == [
        "groups.dev.policy",
        "groups.dev.protected",
    ]
    assert "and 1 more" in reply.refusal.detail
    assert await world.said() == []
    assert await world.listed() == {"default": ("timeshare", PolicySource.DEFAULT, 0)}


async def test_guarantees_are_held_to_the_nodes_that_are_known(world: World) -> None:
    four = "groups: {default: {virtual_clusters: [{name: a, nodes: 4, users: [u]}]}}"
    five = four.replace("nodes: 4", "nodes: 4.5")
    refused = await world.set(five)
    assert refused.refusal is not None
    assert refused.refusal.errors[0].field == "groups.default.virtual_clusters"
    assert (await world.set(four)).refusal is None
    strange = await world.set(five.replace("default", "elsewhere"))
    assert [each.field for each in strange.warnings] == ["groups.elsewhere"]


async def test_taking_away_leaves_the_defaults_and_keeps_the_version(world: World) -> None:
    await world.set("groups: {default: {policy: fifo}}")
    gone = await world.set("groups: {default: null, never: null}")
    assert (gone.versions, gone.changed) == ({"default": 2, "never": 0}, ("default",))
    assert await world.listed() == {"default": ("timeshare", PolicySource.DEFAULT, 2)}
    assert (await world.set("groups: {default: null}")).changed == ()
    assert (await world.set("groups: {default: {policy: fifo}}")).versions == {"default": 3}
    last = [event.policy.source for event in await world.said()]
    assert last == [PolicySource.COMMAND, PolicySource.DEFAULT, PolicySource.COMMAND]


async def test_a_command_beats_the_file_until_it_is_taken_away(world: World) -> None:
    world.of_file["default"] = GroupPolicy("default", policy="easy", from_file=True)
    await world.lead()
    assert await world.listed() == {"default": ("easy", PolicySource.FILE, 1)}
    assert [event.policy.changed_by for event in await world.said()] == ["policy file"]
    await world.lead()
    assert await world.said() == []
    await world.set("groups: {default: {policy: fifo}}")
    world.of_file["default"] = GroupPolicy("default", policy="backfill", from_file=True)
    await world.lead()
    assert await world.listed() == {"default": ("fifo", PolicySource.COMMAND, 2)}
    await world.set("groups: {default: null}")
    assert await world.listed() == {"default": ("backfill", PolicySource.FILE, 3)}


async def test_what_the_file_no_longer_says_is_taken_away(world: World) -> None:
    world.of_file["default"] = GroupPolicy("default", policy="easy", from_file=True)
    await world.lead()
    world.of_file.clear()
    await world.lead()
    assert await world.listed() == {"default": ("timeshare", PolicySource.DEFAULT, 2)}
    await world.lead()
    assert [event.version for event in await world.said()] == [1, 2]


async def test_a_command_that_says_what_the_file_says_is_a_change(world: World) -> None:
    """From then on the file may change without changing the group."""
    world.of_file["default"] = GroupPolicy("default", policy="easy", from_file=True)
    await world.lead()
    reply = await world.set("groups: {default: {policy: easy}}")
    assert reply.changed == ("default",)
    assert (await world.listed())["default"][1] is PolicySource.COMMAND


async def test_rows_come_back_whole(world: World) -> None:
    document = """
groups:
  default:
    demotions: [{level: high, to: low, after: 1h}]
    shares: {users: {ann: 2}}
    virtual_clusters: [{name: a, nodes: 1.5, users: [u]}, {name: b, nodes: 1, teams: [t]}]
    protected: 90
"""
    assert (await world.set(document)).refusal is None
    await world.lead()
    row = world.store.resident(GroupPolicy)["default"]
    assert row.virtual_clusters[0] == VirtualCluster("a", 1.5, users=("u",))
    assert row.demotions[0].after_seconds == 3600.0
    assert row.shares.users == {"ann": 2.0}
    assert row.protected_seconds == 90.0


async def test_policies_come_in_pages(world: World) -> None:
    many = ", ".join(f"g{number}: {{policy: fifo}}" for number in range(4))
    await world.set(f"groups: {{{many}}}")
    found: list[str] = []
    more = True
    while more:
        after = found[-1] if found else ""
        page = await world.ask(ListPolicies(after=after, limit=99), ListPoliciesReply)
        assert 1 <= len(page.policies) <= 3
        found += [each.group for each in page.policies]
        more = page.more
    assert found == ["default", "g0", "g1", "g2", "g3"]


async def test_a_page_is_no_longer_than_the_bus_carries(world: World) -> None:
    users = ", ".join(f"user-{number}" for number in range(6000))
    for group in ("a", "b", "c"):
        big = f"virtual_clusters: [{{name: all, nodes: 1, users: [{users}]}}]"
        assert (await world.set(big, group=group)).refusal is None
    page = await world.ask(ListPolicies(), ListPoliciesReply)
    assert page.more or len(page.policies) == 4
    assert sum(len(each.document) for each in page.policies) < 500_000


async def test_one_group_is_shown_or_not_there(world: World) -> None:
    one = await world.ask(ListPolicies(group="default"), ListPoliciesReply)
    assert [each.group for each in one.policies] == ["default"]
    assert one.more is False
    none = await world.ask(ListPolicies(group="nowhere"), ListPoliciesReply)
    assert none.refusal is not None
    assert none.refusal.code is RefusalCode.NOT_FOUND


async def test_a_dry_run_tells_what_differs_and_changes_nothing(world: World) -> None:
    command = DryRunPolicy(document="policy: fifo", group="default")
    reply = await world.ask(command, DryRunPolicyReply)
    (effect,) = reply.effects
    assert effect.now.reason is not None
    assert effect.now.reason.code is ReasonCode.WAITS_FOR_CAPACITY
    assert effect.then.reason is not None
    assert effect.then.reason.code is ReasonCode.WAITS_FOR_QUOTA
    assert (reply.more, reply.decided_at) == (0, at(0))
    assert await world.said() == []
    assert (await world.listed())["default"][2] == 0
    same = await world.ask(DryRunPolicy(document="{}", group="default"), DryRunPolicyReply)
    assert same.effects == ()


async def test_a_dry_run_that_takes_too_long_is_refused(world: World) -> None:
    world.seconds_max = 0.001
    command = DryRunPolicy(document="policy: fifo", group="default")
    reply = await world.ask(command, DryRunPolicyReply)
    assert reply.refusal is not None
    assert reply.refusal.code is RefusalCode.UNAVAILABLE


async def test_a_dry_run_of_taking_away_goes_back_to_what_there_was(world: World) -> None:
    await world.set("groups: {default: {policy: fifo}}")
    command = DryRunPolicy(document="groups: {default: null}")
    (effect,) = (await world.ask(command, DryRunPolicyReply)).effects
    assert effect.then.reason is not None
    assert effect.then.reason.code is ReasonCode.WAITS_FOR_CAPACITY
    world.of_file["default"] = GroupPolicy("default", policy="fifo", from_file=True)
    assert (await world.ask(command, DryRunPolicyReply)).effects == ()


async def test_a_dry_run_refuses_what_setting_refuses(world: World) -> None:
    command = DryRunPolicy(document="groups: {default: {polcy: fifo}}")
    reply = await world.ask(command, DryRunPolicyReply)
    assert reply.refusal is not None
    assert reply.refusal.errors[0].fix == "did you mean policy?"


@pytest.mark.parametrize("document", ["groups: {default: {policy: fifo}}", "groups: {a: null}"])
async def test_setting_twice_is_setting_once(world: World, document: str) -> None:
    first, second = await world.set(document), await world.set(document)
    assert first.versions == second.versions
    assert second.changed == ()


async def test_a_document_is_checked_for_whom_it_names_and_nothing_is_set(world: World) -> None:
    reply = await world.set(
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
    assert (reply.versions, await world.said()) == ({}, [])
    gone = await world.set("groups: {default: {}, old: null}", check_only=True)
    assert gone.groups == {"groups.default": "default", "groups.old": "old"}
    wrong = await world.set(
        "groups: {default: {policy: x, shares: {users: {ann: 2}}}}", check_only=True
    )
    assert wrong.refusal is not None
    assert wrong.users == {"groups.default.shares.users.ann": "ann"}
