"""Answers which tasks are abnormal and which rules there are; publishes open findings again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from libs.contracts.base import Message
from libs.contracts.messages import (
    AbnormalRule,
    AbnormalStep,
    AbnormalTask,
    ListAbnormalRules,
    ListAbnormalRulesReply,
    ListAbnormalTasks,
    ListAbnormalTasksReply,
    Reemit,
    ReemitReply,
    Refusal,
    RefusalCode,
)
from libs.contracts.wording import field_error, meant
from libs.service.definition import CommandHandler, QueryHandler
from libs.store.port import Op, Store, Tx, Where
from services.monitor.abnormal import store
from services.monitor.abnormal.evaluation import changed
from services.monitor.abnormal.store import ActionRow, FindingRow
from services.monitor.domain.abnormal_rules import RULES, RuleBook

PAGE_MAX = 1000
REEMITTED_MAX = 20_000


@dataclass(frozen=True, slots=True)
class AbnormalQueries:
    """The queries and commands about abnormal tasks."""

    database: Store
    book: RuleBook
    dry_run: bool

    def table(self) -> Mapping[type[Message], QueryHandler]:
        """Return the handler of each query."""
        return {ListAbnormalTasks: self.list_tasks, ListAbnormalRules: self.list_rules}

    def commands(self) -> Mapping[type[Message], CommandHandler]:
        """Return the handler of each command."""
        return {Reemit: self.reemit}

    async def list_tasks(self, query: ListAbnormalTasks) -> ListAbnormalTasksReply:
        """A page of findings: those that last, or also the last ones that are over."""
        if query.rule and query.rule not in RULES:
            return ListAbnormalTasksReply(refusal=not_known(query.rule))
        limit = min(query.limit or PAGE_MAX, PAGE_MAX)
        async with self.database.transaction() as tx:
            rows: list[FindingRow] = []
            for where in _alternatives(query):
                rows += await store.findings(tx, *where, limit=limit + 1)
            rows.sort(key=lambda row: row.id)
            page = rows[:limit]
            actions = await store.actions_of(tx, page)
        more = len(rows) > limit
        return ListAbnormalTasksReply(
            tasks=tuple(_task(row, actions) for row in page), next=page[-1].id if more else ""
        )

    async def list_rules(self, query: ListAbnormalRules) -> ListAbnormalRulesReply:
        """The rules as the site has set them."""
        del query
        return ListAbnormalRulesReply(
            rules=tuple(
                AbnormalRule(
                    name=name,
                    detail=f"a task {setting.rule.fact}",
                    threshold=setting.threshold,
                    unit=setting.rule.unit,
                    enabled=setting.enabled,
                    actions=setting.actions,
                    dry_run=self.dry_run or setting.dry_run,
                    groups=tuple(group for group, own in self.book.groups.items() if name in own),
                    teams=tuple(team for team, own in self.book.teams.items() if name in own),
                )
                for name, setting in sorted(self.book.settings.items())
            )
        )

    async def reemit(self, tx: Tx, _command: Reemit) -> ReemitReply:
        """Publish again which findings last."""
        rows = await store.open_findings(tx, "", REEMITTED_MAX)
        for row in rows:
            tx.emit(changed(row))
        return ReemitReply(events=len(rows))


def not_known(rule: str) -> Refusal:
    """For a name that no rule has."""
    fix = f"{meant(rule, RULES)} give one of {', '.join(RULES)}".strip()
    error = field_error("rule", rule, "is no rule", fix)
    return Refusal(
        code=RefusalCode.INVALID, detail=f"rule: {error.message}; {fix}", errors=(error,)
    )


def _alternatives(query: ListAbnormalTasks) -> Sequence[tuple[Where, ...]]:
    """The conditions; two sets of them, which no row meets both, for a user with a team."""
    equal = {
        "task_id": query.task_id,
        "owner": query.owner,
        "team": query.team,
        "group": query.group,
        "rule": query.rule,
    }
    where = [Where(column, Op.EQ, value) for column, value in equal.items() if value]
    if not query.ended:
        where.append(Where("ended_at", Op.IS_NULL))
    where.append(Where("id", Op.GT, query.after))
    if not query.seen_by:
        return [tuple(where)]
    own = (Where("owner", Op.EQ, query.seen_by), *where)
    if not query.seen_team:
        return [own]
    of_team = Where("team", Op.EQ, query.seen_team), Where("owner", Op.NE, query.seen_by)
    return [own, (*of_team, *where)]


def _task(row: FindingRow, actions: Sequence[ActionRow]) -> AbnormalTask:
    began = row.version if row.ended_at is None else row.version - 1
    return AbnormalTask(
        task_id=row.task_id,
        name=row.name,
        owner=row.owner,
        team=row.team,
        group=row.group,
        attempt=row.attempt,
        rule=row.rule,
        began_at=row.began_at,
        ended_at=row.ended_at,
        detail=row.detail,
        suggestion=row.suggestion,
        actions=tuple(
            AbnormalStep(
                action=each.action,
                node_id=each.node_id,
                outcome=each.outcome,
                detail=each.detail,
            )
            for each in actions
            if each.finding_id == row.id and each.version == began
        ),
    )
