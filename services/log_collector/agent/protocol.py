"""The HTTP protocol between log-collector and the agents: encoding of requests and answers.

``POST /read``: a JSON body of reads; the answer is one line of JSON and then the bytes of all
answers in their order, so that output travels as it is. ``POST /done``: what the collector has for
good. Used by ``http_app.py`` and by the collector's Kubernetes source.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from services.log_collector.agent.cri import Stamp

READS_MAX = 4096
BODY_BYTES_MAX = 2 * 1_048_576
BYTES_MAX = 32 * 1_048_576
BEFORE_BYTES_MAX = 256
POD_NAME_MAX = 253


class WireError(ValueError):
    """A body that is not what it should be: the text names the field, the value and the fix."""


@dataclass(frozen=True, slots=True)
class PodRead:
    """Bytes wanted of a pod's output: those after ``offset``."""

    pod: str
    offset: int
    bytes_max: int
    # What the collector has right before ``offset``: it must be the same here. Empty: not known.
    before: bytes = b""
    # The pod has ended: the answer must hold for good.
    ended: bool = False


@dataclass(frozen=True, slots=True)
class PodAnswer:
    """The answer to one read. Fewer bytes than requested, and not unsure: that is all for now."""

    data: bytes = b""
    # There is no log file of this pod: it never had one, or it is not wanted any more.
    absent: bool = False
    unsure: bool = False
    # Nothing more will come.
    complete: bool = False
    # The requested offset is elsewhere in this agent's output: it cannot continue from there.
    moved: bool = False
    problem: str = ""
    # The times of the bytes: from which byte of ``data`` on, and microseconds since 1970. None
    # where they are not known, and from an agent of an older version. Two answers with the same
    # bytes are the same answer.
    stamps: Sequence[Stamp] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class PodStored:
    """The collector has so many bytes for good; ``done``: it wants no more of this pod."""

    pod: str
    offset: int
    done: bool


def encode_reads(reads: Sequence[PodRead], bytes_max: int) -> bytes:
    """The body of ``POST /read``."""
    fields = [
        {
            "pod": read.pod,
            "offset": read.offset,
            "bytes_max": read.bytes_max,
            "before": base64.b64encode(read.before).decode(),
            "ended": read.ended,
        }
        for read in reads
    ]
    return json.dumps({"bytes_max": bytes_max, "asks": fields}).encode()


def decode_reads(body: bytes) -> tuple[list[PodRead], int]:
    """The reads of a body, and the limit of bytes of all answers. Raises ``WireError``."""
    fields = _object(body)
    reads = [
        PodRead(
            pod=_pod(each),
            offset=_number(each, "offset"),
            bytes_max=_number(each, "bytes_max"),
            before=_before(each),
            ended=_flag(each, "ended"),
        )
        for each in _list(fields, "asks")
    ]
    return reads, min(_number(fields, "bytes_max"), BYTES_MAX)


def encode_answers_head(agent: str, answers: Sequence[PodAnswer | None]) -> bytes:
    """The first line of an answer; the answers' bytes follow it. ``agent`` is another one after
    each start."""
    fields = [
        None
        if answer is None
        else {
            "size": len(answer.data),
            "absent": answer.absent,
            "unsure": answer.unsure,
            "complete": answer.complete,
            "moved": answer.moved,
            "problem": answer.problem,
            "stamps": answer.stamps,
        }
        for answer in answers
    ]
    return json.dumps({"agent": agent, "answers": fields}).encode() + b"\n"


def decode_answers(body: bytes) -> tuple[str, list[PodAnswer | None]]:
    """The agent's id and its answers. Raises ``WireError``."""
    head, _, rest = body.partition(b"\n")
    fields = _object(head)
    answers: list[PodAnswer | None] = []
    at = 0
    for each in _list(fields, "answers", null=True):
        if each is None:
            answers.append(None)
            continue
        size = _number(each, "size")
        if at + size > len(rest):
            raise WireError(f"size {size}: the answer ends before, it was cut short; read again")
        answers.append(
            PodAnswer(
                data=rest[at : at + size],
                absent=_flag(each, "absent"),
                unsure=_flag(each, "unsure"),
                complete=_flag(each, "complete"),
                moved=_flag(each, "moved"),
                problem=str(each.get("problem", "")),
                stamps=_stamps(each, size),
            )
        )
        at += size
    return str(fields.get("agent", "")), answers


def encode_stored(kept: Sequence[PodStored]) -> bytes:
    """The body of ``POST /done``."""
    fields = [{"pod": each.pod, "offset": each.offset, "done": each.done} for each in kept]
    return json.dumps({"kept": fields}).encode()


def decode_stored(body: bytes) -> list[PodStored]:
    """The stored outputs in a body. Raises ``WireError``."""
    return [
        PodStored(pod=_pod(each), offset=_number(each, "offset"), done=_flag(each, "done"))
        for each in _list(_object(body), "kept")
    ]


def _object(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise WireError(f"the body {body[:80]!r} is no JSON object; send one")
    return cast("dict[str, Any]", fields)


def _list(fields: dict[str, Any], name: str, *, null: bool = False) -> list[Any]:
    value = fields.get(name)
    if not isinstance(value, list):
        raise WireError(f"{name} {value!r:.80}: write a list of objects")
    each = cast("list[Any]", value)
    if len(each) > READS_MAX:
        raise WireError(f"{name}: {len(each)} are too many; send at most {READS_MAX} at once")
    for one in each:
        if not (isinstance(one, dict) or (null and one is None)):
            raise WireError(f"{name}: {one!r:.80} is no object; write a list of objects")
    return each


def _pod(fields: dict[str, Any]) -> str:
    value = fields.get("pod")
    if not isinstance(value, str) or not 0 < len(value) <= POD_NAME_MAX or set(value) & set("/_"):
        raise WireError(f"pod {value!r:.80}: write the pod's name")
    return value


def _number(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise WireError(f"{name} {value!r:.80}: write a whole number of bytes, 0 or more")
    return value


def _stamps(fields: dict[str, Any], size: int) -> tuple[Stamp, ...]:
    value = fields.get("stamps", [])
    try:
        stamps = tuple(Stamp(int(offset), int(micros)) for offset, micros in value)
    except (TypeError, ValueError):
        stamps = (Stamp(-1, 0),)
    offsets = [each.offset for each in stamps]
    if (stamps and not 0 <= offsets[0] <= offsets[-1] < size) or offsets != sorted(set(offsets)):
        raise WireError(f"stamps {value!r:.80}: write pairs of a byte and microseconds, in order")
    return stamps


def _flag(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise WireError(f"{name} {value!r:.80}: write true or false")
    return value


def _before(fields: dict[str, Any]) -> bytes:
    value = fields.get("before", "")
    try:
        found = base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise WireError(f"before {value!r:.80}: write base64") from None
    if len(found) > BEFORE_BYTES_MAX:
        raise WireError(f"before: {len(found)} bytes; send at most {BEFORE_BYTES_MAX}")
    return found
