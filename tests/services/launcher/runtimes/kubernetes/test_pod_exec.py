"""Commands in pods: the API server's protocol, played by a server that runs real commands."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import WSMsgType, web

from libs.contracts.messages import ExecEnd, ExecStream, Placement
from libs.kube.client import CallLimits, KubeClient, namespaced
from libs.kube.transport import Transport
from services.launcher.runtimes.exec_port import ExecOrder, ExecRefusedError
from services.launcher.runtimes.kubernetes.pod_exec import PodExec, open_pod_exec
from services.launcher.runtimes.port import RuntimeUnavailableError
from tests.kit.launcher_builders import run_id
from tests.services.launcher.runtimes.test_node_exec import holders, no_process_has

POD = namespaced("tasks", "pods", "task-1-0")


class Kubelet:
    """An API server with one container, whose commands are processes of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.protocols = ("v5.channel.k8s.io", "v4.channel.k8s.io")
        self.refuses = 0
        self.has_shell = True
        self.sizes: list[dict[str, int]] = []
        self.queries: list[Any] = []
        self.transports: list[asyncio.Transport] = []

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get(f"{POD}/exec", self.exec)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        host, port = self.runner.addresses[0][:2]
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": f"http://{host}:{port}"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        (self.folder / "kubeconfig").write_text(json.dumps(config))

    async def exec(self, request: web.Request) -> web.StreamResponse:
        if self.refuses:
            return web.json_response({}, status=self.refuses)
        self.queries.append(request.query)
        assert request.transport is not None
        self.transports.append(request.transport)
        socket = web.WebSocketResponse(protocols=self.protocols)
        await socket.prepare(request)
        if not self.has_shell:
            message = 'exec: "sh": executable file not found in $PATH'
            await self.report(socket, {"status": "Failure", "message": message})
            return socket
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *request.query.getall("command"), stdin=pipe, stdout=pipe, stderr=pipe
        )
        # As a kubelet: hanging up does not end the command.
        running = asyncio.gather(
            self.copy(socket, 1, process.stdout), self.copy(socket, 2, process.stderr)
        )
        reading = asyncio.ensure_future(self.input(socket, process.stdin))
        await running
        code = await process.wait()
        status: dict[str, Any] = {"status": "Success"}
        if code:
            number = code if code > 0 else 128 - code
            causes = [{"reason": "ExitCode", "message": str(number)}]
            status = {"status": "Failure", "details": {"causes": causes}}
        await self.report(socket, status)
        reading.cancel()
        return socket

    async def report(self, socket: web.WebSocketResponse, status: dict[str, Any]) -> None:
        if not socket.closed:
            await socket.send_bytes(b"\x03" + json.dumps(status).encode())
            await socket.close()

    async def copy(
        self, socket: web.WebSocketResponse, channel: int, stream: asyncio.StreamReader | None
    ) -> None:
        assert stream is not None
        while data := await stream.read(16384):
            if not socket.closed:
                await socket.send_bytes(bytes([channel]) + data)

    async def input(
        self, socket: web.WebSocketResponse, stream: asyncio.StreamWriter | None
    ) -> None:
        assert stream is not None
        async for message in socket:
            if message.type is not WSMsgType.BINARY:
                break
            channel, data = message.data[0], message.data[1:]
            if channel == 0:
                stream.write(data)
            elif channel == 4:
                self.sizes.append(json.loads(data))
            elif (channel, data) == (255, b"\x00"):
                stream.close()


@pytest_asyncio.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[Kubelet]:
    made = Kubelet(tmp_path)
    await made.start()
    yield made
    await made.runner.cleanup()


@pytest_asyncio.fixture
async def client(kubelet: Kubelet) -> AsyncIterator[KubeClient]:
    made = KubeClient(
        Transport(kubelet.folder / "kubeconfig", 8),
        CallLimits(),
        unavailable=RuntimeUnavailableError,
    )
    yield made
    await made.close()


def order(*argv: str, terminal: bool = False) -> ExecOrder:
    return ExecOrder(
        session=f"session{os.urandom(4).hex()}",
        run_id=run_id(),
        place=Placement(rank=0, node_id="n0"),
        owner="ann",
        argv=argv,
        terminal=terminal,
        rows=24 if terminal else 0,
        columns=80 if terminal else 0,
        term="vt220",
    )


