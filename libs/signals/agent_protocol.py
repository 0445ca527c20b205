"""What the launcher and the node agent send each other: ``POST /sample``.

The launcher names the pods of runs on the node by their UIDs; the agent answers what it measured of
the node and of those. Each side limits and validates what the other sends. The token and the
address are those of the agent's other routes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeVar

from pydantic import Field, StringConstraints, ValidationError

from libs.contracts.base import Message
from libs.contracts.messages import GpuSample, NodeValues, RankValues

PATH = "/sample"
# A kubelet runs 110 pods by default, and a thousand at most where people have tried.
PODS_MAX = 4096
GPUS_MAX = 512
QUERY_BYTES_MAX = 1 << 20
ANSWER_BYTES_MAX = 4 << 20
GPU_TEXT_MAX = 128
GPU_INDEX_END = 65_536
M = TypeVar("M", bound=Message)

PodName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]
# Part of a path on the node: nothing else may be in it.
PodUid = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
GpuIndex = Annotated[int, Field(ge=0, lt=GPU_INDEX_END)]


class AgentProtocolError(ValueError):
    """A body that is not what it should be: the text names the field, the problem and the fix."""


class SampledPod(Message):
    """A pod that the launcher placed on the node."""

    pod: PodName
    uid: PodUid


class SampleQuery(Message):
    """The body of a request."""

    pods: tuple[SampledPod, ...] = Field(default=(), max_length=PODS_MAX)


class PodMeasured(Message):
    """What one of those pods uses. ``gpus``: which of the node's it has; None: not known."""

    pod: PodName
    values: RankValues
    gpus: tuple[GpuIndex, ...] | None = Field(default=None, max_length=GPUS_MAX)


class NodeMeasured(Message):
    """The answer. A pod that has no control group (yet, or any more) is not in it."""

    values: NodeValues
    gpus: tuple[GpuSample, ...] = Field(default=(), max_length=GPUS_MAX)
    pods: tuple[PodMeasured, ...] = Field(default=(), max_length=PODS_MAX)


def encode(message: Message) -> bytes:
    """A body."""
    return message.to_json()


def decode_query(body: bytes) -> SampleQuery:
    """The request in a body. Raises ``AgentProtocolError``."""
    return _decode(SampleQuery, body)


def decode_answer(body: bytes, asked: Sequence[SampledPod]) -> NodeMeasured:
    """The answer in a body, without pods that were not in the request. Raises
    ``AgentProtocolError``."""
    answer = _decode(NodeMeasured, body)
    _check_gpus(answer.gpus)
    known = {gpu.index for gpu in answer.gpus}
    names = {each.pod for each in asked}
    pods: dict[str, PodMeasured] = {}
    for each in answer.pods:
        if strange := set(each.gpus or ()) - known:
            raise AgentProtocolError(
                f"pods: {each.pod} has GPU {min(strange)}, which is not in gpus; send both"
            )
        if each.pod in names:
            pods.setdefault(each.pod, each)
    return answer.model_copy(update={"pods": tuple(pods.values())})


def _check_gpus(gpus: Sequence[GpuSample]) -> None:
    if len({gpu.index for gpu in gpus}) != len(gpus):
        raise AgentProtocolError("gpus: an index comes twice; number each GPU once")
    for gpu in gpus:
        if not 0 <= gpu.index < GPU_INDEX_END:
            raise AgentProtocolError(f"gpus: index {gpu.index}; count from 0")
        for text in (gpu.uuid, gpu.model):
            if len(text) > GPU_TEXT_MAX or not text.isprintable():
                raise AgentProtocolError(
                    f"gpus: {text[:40]!r} is no UUID or model; send at most {GPU_TEXT_MAX}"
                    " printable characters"
                )


def _decode(kind: type[M], body: bytes) -> M:
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, problem["loc"])) or "the body"
        value = f" {problem['input']!r:.80}" if problem["loc"] else ""
        raise AgentProtocolError(f"{where}{value}: {problem['msg']}") from None
