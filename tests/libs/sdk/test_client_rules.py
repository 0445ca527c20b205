"""When the client library sends a request again, and what a stream that is opened again brings."""

from __future__ import annotations

from typing import Any

import pytest
from shiftwork.client.exchange import Request, Tries, send
from shiftwork.client.streams import EventReader, Frame, OutputReader
from shiftwork.transport import Answer, Unreachable

GET, POST = Request("GET", "/v1/tasks"), Request("POST", "/v1/users", repeatable=False)


def outcome(request: Request, answers: list[Any]) -> tuple[object, int, list[float]]:
    """The status or error of a request that is answered so, how often it was sent, the pauses."""
    pauses: list[float] = []
    left = list(answers)

    def call() -> Answer:
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    try:
        status: object = send(call, request, Tries(), pauses.append).status
    except Unreachable:
        status = "unreachable"
    return status, len(answers) - len(left), pauses


def answer(status: int, **headers: str) -> Answer:
    return Answer(status, b"", {name.replace("_", "-"): value for name, value in headers.items()})


def lost(*, sent: bool) -> Unreachable:
    error = Unreachable("cut off")
    error.sent = sent
    return error


@pytest.mark.parametrize(
    ("request_", "answers", "status", "times"),
    [
        (GET, [answer(200)], 200, 1),
        (GET, [answer(503), answer(200)], 200, 2),
        (POST, [answer(503), answer(200)], 503, 1),
        (POST, [answer(429), answer(201)], 201, 2),
        (GET, [answer(429, retry_after="31"), answer(200)], 429, 1),
        (GET, [answer(404), answer(200)], 404, 1),
        (GET, [lost(sent=True), answer(200)], 200, 2),
        (POST, [lost(sent=True), answer(201)], "unreachable", 1),
        (POST, [lost(sent=False), answer(201)], 201, 2),
        (GET, [lost(sent=False)] * 4, "unreachable", 3),
        (Request("DELETE", "/v1/users/ann"), [lost(sent=True), answer(404)], 204, 2),
        (Request("DELETE", "/v1/users/ann"), [answer(404)], 404, 1),
    ],
)
def test_a_request_is_sent_again_only_where_that_is_safe(
    request_: Request, answers: list[Any], status: object, times: int
) -> None:
    assert outcome(request_, answers)[:2] == (status, times)


def test_the_servers_retry_after_is_waited_for() -> None:
    _, _, pauses = outcome(GET, [answer(429, retry_after="7"), answer(200)])
    assert pauses == [7.0]


def test_a_stream_of_events_continues_behind_the_last_one_and_repeats_none() -> None:
    reader = EventReader()
    assert reader.query({"from": "-3", "task": "t"}) == {"from": "-3", "task": "t"}
    events = [Frame("message", str(n), {"position": n}) for n in (4, 5, 5, 4, 6)]
    found = [event["position"] for event in map(reader.read, events) if event is not None]
    assert (found, reader.query({"from": "-3"})) == ([4, 5, 6], {"from": 6})


def test_a_stream_that_is_cut_off_before_its_first_event_begins_again_where_it_began() -> None:
    reader = EventReader()
    assert reader.read(Frame("message", "7", {})) is None
    assert reader.query({"from": "latest"}) == {"from": 7}


def test_output_that_is_sent_again_is_dropped_rank_by_rank() -> None:
    reader = OutputReader()

    def read(rank: int, offset: int, text: str) -> str | None:
        data = {"attempt": 1, "rank": rank, "offset": offset, "text": text}
        found = reader.read(Frame("message", "", data))
        return found.text if found else None

    assert [read(0, 0, "one "), read(1, 0, "a"), read(0, 0, "one two"), read(1, 0, "a")] == [
        "one ",
        "a",
        "two",
        None,
    ]
    assert reader.query({"tail": 5, "rank": 0}) == {"tail": None, "since": None, "rank": 0}
