"""Large bodies of one caller delay nobody else, and few of them are read at once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import Request

from services.gateway import large_bodies
from services.gateway.api import deps
from services.gateway.large_bodies import LARGE_BYTES, REST_FACTOR, LargeBodies
from services.gateway.problems import ProblemError
from tests.kit.waiting import until
from tests.services.gateway.gateway_harness import GatewayHarness, assigned, run_token

# Refused (422) after all of it was parsed.
BATCH = b'{"tasks": [' + b"[]," * LARGE_BYTES + b"[]]}"
HEADERS = {"content-type": "application/json"}


class SlowParser:
    """Parses nothing until it is released; counts how many wait."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.parsing = self.parsing_max = self.parsed = 0
        self._lock = threading.Lock()

    def __call__(self, *_: object) -> Any:
        with self._lock:
            self.parsing += 1
            self.parsing_max = max(self.parsing_max, self.parsing)
        assert self.released.wait(10)
        with self._lock:
            self.parsing -= 1
            self.parsed += 1
        return {"tasks": []}


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowParser:
    parser = SlowParser()
    monkeypatch.setattr(large_bodies, "json_of", parser)
    return parser


def test_bodies_of_strangers_count_by_the_network_of_one_customer() -> None:
    def counted(address: str) -> str:
        return deps._counted_as(Request({"type": "http", "headers": [], "client": (address, 1)}))

    assert counted("2001:db8::1") == counted("2001:db8::2") != counted("2001:db8:0:1::1")
    assert counted("192.0.2.1") == counted("::ffff:192.0.2.1") != counted("192.0.2.2")


@pytest.mark.parametrize("harness", [{"large_bodies_per_caller_max": 4}], indirect=True)
async def test_large_bodies_of_one_user_are_parsed_one_at_a_time_and_the_loop_goes_on(
    harness: GatewayHarness, slow: SlowParser
) -> None:
    bob, ann = await harness.member("bob"), await harness.member("ann")
    async with harness.client(bob) as at_bob, harness.client(ann) as at_ann:
        sent = [
            asyncio.ensure_future(
                at_bob.post("/v1/tasks:batch", content=BATCH, headers=HEADERS, timeout=20)
            )
            for _ in range(6)
        ]
        await until(lambda: slow.parsing == 1)
        # More than four are refused before they are read, and small requests are answered.
        refused = [task for task in sent if task.done()]
        assert [task.result().status_code for task in refused] == [429, 429]
        assert refused[0].result().headers["retry-after"] == "1"
        assert (await at_ann.get("/v1/whoami")).status_code == 200
        assert (await at_bob.get("/v1/whoami")).status_code == 200
        # So is a large body of somebody else.
        other = asyncio.ensure_future(
            at_ann.post("/v1/tasks:batch", content=BATCH, headers=HEADERS, timeout=20)
        )
        await until(lambda: slow.parsing == 2)
        slow.released.set()
        replies = await asyncio.gather(*sent, other)
    assert sorted(reply.status_code for reply in replies) == [422] * 5 + [429] * 2
    assert (slow.parsing_max, slow.parsed) == (2, 5)


async def test_a_caller_rests_between_two_large_bodies_and_others_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def busy(body: bytes, values_max: int) -> None:
        until_at = time.thread_time() + 0.02
        while time.thread_time() < until_at:
            pass

    monkeypatch.setattr(large_bodies, "json_of", busy)
    bodies = LargeBodies(10, 1)

    async def seconds(caller: str) -> float:
        begun_at = time.monotonic()
        async with bodies.of(caller):
            await bodies.parse(caller, b"", 1)
        return time.monotonic() - begun_at

    await seconds("ann")
    # A caller that rests holds nothing that others need.
    resting = asyncio.ensure_future(seconds("ann"))
    await asyncio.sleep(0)
    assert await seconds("bob") < 0.02 * REST_FACTOR
    assert await resting >= 0.02 * REST_FACTOR
    await asyncio.sleep(0.02 * REST_FACTOR)
    async with bodies.of("eve"):
        pass
    # Nobody who waits for nothing is remembered.
    await asyncio.sleep(0.1)
    async with bodies.of("eve"):
        assert len(bodies) == 1


async def test_a_body_that_cannot_be_parsed_ends_its_own_request_alone() -> None:
    bodies = LargeBodies(1, 1)
    for _ in range(2):
        async with bodies.of("ann"):
            with pytest.raises(ValueError, match="stands twice"):
                await bodies.parse("ann", b'{"a": 1, "a": 2}', 10)
    async with bodies.of("ann"):
        with pytest.raises(ProblemError):
            async with bodies.of("ann"):
                pass
        async with bodies.of("bob"):
            assert await bodies.parse("bob", b"[1]", 10) == [1]


async def test_the_body_of_a_run_that_is_over_is_not_read(harness: GatewayHarness) -> None:
    read = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(8):
            read += 1
            yield b" " * 100_000

    async with harness.client(await harness.member("ann")) as ann:
        task = await harness.submitted(ann)
    await harness.project(assigned(task["id"]), assigned(task["id"], 2))
    async with harness.client(run_token(task["id"], 1)) as client:
        reply = await client.post("/v1/run/metrics", content=body())
    assert (reply.status_code, read) == (409, 0)
    async with harness.client(run_token(task["id"], 2)) as client:
        reply = await client.post("/v1/run/metrics", content=body(), headers=HEADERS)
    # That of one that lives is; it has no JSON in it.
    assert (reply.status_code, read) == (400, 8)


@pytest.mark.parametrize(
    "harness", [{"run_requests_burst": 3, "run_requests_per_second": 0.01}], indirect=True
)
async def test_requests_of_a_task_are_counted_whatever_its_run(harness: GatewayHarness) -> None:
    async with harness.client(await harness.member("ann")) as ann:
        tasks = [await harness.submitted(ann) for _ in range(2)]
    found: list[int] = []
    for attempt in (1, 1, 2, 2):
        async with harness.client(run_token(tasks[0]["id"], attempt)) as client:
            found.append((await client.get("/v1/run")).status_code)
    assert found == [200, 200, 200, 429]
    async with harness.client(run_token(tasks[1]["id"])) as client:
        assert (await client.get("/v1/run")).status_code == 200


async def test_nobody_without_a_token_sends_a_large_body(harness: GatewayHarness) -> None:
    """A login's is short, and parsing a megabyte costs a tenth of a second."""
    async with harness.client(None) as client:
        for path in ("/v1/login/password", "/v1/login/token"):
            reply = await client.post(path, content=BATCH, headers=HEADERS)
            assert reply.status_code == 413
