"""Requests and answers between launcher and node agent, good and bad."""

from __future__ import annotations

import json
from typing import Any

import pytest

from libs.contracts.messages import GpuSample, GpuValues, NodeValues, RankValues
from libs.signals import agent_protocol
from libs.signals.agent_protocol import (
    GPUS_MAX,
    AgentProtocolError,
    NodeMeasured,
    PodMeasured,
    SampledPod,
    SampleQuery,
)

UID = "0f0f0f0f-1111-2222-3333-abcdefabcdef"
ASKED = [SampledPod(pod="ta-1-0", uid=UID)]
ANSWER = NodeMeasured(
    values=NodeValues(cpu_percent=1.0),
    gpus=(GpuSample(index=0, uuid="GPU-a", model="H100", values=GpuValues(gpu_percent=3.0)),),
    pods=(PodMeasured(pod="ta-1-0", values=RankValues(cpu_cores=1.0), gpus=(0,)),),
)


def test_both_bodies_arrive_as_they_were_sent() -> None:
    query = SampleQuery(pods=tuple(ASKED))
    assert agent_protocol.decode_query(agent_protocol.encode(query)) == query
    assert agent_protocol.decode_answer(agent_protocol.encode(ANSWER), ASKED) == ANSWER


def test_pods_that_were_not_in_the_request_are_left_out() -> None:
    more = PodMeasured(pod="tb-1-0", values=RankValues(cpu_cores=99.0))
    twice = PodMeasured(pod="ta-1-0", values=RankValues(cpu_cores=99.0))
    answer = ANSWER.model_copy(update={"pods": (*ANSWER.pods, more, twice)})
    assert agent_protocol.decode_answer(agent_protocol.encode(answer), ASKED) == ANSWER


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "the body"),
        (b"[]", "the body"),
        (b'{"pods": 3}', "pods 3"),
        (json.dumps({"pods": [{"pod": "a", "uid": "../../x"}]}).encode(), "pods.0.uid"),
        (json.dumps({"pods": [{"pod": "a/b", "uid": UID}]}).encode(), "pods.0.pod"),
        (json.dumps({"pods": [{"pod": "a", "uid": UID}] * 5000}).encode(), "at most"),
    ],
)
def test_a_bad_request_is_refused(body: bytes, text: str) -> None:
    with pytest.raises(AgentProtocolError, match=text):
        agent_protocol.decode_query(body)


def changed(**changes: Any) -> bytes:
    return json.dumps(json.loads(agent_protocol.encode(ANSWER)) | changes).encode()


def gpu(**changes: Any) -> dict[str, Any]:
    return {"index": 0, "uuid": "GPU-a", "model": "m", "values": {}} | changes


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"\xff", "the body"),
        (b"[" * 100_000, "the body"),
        (changed(values=None), "values"),
        (changed(values={"cpu_percent": "much"}), "cpu_percent"),
        (changed(values={"cpu_percent": float("nan")}), "cpu_percent"),
        (changed(values={"cpu_percent": float("inf")}), "cpu_percent"),
        (changed(gpus=[gpu(), gpu()]), "twice"),
        (changed(gpus=[gpu(index=-1)]), "-1"),
        (changed(gpus=[gpu(uuid="x" * 5000)]), "UUID"),
        (changed(gpus=[gpu(model='a"\nb')]), "printable"),
        (changed(gpus=[gpu(index=each) for each in range(GPUS_MAX + 1)]), "gpus"),
        (changed(pods=[{"pod": "ta-1-0", "values": {}, "gpus": [1]}]), "GPU 1"),
        (changed(pods=[{"pod": "ta-1-0", "values": {}, "gpus": [-1]}]), "gpus"),
        (changed(pods=[{"pod": "ta-1-0"}]), "values"),
    ],
)
def test_a_bad_answer_is_refused(body: bytes, text: str) -> None:
    with pytest.raises(AgentProtocolError, match=text):
        agent_protocol.decode_answer(body, ASKED)
