"""The wire: every message of ours is proto3 JSON for the official runtime, both ways."""

from __future__ import annotations

import shutil
import subprocess
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libs.contracts.base import Message
from libs.contracts.envelope import Envelope, UndecodableError
from libs.contracts.registry import ROUTES
from libs.contracts.subjects import filter_of, subject_of

ROOT = Path(__file__).resolve().parents[2]
ASCII = st.characters(codec="ascii")
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
# Protobuf's JSON has nanoseconds; ours has what datetime has. Its years are 1 to 9999.
TIMES = st.datetimes(datetime(1970, 1, 2), datetime(9000, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - bounds
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    bool: st.booleans(),
    int: st.integers(-(2**31), 2**31 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bytes: st.binary(max_size=16),
    datetime: TIMES,
}


def of_type(kind: Any) -> st.SearchStrategy[Any]:
    """Values of one field's type."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return st.none() | of_type(next(each for each in inner if each is not type(None)))
    if origin is typing.Annotated:
        return of_form(inner[1:], of_type(inner[0]))
    if origin is tuple:
        return st.lists(of_type(inner[0]), max_size=2).map(tuple)
    if origin is not None and issubclass(origin, Mapping):
        return st.dictionaries(of_type(inner[0]), of_type(inner[1]), max_size=2)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(list(kind))
    is_message = isinstance(kind, type) and issubclass(kind, Message)
    return of_message(kind) if is_message else SCALARS.get(kind, TIMES)


def of_form(metadata: Sequence[Any], other: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Texts of the form that is declared for a field; ``other`` if none is."""
    forms = [each.pattern for each in metadata if getattr(each, "pattern", None)]
    return st.from_regex(forms[0].strip("^$"), fullmatch=True, alphabet=ASCII) if forms else other


def of_message(kind: type[Message]) -> st.SearchStrategy[Any]:
    """Whole messages, every field drawn."""
    fields = {
        name: of_form(field.metadata, of_type(field.annotation))
        for name, field in kind.model_fields.items()
    }
    return st.fixed_dictionaries(fields).map(lambda values: kind(**values))


@pytest.fixture(scope="session")
def official(tmp_path_factory: pytest.TempPathFactory) -> descriptor_pool.DescriptorPool:
    image = tmp_path_factory.mktemp("proto") / "image.binpb"
    buf = shutil.which("buf", path=str(Path(sys.executable).parent))
    assert buf is not None
    subprocess.run(
        [buf, "build", "--as-file-descriptor-set", "-o", image], cwd=ROOT / "proto", check=True
    )
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(image.read_bytes()).file:
        pool.Add(file)
    return pool


@pytest.mark.parametrize("kind", ROUTES, ids=lambda kind: kind.__name__)
def test_the_official_runtime_reads_and_writes_the_same(
    official: descriptor_pool.DescriptorPool, kind: type[Message]
) -> None:
    theirs = message_factory.GetMessageClass(official.FindMessageTypeByName(ROUTES[kind].type_name))

    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(of_message(kind))
    def there_and_back(ours: Message) -> None:
        read = json_format.Parse(ours.to_json(), theirs())
        for full in (True, False):
            text = json_format.MessageToJson(
                read,
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=full,
                indent=None,
            )
            assert kind.model_validate_json(text) == ours

    there_and_back()


@pytest.mark.parametrize("kind", ROUTES, ids=lambda kind: kind.__name__)
def test_fields_are_those_of_the_proto(
    official: descriptor_pool.DescriptorPool, kind: type[Message]
) -> None:
    declared = official.FindMessageTypeByName(ROUTES[kind].type_name).fields_by_name
    assert set(kind.model_fields) == set(declared)


def test_an_envelope_survives_the_bus_and_a_foreign_one_is_named() -> None:
    from libs.contracts.messages import Goal, GoalChanged, Node, NodeChanged

    changed_at = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    message = GoalChanged(task_id="t1", goal=Goal.STOP, revision=3, changed_at=changed_at)
    envelope = Envelope("e1", "submit", changed_at, message, "00-aa-bb-01")
    assert Envelope.decode(envelope.subject, envelope.headers(), envelope.body()) == envelope
    assert subject_of(message) == "evt.task.t1.goal_changed"
    # A dot inside an id would be two tokens and miss every filter.
    node = NodeChanged(node_id="n.1", node=Node(id="n.1"), changed_at=changed_at)
    assert subject_of(node) == "evt.node.n_1.changed"
    assert filter_of(GoalChanged) == "evt.task.*.goal_changed"
    for headers, body in (
        ({}, envelope.body()),
        (envelope.headers() | {"ce-type": "shiftwork.task.v1.Unheard"}, envelope.body()),
        (envelope.headers(), b"{}"),
        (envelope.headers(), b"\xff"),
        (envelope.headers() | {"ce-time": "yesterday"}, envelope.body()),
    ):
        with pytest.raises(UndecodableError):
            Envelope.decode(envelope.subject, headers, body)


def test_a_field_of_a_newer_peer_is_ignored() -> None:
    from libs.contracts.messages import Quota

    assert Quota.model_validate_json('{"group": "a", "colour": "red", "limit": "7"}').limit == 7
