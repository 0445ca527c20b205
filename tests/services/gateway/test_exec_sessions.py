"""Sessions in running ranks: rights, refusals, limits, and what ends them. The test plays the
launcher's side over the bus; clients are real WebSockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import websockets
from websockets.asyncio.client import ClientConnection, connect

from libs.bus.sessions import Session, SessionTimes, open_session
from libs.contracts import messages as m
from libs.contracts.base import Message
from libs.store.port import ConflictError, StoreUnavailableError, UnfitValueError
from services.gateway.api.deps import Context
from services.gateway.api.exec_sessions import audited_words
from tests.kit.waiting import until
from tests.services.gateway.gateway_harness import ADMIN_TOKEN, GatewayHarness, served
from tests.services.gateway.test_handlers import state

pytestmark = pytest.mark.server
QUICK = SessionTimes(heartbeat_seconds=0.1, silence_seconds=0.6)
OPTIONS = {"exec_heartbeat_seconds": 0.1, "exec_silence_seconds": 0.6}


class FarSide:
    """The launcher's side: opens sessions and keeps their ends."""

    def __init__(self, harness: GatewayHarness) -> None:
        self.bus = harness.connection("launcher")
        self.now = harness.clock.now
        self.asked: list[m.OpenExec] = []
        self.refusal: m.Refusal | None = None
        self.sessions: list[Session] = []
        self.tasks: list[asyncio.Future[None]] = []
        # Frames as they came, and whether the session's other side is heard.
        self.over: list[asyncio.Event] = []

    async def open(self, command: Message) -> Message:
        assert isinstance(command, m.OpenExec)
        self.asked.append(command)
        if self.refusal is not None:
            return m.OpenExecReply(refusal=self.refusal)
        ready = asyncio.Event()
        self.tasks.append(asyncio.ensure_future(self._take_part(command.session, ready)))
        await ready.wait()
        return m.OpenExecReply(attempt=1, rank=command.rank, node_id="n0")

    async def _take_part(self, name: str, ready: asyncio.Event) -> None:
        with contextlib.suppress(Exception):
            async with open_session(self.bus, name, m.ExecOutput, self.now, QUICK) as session:
                self.sessions.append(session)
                ready.set()
                await session.run()

    def close(self) -> None:
        for task in self.tasks:
            task.cancel()


class Site:
    def __init__(self, harness: GatewayHarness, url: str, far: FarSide) -> None:
        self.harness, self.url, self.far = harness, url.replace("http", "ws", 1), far
        self.task = ""

    def at(self, query: str = "", token: str = ADMIN_TOKEN, task: str = "") -> Any:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        path = f"/v1/tasks/{task or self.task}/exec{query}"
        return connect(self.url + path, additional_headers=headers, proxy=None)

    async def audited(self) -> list[tuple[str, str, str]]:
        async with self.harness.client() as client:
            items = (await client.get("/v1/audit", params={"limit": 1000})).json()["items"]
        found = [each for each in reversed(items) if each["action"].startswith("task.exec")]
        return [(each["action"], each["outcome"], each["detail"]) for each in found]


@contextlib.asynccontextmanager
async def site_of(folder: Path, **options: Any) -> AsyncGenerator[Site]:
    async with GatewayHarness(folder, {**OPTIONS, **options}).running() as harness:
        far = FarSide(harness)
        async with far.bus.serve({m.OpenExec: far.open}), served(harness) as url:
            site = Site(harness, url, far)
            async with harness.client() as client:
                site.task = (await harness.submitted(client))["id"]
            try:
                yield site
            finally:
                far.close()


async def opened(site: Site, socket: ClientConnection, **first: Any) -> Session:
    before = len(site.far.sessions)
    await socket.send(json.dumps({"command": ["cat"], **first}))
    await until(lambda: len(site.far.sessions) > before)
    return site.far.sessions[-1]


