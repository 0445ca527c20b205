from __future__ import annotations

import itertools

import pytest

from libs.bus.topology import (
    MIB,
    STORE_BYTES,
    Full,
    Limits,
    consumer_of,
    permissions_of,
    served_by,
    served_subject,
    topology_of,
)
from libs.contracts import messages as m
from libs.contracts.registry import ROUTES
from libs.contracts.routes import Kind
from libs.contracts.services import SERVICES
from libs.contracts.subjects import filter_of, matches, types_of


def example(pattern: str) -> str:
    return pattern.replace("*", "x")


def may_publish(service: str, subject: str) -> bool:
    return any(matches(allowed, subject) for allowed in permissions_of(service).publish)


def test_every_event_and_telemetry_falls_into_exactly_one_stream() -> None:
    streams = topology_of({}).streams
    for kind, stream in ((Kind.EVENT, "EVT"), (Kind.TELEMETRY, "LOG")):
        for message in types_of(kind):
            subject = example(filter_of(message))
            found = [
                each.name for each in streams if any(matches(one, subject) for one in each.subjects)
            ]
            assert found == [stream]


def test_no_command_is_kept_in_a_stream() -> None:
    for message in types_of(Kind.COMMAND):
        subject = example(filter_of(message))
        for stream in topology_of({}).streams:
            assert not any(matches(one, subject) for one in stream.subjects)


def test_streams_are_bounded_by_the_given_limits() -> None:
    limits = Limits(
        event_age_s=60, store_bytes=100 * MIB, log_bytes=7, dead_letter_bytes=9, history_bytes=5
    )
    events, logs, letters = topology_of({}, limits).streams
    assert (events.max_age_s, events.duplicate_window_s) == (60, 120)
    assert events.max_bytes == 90 * MIB - 21
    assert (logs.max_bytes, letters.max_bytes) == (7, 9)
    assert letters.subjects == ("dlq.*.>",)


def test_all_streams_together_fit_into_the_store() -> None:
    for store_bytes in (STORE_BYTES, 1024 * MIB):
        streams = topology_of({}, Limits(store_bytes=store_bytes)).streams
        assert sum(stream.max_bytes for stream in streams) <= store_bytes
    with pytest.raises(ValueError, match="max_file_store"):
        topology_of({}, Limits(store_bytes=320 * MIB))


def test_only_the_stream_of_events_refuses_when_it_is_full() -> None:
    events, logs, letters = topology_of({}).streams
    assert events.full is Full.REFUSE_NEW
    assert {logs.full, letters.full} == {Full.DROP_OLDEST}


def test_a_service_has_one_durable_with_a_filter_per_event() -> None:
    topology = topology_of({"quota": (m.TaskSubmitted, m.GoalChanged), "silent": ()})
    (only,) = topology.consumers
    assert only.durable == "quota"
    assert only.filters == ("evt.task.*.goal_changed", "evt.task.*.submitted")
    assert only.stream == "EVT"


def test_a_service_that_receives_the_tasks_states_gets_all_events_and_reads_its_own() -> None:
    spec = consumer_of("quota", (m.TaskStateChanged, m.RunExited))
    assert spec.filters == ("evt.>",)
    assert spec.handled == ("evt.run.*.exited", "evt.task.*.state_changed")


@pytest.mark.parametrize("kind", [m.SetGoal, m.SetGoalReply, m.LogChunk])
def test_only_events_are_delivered_to_a_durable(kind: type[m.Message]) -> None:
    with pytest.raises(ValueError, match=kind.__name__):
        consumer_of("quota", [kind])


def test_each_event_can_be_published_by_its_owner_alone() -> None:
    for message in (*types_of(Kind.EVENT), *types_of(Kind.TELEMETRY)):
        subject = example(filter_of(message))
        assert [each for each in SERVICES if may_publish(each, subject)] == [ROUTES[message].owner]


def test_commands_are_served_by_their_owner_and_sent_by_permitted_services() -> None:
    for message, service in itertools.product(types_of(Kind.COMMAND), SERVICES):
        owner = ROUTES[message].owner
        serves = message in served_by(service)
        assert serves == (owner in (service, "every"))
        subject = served_subject(message, service)
        subscribed = any(matches(one, subject) for one in permissions_of(service).subscribe)
        assert subscribed == serves
        assert not may_publish(service, subject)
        sender = permissions_of("gateway", requests=[message]).publish
        assert any(matches(one, filter_of(message)) for one in sender)


def test_no_service_may_subscribe_to_the_answers_or_durable_of_another() -> None:
    for one, other in itertools.permutations(SERVICES, 2):
        allowed = permissions_of(one, consumes=[m.TaskSubmitted], follows=[m.LogChunk])
        for subject in (f"_INBOX.{other}.a.b", "evt.task.t.submitted", ">"):
            assert not any(matches(each, subject) for each in allowed.subscribe)
        for subject in (
            f"$JS.API.CONSUMER.MSG.NEXT.EVT.{other}",
            f"$JS.ACK.EVT.{other}.1.2.3.4.5",
            f"$JS.ACK.EVT.{other}.EVT.{one}.1.2.3",
            f"$JS.ACK._.hash.EVT.{other}.1.2.3.4.5.6",
            f"$JS.API.CONSUMER.INFO.EVT.{other}",
            "$JS.API.STREAM.DELETE.EVT",
            f"$JS.API.CONSUMER.DELETE.EVT.{one}",
            f"dlq.{other}.evt.task.t.submitted",
        ):
            assert not any(matches(each, subject) for each in allowed.publish)


def test_permissions_as_the_server_reads_them() -> None:
    config = permissions_of("submit").as_config()
    assert config["allow_responses"] == {"max": 1, "expires": "5m"}
    assert config["subscribe"] == {"allow": list(permissions_of("submit").subscribe)}


@pytest.mark.parametrize(
    ("pattern", "subject", "fits"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.*", "a", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("*.b.>", "a.b.c", True),
        (">", "a", True),
    ],
)
def test_filters(pattern: str, subject: str, fits: bool) -> None:
    assert matches(pattern, subject) is fits
