"""The embedded NATS server: logins, permissions to publish, and what it survives."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import select
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest
from nats.aio.client import Client

from libs.bus.topology import Permissions
from libs.service.connections import raise_descriptor_limit
from services.allinone.embedded import wire
from services.allinone.embedded.credentials import ensure_credentials, private_folder
from services.allinone.embedded.nats import Nats, NatsOptions, configuration, program
from services.allinone.embedded.processes import ServerError
from services.allinone.supervision import PartStatuses, Policy, State, supervise_server
from tests.kit.freezing import freeze
from tests.kit.nats_server import NatsServer, StartNats

pytestmark = pytest.mark.server

ONE = Permissions(inbox="_INBOX.one.>", sends=("one.>",))
TWO = Permissions(inbox="_INBOX.two.>", sends=("two.>",), receives=("one.>",))


async def connect(server: NatsServer, name: str, problems: list[str] | None = None) -> Client:
    async def error(problem: Exception) -> None:
        if problems is not None:
            problems.append(str(problem))

    client, user = Client(), server.user(name)
    await client.connect(
        server.url,
        user=user.user,
        password=user.password,
        error_cb=error,
        inbox_prefix=f"_INBOX.{name}",
    )
    return client


async def test_a_wrong_password_is_refused(nats_start: StartNats) -> None:
    server = await nats_start({"one": ONE})
    port = int(server.url.rpartition(":")[2])
    for user, password in (("", ""), ("one", ""), ("one", "wrong"), ("admin", "wrong"), ("x", "x")):
        assert "Authorization Violation" in await wire.nats_answers(port, user, password, 5)
    assert await wire.nats_answers(port, "one", server.user("one").password, 5) == ""


async def test_a_client_that_does_not_identify_itself_is_served_nothing(
    nats_start: StartNats,
) -> None:
    server = await nats_start({})
    reader, writer = await asyncio.open_connection("127.0.0.1", server.url.rpartition(":")[2])
    await reader.readline()
    writer.write(b"SUB > 1\r\nPUB a 0\r\n\r\nPING\r\n")
    assert b"Authorization Violation" in await reader.readline()
    writer.close()


class Flood:
    """Silent connections from this process, opened again as often as the server ends one."""

    def __init__(self, port: int, count: int) -> None:
        raise_descriptor_limit()
        self._port, self._count, self._open = port, count, dict[int, socket.socket]()
        self._task = asyncio.ensure_future(self._run())
        self.at_most = 0

    async def _run(self) -> None:
        watched = select.epoll()
        while True:
            while len(self._open) < self._count:
                each = socket.socket()
                each.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    each.connect(("127.0.0.1", self._port))
                self._open[each.fileno()] = each
                watched.register(each.fileno(), select.EPOLLIN)
            self.at_most = max(self.at_most, len(self._open))
            for number, _ in watched.poll(0):
                try:
                    answer = self._open[number].recv(4096)
                except BlockingIOError:
                    continue
                except OSError:
                    answer = b""
                if not answer or b"-ERR" in answer:
                    watched.unregister(number)
                    self._open.pop(number).close()
            await asyncio.sleep(0.01)

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for each in self._open.values():
            each.close()


async def test_more_silent_connections_than_the_server_takes_are_no_reason_to_restart_it(
    nats_start: StartNats,
) -> None:
    """Any process of the machine may open them, a task for instance."""
    server = await nats_start({})
    await server.stop()
    secrets, most = ensure_credentials(server.data), 16
    password = secrets.nats_password("admin")
    small, statuses = (
        Nats(server.data, secrets, {}, NatsOptions(connections_max=most)),
        PartStatuses(),
    )
    await small.start()
    assert small.child is not None
    pid, port = small.child.pid, int(small.url.rpartition(":")[2])
    client = await connect(server, "admin")
    flood = Flood(port, 5 * most)
    hasty = Policy(check_seconds=0.02, first_pause_seconds=0.05, silent_checks_max=2)
    keeping = asyncio.ensure_future(supervise_server(small, statuses, policy=hasty))
    try:
        async with asyncio.timeout(10):
            while not await answers_or_unknown(port, password):  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.02)
        await asyncio.sleep(1)
        await until_full(lambda: wire.nats_answers(port, "admin", password, 5))
        assert (statuses.records["nats"].state, statuses.records["nats"].restarts) == (State.UP, 0)
        assert statuses.records["nats"].problem == ""
        assert small.child.pid == pid
        # Connected clients stay connected and are served.
        await client.flush(2)

        # Nothing is known of the server by an object that has no connection to it.
        def check() -> Awaitable[str]:
            small._disconnect()
            return small.healthy()

        await until_full(check)
        await asyncio.sleep(0.5)
        assert statuses.records["nats"].restarts == 0
    finally:
        await flood.end()
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
    async with asyncio.timeout(10):
        while await healthy_or_unknown(small):  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.05)
    await client.close()
    await small.stop()


async def until_full(check: Callable[[], Awaitable[str]]) -> None:
    """Check until the server has no connection left: between two silent ones it may have one."""
    problem = ""
    async with asyncio.timeout(10):
        while not problem:
            try:
                assert await check() == ""
            except wire.CannotCheckError as error:
                problem = str(error)
    assert "maximum connections" in problem


async def answers_or_unknown(port: int, password: str) -> str:
    try:
        return await wire.nats_answers(port, "admin", password, 5)
    except wire.CannotCheckError as problem:
        return str(problem)


async def healthy_or_unknown(server: Nats) -> str:
    try:
        return await server.healthy()
    except wire.CannotCheckError as problem:
        return str(problem)


async def test_checks_at_the_same_time_share_one_connection(nats_start: StartNats) -> None:
    server = await nats_start({"one": ONE})
    small = server.embedded
    small._disconnect()
    assert await asyncio.gather(*(small.healthy() for _ in range(8))) == [""] * 8
    connection = small._connection
    assert connection is not None
    assert connection._streams is not None
    small._disconnect()
    # A second connection would be collected unclosed, which fails the test.
    gc.collect()


async def test_two_thousand_silent_connections_keep_nobody_out(nats_start: StartNats) -> None:
    server = await nats_start({"one": ONE})
    password = server.user("one").password
    port = int(server.url.rpartition(":")[2])
    flood = Flood(port, 2_000)
    try:
        for _ in range(20):
            assert await wire.nats_answers(port, "one", password, 5) == ""
            assert await server.embedded.healthy() == ""
            await asyncio.sleep(0.05)
        assert flood.at_most == 2_000
    finally:
        await flood.end()


async def test_a_user_publishes_its_own_subjects_only(nats_start: StartNats) -> None:
    server = await nats_start({"one": ONE, "two": TWO})
    problems: list[str] = []
    one, two = await connect(server, "one", problems), await connect(server, "two")
    subscription = await two.subscribe("one.>")
    # Twice: the library's flush may overtake a subscription that waits to be sent.
    await two.flush()
    await two.flush()
    await one.publish("two.forged", b"")
    await one.publish("$JS.API.STREAM.CREATE.X", b"{}")
    await one.publish("one.true", b"hello")
    message = await subscription.next_msg(timeout=5)
    assert (message.subject, message.data) == ("one.true", b"hello")
    await one.subscribe("two.>")
    await one.flush()
    await one.flush()
    async with asyncio.timeout(5):
        while len(problems) < 3:  # noqa: ASYNC110 - the client calls back, it has no event
            await asyncio.sleep(0.01)
    assert [problem.rpartition(" to ")[2].strip("\"'") for problem in problems] == [
        "two.forged",
        "$js.api.stream.create.x",
        "two.>",
    ]
    await one.close()
    await two.close()


async def stored(server: NatsServer) -> int:
    client = await connect(server, "admin")
    info = await client.jetstream().stream_info("S")
    await client.close()
    return info.state.messages


async def publish(server: NatsServer, count: int, *, create: bool = False) -> None:
    client = await connect(server, "admin")
    stream = client.jetstream()
    if create:
        await stream.add_stream(name="S", subjects=["s.>"])
    for number in range(count):
        await stream.publish(f"s.{number}", b"x" * 100)
    await client.close()


async def test_restart_keeps_messages_and_port(nats_start: StartNats) -> None:
    server = await nats_start({})
    await publish(server, 5, create=True)
    url = server.url
    await server.stop()
    await server.start()
    assert server.url == url
    assert await stored(server) == 5
    # Another owner, later, finds the same place, too.
    await server.stop()
    again = Nats(server.data, ensure_credentials(server.data), {})
    await again.start()
    assert again.url == url
    await again.stop()


async def test_kill_9_keeps_what_was_acknowledged(nats_start: StartNats) -> None:
    server = await nats_start({})
    await publish(server, 50, create=True)
    server.kill()
    assert "SIGKILL" in await server.embedded.healthy()
    await server.start()
    assert await server.embedded.healthy() == ""
    assert await stored(server) == 50


async def test_a_restored_snapshot_has_lost_the_last_seconds(nats_start: StartNats) -> None:
    server = await nats_start({})
    await publish(server, 3, create=True)
    await server.stop()
    snapshot = server.snapshot()
    await server.start()
    await publish(server, 4)
    server.kill()
    server.restore(snapshot)
    await server.start()
    assert await stored(server) == 3


async def test_a_port_that_was_taken_meanwhile_is_replaced_for_a_new_owner(
    nats_start: StartNats,
) -> None:
    server = await nats_start({})
    await server.stop()
    port = int(server.url.rpartition(":")[2])
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind(("127.0.0.1", port))
        thief.listen()
        # The same owner's clients know the port: it must not change under them.
        with pytest.raises(ServerError, match="address already in use"):
            await server.start()
        again = Nats(server.data, ensure_credentials(server.data), {})
        await again.start()
        assert again.url != server.url
        assert await again.healthy() == ""
        await again.stop()


OWNER = """
import asyncio, sys
from pathlib import Path
from services.allinone.embedded.credentials import ensure_credentials, private_folder
from services.allinone.embedded.nats import Nats
async def main(data):
    server = Nats(data, ensure_credentials(data), {})
    await server.start()
    print(server.child.pid, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
asyncio.run(main(Path(sys.argv[1])))
"""


def start_owner(data: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", OWNER, str(data)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


async def test_a_server_left_by_a_killed_owner_is_replaced(nats_start: StartNats) -> None:
    server = await nats_start({})
    await publish(server, 5, create=True)
    await server.stop()
    with start_owner(server.data) as owner:
        try:
            orphan = int(owner.stdout.readline())
            with pytest.raises(ServerError, match=f"kept by process {owner.pid}"):
                await server.start()
        finally:
            owner.kill()
    assert psutil.pid_exists(orphan)
    await server.start()
    assert not psutil.pid_exists(orphan) or psutil.Process(orphan).status() == "zombie"
    assert await stored(server) == 5


async def test_a_frozen_server_is_not_healthy_and_is_ended(nats_start: StartNats) -> None:
    server = await nats_start({})
    await server.stop()
    hasty = NatsOptions(answer_seconds_max=0.2, stop_seconds_max=0.3)
    frozen = Nats(server.data, ensure_credentials(server.data), {}, hasty)
    await frozen.start()
    freeze(frozen.child.pid)
    assert "no answer" in await frozen.healthy()
    await frozen.stop()
    await frozen.start()
    assert await frozen.healthy() == ""
    await frozen.stop()


async def test_files_are_private_and_no_secret_is_on_the_command_line(
    nats_start: StartNats,
) -> None:
    server = await nats_start({"one": ONE})
    for file in ("nats/nats.conf", "nats/nats.log", "nats/lock", "nats/port"):
        assert stat.S_IMODE((server.data / file).stat().st_mode) == 0o600, file
    for folder in ("nats", "nats/store"):
        assert stat.S_IMODE((server.data / folder).stat().st_mode) == 0o700, folder
    process = psutil.Process(server.embedded.child.pid)
    exposed = " ".join(process.cmdline()) + " ".join(process.environ().values())
    exposed += (server.data / "nats/nats.log").read_text()
    for name in ("admin", "one"):
        assert server.user(name).password not in exposed


async def test_the_server_listens_on_this_machine_only_and_has_no_open_monitor(
    nats_start: StartNats,
) -> None:
    server = await nats_start({})
    sockets = psutil.Process(server.embedded.child.pid).net_connections()
    listening = [each.laddr for each in sockets if each.status == psutil.CONN_LISTEN]
    assert [(at.ip, at.port) for at in listening] == [
        ("127.0.0.1", int(server.url.rpartition(":")[2]))
    ]


async def test_ctrl_c_in_the_terminal_does_not_reach_the_server(nats_start: StartNats) -> None:
    child = (await nats_start({})).embedded.child
    assert os.getsid(child.pid) == child.pid != os.getsid(0)


def test_the_configuration_names_every_user_once(tmp_path: Path) -> None:
    secrets = ensure_credentials(tmp_path, ("one", "two"))
    text = configuration(NatsOptions(), secrets, {"one": ONE, "two": TWO}, tmp_path, 4222)
    accounts = json.loads(text)["accounts"]
    assert list(accounts) == ["platform", "one", "two", "$SYS"]
    users = [user for account in accounts.values() for user in account["users"]]
    assert [user["user"] for user in users] == ["admin", "one", "two"]
    assert len({user["password"] for user in users}) == 3
    assert users[1]["permissions"]["publish"] == {"allow": ["one.>"]}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a server as another user")
async def test_root_runs_the_server_as_another_user_where_only_root_can_go(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    copied = Path(shutil.copy2(program(), home / "nats-server"))
    data = home / "sw"
    # What an earlier version left belongs to root.
    store = private_folder(data / "nats" / "store" / "jetstream")
    server = Nats(data, ensure_credentials(data, ("one",)), {"one": ONE})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("services.allinone.embedded.nats.program", lambda: copied)
        await server.start()
    try:
        assert psutil.Process(server.child.pid).uids().real != 0
        assert store.stat().st_uid == psutil.Process(server.child.pid).uids().real
        assert await server.healthy() == ""
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
    finally:
        await server.stop()
        server.remove_temporary()


async def test_a_connection_that_is_closed_while_a_check_connects_is_not_kept() -> None:
    accepted, ended = asyncio.Event(), asyncio.Event()
    go_on = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        await go_on.wait()
        writer.write(b'INFO {"jetstream": true}\r\nPONG\r\n')
        while await reader.read(4096):
            pass
        ended.set()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port: int = server.sockets[0].getsockname()[1]
        connection = wire.NatsConnection(port, "admin", "x")
        check = asyncio.ensure_future(connection.answers(5))
        await asyncio.wait_for(accepted.wait(), 5)
        connection.close()
        go_on.set()
        assert await check == ""
        await asyncio.wait_for(ended.wait(), 5)