async def problem_of(socket: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(5):
        message = json.loads(await socket.recv())
        await socket.wait_closed()
    found: dict[str, Any] = message["problem"]
    return found


async def refused(site: Site, query: str = "", **how: Any) -> tuple[int, dict[str, Any]]:
    with pytest.raises(websockets.InvalidStatus) as found:
        async with site.at(query, **how):
            pass
    response = found.value.response
    assert response.body is not None
    return response.status_code, json.loads(response.body)


async def test_data_sizes_and_the_end_pass_through(tmp_path: Path) -> None:
    async with site_of(tmp_path) as site, site.at("?rank=3&role=worker&tty=true") as socket:
        session = await opened(
            site, socket, size={"rows": 24, "columns": 80}, term="xterm", command=["sh", "-i"]
        )
        (asked,) = site.far.asked
        assert (asked.rank, asked.role, asked.terminal) == (3, "worker", True)
        assert (asked.rows, asked.columns, asked.term) == (24, 80, "xterm")
        assert asked.command == ("sh", "-i")
        await socket.send(b"\x00typed \xff\x00")
        assert (await session.receive()).data == b"typed \xff\x00"
        await socket.send(json.dumps({"resize": {"rows": 50, "columns": 132}}))
        frame = await session.receive()
        assert (frame.rows, frame.columns) == (50, 132)
        await socket.send(json.dumps({"eof": True}))
        assert (await session.receive()).eof
        await session.send(m.ExecStream.STDOUT, b"out")
        await session.send(m.ExecStream.STDERR, b"error")
        assert [await socket.recv(), await socket.recv()] == [b"\x01out", b"\x02error"]
        await session.end(m.ExecEnd(code=7))
        assert json.loads(await socket.recv()) == {"exit": {"code": 7, "problem": ""}}
        await socket.wait_closed()
        assert socket.close_code == 1000
        await until(session.over.is_set)
        assert [(what, outcome) for what, outcome, _ in await site.audited()] == [
            ("task.exec", "done"),
            ("task.exec.end", "done"),
        ]


async def test_neither_operators_nor_viewers_nor_tokens_for_other_things_enter_a_rank(
    tmp_path: Path,
) -> None:
    async with site_of(tmp_path) as site:
        secrets = [await site.harness.member(role, role=role) for role in ("viewer", "operator")]
        async with site.harness.client() as admin:
            for scope in ("read", "secrets", "operate", "people", "tokens"):
                made = await admin.post("/v1/tokens", json={"scopes": [scope]})
                secrets.append(made.json()["token"])
        for secret in secrets:
            status, problem = await refused(site, token=secret)
            assert (status, problem["type"]) == (403, "forbidden")


async def test_others_are_refused_before_the_upgrade_and_that_is_audited(tmp_path: Path) -> None:
    async with site_of(tmp_path, visibility="all") as site:
        mallory = await site.harness.member("mallory")
        status, problem = await refused(site, token=mallory)
        assert (status, problem["type"]) == (403, "forbidden")
        assert (await refused(site, token=""))[0] == 401
        assert (await refused(site, token="swt_wrong"))[0] == 401
        assert (await refused(site, task="tunknown"))[0] == 404
        assert (await refused(site, "?rank=-1"))[0] == 422
        assert (await refused(site, "?command=true"))[0] == 422
        assert site.far.asked == []
        (entry,) = await site.audited()
        assert entry[:2] == ("task.exec", "forbidden")


@pytest.mark.parametrize(
    ("first", "kind"),
    [
        ('{"command": "true"}', "invalid"),
        ('{"command": ["x"], "user": "root"}', "invalid"),
        ('{"command": [""]}', "invalid"),
        ('{"command": ["a\\u0000b"]}', "malformed"),
        ('{"term": "a b"}', "invalid"),
        ('{"size": {"rows": 0, "columns": 1}}', "invalid"),
        ("[]", "invalid"),
        ("{", "malformed"),
        (b"\x00data", "malformed"),
        (json.dumps({"command": ["x" * 40_000]}), "invalid"),
        (json.dumps({"command": ["x"] * 1_001}), "invalid"),
    ],
)
async def test_a_first_message_that_is_no_command_is_refused(
    tmp_path: Path, first: str | bytes, kind: str
) -> None:
    async with site_of(tmp_path) as site, site.at() as socket:
        await socket.send(first)
        assert (await problem_of(socket))["type"] == kind
        assert site.far.asked == []


@pytest.mark.parametrize("text", ["%00", "a%00b", "%ff", "%ed%a0%80"])
async def test_an_address_that_is_no_text_is_refused_before_the_upgrade(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    async with site_of(tmp_path) as site:
        for how in ({"query": f"?role={text}"}, {"task": text}):
            status, problem = await refused(site, **how)
            assert (status, problem["type"]) == (400, "malformed")
            assert "send UTF-8 without NUL" in problem["detail"]
        assert await site.audited() == []
    assert caplog.records == []


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StoreUnavailableError("gone"), "unavailable"),
        (UnfitValueError("NUL"), "invalid"),
        (ConflictError("taken"), "conflict"),
        (ValueError("a defect"), "internal"),
    ],
)
async def test_an_error_of_the_store_ends_a_session_with_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: str
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise error

    async with site_of(tmp_path) as site, site.at() as socket:
        monkeypatch.setattr(Context, "audit", broken)
        await socket.send("{}")
        assert (await problem_of(socket))["type"] == kind
        assert socket.close_code == 1011


