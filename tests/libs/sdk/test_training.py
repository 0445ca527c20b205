from __future__ import annotations

import dataclasses
import threading
import time
from typing import Any

import pytest
import shiftwork
from shiftwork import live, training

from tests.libs.sdk.conftest import QUICK
from tests.libs.sdk.run_server import TOKEN, RunServer

pytestmark = pytest.mark.server


def test_off_the_platform_everything_works_and_does_nothing() -> None:
    assert shiftwork.should_preempt() is False
    assert shiftwork.checkpoint_saved(3, "file:///tmp/x") is None
    assert shiftwork.resume_from() is None
    assert shiftwork.report(loss=1.0) is None
    assert shiftwork.exit_preempted() is None
    assert (shiftwork.rank(), shiftwork.world_size()) == (0, 1)
    assert training._process.live is None


def test_agree_is_called_at_every_step_off_the_platform_too() -> None:
    votes: list[bool] = []

    def agree(mine: bool) -> bool:
        votes.append(mine)
        return mine

    assert [shiftwork.should_preempt(agree) for _ in range(3)] == [False] * 3
    assert votes == [False] * 3


def test_the_long_poll_brings_the_request(on_platform: RunServer) -> None:
    assert shiftwork.should_preempt() is False
    on_platform.wait_for(lambda: len(on_platform.polls) >= 2)
    assert shiftwork.should_preempt() is False
    on_platform.ask_to_leave()
    on_platform.wait_for(shiftwork.should_preempt, 1.0)
    assert on_platform.tokens == {f"Bearer {TOKEN}"}
    assert on_platform.polls[0] == {"wait_seconds": "0", "seen": "0"}
    assert on_platform.polls[1] == {"wait_seconds": "5", "seen": "0"}


def test_agree_makes_all_ranks_leave_at_the_same_step(on_platform: RunServer) -> None:
    # Two ranks in two threads; only the first has the request, and both must leave at one step.
    barrier = threading.Barrier(2, timeout=5)
    votes = [False, False]
    left_at = [0, 0]

    def train(rank: int) -> None:
        def agree(mine: bool) -> bool:
            votes[rank] = mine and rank == 0
            barrier.wait()
            result = any(votes)
            barrier.wait()
            return result

        for step in range(1, 1000):
            if step == 5 and rank == 0:
                on_platform.ask_to_leave()
            if shiftwork.should_preempt(agree):
                left_at[rank] = step
                return
            time.sleep(0.002)

    ranks = [threading.Thread(target=train, args=(rank,)) for rank in (0, 1)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join(10)
    assert left_at[0] == left_at[1] >= 5


def test_a_call_never_waits_though_the_server_never_answers(on_platform: RunServer) -> None:
    on_platform.hang = True
    shiftwork.should_preempt()
    shiftwork.report(loss=0.0)
    took = []
    for step in range(3000):
        began = time.perf_counter()
        shiftwork.should_preempt()
        shiftwork.report(loss=1.0, step=step)
        took.append(time.perf_counter() - began)
    took.sort()
    assert took[int(len(took) * 0.99)] < 0.001
    assert sum(took) / len(took) < 0.001


def test_polling_continues_when_the_server_comes_back(on_platform: RunServer) -> None:
    shiftwork.should_preempt()
    on_platform.wait_for(lambda: len(on_platform.polls) >= 2)
    on_platform.stop()
    on_platform.preempt, on_platform.revision = True, 7
    time.sleep(0.1)
    assert shiftwork.should_preempt() is False
    on_platform.start()
    on_platform.wait_for(shiftwork.should_preempt, 3.0)


def test_the_first_request_may_find_no_server(on_platform: RunServer) -> None:
    on_platform.stop()
    assert shiftwork.should_preempt() is False
    on_platform.ask_to_leave()
    time.sleep(0.05)
    on_platform.start()
    on_platform.wait_for(shiftwork.should_preempt, 3.0)


def test_a_checkpoint_is_reported_with_step_uri_and_digest(on_platform: RunServer) -> None:
    shiftwork.checkpoint_saved(12, "file:///c/12", "sha256:ab")
    shiftwork.checkpoint_saved(13, "file:///c/13")
    assert on_platform.checkpoints == [
        {"step": 12, "uri": "file:///c/12", "digest": "sha256:ab"},
        {"step": 13, "uri": "file:///c/13"},
    ]


def test_a_checkpoint_is_retried_until_stored(on_platform: RunServer) -> None:
    on_platform.checkpoint_answers = [(503, {}), (500, {}), (429, {}), (401, {})]
    shiftwork.checkpoint_saved(1, "file:///c")
    assert on_platform.checkpoint_answers == []
    assert len(on_platform.checkpoints) == 1


def test_a_checkpoint_waits_for_a_server_that_is_down(
    on_platform: RunServer, capsys: pytest.CaptureFixture[str]
) -> None:
    on_platform.stop()
    threading.Timer(0.5, on_platform.start).start()
    began = time.monotonic()
    shiftwork.checkpoint_saved(1, "file:///c")
    assert time.monotonic() - began >= 0.4
    assert len(on_platform.checkpoints) == 1
    assert "still trying to record the checkpoint of step 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "answer",
    [
        (409, {"type": "superseded", "title": "This attempt is over"}),
        (403, {"type": "https://shiftwork.dev/problems/superseded"}),
        (410, {"type": "urn:shiftwork:superseded"}),
    ],
)
def test_an_ended_attempt_raises_superseded(
    on_platform: RunServer, answer: tuple[int, dict[str, str]]
) -> None:
    on_platform.checkpoint_answers = [answer]
    with pytest.raises(shiftwork.Superseded, match="attempt 1 of task ta is no longer"):
        shiftwork.checkpoint_saved(1, "file:///c")
    assert shiftwork.should_preempt() is True
    with pytest.raises(shiftwork.Superseded):
        shiftwork.checkpoint_saved(2, "file:///c")
    assert on_platform.checkpoints == []


