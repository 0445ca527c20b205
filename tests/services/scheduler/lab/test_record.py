from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.lab.record import Ending, Timeline, begin
from services.scheduler.lab.results import gini, numbers, percentile, size_classes
from services.scheduler.lab.workload import Cluster, Job, Workload, uniform


def workload(*jobs: tuple[float, float, int], nodes: int = 4, user: str = "u") -> Workload:
    made = [
        Job(number, submit, work, size, user=f"{user}{number}", team=f"t{number % 2}")
        for number, (submit, work, size) in enumerate(jobs)
    ]
    return Workload("hand-worked", made, Cluster((uniform("default", nodes, 8),)))


def test_a_job_that_was_preempted_and_redid_work() -> None:
    record = begin(workload((0.0, 100.0, 2), (50.0, 10.0, 4)), "ours")
    # 0-60: of those 60 s of work 20 are lost. 70: back, 30 s restart, then 60 s: done at 160.
    record.stretch(0, 0.0, 60.0, Ending.PREEMPTED, redo_s=20.0)
    record.stretch(1, 60.0, 70.0, Ending.FINISHED)
    record.stretch(0, 70.0, 160.0, Ending.FINISHED, restart_s=30.0)
    first = record.jobs[0]
    assert (first.first_start_s, first.finish_s, first.preemptions) == (0.0, 160.0, 1)
    assert (first.lost_s, first.longest_gap_s) == (50.0, 10.0)
    assert (record.busy_s, record.lost_s, record.useful_s) == (340.0, 100.0, 240.0)
    # The window is 0-50: all of it held by two of four nodes, 40 s of it kept.
    assert (record.window_busy_s, record.window_useful_s) == (100.0, 80.0)


def test_the_numbers_of_a_small_run() -> None:
    jobs = workload((0.0, 100.0, 1), (0.0, 200.0, 4), (100.0, 30.0, 3))
    record = begin(jobs, "fifo")
    record.stretch(0, 0.0, 100.0, Ending.FINISHED)
    record.stretch(1, 100.0, 300.0, Ending.FINISHED)
    record.stretch(2, 300.0, 330.0, Ending.FINISHED)
    record.decide_seconds, record.events = 0.25, 6
    found = numbers(record, jobs)
    # JCTs 100, 300, 230; waits 0, 100, 200; slowdowns 1, 1.5, 230/60.
    assert found["mean_jct_s"] == 210.0
    assert found["p50_jct_s"] == 230.0
    assert found["p90_jct_s"] == pytest.approx(286.0)
    assert found["p99_jct_s"] == pytest.approx(298.6)
    assert (found["mean_wait_s"], found["max_wait_s"]) == (100.0, 200.0)
    assert found["p99_wait_s"] == pytest.approx(198.0)
    assert found["mean_bounded_slowdown"] == pytest.approx((1 + 1.5 + 230 / 60) / 3, abs=1e-6)
    assert found["longest_gap_s"] == 200.0
    # Between 0 and 100 one of four nodes was busy.
    assert (found["utilisation"], found["useful_share"]) == (0.25, 0.25)
    assert found["utilisation_whole_run"] == pytest.approx(990 / 1320)
    assert (found["lost_share"], found["preemptions_per_job"]) == (0.0, 0.0)
    assert (found["makespan_s"], found["decide_seconds"], found["events"]) == (330.0, 0.25, 6)
    assert found["by_size"] == [
        {
            "min_nodes": 1,
            "max_nodes": 1,
            "jobs": 1,
            "mean_jct_s": 100.0,
            "p99_jct_s": 100.0,
            "max_wait_s": 0.0,
        },
        {
            "min_nodes": 3,
            "max_nodes": 4,
            "jobs": 2,
            "mean_jct_s": 265.0,
            "p99_jct_s": pytest.approx(299.3),
            "max_wait_s": 200.0,
        },
    ]
    assert (found["big_gangs"]["jobs"], found["big_gangs"]["mean_jct_s"]) == (3, 210.0)
    assert found["by_vc"]["t0"]["mean_wait_s"] == 100.0
    assert found["by_vc"]["t1"] == {
        "jobs": 1,
        "mean_wait_s": 100.0,
        "mean_jct_s": 300.0,
        "private_mean_wait_s": None,
        "private_mean_jct_s": None,
    }
    assert found["unfinished"] == 0


def test_jobs_that_never_ended_are_counted_and_not_averaged() -> None:
    jobs = workload((0.0, 10.0, 1), (0.0, 10.0, 1))
    record = begin(jobs, "fifo")
    record.stretch(0, 0.0, 10.0, Ending.FINISHED)
    found = numbers(record, jobs)
    assert (found["unfinished"], found["mean_jct_s"]) == (1, 10.0)


def test_all_at_once_the_window_is_the_whole_run() -> None:
    jobs = workload((0.0, 10.0, 2), (0.0, 10.0, 4))
    record = begin(jobs, "fifo")
    record.stretch(0, 0.0, 10.0, Ending.FINISHED)
    record.stretch(1, 10.0, 20.0, Ending.FINISHED)
    assert numbers(record, jobs)["utilisation"] == 0.75


def test_gini_and_percentiles() -> None:
    assert gini([3.0, 3.0, 3.0]) == 0.0
    assert gini([0.0, 0.0, 0.0, 4.0]) == 0.75
    assert gini([1.0, 3.0]) == 0.25
    assert gini([]) is None
    assert percentile([1.0], 99) == 1.0
    assert percentile([], 99) is None
    assert percentile([0.0, 10.0], 25) == 2.5


def test_size_classes_are_powers_of_two_up_to_the_machine() -> None:
    assert size_classes(6) == [(1, 1), (2, 2), (3, 4), (5, 6)]
    assert size_classes(1) == [(1, 1)]


def counted(intervals: list[tuple[float, float, float]]) -> Callable[[float, float], float]:
    def area(start: float, end: float) -> float:
        return sum(
            amount * max(0.0, min(end, to) - max(start, since)) for since, to, amount in intervals
        )

    return area


times = st.floats(0, 1e6, allow_nan=False)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(times, times, st.floats(0.1, 10)), min_size=1, max_size=20))
def test_a_timeline_shows_the_mean_of_each_bin(raw: list[tuple[float, float, float]]) -> None:
    intervals = [(min(a, b), max(a, b), amount) for a, b, amount in raw]
    line = Timeline(width_s=1.0)
    for start, end, amount in intervals:
        line.add(start, end, amount)
    area = counted(intervals)
    bins = line.bins()
    width = line.width_s
    for place in {0, len(bins) // 3, len(bins) - 1} if bins else ():
        expected = area(place * width, (place + 1) * width) / width
        assert bins[place] == pytest.approx(expected, abs=1e-6, rel=1e-6)
    assert math.fsum(bins) * width == pytest.approx(area(0, 2e6), rel=1e-6, abs=1e-3)