@pytest.mark.parametrize("words", [["x"] * 9_000, ["x" * 40_000], ["x"] * 1_001])
async def test_a_command_that_is_too_long_is_refused_with_the_limits(
    tmp_path: Path, words: list[str]
) -> None:
    async with site_of(tmp_path) as site, site.at() as socket:
        await socket.send(json.dumps({"command": words}))
        (error,) = (await problem_of(socket))["errors"]
        assert error["field"] == "command"
        assert "at most 1000 words, of 32768 bytes together" in error["message"]


async def test_a_paused_task_has_no_session_and_the_command_that_resumes_it_is_named(
    tmp_path: Path,
) -> None:
    async with site_of(tmp_path) as site:
        await site.harness.project(state(site.task, m.TaskState.PAUSED, 2))
        status, problem = await refused(site)
        assert (status, site.far.asked) == (409, [])
        expected = f"the task is paused; resume it first (`shiftwork resume {site.task}`)"
        assert problem["detail"] == expected


async def test_a_refused_upgrade_is_no_error_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    async with site_of(tmp_path) as site:
        assert (await refused(site, token="nobody"))[0] == 401
        assert (await refused(site, task="nothing"))[0] == 404
    assert [record.getMessage() for record in caplog.records] == []


async def test_a_client_that_sends_no_command_is_not_waited_for(tmp_path: Path) -> None:
    async with site_of(tmp_path, exec_command_seconds=0.2) as site, site.at() as socket:
        assert (await problem_of(socket))["type"] == "timeout"


async def test_the_launchers_refusal_reaches_the_client_and_the_audit_trail(
    tmp_path: Path,
) -> None:
    async with site_of(tmp_path) as site, site.at() as socket:
        site.far.refusal = m.Refusal(code=m.RefusalCode.CONFLICT, detail="the task does not run")
        await socket.send("{}")
        problem = await problem_of(socket)
        assert (problem["status"], problem["detail"]) == (409, "the task does not run")
        assert [entry[:2] for entry in await site.audited()] == [("task.exec", "conflict")]


async def test_sessions_of_one_user_are_limited(tmp_path: Path) -> None:
    async with site_of(tmp_path, exec_sessions_per_user_max=1) as site, site.at() as socket:
        await opened(site, socket)
        status, problem = await refused(site)
        assert (status, problem["type"]) == (429, "too-many")
        assert "1 sessions are open for admin" in problem["detail"]


async def test_a_launcher_that_falls_silent_ends_the_session(tmp_path: Path) -> None:
    async with site_of(tmp_path) as site, site.at() as socket:
        await opened(site, socket)
        site.far.close()
        problem = await problem_of(socket)
        assert (problem["status"], "the session was lost" in problem["detail"]) == (503, True)


async def test_a_client_that_goes_ends_the_session_for_the_launcher(tmp_path: Path) -> None:
    async with site_of(tmp_path) as site:
        async with site.at() as socket:
            session = await opened(site, socket)
        await until(session.over.is_set)

        async def ended() -> bool:
            return len(await site.audited()) == 2

        await until(ended)
        assert (await site.audited())[1][2].endswith("the client is gone")


@pytest.mark.parametrize(
    ("option", "detail"),
    [("exec_idle_seconds", "nothing was typed"), ("exec_seconds_max", "lasts at most")],
)
async def test_a_session_has_a_longest_time_and_a_longest_silence(
    tmp_path: Path, option: str, detail: str
) -> None:
    async with site_of(tmp_path, **{option: 0.3}) as site, site.at() as socket:
        session = await opened(site, socket)
        assert detail in (await problem_of(socket))["detail"]
        await until(session.over.is_set)


async def test_a_revoked_token_ends_its_sessions(tmp_path: Path) -> None:
    async with site_of(tmp_path) as site:
        token = await site.harness.member("ann")
        async with site.harness.client(token) as client:
            hers = (await site.harness.submitted(client))["id"]
        async with site.at(token=token, task=hers) as socket:
            await opened(site, socket)
            async with site.harness.client() as admin:
                changed = await admin.patch("/v1/users/ann", json={"disabled": True})
                assert changed.status_code == 200, changed.text
            assert "disabled" in (await problem_of(socket))["detail"]


def test_secrets_of_a_command_are_not_audited() -> None:
    assert audited_words(("mysql", "-psecret", "KEY=x\nsecret")) == "mysql with 2 arguments"
    assert audited_words(("bash", "-c")) == "bash with 1 argument"
    assert audited_words(("nvidia-smi",)) == "nvidia-smi"
    assert audited_words(()) == "a shell"
