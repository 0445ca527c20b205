"""Events as sentences."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shiftwork.cli import timeline
from shiftwork.cli.timeline import node_state, ordered, sentence

QUOTA: dict[str, Any] = {"unit": "gpus", "limit": 2, "group": "", "priority": "unspecified"}
NODE = {"ready": True, "schedulable": True, "draining": False}


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        (
            "quota.usage",
            {"owner": "ann", "gpu_seconds": 7.4, "node_seconds": 3.6},
            "used 7 GPU-seconds, 4 node-seconds, for ann",
        ),
        ("run.delayed", {"ranks": 1, "detail": "n1 is full"}, "not started yet: n1 is full"),
        ("run.delayed", {"ranks": 0, "detail": ""}, "nothing delays the start"),
        (
            "policy.changed",
            {
                "group": "training",
                "version": 3,
                "policy": {"policy": "fifo", "source": "command", "changed_by": "ada"},
            },
            "policy of group training: fifo (version 3, command), by ada",
        ),
        (
            "quota.changed",
            {"quota": {**QUOTA, "user": "ann"}, "changed_by": "admin"},
            "quota of ann in every group: at most 2 GPUs, by admin",
        ),
        (
            "quota.changed",
            {
                "quota": {**QUOTA, "team": "lab", "group": "g", "priority": "high", "limit": 1},
                "changed_by": "admin",
            },
            "quota of team lab in group g at priority high: at most 1 GPU, by admin",
        ),
        (
            "quota.changed",
            {
                "quota": {**QUOTA, "user": "ann", "grant": True},
                "removed": True,
                "expired": True,
                "changed_by": "admin",
            },
            "grant of ann in every group: expired, set by admin",
        ),
        (
            "quota.changed",
            {"quota": {**QUOTA, "user": "ann", "team": "lab"}, "changed_by": "admin"},
            "quota of ann as a member of team lab in every group: at most 2 GPUs, by admin",
        ),
        (
            "quota.changed",
            {"quota": {**QUOTA, "unit": "nodes"}, "removed": True, "changed_by": "admin"},
            "quota of every user in every group: removed, by admin",
        ),
        ("node.changed", {"node_id": "n0", "node": NODE}, "node n0 ready"),
        ("node.changed", {"node_id": "n0", "node": {**NODE, "ready": False}}, "node n0 lost"),
        (
            "node.changed",
            {"node_id": "n0", "node": {**NODE, "schedulable": False}},
            "node n0 cordoned",
        ),
        (
            "node.changed",
            {"node_id": "n0", "node": {**NODE, "schedulable": False, "draining": True}},
            "node n0 draining",
        ),
        ("node.changed", {"node_id": "n0", "removed": True}, "node n0 removed"),
        (
            "run.rank_restarted",
            {
                "rank": 1,
                "role": "ps",
                "restarts": 2,
                "restarts_max": 3,
                "detail": "rank 1 ended with code 1",
            },
            "rank 1 ended with code 1; it is started again (2 of 3, role ps)",
        ),
        ("run.listened", {}, "asks from now on whether to leave"),
        (
            "run.error_lines_found",
            {"ranks": [{"rank": 3, "kind": "cuda", "lines": ["a", "CUDA \x1b[2Jerror"]}, {}]},
            "rank 3 wrote: CUDA error (cuda); 1 more rank with errors",
        ),
        (
            "run.resumed",
            {"placements": [{"node_id": "n1"}], "resume_from": {"step": 7}},
            "resumed on n1 from step 7",
        ),
        (
            "run.resumed",
            {"placements": [{"node_id": "n1"}], "spec": {"preemption": {"mode": "sdk"}}},
            "restarted on n1 from the beginning (no checkpoint)",
        ),
        (
            "run.resumed",
            {"placements": [{"node_id": "n1"}], "spec": {"preemption": {"mode": "signal"}}},
            (
                "started again on n1; no checkpoint is known, the program begins where"
                " it finds its own state"
            ),
        ),
        (
            "task.goal_changed",
            {"goal": "stop", "now": True, "changed_by": "ann"},
            "stopped at once by ann",
        ),
        (
            "run.preemption_requested",
            {"deadline_at": "2026-01-01T00:01:00Z", "reason": {"text": "its owner paused it"}},
            "asked to leave by 00:01:00.000: its owner paused it",
        ),
        (
            # It would have a minute, and is not waited for that long.
            "run.preemption_requested",
            {
                "deadline_at": "2026-01-01T00:01:00Z",
                "silent_deadline_at": "2026-01-01T00:00:05Z",
                "reason": {"text": "its owner paused it"},
            },
            (
                "asked to leave: its owner paused it; its program never asked whether to leave, and"
                " is ended by force at 00:00:05.000 unless it asks by then"
            ),
        ),
        ("something.new", {}, "something new"),
    ],
)
def test_sentences(kind: str, data: dict[str, Any], expected: str) -> None:
    assert sentence(kind, data) == expected


REASON = {"code": "goal_pause", "text": "its owner paused it"}
OTHER = {"code": "goal_stop", "text": "its owner stopped it"}


def shown(events: list[Any]) -> list[int]:
    repeats = timeline.Repeats()
    return [each["position"] for each in events if not repeats.is_repeat(each)]


def test_a_state_change_that_repeats_an_event_is_not_shown() -> None:
    events = [
        state(1, "queued", 0, None),
        an_event(2, "run.assigned", 1, 1),
        state(3, "starting", 1, 1, code="placed", text="starts on 1 node"),
        state(4, "running", 2, 1),
        an_event(5, "run.preemption_requested", 3, 1, reason=REASON),
        state(6, "preempting", 3, 1, **REASON),
        an_event(7, "run.preemption_requested", 4, 1, reason=OTHER),
        # Another reason is news.
        state(8, "preempting", 4, 1, code="turn_of", text="it is another task's turn"),
        state(9, "preempting", 4, 1, **OTHER),
        an_event(10, "run.kill_requested", 5, 1, reason=OTHER),
        state(11, "killing", 5, 1, **OTHER),
        # Another attempt, which no event named before.
        state(12, "starting", 6, 2, code="placed", text="starts on 1 node"),
        an_event(13, "run.resumed", 6, 2),
        # The task is published again because its goal changed.
        state(14, "running", 7, 2),
        an_event(15, "task.goal_changed", 8, None, goal="pause"),
        state(16, "running", 8, 2),
    ]
    assert shown(events) == [1, 2, 4, 5, 7, 8, 10, 12, 13, 14, 15]


def an_event(position: int, kind: str, second: float, attempt: int | None, **data: Any) -> Any:
    at = f"2026-01-01T00:00:{second:09.6f}Z"
    return {"position": position, "type": kind, "at": at, "attempt": attempt, "data": data}


def state(position: int, word: str, second: float, attempt: int | None, **reason: str) -> Any:
    return an_event(position, "task.state_changed", second, attempt, state=word, reason=reason)


def test_a_tasks_events_are_in_the_order_in_which_they_happened() -> None:
    """The scheduler learns of starts and ends after they happen, and the gateway receives all
    events in another order."""
    events = [
        state(1, "queued", 0.1, None),
        an_event(2, "task.submitted", 0.1, None),
        an_event(3, "run.assigned", 1.0, 1),
        state(4, "starting", 1.0, 1),
        # A short program: it has exited before the scheduler learns that it runs.
        an_event(5, "run.exited", 1.3, 1, exit={"kind": "preempted"}),
        an_event(6, "run.started", 1.2, 1),
        state(7, "queued", 1.6, 1),
        state(8, "running", 1.5, 1),
        an_event(9, "task.goal_changed", 1.7, None, goal="pause"),
        an_event(10, "run.resumed", 2.0, 2),
        an_event(12, "run.checkpoint_saved", 2.4, 2),
        an_event(11, "run.preemption_requested", 2.3, 2),
    ]
    assert [each["position"] for each in ordered(events)] == [2, 1, 3, 4, 6, 8, 5, 7, 9, 10, 11, 12]
    assert ordered([]) == []


def test_what_later_roles_wait_for_follows_the_start() -> None:
    events = [
        an_event(1, "run.delayed", 1.1, 1, detail="role b waits", running=True),
        an_event(2, "run.started", 1.2, 1),
        an_event(3, "run.delayed", 1.3, 1, detail="n1 is full"),
    ]
    assert [each["position"] for each in ordered(events)] == [3, 2, 1]


# What may happen in one attempt, in the order of its life.
LIFE = [
    ["run.assigned"],
    ["starting"],
    ["run.delayed"],
    ["run.started"],
    ["running"],
    ["run.listened", "run.checkpoint_saved", "run.preemption_requested", "preempting", "killing"],
    ["run.exited"],
    ["quota.usage"],
    ["queued", "paused"],
]
# The step of these states when they are published again.
AGAIN = {"starting": 2, "running": 5}


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from(range(len(LIFE))), st.integers(0, 9)),
        max_size=30,
    ),
    st.lists(st.sampled_from([0.0, 1.0, 5.0, 3600.0]), min_size=30, max_size=30),
    st.randoms(use_true_random=False),
)
def test_an_attempts_events_stand_in_the_order_of_its_life_whatever_the_clocks_say(
    drawn: list[tuple[int, int, int]], times: list[float], random: Any
) -> None:
    events: list[Any] = []
    steps: dict[int, int] = {}
    states: set[tuple[int, str]] = set()
    for number, ((attempt, part, which), second) in enumerate(zip(drawn, times, strict=False), 1):
        position, step = number * 10, part
        kind = LIFE[part][which % len(LIFE[part])]
        if "." in kind:
            events.append(an_event(position, kind, second, attempt))
        else:
            # A state that is published again belongs to what happens while it lasts.
            step = AGAIN.get(kind, step) if (attempt, kind) in states else step
            states.add((attempt, kind))
            events.append(state(position, kind, second, attempt))
        steps[position] = step
        if which == 0:
            events.append(an_event(position + 5, "task.goal_changed", second, None))
    found = ordered(events)
    assert sorted(map(position_of, found)) == sorted(map(position_of, events))
    of_attempts = [
        (e["attempt"], steps[e["position"]], e["position"]) for e in found if e["attempt"]
    ]
    assert of_attempts == sorted(of_attempts)
    others = [position_of(each) for each in found if not each["attempt"]]
    assert others == sorted(others)
    for number, event in enumerate(found):
        if not event["attempt"]:
            # Behind all that was there before it, and no later.
            assert all(position_of(each) > position_of(event) for each in found[number + 1 :])
            before = found[:number][::-1]
            last = next((each for each in before if each["attempt"]), None)
            assert last is None or position_of(last) < position_of(event)
    random.shuffle(events)
    assert ordered(events) == found


def position_of(event: Any) -> int:
    position: int = event["position"]
    return position


def test_what_people_do_stands_behind_what_happened_before_it() -> None:
    """A change of the mode publishes the state once more, which puts nothing else later."""
    events = [
        an_event(1, "task.submitted", 0.0, None),
        an_event(2, "run.assigned", 1.0, 1),
        an_event(3, "run.started", 1.2, 1),
        state(4, "running", 1.3, 1),
        an_event(33, "run.listened", 1.8, 1),
        an_event(45, "task.mode_changed", 9.8, None, mode="debug", changed_by="ann"),
        state(46, "running", 9.9, 1, code="debug", text="debug mode is on"),
        an_event(47, "run.preemption_requested", 9.9, 1),
        an_event(50, "run.exited", 12.0, 1, exit={"kind": "preempted"}),
        an_event(49, "task.goal_changed", 30.0, None, goal="pause"),
    ]
    in_order = timeline.InOrder()
    live = [each for event in events for each in in_order.add(event, 0.0)]
    assert list(map(position_of, live)) == [1, 2, 3, 4, 33, 45, 46, 47, 50, 49]
    assert list(map(position_of, ordered(events))) == [1, 2, 3, 4, 33, 45, 46, 47, 49, 50]


def test_the_usage_of_a_run_stands_between_its_end_and_the_state_after_it() -> None:
    events = [
        an_event(1, "run.exited", 1.3, 1, exit={"kind": "failed"}),
        state(2, "failed", 1.4, 1),
        an_event(3, "quota.usage", 1.3, 1),
    ]
    for arrived in (events, [events[2], *events[:2]], [events[0], *events[:0:-1]]):
        assert [each["position"] for each in ordered(arrived)] == [1, 3, 2]


STORY = [
    state(1, "queued", 0.0, None),
    an_event(2, "run.assigned", 1.0, 1),
    state(3, "starting", 1.0, 1),
    an_event(4, "run.started", 1.2, 1),
    state(5, "running", 1.25, 1),
    an_event(6, "run.exited", 1.3, 1, exit={"kind": "preempted"}),
    an_event(7, "quota.usage", 1.3, 1),
    state(8, "queued", 1.4, 1),
    an_event(9, "run.resumed", 2.0, 2),
    an_event(10, "run.started", 2.2, 2),
    state(11, "running", 2.25, 2),
    an_event(12, "run.exited", 2.3, 2, exit={"kind": "failed"}),
    an_event(13, "quota.usage", 2.3, 2),
    state(14, "failed", 2.4, 2),
]


@given(st.lists(st.integers(0, 4), min_size=14, max_size=14))
def test_events_have_one_order_live_and_later(late: list[int]) -> None:
    """Services learn late of each other: the events of an end arrive in any order."""
    first = {2, 3, 4, 9, 10}
    # What follows a start may come in any order; starts come before what follows them.
    block = [event for event in STORY if event["position"] not in first]
    one = [event for event in block if event["position"] in range(5, 9)]
    two = [event for event in block if event["position"] in range(11, 15)]
    late_of = dict(zip(range(1, 15), late, strict=True))

    def shaken(events: list[Any]) -> list[Any]:
        return sorted(events, key=lambda each: (late_of[each["position"]], each["position"]))

    # The next attempt may begin before all events of the previous one have arrived.
    arrived = [*STORY[:4], *shaken(one), *STORY[8:10], *shaken(two)]
    arrived.sort(key=lambda each: 9 if late[0] and each["position"] == 8 else each["position"] // 9)
    in_order = timeline.InOrder()
    shown = [each for event in arrived for each in in_order.add(event, 0.0)]
    assert shown == STORY == ordered(arrived)
    assert not in_order.is_waiting


def test_an_event_whose_cause_never_comes_is_shown_after_a_while() -> None:
    in_order = timeline.InOrder()
    in_order.add(an_event(1, "run.started", 1.0, 1), 0.0)
    assert in_order.add(state(2, "failed", 1.4, 1), 0.0) == []
    (news,) = in_order.add(an_event(3, "task.goal_changed", 1.5, None, goal="stop"), 0.1)
    assert news["position"] == 3
    assert in_order.is_waiting
    assert in_order.due(0.9) == []
    (shown,) = in_order.due(1.0)
    assert shown["position"] == 2


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("ok", "the program ended successfully"),
        ("preempted", "the program left when asked to; no checkpoint is known"),
        ("killed", "the program was ended by force"),
        ("failed", "the program failed (rank 0 ended with code 7)"),
        ("lost", "the run was lost"),
    ],
)
def test_ends_of_runs_have_plain_sentences(kind: str, text: str) -> None:
    detail = "rank 0 ended with code 7" if kind == "failed" else ""
    assert sentence("run.exited", {"exit": {"kind": kind, "detail": detail}}) == text


EXITED = {"kind": "preempted", "detail": "by the launcher's words"}


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (
            {"ranks": [{"rank": 0, "code": 75}, {"rank": 1, "code": 75}]},
            ("the program left when asked to (exit code 75); no checkpoint is known"),
        ),
        (
            {"ranks": [{"rank": 0, "code": 75}, {"rank": 1, "signal": 10}], "saved_in": 1},
            (
                "the program left when asked to (exit code 75, signal 10); the last checkpoint"
                " known is of attempt 1, step 7"
            ),
        ),
        (
            {"ranks": [{"rank": 0, "code": 0}], "saved_in": 2},
            "the program saved a checkpoint of step 7 and left when asked to (exit code 0)",
        ),
        # Its processes are gone, and their exit codes are unknown.
        (
            {"ranks": [], "saved_in": 2},
            "the program saved a checkpoint of step 7 and left when asked to",
        ),
        ({"ranks": []}, "the run was withdrawn before its program had started"),
        ({"ranks": [], "saved_in": 1}, "the run was withdrawn before its program had started"),
    ],
)
def test_a_checkpoint_is_claimed_only_if_it_was_reported(data: dict[str, Any], text: str) -> None:
    event: dict[str, Any] = {"attempt": 2, "exit": {**EXITED, "ranks": data["ranks"]}}
    if "saved_in" in data:
        event["checkpoint"] = {"attempt": data["saved_in"], "step": 7}
    assert sentence("run.exited", event) == text


def test_a_draining_node_is_drained_once_nothing_runs_there() -> None:
    draining = {**NODE, "schedulable": False, "draining": True}
    assert node_state(draining) == "draining"
    assert node_state(draining, busy=True) == "draining"
    assert node_state(draining, busy=False) == "drained"
    assert node_state({**draining, "ready": False}, busy=False) == "lost"


def test_every_event_of_a_run_has_its_step() -> None:
    kinds = {kind for kind in timeline.SENTENCES if kind.startswith("run.")}
    assert kinds - set(timeline._STEPS) == set()


def test_a_submission_names_its_warnings() -> None:
    warning = {"code": "c", "field": "pod.image", "message": "there are no pods"}
    data = {"owner": "ann", "warnings": [warning]}
    text = timeline.sentence("task.submitted", data)
    assert text == "submitted by ann; warning: pod.image: there are no pods"
    assert timeline.sentence("task.submitted", {"owner": "ann"}) == "submitted by ann"


def test_a_yield_and_a_continuation_read_as_sentences() -> None:
    assert sentence("run.yielded", {"reason": "no data"}) == (
        "the program hands its nodes over on its own: no data"
    )
    state = {"size": 1, "attempt": 2}
    assert sentence("run.life_state_saved", state) == "life state saved: 1 byte"
    state = {"size": 13, "attempt": 0}
    assert sentence("run.life_state_saved", state) == "life state taken over: 13 bytes"
    left = {
        "attempt": 1,
        "exit": {"kind": "preempted", "yielded": True, "ranks": [{"rank": 0, "code": 75}]},
    }
    assert sentence("run.exited", left) == (
        "the program left on its own (exit code 75); no checkpoint is known"
    )
    inherited = {**left, "checkpoint": {"attempt": 1, "step": 30, "task_id": "tfirst"}}
    assert sentence("run.exited", inherited) == (
        "the program left on its own (exit code 75); the last checkpoint known is of task tfirst,"
        " attempt 1, step 30"
    )
    spec = {"continues": {"task_id": "tfirst"}}
    assert sentence("task.submitted", {"owner": "ada", "spec": spec}) == (
        "submitted by ada; it goes on with tfirst"
    )
    assigned = {"placements": [{"node_id": "n0"}], "resume_from": {"step": 30}}
    assert sentence("run.assigned", assigned) == "assigned to n0; it goes on from step 30"
