"""Which deliveries are believed: those of a message on its own subject, from its owner."""

from __future__ import annotations

import itertools
import json

import pytest
from pydantic import ValidationError

from libs.contracts import messages as m
from libs.contracts.base import Message
from libs.contracts.envelope import Envelope, UndecodableError
from libs.contracts.ids import RunId
from libs.contracts.registry import ROUTES
from libs.contracts.routes import Kind
from libs.contracts.subjects import subject_of
from tests.kit.example_messages import TIMESTAMP, example_of

PUBLISHED = [
    message for message, route in ROUTES.items() if route.kind in (Kind.EVENT, Kind.TELEMETRY)
]
OWNERS = sorted({ROUTES[kind].owner for kind in PUBLISHED})


def envelope_of(kind: type[Message], source: str = "") -> Envelope:
    return Envelope("e1", source or ROUTES[kind].owner, TIMESTAMP, example_of(kind))


@pytest.mark.parametrize("kind", PUBLISHED, ids=lambda kind: kind.__name__)
def test_a_message_is_read_from_its_own_subject_and_from_no_other(kind: type[Message]) -> None:
    envelope = envelope_of(kind)
    headers, body = envelope.headers(), envelope.body()
    assert Envelope.decode(envelope.subject, headers, body) == envelope
    others = {subject_of(example_of(other)) for other in PUBLISHED} - {envelope.subject}
    others |= {envelope.subject.replace(".x.", ".y."), "evt.quota.x.elsewhere", ""}
    for subject in others:
        with pytest.raises(UndecodableError, match="belongs on"):
            Envelope.decode(subject, headers, body)


@pytest.mark.parametrize("kind", PUBLISHED, ids=lambda kind: kind.__name__)
def test_a_message_is_read_from_its_owner_and_from_nobody_else(kind: type[Message]) -> None:
    for source in ({*OWNERS, "gateway", "admin"}) - {ROUTES[kind].owner}:
        envelope = envelope_of(kind, source)
        with pytest.raises(UndecodableError, match="is published by"):
            Envelope.decode(envelope.subject, envelope.headers(), envelope.body())


def test_no_two_types_share_a_subject() -> None:
    for one, other in itertools.combinations(PUBLISHED, 2):
        assert subject_of(example_of(one)) != subject_of(example_of(other))


NO_TASKS = ["", "T1", "a-b", "t.1", "x/../y", "t\n", "a" * 27, "1a", "ü"]
NO_NODES = ["", "-n", "n/1", "n 1", "n\n", "../n", "n" * 254]
NO_NAMES = ["", "Ann", "ann.b", "-a", "a\n", "a" * 64]


@pytest.mark.parametrize(
    ("kind", "field", "texts"),
    [
        *(
            (kind, "task_id", NO_TASKS)
            for kind in PUBLISHED
            if "task_id" in kind.model_fields and kind is not m.UsageRecorded
        ),
        (m.NodeChanged, "node_id", NO_NODES),
        (m.TaskSubmitted, "owner", NO_NAMES),
        (m.RunAssigned, "owner", NO_NAMES),
        (m.RunResumed, "owner", NO_NAMES),
    ],
    ids=lambda each: each.__name__ if isinstance(each, type) else None,
)
def test_a_message_with_an_id_that_is_none_is_not_read(
    kind: type[Message], field: str, texts: list[str]
) -> None:
    """A handler of such an id would fail at a point where the message cannot be dead-lettered."""
    envelope = envelope_of(kind)
    whole = json.loads(envelope.body())
    missing = {name: value for name, value in whole.items() if name != field}
    for changed in (missing, *({**whole, field: text} for text in texts)):
        with pytest.raises(UndecodableError, match="does not fit"):
            Envelope.decode(envelope.subject, envelope.headers(), json.dumps(changed).encode())


def test_ids_inside_of_messages_are_checked_too() -> None:
    for bad in NO_NODES:
        with pytest.raises(ValidationError):
            m.Placement(node_id=bad)
        with pytest.raises(ValidationError):
            m.Node(id=bad)
        with pytest.raises(ValidationError):
            m.InventoryListed(runtime="process", node_ids=("n1", bad), listed_at=TIMESTAMP)


def test_every_task_id_that_is_read_names_a_run() -> None:
    for text in ("t", "t1", "a" * 26, "z234567"):
        assert RunId.parse(f"{m.LogChunk(task_id=text, collected_at=TIMESTAMP).task_id}.1")
