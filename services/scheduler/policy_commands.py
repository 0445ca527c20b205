"""The commands about policies: SetPolicy, ListPolicies, DryRunPolicy; and the policy file's groups.

Wired in ``main.py``; answered by the leader. A policy set by command overrides the file; when it is
removed, the file's applies again, else the defaults.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from libs.contracts.base import Message
from libs.contracts.messages import (
    DryRunPolicy,
    DryRunPolicyReply,
    ListPolicies,
    ListPoliciesReply,
    PolicyChanged,
    PolicyRecord,
    PolicySource,
    Refusal,
    RefusalCode,
    SetPolicy,
    SetPolicyReply,
)
from libs.contracts.wording import not_found
from libs.service import observability
from libs.service.definition import CommandHandler, QueryHandler
from libs.store.port import Store, Tx
from services.scheduler import forks, store
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model.decisions import Plan
from services.scheduler.domain.model.group_policy import GroupPolicy
from services.scheduler.dry_run import DryRun, diff
from services.scheduler.policy_documents import Parsed, document_of, named, overcommitted, parse
from services.scheduler.policy_fields import at

# A page of policies stays below what the bus carries, whatever its limit.
PAGE_CHARACTERS_MAX = 400_000
BY_FILE = "policy file"

SnapshotWith = Callable[[Mapping[str, GroupPolicy]], Snapshot]
Decide = Callable[[Snapshot, datetime], Plan]


def record(policy: GroupPolicy) -> PolicyRecord:
    """The policy as replies and events carry it."""
    source = PolicySource.FILE if policy.from_file else PolicySource.COMMAND
    if policy.removed or not policy.version:
        source = PolicySource.DEFAULT
    return PolicyRecord(
        group=policy.group,
        policy=policy.policy,
        document=json.dumps(document_of(policy), separators=(",", ":")),
        version=policy.version,
        source=source,
        changed_by=policy.changed_by,
        changed_at=policy.changed_at,
    )


def policy_changed(policy: GroupPolicy) -> PolicyChanged:
    """The event of a changed policy."""
    assert policy.changed_at is not None, "a stored policy was changed at some time"
    return PolicyChanged(
        group=policy.group,
        policy=record(policy),
        version=policy.version,
        changed_at=policy.changed_at,
    )


def refusal(found: Parsed) -> Refusal:
    """The refusal with every error of a document."""
    first, more = found.errors[0], len(found.errors) - 1 + found.errors_more
    detail = f"{first.field}: {first.message}" + (f" (and {more} more)" if more else "")
    return Refusal(code=RefusalCode.INVALID, detail=detail, errors=found.errors)


@dataclass(frozen=True, slots=True)
class PolicyCommands:
    """The commands and their configuration."""

    # The policies of the policy file, and the discipline of groups without a policy.
    of_file: Mapping[str, GroupPolicy]
    default_policy: str
    document_bytes_max: int
    effects_max: int
    page_max: int
    dry_run_seconds_max: float
    rows: Store
    # The present state, apart from the working set, with these policies instead of its own.
    snapshot_with: SnapshotWith
    decide: Decide
    one_at_a_time: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))

    def table(self) -> Mapping[type[Message], CommandHandler]:
        """Which command is answered by which function."""
        return {SetPolicy: self.set_policy, ListPolicies: self.list_policies}

    def queries(self) -> Mapping[type[Message], QueryHandler]:
        """Which query is answered by which function, outside the leader's transactions."""
        return {DryRunPolicy: self.dry_run}

    async def _parse(self, tx: Tx, command: SetPolicy | DryRunPolicy) -> Parsed:
        return parse(
            command.document,
            group=command.group,
            capacity=await store.nodes_of_groups(tx),
            default_policy=self.default_policy,
            bytes_max=self.document_bytes_max,
        )

    def _without(self, group: str) -> GroupPolicy:
        """The policy of a group for which no command set one."""
        found = self.of_file.get(group)
        return found or replace(self._default(group), removed=True)

    def _default(self, group: str) -> GroupPolicy:
        return GroupPolicy(group, policy=self.default_policy)

    async def set_policy(self, tx: Tx, command: SetPolicy) -> SetPolicyReply:
        """Set the policies of a document, all or none. Setting the same again changes nothing.
        With ``check_only`` nothing is set: the reply has the users, teams and groups that the
        document names, and its errors."""
        found = await self._parse(tx, command)
        refused = refusal(found) if found.errors else None
        if command.check_only:
            users, teams = named(found.policies)
            groups = [*(policy.group for policy in found.policies), *found.removed]
            return SetPolicyReply(
                refusal=refused,
                warnings=found.warnings,
                users=users,
                teams=teams,
                groups={at("groups", group): group for group in groups},
            )
        if refused is not None:
            return SetPolicyReply(refusal=refused)
        wanted = [*found.policies, *(self._without(group) for group in found.removed)]
        versions: dict[str, int] = {}
        changes: list[str] = []
        for policy in wanted:
            versions[policy.group], is_new = await put(tx, policy, command.asked_by)
            if is_new:
                changes.append(policy.group)
        return SetPolicyReply(versions=versions, changed=tuple(changes), warnings=found.warnings)

    async def list_policies(self, tx: Tx, command: ListPolicies) -> ListPoliciesReply:
        """The policy of each group that has one, or has nodes."""
        rows = {row.group: row for row in await store.policies_of(tx)}
        named = {name for name, row in rows.items() if not row.removed}
        groups = sorted(named | set(await store.nodes_of_groups(tx)))
        if command.group:
            if command.group not in groups:
                refused = not_found("group", "group", command.group, groups)
                return ListPoliciesReply(refusal=refused)
            groups = [command.group]
        groups = [name for name in groups if name > command.after]
        limit = max(1, min(command.limit or self.page_max, self.page_max))
        page: list[PolicyRecord] = []
        size = 0
        for name in groups[:limit]:
            one = record(self._shown(name, rows.get(name)))
            size += len(one.document)
            if page and size > PAGE_CHARACTERS_MAX:
                break
            page.append(one)
        return ListPoliciesReply(policies=tuple(page), more=len(page) < len(groups))

    def _shown(self, group: str, row: GroupPolicy | None) -> GroupPolicy:
        """A removed policy is shown as the defaults, with its version and change."""
        if row is None or not row.removed:
            return row or self._default(group)
        kept = {"version": row.version, "changed_by": row.changed_by, "changed_at": row.changed_at}
        return replace(self._default(group), removed=True, **kept)

    async def dry_run(self, query: DryRunPolicy) -> DryRunPolicyReply:
        """Decide twice on the present state, and reply with the differences. Nothing is stored.

        Two indexes are built from all rows, in a copy of the process; one dry run at a time.
        """
        async with self.rows.transaction() as tx:
            found = await self._parse(tx, query)
            now = tx.now
        if found.errors:
            return DryRunPolicyReply(refusal=refusal(found))
        wanted = {policy.group: policy for policy in found.policies}
        wanted |= {group: self._without(group) for group in found.removed}
        limit = max(1, min(query.limit or self.effects_max, self.effects_max))
        try:
            async with self.one_at_a_time, asyncio.timeout(self.dry_run_seconds_max):
                reply = await forks.ask(
                    lambda: [self._compared(wanted, now, limit)], self.dry_run_seconds_max
                )
        except forks.FailedError as defect:
            detail = "the dry run failed; the error is in the scheduler's log"
            observability.log("scheduler").error("dry run failed", problem=str(defect))
            return DryRunPolicyReply(refusal=Refusal(code=RefusalCode.UNAVAILABLE, detail=detail))
        except (forks.NoAnswerError, TimeoutError, OSError) as problem:
            detail = f"the dry run took more than {self.dry_run_seconds_max:g} s, or was killed"
            observability.log("scheduler").warning("dry run not finished", problem=str(problem))
            return DryRunPolicyReply(refusal=Refusal(code=RefusalCode.UNAVAILABLE, detail=detail))
        return DryRunPolicyReply(
            effects=reply.effects,
            more=reply.more,
            outlooks=reply.outlooks,
            warnings=found.warnings,
            decided_at=now,
        )

    def _compared(self, wanted: Mapping[str, GroupPolicy], now: datetime, limit: int) -> DryRun:
        present = self.snapshot_with({})
        before = self.decide(present, now)
        after = self.decide(self.snapshot_with(wanted), now)
        return diff(before, after, present.tasks, effects_max=limit)


