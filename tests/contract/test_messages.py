"""The wire: every message of ours is proto3 JSON for the official runtime, both ways."""

from __future__ import annotations

import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from hypothesis import HealthCheck, given, settings

from libs.contracts.base import Message
from libs.contracts.envelope import Envelope, UndecodableError
from libs.contracts.registry import ROUTES
from libs.contracts.subjects import filter_of, subject_of
from tests.kit.message_strategies import of_message

ROOT = Path(__file__).resolve().parents[2]


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
