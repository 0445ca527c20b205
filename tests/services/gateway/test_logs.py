"""Output of tasks: lists, ranges, and following without losing or doubling a byte."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts import messages as m
from libs.contracts.envelope import Envelope
from services.gateway.output_stream import whole_characters
from tests.kit.clock import at
from tests.services.gateway.gateway_harness import (
    ADMIN_TOKEN,
    GatewayHarness,
    Sent,
    assigned,
    exited,
    served,
    sse,
    state,
)

Ranks = dict[tuple[int, int], bytes]


@pytest.mark.parametrize("harness", [{"log_piece_bytes": 1024}], indirect=True)
async def test_stored_output_is_listed_and_read_by_range(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    path = f"/v1/tasks/{(await harness.submitted(ann))['id']}/logs"
    assert (await ann.get(f"{path}?list=1")).json() == {"logs": []}
    kept = bytes(range(256)) * 20
    harness.others.outputs = {(1, 0): b"old", (2, 0): kept, (2, 1): b"a\nb\nc\n"}
    harness.others.complete = {(1, 0), (2, 1)}
    assert (await ann.get(f"{path}?list=1&attempt=2&rank=1")).json() == {
        "logs": [
            {
                "attempt": 2,
                "rank": 1,
                "role": "worker",
                "size": 6,
                "complete": True,
                "node": None,
            }
        ]
    }
    # Without an attempt the last one; longer than one piece of the bus.
    reply = await ann.get(f"{path}?rank=0")
    assert reply.content == kept
    assert reply.headers["content-type"].startswith("text/plain")
    headers = {
        name: reply.headers[f"x-shiftwork-{name}"] for name in ("offset", "size", "complete")
    }
    assert headers == {"offset": "0", "size": str(len(kept)), "complete": "false"}
    reply = await ann.get(f"{path}?rank=0&offset=100&limit_bytes=2000")
    assert (reply.content, reply.headers["x-shiftwork-offset"]) == (kept[100:2100], "100")
    reply = await ann.get(f"{path}?rank=0&offset=-10")
    assert (reply.content, reply.headers["x-shiftwork-offset"]) == (kept[-10:], str(len(kept) - 10))
    reply = await ann.get(f"{path}?rank=1&tail=2")
    assert (reply.content, reply.headers["x-shiftwork-offset"]) == (b"b\nc\n", "2")
    assert reply.headers["x-shiftwork-complete"] == "true"
    assert (await ann.get(f"{path}?rank=0&attempt=1")).content == b"old"
    assert (await ann.get(f"{path}?rank=7&attempt=1")).status_code == 404


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("rank=0&limit_bytes=2000000", "limit_bytes"),
        ("rank=-1", "rank"),
        ("rank=0&tail=1000000", "tail"),
        ("rank=0&since=yesterday", "since"),
        ("rank=0&since=2026-01-01T00:00:00", "since"),
    ],
)
async def test_wrong_queries_name_the_field(
    harness: GatewayHarness, ann: httpx.AsyncClient, query: str, field: str
) -> None:
    task = await harness.submitted(ann)
    reply = await ann.get(f"/v1/tasks/{task['id']}/logs?{query}")
    assert reply.status_code == 422
    assert reply.json()["errors"][0]["field"] == field


@asynccontextmanager
async def following(url: str, task: str, query: str = "") -> AsyncIterator[AsyncIterator[Sent]]:
    headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
    async with (
        httpx.AsyncClient(timeout=10) as client,
        client.stream(
            "GET", f"{url}/v1/tasks/{task}/logs?follow=1{query}", headers=headers
        ) as reply,
    ):
        assert reply.status_code == 200, await reply.aread()
        yield sse(reply)


async def collected(stream: AsyncIterator[Sent]) -> Ranks:
    """Put the pieces together, demanding that each continues exactly where the last ended."""
    found: Ranks = {}
    async for sent in stream:
        if sent.event == "end":
            return found
        reply = sent.data
        key = (reply["attempt"], reply["rank"])
        data = reply["text"].encode() if "text" in reply else base64.b64decode(reply["data_base64"])
        assert reply["offset"] == len(found.get(key, b"")), "a gap or a doubled byte"
        found[key] = found.get(key, b"") + data
    raise AssertionError("the stream was cut off")


class Writer:
    """A log-collector at work: keeps bytes, and announces them as chunks, or does not."""

    def __init__(self, harness: GatewayHarness, task: str, seed: int = 1) -> None:
        self.harness = harness
        self.task = task
        self.random = Random(seed)
        self.number = 0

    async def write(self, attempt: int, rank: int, data: bytes, *, announce: bool = True) -> None:
        kept = self.harness.others.outputs
        offset = len(kept.get((attempt, rank), b""))
        kept[(attempt, rank)] = kept.get((attempt, rank), b"") + data
        if announce:
            await self.announce(attempt, rank, offset, data)

    async def announce(
        self, attempt: int, rank: int, offset: int, data: bytes, line: bytes = b""
    ) -> None:
        chunk = m.LogChunk(
            task_id=self.task,
            attempt=attempt,
            rank=rank,
            role="worker",
            offset=offset,
            data=data,
            collected_at=at(1),
            line=line,
        )
        self.number += 1
        envelope = Envelope(f"c{self.number}", "log_collector", at(1), chunk)
        await self.harness.connection("log_collector").send_telemetry(envelope)


async def end(harness: GatewayHarness, task: str, ranks: Sequence[tuple[int, int]]) -> None:
    harness.others.complete |= set(ranks)
    await harness.project(
        exited(task), state(task, m.TaskState.SUCCEEDED, 9, attempt=1, finished_at=at(70))
    )


@pytest.mark.parametrize("harness", [{"log_list_seconds": 0.02}], indirect=True)
@pytest.mark.parametrize("seed", range(4))
async def test_following_loses_and_doubles_nothing(
    harness: GatewayHarness, ann: httpx.AsyncClient, seed: int
) -> None:
    """Chunks come, are lost, come twice and cut characters in two; what is kept is what is read."""
    task = (await harness.submitted(ann))["id"]
    await harness.project(assigned(task, 1, ("n0", "n1")))
    random = Random(seed)
    writer = Writer(harness, task, seed)
    await writer.write(1, 0, b"before anybody looked\n", announce=False)
    text = "schöne Grüße 東京 🚀\n".encode()

    async def write() -> None:
        for _ in range(60):
            rank = random.randrange(2)
            piece = text[random.randrange(len(text)) :] + random.randbytes(random.randrange(3))
            before = len(harness.others.outputs.get((1, rank), b""))
            await writer.write(1, rank, piece, announce=random.random() < 0.6)
            if random.random() < 0.2:
                await writer.announce(1, rank, before, piece)
            if random.random() < 0.3:
                await asyncio.sleep(0.004)
        await end(harness, task, [(1, 0), (1, 1)])

    async with served(harness) as url, following(url, task) as stream, asyncio.TaskGroup() as group:
        reading = group.create_task(collected(stream))
        group.create_task(write())
    assert reading.result() == harness.others.outputs


async def test_the_state_of_an_unfinished_line_is_forwarded_and_is_not_output(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    task = (await harness.submitted(ann))["id"]
    writer = Writer(harness, task)
    await writer.write(1, 0, b"first\n")
    async with served(harness) as url, following(url, task) as stream:
        async with asyncio.timeout(30):
            assert (await anext(stream)).data["text"] == "first\n"
            await writer.announce(1, 0, 0, b"", b"of a line that has ended")
            await writer.announce(1, 0, 6, b"", "\r 10% é".encode() + b"\xe6\x9d")
            reply = (await anext(stream)).data
            assert (reply["offset"], reply["line"]) == (6, "\r 10% é")
            assert "text" not in reply
            await writer.write(1, 0, b"\r100%\n")
            assert (await anext(stream)).data["text"] == "\r100%\n"


async def test_a_chunk_is_forwarded_at_once(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    """Well before the next list (a second): telemetry is for speed."""
    task = (await harness.submitted(ann))["id"]
    writer = Writer(harness, task)
    await writer.write(1, 0, b"first\n")
    async with served(harness) as url, following(url, task) as stream:
        async with asyncio.timeout(30):
            assert (await anext(stream)).data["text"] == "first\n"
        await asyncio.sleep(0.05)
        began = asyncio.get_running_loop().time()
        for number in range(3):
            await writer.write(1, 0, b"line %d\n" % number)
            async with asyncio.timeout(30):
                assert (await anext(stream)).data["text"] == f"line {number}\n"
        assert asyncio.get_running_loop().time() - began < 0.8


@pytest.mark.parametrize("harness", [{"log_list_seconds": 0.02}], indirect=True)
async def test_following_waits_for_output_that_is_late(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    """The task has ended; its last bytes reach the collector afterwards."""
    task = (await harness.submitted(ann))["id"]
    started = m.RunStarted(task_id=task, attempt=1, started_at=at(15))
    await harness.project(assigned(task), started)
    await end(harness, task, [])
    writer = Writer(harness, task)

    async def late() -> None:
        await asyncio.sleep(0.05)
        await writer.write(1, 0, b"late", announce=False)
        await asyncio.sleep(0.1)
        await writer.write(1, 0, b" later", announce=False)
        harness.others.complete.add((1, 0))

    async with served(harness) as url, following(url, task) as stream, asyncio.TaskGroup() as group:
        reading = group.create_task(collected(stream))
        group.create_task(late())
    assert reading.result() == {(1, 0): b"late later"}


@pytest.mark.parametrize(
    "harness", [{"log_list_seconds": 0.01, "log_missing_rounds_max": 3}], indirect=True
)
async def test_deleted_output_does_not_block_the_reader(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    task = (await harness.submitted(ann))["id"]
    started = m.RunStarted(task_id=task, attempt=1, started_at=at(15))
    await harness.project(assigned(task), started)
    await end(harness, task, [])
    async with served(harness) as url, following(url, task) as stream, asyncio.timeout(30):
        assert await collected(stream) == {}


@pytest.mark.parametrize("harness", [{"log_list_seconds": 0.02}], indirect=True)
async def test_one_rank_from_its_tail(harness: GatewayHarness, ann: httpx.AsyncClient) -> None:
    task = (await harness.submitted(ann))["id"]
    harness.others.outputs = {(1, 0): b"a\nb\nc\n", (1, 1): b"other\n"}
    await end(harness, task, [(1, 0), (1, 1)])
    async with served(harness) as url, following(url, task, "&rank=0&tail=1") as stream:
        sent = [each async for each in stream]
    pieces: list[dict[str, Any]] = [each.data for each in sent if not each.event]
    assert pieces == [{"attempt": 1, "rank": 0, "role": "worker", "offset": 4, "text": "c\n"}]
    assert sent[-1].event == "end"


def stamp(offset: int, seconds: float) -> m.LogTimestamp:
    return m.LogTimestamp(offset=offset, at=at(seconds))


def written(offset: int, seconds: float) -> list[Any]:
    """A time stamp as the API shows it."""
    return [offset, at(seconds).isoformat().replace("+00:00", "Z")]


@pytest.mark.parametrize("harness", [{"log_piece_bytes": 1024}], indirect=True)
async def test_a_range_has_time_stamps_on_request(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    path = f"/v1/tasks/{(await harness.submitted(ann))['id']}/logs?attempt=1&rank=0"
    harness.others.outputs = {(1, 0): b"a\n" * 2000}
    harness.others.written = {(1, 0): [stamp(0, 1), stamp(1000, 1.5), stamp(3000, 2.25)]}
    reply = await ann.get(f"{path}&timestamps=1&offset=500")
    assert reply.headers["content-type"] == "application/json"
    assert reply.json() == {
        "attempt": 1,
        "rank": 0,
        "offset": 500,
        "text": "a\n" * 1750,
        "timestamps": [written(500, 1), written(1000, 1.5), written(3000, 2.25)],
        "size": 4000,
        "complete": False,
    }
    # Without being asked nothing is asked of others, and nothing is different.
    plain = await ann.get(f"{path}&offset=500")
    assert plain.content == b"a\n" * 1750
    asked = [each for each in harness.others.asked if isinstance(each, m.ReadLog)]
    assert [each.timestamps for each in asked] == [True] * 4 + [False] * 4
    harness.others.outputs = {(1, 0): b"\xff\n"}
    reply = await ann.get(f"{path}&timestamps=1")
    assert base64.b64decode(reply.json()["data_base64"]) == b"\xff\n"


@pytest.mark.parametrize("harness", [{"log_piece_bytes": 1024}], indirect=True)
async def test_a_range_ends_where_its_times_become_exact(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    path = f"/v1/tasks/{(await harness.submitted(ann))['id']}/logs?attempt=1&rank=0&timestamps=1"
    harness.others.outputs = {(1, 0): b"a\n" * 2000}
    harness.others.written = {(1, 0): [stamp(0, 1), stamp(2000, 3)]}
    harness.others.exact_from = 2000
    old = (await ann.get(path)).json()
    assert (len(old["text"]), old["approximate"]) == (2000, True)
    new = (await ann.get(f"{path}&offset=2000")).json()
    assert len(new["text"]) == 2000
    assert new["timestamps"] == [written(2000, 3)]
    assert "approximate" not in new


@pytest.mark.parametrize("harness", [{"log_list_seconds": 0.02}], indirect=True)
async def test_a_stream_has_time_stamps_on_request(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    """Stored output and live chunks behave the same."""
    task = (await harness.submitted(ann))["id"]
    writer = Writer(harness, task)
    await writer.write(1, 0, "kept\nhalf é".encode()[:-1], announce=False)
    harness.others.written = {(1, 0): [stamp(0, 1), stamp(5, 2)]}
    async with (
        served(harness) as url,
        following(url, task, "&timestamps=1") as stream,
        following(url, task) as plain,
        asyncio.timeout(30),
    ):
        reply = (await anext(stream)).data
        assert (reply["text"], reply["timestamps"]) == (
            "kept\nhalf ",
            [written(0, 1), written(5, 2)],
        )
        assert "timestamps" not in (await anext(plain)).data
        end_of_letter = "é".encode()[-1:]
        # The stream may also find it in the kept output, before the chunk arrives.
        harness.others.outputs[1, 0] += end_of_letter + b"\n"
        harness.others.written[1, 0].append(stamp(12, 3))
        chunk = m.LogChunk(
            task_id=task,
            attempt=1,
            rank=0,
            role="worker",
            offset=5,
            data="half é\n".encode(),
            collected_at=at(9),
            timestamps=(stamp(5, 2), stamp(12, 3)),
        )
        await harness.connection("log_collector").send_telemetry(
            Envelope("c9", "log_collector", at(9), chunk)
        )
        reply = (await anext(stream)).data
        assert (reply["offset"], reply["text"]) == (10, "é\n")
        assert reply["timestamps"] == [written(10, 2), written(12, 3)]
        await writer.announce(1, 0, 13, b"", b"\r 10%")
        reply = (await anext(stream)).data
        assert (reply["line"], reply["timestamps"]) == ("\r 10%", [written(13, 1)])


@given(st.text(max_size=20), st.integers(0, 80))
def test_a_cut_never_goes_through_a_character(text: str, place: int) -> None:
    data = text.encode()[:place]
    whole = whole_characters(data)
    data[:whole].decode()
    assert len(data) - whole < 4


def found(rank: int, offset: int, text: bytes, **more: Any) -> m.FoundLine:
    line = m.LogLine(attempt=1, rank=rank, role="worker", offset=offset, text=text, at=at(offset))
    return m.FoundLine(line=line, **more)


async def test_pages_of_lines(harness: GatewayHarness, ann: httpx.AsyncClient) -> None:
    path = f"/v1/tasks/{(await harness.submitted(ann))['id']}/logs/lines"
    place: dict[str, Any] = {"attempt": 1, "rank": 0, "role": "worker"}
    around = (m.LogLine(**place, offset=0, text=b"\xff", approximate=True),)
    harness.others.line_pages = [
        m.ReadLogLinesReply(
            lines=(found(0, 2, b"Error", before=around),),
            begin="r0.1.0.2",
            end="r0.1.0.8",
            more=True,
            searched_bytes=8,
            left_bytes=12,
            unreadable=(m.UnreadableLog(attempt=1, rank=1, problem="no disk"),),
        )
    ]
    reply = await ann.get(
        path,
        params={
            "pattern": "Err.r",
            "ignore_case": 1,
            "lines_before": 1,
            "order": "time",
            "since": "2026-01-01T00:00:00Z",
            "after": "r0.1.0.0",
            "rank": 0,
            "limit": 5,
        },
    )
    assert reply.json() == {
        "lines": [
            {
                **place,
                "offset": 2,
                "at": "2026-01-01T00:00:02Z",
                "text": "Error",
                "lines_before": [
                    {**place, "offset": 0, "at": None, "approximate": True, "data_base64": "/w=="}
                ],
            }
        ],
        "begin": "r0.1.0.2",
        "end": "r0.1.0.8",
        "more": True,
        "searched_bytes": 8,
        "left_bytes": 12,
        "unreadable": [{"attempt": 1, "rank": 1, "problem": "no disk"}],
    }
    asked = [each for each in harness.others.asked if isinstance(each, m.ReadLogLines)]
    assert asked[0].model_dump(exclude_defaults=True, exclude={"task_id"}) == {
        "rank": 0,
        "pattern": "Err.r",
        "ignore_case": True,
        "lines_before": 1,
        "since": at(0),
        "by_time": True,
        "after": "r0.1.0.0",
        "limit": 5,
    }


async def test_a_page_of_lines_that_cannot_be_had_is_refused(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    path = f"/v1/tasks/{(await harness.submitted(ann))['id']}/logs/lines"
    both = await ann.get(f"{path}?after=r0.1.0.0&last=1")
    assert (both.status_code, both.json()["errors"][0]["field"]) == (422, "after")
    error = m.FieldError(field="pattern", value="(", message="is wrong", fix="correct it")
    refusal = m.Refusal(code=m.RefusalCode.INVALID, detail="pattern", errors=(error,))
    harness.others.line_pages = [m.ReadLogLinesReply(refusal=refusal)]
    wrong = await ann.get(f"{path}?pattern=(")
    assert (wrong.status_code, wrong.json()["errors"][0]["fix"]) == (422, "correct it")
    assert (await ann.get("/v1/tasks/t-none/logs/lines")).status_code == 404
    assert (await ann.get(f"{path}?since=yesterday")).status_code == 422


@pytest.mark.parametrize(
    "harness", [{"log_questions_per_user_max": 1, "log_waiting_max": 2}], indirect=True
)
async def test_a_user_who_searches_too_often_at_once_is_refused(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    path = f"/v1/tasks/{(await harness.submitted(ann))['id']}/logs/lines"
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        asked.set()
        await go_on.wait()

    harness.others.before_lines = slow
    first = asyncio.ensure_future(ann.get(path))
    await asked.wait()
    second = asyncio.ensure_future(ann.get(path))
    await asyncio.sleep(0.01)
    third = await ann.get(path)
    assert (third.status_code, third.headers["retry-after"]) == (429, "1")
    go_on.set()
    assert [(await each).status_code for each in (first, second)] == [200, 200]
