"""Owners and consumers of messages: the registry against the services as they are wired."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from libs.contracts.base import Message
from libs.contracts.registry import ROUTES
from libs.contracts.routes import Kind
from libs.contracts.services import SERVICES
from libs.contracts.subjects import filter_of, types_of

ROOT = Path(__file__).resolve().parent.parent


def consumed_by(service: str) -> set[type[Message]]:
    return set(importlib.import_module(f"services.{service}.handlers").HANDLERS)


def test_every_event_has_an_owner_and_a_consumer() -> None:
    consumed = set[type[Message]]().union(*(consumed_by(service) for service in SERVICES))
    events = set(types_of(Kind.EVENT))
    assert {event.__name__ for event in events if ROUTES[event].owner not in SERVICES} == set()
    assert {event.__name__ for event in events - consumed} == set()
    assert {kind.__name__ for kind in consumed if ROUTES[kind].kind is not Kind.EVENT} == set()


def test_every_command_names_its_reply() -> None:
    for command in types_of(Kind.COMMAND):
        reply = ROUTES[command].reply
        assert reply is not None
        assert ROUTES[reply].kind is Kind.REPLY
        assert "refusal" in reply.model_fields


def test_subject_fields_exist() -> None:
    for message, route in ROUTES.items():
        for field in re.findall(r"\{(\w+)\}", route.subject):
            assert field in message.model_fields, f"{message.__name__}: {field}"


def test_names_distinguish_commands_from_events() -> None:
    """Commands are imperative, events past tense; they travel on different subjects."""
    past = re.compile(r"(ed|Saved|Found)$")
    for event in types_of(Kind.EVENT):
        assert past.search(event.__name__), event.__name__
        assert filter_of(event).startswith("evt.")
    for command in types_of(Kind.COMMAND):
        assert not past.search(command.__name__), command.__name__
        assert filter_of(command).startswith("cmd.")


def test_subjects_and_owners_are_as_published() -> None:
    """Scripts rely on these; a change is a change of the public interface."""
    published = {
        message.__name__: f"{route.owner} {route.subject}"
        for message, route in ROUTES.items()
        if route.kind in {Kind.EVENT, Kind.TELEMETRY}
    }
    assert published == {
        "TaskSubmitted": "submit evt.task.{task_id}.submitted",
        "GoalChanged": "submit evt.task.{task_id}.goal_changed",
        "ModeChanged": "submit evt.task.{task_id}.mode_changed",
        "PriorityChanged": "submit evt.task.{task_id}.priority_changed",
        "TaskStateChanged": "scheduler evt.task.{task_id}.state_changed",
        "AbnormalTaskChanged": "monitor evt.task.{task_id}.abnormal_changed",
        "AbnormalActionSettled": "monitor evt.task.{task_id}.abnormal_action_settled",
        "RunAssigned": "scheduler evt.run.{task_id}.assigned",
        "RunResumed": "scheduler evt.run.{task_id}.resumed",
        "PreemptionRequested": "scheduler evt.run.{task_id}.preemption_requested",
        "KillRequested": "scheduler evt.run.{task_id}.kill_requested",
        "RunDelayed": "launcher evt.run.{task_id}.delayed",
        "RunStarted": "launcher evt.run.{task_id}.started",
        "RankRestarted": "launcher evt.run.{task_id}.rank_restarted",
        "RankEnded": "launcher evt.run.{task_id}.rank_ended",
        "RunListened": "gateway evt.run.{task_id}.listened",
        "CheckpointSaved": "launcher evt.run.{task_id}.checkpoint_saved",
        "RunYielded": "launcher evt.run.{task_id}.yielded",
        "LifeStateSaved": "launcher evt.run.{task_id}.life_state_saved",
        "RunExited": "launcher evt.run.{task_id}.exited",
        "ErrorLinesFound": "log_collector evt.run.{task_id}.error_lines_found",
        "RunActivityChanged": "monitor evt.run.{task_id}.activity_changed",
        "NodeChanged": "launcher evt.node.{node_id}.changed",
        "InventoryListed": "launcher evt.inventory.{runtime}.listed",
        "PolicyChanged": "scheduler evt.policy.{group}.changed",
        "QuotaChanged": "quota evt.quota.{group_token}.changed",
        "UsageRecorded": "quota evt.quota.{group}.usage",
        "LogChunk": "log_collector log.{task_id}.{attempt}.{rank}",
    }


@pytest.mark.parametrize("service", SERVICES)
def test_the_readme_names_the_consumed_and_published_messages(service: str) -> None:
    text = (ROOT / "services" / service / "README.md").read_text()
    lines = {
        word: next(line for line in text.splitlines() if line.startswith(f"**{word}"))
        for word in ("Consumes", "Publishes")
    }
    consumed = set(re.findall(r"`([A-Z]\w+)`", lines["Consumes"]))
    commands = {kind.__name__ for kind in types_of(Kind.COMMAND)}
    assert consumed - commands == {kind.__name__ for kind in consumed_by(service)}
    published = set(re.findall(r"`([A-Z]\w+)`", lines["Publishes"]))
    owned = {
        message.__name__
        for message, route in ROUTES.items()
        if route.owner == service and route.kind in {Kind.EVENT, Kind.TELEMETRY}
    }
    assert published - commands == owned