async def finished(process: PodExec) -> tuple[bytes, bytes, ExecEnd]:
    found = {ExecStream.STDOUT: b"", ExecStream.STDERR: b""}
    async with asyncio.timeout(10):
        while (piece := await process.read()) is not None:
            found[piece[0]] += piece[1]
        return found[ExecStream.STDOUT], found[ExecStream.STDERR], await process.wait()


async def test_streams_and_exit_codes(client: KubeClient) -> None:
    made = order("sh", "-c", "echo out; echo error >&2; exit 7")
    async with open_pod_exec(client, POD, made) as process:
        assert await finished(process) == (b"out\n", b"error\n", ExecEnd(code=7))
    async with open_pod_exec(client, POD, order("true")) as process:
        assert (await finished(process))[2] == ExecEnd(code=0)
    async with open_pod_exec(client, POD, order("echo", "two  words", "$HOME", "'")) as process:
        assert (await finished(process))[0] == b"two  words $HOME '\n"


async def test_input_is_carried_and_closed(client: KubeClient) -> None:
    data = os.urandom(1 << 20)
    async with open_pod_exec(client, POD, order("cat")) as process:

        async def write() -> None:
            for start in range(0, len(data), 32768):
                await process.write(data[start : start + 32768])
            await process.close_input()

        writing = asyncio.ensure_future(write())
        out, _, end = await finished(process)
        await writing
    assert (out == data, end) == (True, ExecEnd(code=0))


async def test_a_terminal_has_its_size_and_kind(kubelet: Kubelet, client: KubeClient) -> None:
    made = order("sh", "-c", "read line; echo $TERM $line", terminal=True)
    async with open_pod_exec(client, POD, made) as process:
        await process.resize(50, 132)
        await process.write(b"typed\n")
        assert (await finished(process))[0] == b"vt220 typed\n"
    assert kubelet.sizes == [{"Width": 80, "Height": 24}, {"Width": 132, "Height": 50}]
    query = kubelet.queries[0]
    assert (query["tty"], "stderr" in query, query["container"]) == ("true", False, "main")


async def test_without_a_command_there_is_a_shell(client: KubeClient) -> None:
    async with open_pod_exec(client, POD, order()) as process:
        await process.write(b"echo shell $((1 + 1)); exit 4\n")
        assert await finished(process) == (b"shell 2\n", b"", ExecEnd(code=4))


async def test_hanging_up_leaves_nothing_in_the_container(client: KubeClient) -> None:
    made = order("sh", "-c", "trap '' HUP TERM; (setsid sleep 600 &); echo on; sleep 600; :")
    async with open_pod_exec(client, POD, made) as process:
        assert await process.read() == (ExecStream.STDOUT, b"on\n")
        assert holders(made.session)
    await no_process_has(made.session)


async def test_refusals_have_their_reasons(kubelet: Kubelet, client: KubeClient) -> None:
    for status, kind, text in (
        (403, ExecRefusedError, "pods/exec"),
        (404, ExecRefusedError, "does not run"),
        (500, RuntimeUnavailableError, "500"),
    ):
        kubelet.refuses = status
        with pytest.raises(kind, match=text):
            async with open_pod_exec(client, POD, order("true")):
                pass
    kubelet.refuses, kubelet.has_shell = 0, False
    async with open_pod_exec(client, POD, order("true")) as process:
        assert (await finished(process))[2] == ExecEnd(
            problem="the image has no sh, which every session needs"
        )


async def test_an_older_api_server_cannot_end_the_input(
    kubelet: Kubelet, client: KubeClient
) -> None:
    kubelet.protocols = ("v4.channel.k8s.io",)
    made = order("cat")
    async with open_pod_exec(client, POD, made) as process:
        with pytest.raises(ExecRefusedError, match=r"1\.30"):
            await process.close_input()
    await no_process_has(made.session)


async def test_a_connection_that_is_cut_off_ends_the_session(
    kubelet: Kubelet, client: KubeClient
) -> None:
    async with open_pod_exec(client, POD, order("sleep", "1")) as process:
        kubelet.transports[0].abort()
        _, _, end = await finished(process)
    assert end.code is None
    assert "cut off" in end.problem
