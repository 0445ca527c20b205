from __future__ import annotations

import json
from typing import Any

import pytest

from services.log_collector.agent import protocol
from services.log_collector.agent.cri import Stamp
from services.log_collector.agent.protocol import PodAnswer, PodRead, PodStored, WireError


def test_encoding_and_decoding_changes_nothing() -> None:
    reads = [PodRead("t-1-0", 5, 10, b"\x00\xff", ended=True), PodRead("t-1-1", 0, 1)]
    assert protocol.decode_reads(protocol.encode_reads(reads, 99)) == (reads, 99)
    answers = [
        PodAnswer(b"a\nb\x00", complete=True, stamps=(Stamp(0, 5), Stamp(2, 60_000))),
        None,
        PodAnswer(absent=True),
        PodAnswer(unsure=True),
        PodAnswer(b"\n", moved=True, problem="why"),
    ]
    data = b"".join(answer.data for answer in answers if answer)
    assert protocol.decode_answers(protocol.encode_answers_head("me", answers) + data) == (
        "me",
        answers,
    )
    _, published = protocol.decode_answers(protocol.encode_answers_head("me", answers) + data)
    stamps = [answer and answer.stamps for answer in published]
    assert stamps == [(Stamp(0, 5), Stamp(2, 60_000)), None, (), (), ()]
    kept = [PodStored("t-1-0", 7, done=False), PodStored("t-1-1", 2**62, done=True)]
    assert protocol.decode_stored(protocol.encode_stored(kept)) == kept


ASK: dict[str, Any] = {"pod": "t-1-0", "offset": 0, "bytes_max": 1}


@pytest.mark.parametrize(
    ("message", "names"),
    [
        (b"", "JSON object"),
        (b"[]", "JSON object"),
        ({"bytes_max": 1}, "asks None"),
        ({"bytes_max": 1, "asks": {}}, "asks {}"),
        ({"bytes_max": 1, "asks": [None]}, "no object"),
        ({"bytes_max": 1, "asks": [ASK] * (protocol.READS_MAX + 1)}, "too many"),
        ({"asks": []}, "bytes_max None"),
        ({"bytes_max": -1, "asks": []}, "bytes_max -1"),
        ({"bytes_max": 1, "asks": [ASK | {"pod": "../../etc"}]}, "pod '../../etc'"),
        ({"bytes_max": 1, "asks": [ASK | {"pod": ""}]}, "pod ''"),
        ({"bytes_max": 1, "asks": [ASK | {"pod": 3}]}, "pod 3"),
        ({"bytes_max": 1, "asks": [ASK | {"offset": "0"}]}, "offset '0'"),
        ({"bytes_max": 1, "asks": [ASK | {"offset": True}]}, "offset True"),
        ({"bytes_max": 1, "asks": [ASK | {"offset": 2**63}]}, "whole number"),
        ({"bytes_max": 1, "asks": [ASK | {"before": "!"}]}, "base64"),
        ({"bytes_max": 1, "asks": [ASK | {"before": "AAAA" * 100}]}, "at most 256"),
        ({"bytes_max": 1, "asks": [ASK | {"ended": 1}]}, "ended 1"),
    ],
)
def test_a_wrong_field_is_named(message: Any, names: str) -> None:
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    with pytest.raises(WireError) as refused:
        protocol.decode_reads(body)
    assert names in str(refused.value)


def test_the_bytes_of_all_answers_are_bounded() -> None:
    assert protocol.decode_reads(protocol.encode_reads([], 2**40)) == ([], protocol.BYTES_MAX)


def test_an_answer_that_was_cut_short_is_refused() -> None:
    body = protocol.encode_answers_head("me", [PodAnswer(b"12345")]) + b"1234"
    with pytest.raises(WireError, match="cut short"):
        protocol.decode_answers(body)


@pytest.mark.parametrize(
    "stamps", [[[5, 1]], [[-1, 1]], [[2, 1], [2, 2]], [[3, 1], [2, 2]], [[1]], [1], "x", 7]
)
def test_impossible_times_are_refused(stamps: Any) -> None:
    head, _, data = protocol.encode_answers_head("me", [PodAnswer(b"12345")]).partition(b"\n")
    answer = json.loads(head)
    answer["answers"][0]["stamps"] = stamps
    with pytest.raises(WireError, match="stamps"):
        protocol.decode_answers(json.dumps(answer).encode() + b"\n12345" + data)


def test_an_agent_of_an_older_version_knows_no_times() -> None:
    head, _, _ = protocol.encode_answers_head("me", [PodAnswer(b"12345")]).partition(b"\n")
    answer = json.loads(head)
    del answer["answers"][0]["stamps"]
    _, (published,) = protocol.decode_answers(json.dumps(answer).encode() + b"\n12345")
    assert published is not None
    assert (published.data, published.stamps) == (b"12345", ())