CONFLICTS = [
    (409, {"type": "conflict", "title": "The present state does not allow it"}),
    (409, {}),
    (410, {"type": "gone"}),
]


def test_a_status_without_the_type_superseded_does_not_end_the_attempt(
    on_platform: RunServer,
) -> None:
    on_platform.checkpoint_answers = [*CONFLICTS]
    on_platform.metrics_answers = [*CONFLICTS[:2]]
    shiftwork.report(loss=1.0)
    shiftwork.checkpoint_saved(1, "file:///c")
    on_platform.wait_for(lambda: on_platform.samples)
    assert [sample["values"] for sample in on_platform.samples] == [{"loss": 1.0}]
    assert [saved["step"] for saved in on_platform.checkpoints] == [1]
    assert shiftwork.should_preempt() is False


def test_a_report_holds_no_more_names_than_the_platform_takes(on_platform: RunServer) -> None:
    on_platform.stop()
    for number in range(300):
        shiftwork.report(**{f"name_{number}": 1.0})
    on_platform.start()
    on_platform.wait_for(lambda: len(on_platform.samples) == 300)
    assert len(on_platform.ranks) >= 300 / QUICK.metrics_batch_names_max


def test_what_a_report_leaves_out_is_warned_of_once_for_each_name(
    on_platform: RunServer, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong: Any = {"loss": "abc", "parts": {"a": 1}, "lr": None}
    for _ in range(2):
        shiftwork.report(step=1, **wrong)
        shiftwork.report(**{f"name_{number}": 1.0 for number in range(66)})
    on_platform.wait_for(lambda: on_platform.samples)
    assert capsys.readouterr().err.splitlines() == [
        "shiftwork: report() leaves out loss: a str is no number; give an int or a float",
        "shiftwork: report() leaves out parts: a dict is no number; give an int or a float",
        "shiftwork: report() leaves out lr: a NoneType is no number; give an int or a float",
        "shiftwork: report() leaves out name_64: a call takes 64 names; give it in another call",
        "shiftwork: report() leaves out name_65: a call takes 64 names; give it in another call",
    ]


def test_refused_metrics_are_reported_once_on_stderr(
    on_platform: RunServer, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = {"type": "invalid", "detail": "rank is no rank of attempt 1"}
    on_platform.metrics_answers = [(422, refusal), (422, refusal)]
    for step in range(3):
        shiftwork.report(step=step)
        on_platform.wait_for(lambda step=step: len(on_platform.metrics_answers) <= max(0, 1 - step))
    on_platform.wait_for(lambda: on_platform.samples)
    assert capsys.readouterr().err.count("refuses metrics: rank is no rank") == 1


def test_metrics_go_under_the_rank_of_the_process(
    on_platform: RunServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The third process of the second replica under torchrun; the replica's own rank is 1.
    monkeypatch.setenv("SHIFTWORK_RANK", "1")
    monkeypatch.setenv("RANK", "6")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    shiftwork.report(loss=1.0)
    on_platform.wait_for(lambda: on_platform.ranks)
    assert on_platform.ranks == [6]


def test_a_process_that_may_not_wait_pauses_before_it_polls_again(on_platform: RunServer) -> None:
    on_platform.ask_again_seconds = 2.0
    shiftwork.should_preempt()
    time.sleep(0.9)
    assert len(on_platform.polls) == 1
    on_platform.ask_to_leave()
    on_platform.wait_for(shiftwork.should_preempt)


def test_a_pause_and_the_poll_after_it_take_no_longer_than_a_poll(on_platform: RunServer) -> None:
    """Both fall between two contacts, and the fence knows only the first of them."""
    on_platform.ask_again_seconds = 0.4
    shiftwork.should_preempt()
    on_platform.wait_for(lambda: len(on_platform.polls) > 2)
    for poll in on_platform.polls[1:3]:
        assert float(poll["wait_seconds"]) <= QUICK.poll_seconds - 0.2


def test_pauses_of_processes_with_the_same_pid_differ() -> None:
    pauses = {live._jitter() for _ in range(32)}
    assert len(pauses) > 16
    assert all(0.5 <= pause <= 1.5 for pause in pauses)


@pytest.mark.parametrize("fence", [1.0, 10.0, 30.0, 90.0, 3600.0])
def test_a_lost_answer_leaves_time_for_another_request_before_the_fence(fence: float) -> None:
    limits = live.Limits().within(fence)
    lost = limits.poll_seconds + limits.answer_seconds + 1.5 * limits.backoff_seconds_max
    assert lost <= fence * 0.8
    assert limits.poll_seconds <= fence / 3
    assert live.Limits().within(None) == live.Limits()


def test_the_poll_also_reports_a_later_attempt(on_platform: RunServer) -> None:
    shiftwork.should_preempt()
    on_platform.supersede()
    on_platform.wait_for(shiftwork.should_preempt)
    with pytest.raises(shiftwork.Superseded):
        shiftwork.checkpoint_saved(1, "file:///c")


def test_a_refused_checkpoint_is_the_callers_mistake(on_platform: RunServer) -> None:
    problem = {
        "title": "invalid",
        "detail": "no such scheme",
        "errors": [{"field": "uri", "message": "unknown scheme"}, "odd"],
    }
    on_platform.checkpoint_answers = [(422, problem)]
    with pytest.raises(ValueError, match="no such scheme; uri: unknown scheme"):
        shiftwork.checkpoint_saved(1, "gopher://c")


def test_checkpoints_without_waiting_arrive_in_order(on_platform: RunServer) -> None:
    on_platform.stop()
    for step in range(20):
        # Would never return if it waited: the server is down until all have returned.
        shiftwork.checkpoint_saved(step, f"file:///c/{step}", wait=False)
    on_platform.start()
    # A call that waits comes after those before it.
    shiftwork.checkpoint_saved(20, "file:///c/20")
    assert [saved["step"] for saved in on_platform.checkpoints] == list(range(21))


def test_a_checkpoint_that_is_not_stored_in_time_is_still_sent(on_platform: RunServer) -> None:
    on_platform.stop()
    # The server is down until the call has returned.
    with pytest.raises(TimeoutError, match=r"step 1 in 0\.2 s; it is still sent"):
        shiftwork.checkpoint_saved(1, "file:///c", timeout=0.2)
    on_platform.start()
    on_platform.wait_for(lambda: on_platform.checkpoints)
    assert [saved["step"] for saved in on_platform.checkpoints] == [1]


def test_checkpoints_on_their_way_are_bounded(
    on_platform: RunServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = dataclasses.replace(QUICK, checkpoints_queued_max=3)
    monkeypatch.setattr(training, "_process", training._Process(limits))
    on_platform.stop()
    for step in range(3):
        shiftwork.checkpoint_saved(step, "file:///c", wait=False)
    with pytest.raises(TimeoutError, match="that of step 3 is not sent"):
        shiftwork.checkpoint_saved(3, "file:///c", wait=False, timeout=0.1)
    threading.Timer(0.3, on_platform.start).start()
    shiftwork.checkpoint_saved(4, "file:///c", wait=False)
    on_platform.wait_for(lambda: len(on_platform.checkpoints) == 4)
    assert [saved["step"] for saved in on_platform.checkpoints] == [0, 1, 2, 4]


def test_a_refusal_that_nobody_waits_for_is_a_line_on_stderr(
    on_platform: RunServer, capsys: pytest.CaptureFixture[str]
) -> None:
    on_platform.checkpoint_answers = [(422, {"detail": "no such scheme"})]
    shiftwork.checkpoint_saved(1, "gopher://c", wait=False)
    shiftwork.checkpoint_saved(2, "file:///c")
    assert "refuses the checkpoint of step 1: no such scheme" in capsys.readouterr().err


def test_an_attempt_that_is_over_ends_every_checkpoint_on_its_way(on_platform: RunServer) -> None:
    on_platform.checkpoint_answers = [(409, {"type": "superseded"})]
    shiftwork.checkpoint_saved(1, "file:///c", wait=False)
    on_platform.wait_for(shiftwork.should_preempt)
    with pytest.raises(shiftwork.Superseded):
        shiftwork.checkpoint_saved(2, "file:///c", wait=False)


def test_exit_preempted_waits_for_checkpoints_on_their_way(on_platform: RunServer) -> None:
    on_platform.stop()
    for step in (1, 2):
        shiftwork.checkpoint_saved(step, "file:///c", wait=False)
    threading.Timer(0.3, on_platform.start).start()
    with pytest.raises(SystemExit):
        shiftwork.exit_preempted()
    assert [saved["step"] for saved in on_platform.checkpoints] == [1, 2]


def test_exit_preempted_waits_a_bounded_time(
    on_platform: RunServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = dataclasses.replace(QUICK, exit_checkpoint_seconds=0.3)
    monkeypatch.setattr(training, "_process", training._Process(limits))
    on_platform.stop()
    shiftwork.checkpoint_saved(7, "file:///c", wait=False)
    began = time.monotonic()
    with pytest.raises(SystemExit):
        shiftwork.exit_preempted()
    # The server stays down: without a bound it would wait for ever.
    assert time.monotonic() - began > 0.2
    assert "the checkpoint of step 7 is not recorded" in capsys.readouterr().err


@pytest.mark.parametrize("timeout", [-1.0, float("nan")])
def test_a_timeout_is_zero_or_more_seconds(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout must be 0 or more"):
        shiftwork.checkpoint_saved(1, "file:///c", timeout=timeout)


@pytest.mark.parametrize(
    ("step", "uri", "digest", "error"),
    [
        (-1, "file:///c", None, ValueError),
        (1.5, "file:///c", None, TypeError),
        (1, "", None, ValueError),
        (1, None, None, TypeError),
        (1, "x" * 5000, None, ValueError),
        (1, "file:///c", b"ab", TypeError),
    ],
)
def test_bad_arguments_are_refused_on_and_off_the_platform(
    step: int, uri: str, digest: str | None, error: type[Exception]
) -> None:
    with pytest.raises(error):
        shiftwork.checkpoint_saved(step, uri, digest)


def test_numpy_steps_are_whole_numbers(on_platform: RunServer) -> None:
    numpy = pytest.importorskip("numpy")
    shiftwork.checkpoint_saved(numpy.int64(5), "file:///c")
    assert on_platform.checkpoints[0]["step"] == 5


def test_metrics_arrive_in_order_and_only_numbers(on_platform: RunServer) -> None:
    for step in range(450):
        shiftwork.report(step=step, loss=0.5, name="no number", bad=float("nan"))
    on_platform.wait_for(lambda: len(on_platform.samples) == 450)
    assert [sample["values"]["step"] for sample in on_platform.samples] == list(range(450))
    assert set(on_platform.samples[0]) == {"at", "values"}
    # A loss that is not a number any more is what somebody wants to see.
    assert on_platform.samples[0]["values"] == {"step": 0, "loss": 0.5, "bad": "NaN"}


def test_too_many_metrics_drop_the_oldest(
    on_platform: RunServer, capsys: pytest.CaptureFixture[str]
) -> None:
    on_platform.stop()
    for step in range(QUICK.metrics_queued_max + 500):
        shiftwork.report(step=step)
    on_platform.start()
    last = QUICK.metrics_queued_max + 499
    on_platform.wait_for(lambda: on_platform.samples[-1:] and _step(on_platform) == last)
    assert len(on_platform.samples) <= QUICK.metrics_queued_max + QUICK.metrics_batch_max
    assert capsys.readouterr().err.count("oldest are dropped") == 1


def _step(server: RunServer) -> int:
    return int(server.samples[-1]["values"]["step"])


def test_exit_preempted_has_the_reserved_code(on_platform: RunServer) -> None:
    del on_platform
    with pytest.raises(SystemExit) as raised:
        shiftwork.exit_preempted()
    assert raised.value.code == 75


def test_a_malformed_url_is_warned_about_once_and_ends_nothing(
    on_platform: RunServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    del on_platform
    monkeypatch.setenv("SHIFTWORK_URL", "nonsense")
    assert shiftwork.should_preempt() is False
    shiftwork.report(loss=1.0)
    assert shiftwork.checkpoint_saved(1, "file:///c") is None
    assert capsys.readouterr().err.count("nonsense") == 1


@pytest.mark.parametrize(("rank", "lines"), [("0", 1), ("1", 0)])
def test_one_line_for_each_node_explains_what_torchrun_prints(
    on_platform: RunServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rank: str,
    lines: int,
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "any")
    monkeypatch.setenv("LOCAL_RANK", rank)
    with pytest.raises(SystemExit) as left:
        shiftwork.exit_preempted()
    assert left.value.code == 75
    assert capsys.readouterr().err.count("reports this as ChildFailedError") == lines


def test_a_rank_reports_once_that_it_is_ready(
    on_platform: RunServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHIFTWORK_RANK", "3")
    monkeypatch.setenv("SHIFTWORK_RESTARTS", "2")
    on_platform.ready_answers = [(503, {}), (429, {})]
    shiftwork.ready()
    shiftwork.ready()
    on_platform.wait_for(lambda: on_platform.ready)
    time.sleep(0.1)
    assert on_platform.ready == [{"rank": 3, "restarts": 2}]
    # A program that only serves others does not listen for requests to leave.
    assert on_platform.polls == []


def test_readiness_is_reported_when_the_platform_is_back(on_platform: RunServer) -> None:
    on_platform.stop()
    shiftwork.ready()
    time.sleep(0.1)
    on_platform.start()
    on_platform.wait_for(lambda: on_platform.ready)
    assert on_platform.ready == [{"rank": 0, "restarts": 0}]


def test_a_refused_report_of_readiness_is_a_line_on_stderr(
    on_platform: RunServer, capsys: pytest.CaptureFixture[str]
) -> None:
    on_platform.ready_answers = [(409, {"type": "superseded", "detail": "attempt 1 is over"})]
    shiftwork.ready()
    on_platform.wait_for(lambda: not on_platform.ready_answers)
    time.sleep(0.1)
    assert "refuses the report of readiness: attempt 1 is over" in capsys.readouterr().err


def test_off_the_platform_nobody_waits_for_readiness() -> None:
    shiftwork.ready()
