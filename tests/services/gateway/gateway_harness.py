"""A gateway on the memory adapters, between the real submit and quota; tests play the others.

Their events are published as the scheduler's and launcher's own; their commands are answered from
what a test has put here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import jsonschema
import pytest

from libs.contracts import messages as m
from libs.contracts.base import Message
from libs.contracts.ids import RunId, TaskId
from libs.contracts.run_token import make_run_token
from libs.service.definition import Service
from libs.service.http import serve_http
from libs.service.runner import Runner
from libs.store.connections import Address
from services.gateway.api.audit_shapes import STATES
from services.gateway.main import WIRING as GATEWAY
from services.gateway.rows import AuditRow
from services.gateway.settings import GatewaySettings
from services.monitor.main import WIRING as MONITOR
from services.monitor.settings import MonitorSettings
from services.quota.main import WIRING as QUOTA
from services.submit.main import WIRING as SUBMIT
from tests.kit.clock import FakeClock, at
from tests.kit.memory import MemoryPlatform, running
from tests.kit.waiting import until
from tests.services.gateway.served_schemas import exact

# Everybody sees all tasks: for tests of what else decides.
SEES_ALL = pytest.mark.parametrize("harness", [{"visibility": "all"}], indirect=True)
ADMIN_TOKEN = "swt_the-first-administrators-token"
NEW = {"command": ["python", "train.py"], "name": "first"}
MAILS = MonitorSettings(
    database_url="-", nats_url="-", mail_host="mail.lab.test", mail_from="shiftwork@lab.test"
)
RUN_KEY = "0123456789abcdef0123456789abcdef"


@dataclass
class Others:
    """What the scheduler, the launcher and the log-collector answer."""

    asked: list[Message] = field(default_factory=list)
    explanation: m.ExplainReply = field(
        default_factory=lambda: m.ExplainReply(
            refusal=m.Refusal(code=m.RefusalCode.NOT_FOUND, detail="not here yet")
        )
    )
    permissions: tuple[m.QuotaAllowance, ...] = ()
    # The waiting tasks, of which a page has so many at most.
    queue: list[m.WaitingTask] = field(default_factory=list)
    queue_page_max: int = 200
    before_queue: Callable[[m.ListQueue], Awaitable[None]] | None = None
    decisions: list[m.DecisionRecord] = field(default_factory=list)
    policies: list[m.PolicyRecord] = field(default_factory=list)
    # What SetPolicy and DryRunPolicy are answered with.
    policy_set: m.SetPolicyReply = field(default_factory=m.SetPolicyReply)
    policy_dry_run: m.DryRunPolicyReply = field(default_factory=m.DryRunPolicyReply)
    live_attempts: dict[str, int] = field(default_factory=dict)
    checkpoints: int = 0
    life_states: dict[str, m.LifeState] = field(default_factory=dict)
    # Of tasks whose runs the launcher remembers: the last checkpoint.
    ended: dict[str, m.Checkpoint | None] = field(default_factory=dict)
    nodes: set[str] = field(default_factory=set)
    # (attempt, rank) -> bytes kept; complete ones apart.
    outputs: dict[tuple[int, int], bytes] = field(default_factory=dict)
    # When they were written; before this offset only approximately.
    written: dict[tuple[int, int], list[m.LogTimestamp]] = field(default_factory=dict)
    exact_from: int = 0
    complete: set[tuple[int, int]] = field(default_factory=set)
    # The next answers to ReadLogLines.
    line_pages: list[m.ReadLogLinesReply] = field(default_factory=list)
    before_lines: Callable[[], Awaitable[None]] | None = None

    async def explain(self, command: m.Explain) -> Message:
        self.asked.append(command)
        return self.explanation

    async def explain_quota(self, command: m.ExplainQuota) -> Message:
        self.asked.append(command)
        return m.ExplainQuotaReply(permissions=self.permissions)

    async def list_queue(self, command: m.ListQueue) -> Message:
        self.asked.append(command)
        if self.before_queue is not None:
            await self.before_queue(command)
        if command.after and not command.after.isdecimal():
            error = m.FieldError(field="cursor", value=command.after, message="no", fix="none")
            refusal = m.Refusal(code=m.RefusalCode.INVALID, detail="cursor: no", errors=(error,))
            return m.ListQueueReply(refusal=refusal)
        found = [each for each in self.queue if command.group in {"", each.group}]
        begin = int(command.after or 0)
        end = begin + min(command.limit, self.queue_page_max)
        more = str(end) if end < len(found) else ""
        return m.ListQueueReply(tasks=tuple(found[begin:end]), next=more, listed_at=at(5))

    async def decide(self, command: m.Decisions) -> Message:
        found = [each for each in self.decisions if each.no > command.after]
        page = tuple(found[: command.limit])
        return m.DecisionsReply(decisions=page, more=len(found) > len(page))

    async def set_policy(self, command: m.SetPolicy) -> Message:
        self.asked.append(command)
        return self.policy_set

    async def list_policies(self, command: m.ListPolicies) -> Message:
        found = [each for each in self.policies if command.group in {"", each.group}]
        if command.group and not found:
            refusal = m.Refusal(code=m.RefusalCode.NOT_FOUND, detail="no such group")
            return m.ListPoliciesReply(refusal=refusal)
        found = [each for each in found if each.group > command.after]
        page = tuple(found[: command.limit or 100])
        return m.ListPoliciesReply(policies=page, more=len(found) > len(page))

    async def dry_run_policy(self, command: m.DryRunPolicy) -> Message:
        self.asked.append(command)
        return self.policy_dry_run

    async def ack(self, command: m.AckCheckpoint) -> Message:
        self.asked.append(command)
        if self.live_attempts.get(command.task_id) != command.attempt:
            code = m.RefusalCode.SUPERSEDED
            return m.AckCheckpointReply(refusal=m.Refusal(code=code, detail="it is over"))
        self.checkpoints += 1
        return m.AckCheckpointReply(
            checkpoint=m.Checkpoint(
                no=self.checkpoints,
                attempt=command.attempt,
                step=command.step,
                uri=command.uri,
                digest=command.digest,
                saved_at=at(1),
            )
        )

    async def ready(self, command: m.ReportReady) -> Message:
        self.asked.append(command)
        if self.live_attempts.get(command.task_id) != command.attempt:
            code = m.RefusalCode.SUPERSEDED
            return m.ReportReadyReply(refusal=m.Refusal(code=code, detail="it is over"))
        return m.ReportReadyReply()

    def _over(self, command: Any) -> m.Refusal | None:
        if self.live_attempts.get(command.task_id) == command.attempt:
            return None
        return m.Refusal(code=m.RefusalCode.SUPERSEDED, detail="it is over")

    async def yield_run(self, command: m.YieldRun) -> Message:
        self.asked.append(command)
        return m.YieldRunReply(refusal=self._over(command))

    async def set_life_state(self, command: m.SetLifeState) -> Message:
        self.asked.append(command)
        refusal = self._over(command)
        if refusal is not None:
            return m.SetLifeStateReply(refusal=refusal)
        before = self.life_states.get(command.task_id)
        state = m.LifeState(
            version=(before.version if before else 0) + 1,
            attempt=command.attempt,
            media_type=command.media_type,
            data=command.data,
            saved_at=at(1),
        )
        self.life_states[command.task_id] = state
        return m.SetLifeStateReply(version=state.version)

    async def get_life_state(self, command: m.GetLifeState) -> Message:
        return m.GetLifeStateReply(state=self.life_states.get(command.task_id))

    async def prepare_continuation(self, command: m.PrepareContinuation) -> Message:
        if command.task_id not in self.ended:
            refusal = m.Refusal(code=m.RefusalCode.NOT_FOUND, detail="no run")
            return m.PrepareContinuationReply(refusal=refusal)
        return m.PrepareContinuationReply(checkpoint=self.ended[command.task_id])

    async def set_schedulable(self, command: m.SetSchedulable) -> Message:
        self.asked.append(command)
        if command.node_id not in self.nodes:
            error = m.FieldError(
                field="node_id", value=command.node_id, message="is not known", fix="see nodes"
            )
            refusal = m.Refusal(code=m.RefusalCode.NOT_FOUND, detail="no node", errors=(error,))
            return m.SetSchedulableReply(refusal=refusal)
        return m.SetSchedulableReply()

    async def set_node_marks(self, command: m.SetNodeMarks) -> Message:
        self.asked.append(command)
        return m.SetNodeMarksReply(labels=command.labels, taints=command.taints)

    async def list_logs(self, command: m.ListLogs) -> Message:
        self.asked.append(command)
        return m.ListLogsReply(
            logs=tuple(
                m.LogInfo(
                    attempt=attempt,
                    rank=rank,
                    role="worker",
                    size=len(kept),
                    complete=(attempt, rank) in self.complete,
                )
                for (attempt, rank), kept in sorted(self.outputs.items())
            )
        )

    async def read_log(self, command: m.ReadLog) -> Message:
        self.asked.append(command)
        key = (command.attempt, command.rank)
        kept = self.outputs.get(key)
        if kept is None:
            refusal = m.Refusal(code=m.RefusalCode.NOT_FOUND, detail="no such output")
            return m.ReadLogReply(refusal=refusal)
        offset = command.offset if command.offset >= 0 else max(0, len(kept) + command.offset)
        if command.tail_lines:
            lines = kept.splitlines(keepends=True)
            offset = len(kept) - len(b"".join(lines[-command.tail_lines :]))
        end = min(len(kept), offset + command.max_bytes)
        old = command.timestamps and offset < self.exact_from
        if old:
            end = min(end, self.exact_from)
        written = self.written.get(key, []) if command.timestamps else []
        before = [each.at for each in written if each.offset <= offset][-1:]
        stamps = [m.LogTimestamp(offset=offset, at=each) for each in before]
        stamps += [each for each in written if offset < each.offset < end]
        return m.ReadLogReply(
            offset=offset,
            data=kept[offset:end],
            size=len(kept),
            complete=key in self.complete,
            timestamps=tuple(stamps),
            approximate=old,
        )

    async def read_log_lines(self, command: m.ReadLogLines) -> Message:
        self.asked.append(command)
        if self.before_lines is not None:
            await self.before_lines()
        return self.line_pages.pop(0) if self.line_pages else m.ReadLogLinesReply()

    async def reemit(self, command: m.Reemit) -> Message:
        self.asked.append(command)
        return m.ReemitReply(events=0)


class GatewayHarness(MemoryPlatform):
    """One gateway, submit and quota; the test plays everybody else."""

    def __init__(
        self,
        folder: Path,
        options: Mapping[str, Any] = MappingProxyType({}),
        *,
        address: Address | None = None,
    ) -> None:
        """The gateway's database is at ``address``; in memory, like the others', without one."""
        super().__init__(FakeClock(tick_seconds=0.001))
        self.others = Others()
        (folder / "admin-token").write_text(ADMIN_TOKEN + "\n")
        (folder / "run-key").write_text(RUN_KEY)
        self.settings = GatewaySettings(
            database_url="-",
            nats_url="-",
            admin_token_file=folder / "admin-token",
            run_token_key_file=folder / "run-key",
            **options,
        )
        self._address = address

    def new_gateway(self) -> Service:
        """A process of the gateway."""
        store = self._address and self.sql_store(self._address, GATEWAY.tables)
        return self.build(GATEWAY, self.settings, store=store)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[GatewayHarness]:
        """Start everything; the gateway leads and has projected all existing events."""
        others = self.others
        serving: dict[str, Any] = {
            "scheduler": {
                m.Explain: others.explain,
                m.ExplainQuota: others.explain_quota,
                m.ListQueue: others.list_queue,
                m.Decisions: others.decide,
                m.SetPolicy: others.set_policy,
                m.ListPolicies: others.list_policies,
                m.DryRunPolicy: others.dry_run_policy,
            },
            "launcher": {
                m.AckCheckpoint: others.ack,
                m.ReportReady: others.ready,
                m.YieldRun: others.yield_run,
                m.SetLifeState: others.set_life_state,
                m.GetLifeState: others.get_life_state,
                m.PrepareContinuation: others.prepare_continuation,
                m.SetSchedulable: others.set_schedulable,
                m.SetNodeMarks: others.set_node_marks,
            },
            "log_collector": {
                m.ListLogs: others.list_logs,
                m.ReadLog: others.read_log,
                m.ReadLogLines: others.read_log_lines,
            },
        }
        self.gateway = self.new_gateway()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.gateway.ports.store.close)
            for name, handlers in serving.items():
                reemit = {m.Reemit: others.reemit} if name != "log_collector" else {}
                table: Any = {**handlers, **reemit}
                await stack.enter_async_context(self.connection(name).serve(table))
            runners = [
                Runner(self.gateway, self.settings),
                *map(self.runner, (SUBMIT, QUOTA)),
                self.runner(MONITOR, MAILS),
            ]
            await stack.enter_async_context(running(*runners))
            yield self
        self.check_audit()

    def check_audit(self) -> None:
        """Whatever a test has done, the audit trail says from where, and what was before and after
        has the type that is declared for the action."""
        entries = self.database.rows(GATEWAY.tables, AuditRow).values()
        assert [entry for entry in entries if not entry.address] == []
        for entry in entries:
            for audited in (entry.before, entry.after):
                if audited is not None and "left_out" not in audited:
                    audited_type(entry.action).validate(audited)

    def client(self, token: str | None = ADMIN_TOKEN) -> httpx.AsyncClient:
        assert self.gateway.app is not None
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(app=self.gateway.app),
            base_url="http://gateway",
            headers={"authorization": f"Bearer {token}"} if token else {},
        )

    async def member(self, name: str, team: str | None = None, role: str = "user") -> str:
        """A new user's token."""
        async with self.client() as admin:
            if team and (await admin.post("/v1/teams", json={"name": team})).status_code == 201:
                pass
            made = await admin.post("/v1/users", json={"name": name, "team": team, "role": role})
            assert made.status_code == 201, made.text
            token = await admin.post("/v1/tokens", json={"user": name, "name": "tests"})
            assert token.status_code == 201, token.text
        return token.json()["token"]

    async def project(self, *messages: Message) -> None:
        """Publish events and wait until the gateway has projected them."""
        before = await self.position()
        await self.publish(*messages)
        await until(lambda: self.reached(before + len(messages)))

    async def position(self) -> int:
        from services.gateway import store

        async with self.gateway.ports.store.transaction() as tx:
            return (await store.head(tx)).position

    async def reached(self, position: int) -> bool:
        return await self.position() >= position

    async def submitted(self, client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
        """A task of this client's, projected."""
        before = await self.position()
        made = await client.post("/v1/tasks", json={"command": ["python", "train.py"], **fields})
        assert made.status_code == 201, made.text
        await until(lambda: self.reached(before + 1))
        return made.json()


def audited_type(action: str) -> jsonschema.Draft202012Validator:
    """Validates what an action changed, by the type that is declared for it."""
    found = [
        kind for word, kind in STATES.items() if action == word or action.startswith(f"{word}.")
    ]
    assert len(found) == 1, f"{action} has no type, or several, in audit_shapes.STATES"
    return exact(found[0].__name__)


def run_token(task_id: str, attempt: int = 1) -> str:
    return make_run_token(RUN_KEY.encode(), RunId(TaskId(task_id), attempt))


def placements(nodes: Sequence[str], gpus: tuple[int, ...] = (0, 1)) -> tuple[m.Placement, ...]:
    return tuple(
        m.Placement(rank=rank, role="worker", role_index=rank, node_id=node, gpus=gpus)
        for rank, node in enumerate(nodes)
    )


def a_spec(**fields: Any) -> m.TaskSpec:
    known: dict[str, Any] = {
        "name": "train",
        "group": "default",
        "priority": m.Priority.NORMAL,
        "roles": (m.Role(name="worker", replicas=1, command=("true",), env={"KEY": "hush"}),),
        "env": {"SECRET": "hush"},
        "retry": m.RetryPolicy(),
        "preemption": m.PreemptionPolicy(mode=m.PreemptMode.SDK, ack_deadline_seconds=60.0),
        "nodes": 1,
    }
    return m.TaskSpec(**{**known, **fields})


def assigned(task_id: str, attempt: int = 1, nodes: Sequence[str] = ("n0",)) -> Message:
    kind = m.RunAssigned if attempt == 1 else m.RunResumed
    return kind(
        task_id=task_id,
        attempt=attempt,
        owner="ann",
        spec=a_spec(),
        placements=placements(nodes),
        start_deadline_at=at(300),
        assigned_at=at(10 * attempt),
    )


def state(task_id: str, state: m.TaskState, version: int, **fields: Any) -> m.TaskStateChanged:
    known: dict[str, Any] = {"reason": m.Reason(code=m.ReasonCode.STARTED), "changed_at": at(20)}
    return m.TaskStateChanged(task_id=task_id, version=version, state=state, **{**known, **fields})


def exited(
    task_id: str, attempt: int = 1, kind: m.ExitKind = m.ExitKind.OK, code: int = 0
) -> m.RunExited:
    ranks = (m.RankExit(rank=0, code=code),)
    ended = m.RunExit(attempt=attempt, kind=kind, ranks=ranks, exited_at=at(60), detail="ended")
    return m.RunExited(task_id=task_id, attempt=attempt, exit=ended)


def preemption(task_id: str, attempt: int = 1) -> m.PreemptionRequested:
    return m.PreemptionRequested(
        task_id=task_id,
        attempt=attempt,
        reason=m.Reason(code=m.ReasonCode.PREEMPTED_BY, names={"task": "other"}),
        requested_at=at(30),
        deadline_at=at(90),
    )


def a_node(node_id: str, version: int = 1, **fields: Any) -> m.NodeChanged:
    known: dict[str, Any] = {
        "id": node_id,
        "group": "default",
        "gpus": 4,
        "cpus": 8.0,
        "memory_bytes": 2**40,
        "schedulable": True,
        "ready": True,
    }
    removed = fields.pop("removed", False)
    node = m.Node(**{**known, **fields})
    return m.NodeChanged(
        node_id=node_id, version=version, node=node, removed=removed, changed_at=at(version)
    )


@asynccontextmanager
async def served(harness: GatewayHarness, port: int = 0) -> AsyncIterator[str]:
    """The same application under uvicorn, as in production; yields its URL."""
    ports: list[int] = []
    async with asyncio.TaskGroup() as group:
        task = group.create_task(
            serve_http(
                harness.gateway.app,
                host="127.0.0.1",
                port=port,
                ready=lambda: (True, "ready"),
                on_bound=ports.append,
            )
        )
        await until(lambda: bool(ports))
        try:
            yield f"http://127.0.0.1:{ports[0]}"
        finally:
            task.cancel()


@dataclass(frozen=True)
class Sent:
    """One server-sent event."""

    id: str
    event: str
    data: Any


async def sse(response: httpx.Response) -> AsyncIterator[Sent]:
    """The events of a stream, until the server ends it."""
    found: dict[str, str] = {}
    async for line in response.aiter_lines():
        if not line:
            if "data" in found:
                yield Sent(found.get("id", ""), found.get("event", ""), json.loads(found["data"]))
            found = {}
            continue
        name, _, value = line.partition(":")
        found[name] = value.removeprefix(" ")