async def put(tx: Tx, policy: GroupPolicy, changed_by: str) -> tuple[int, bool]:
    """Store a group's policy and publish it, unless it is the same; its version, and if it is new.

    One that is ``removed`` removes the stored one, if there is any.
    """
    row = await tx.get(GroupPolicy, policy.group)
    version = row.version if row else 0
    if policy.removed and (row is None or row.removed):
        return version, False
    if row is not None and row.same_rules(policy) and row.from_file == policy.from_file:
        return version, False
    after = replace(policy, version=version + 1, changed_by=changed_by, changed_at=tx.now)
    tx.put(after)
    tx.emit(policy_changed(after))
    return after.version, True


async def use_file(rows: Store, of_file: Mapping[str, GroupPolicy], epoch: int) -> None:
    """Make the file's policies those of the groups for which no command set one.

    A new leader calls it after its working set is loaded. Policies that the file no longer has are
    removed; guarantees beyond the known nodes are logged as warnings.
    """
    if not of_file and not any(row.from_file for row in rows.resident(GroupPolicy).values()):
        return
    async with rows.transaction(epoch=epoch) as tx:
        known = {row.group: row for row in await store.policies_of(tx)}
        for group in sorted({*of_file, *known}):
            row = known.get(group)
            if row is not None and not (row.from_file or row.removed):
                continue
            gone = GroupPolicy(group, removed=True, from_file=True)
            await put(tx, of_file.get(group, gone), BY_FILE)
        capacity = await store.nodes_of_groups(tx)
        excessive = [overcommitted(policy, capacity) for policy in of_file.values()]
    for each in filter(None, excessive):
        observability.log("scheduler").warning("policy file guarantees too much", problem=each)
