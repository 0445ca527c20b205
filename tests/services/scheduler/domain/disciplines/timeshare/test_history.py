from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf, isfinite, log, nan
from random import Random
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.domain.disciplines.timeshare.features import (
    Features,
    Level,
    PredictorSettings,
)
from services.scheduler.domain.disciplines.timeshare.history import History

NUMBERS = PredictorSettings()
EDGES = [0.0, *(20 * 1.35**k for k in range(42))]
HOUR, DAY = 3600.0, 86_400.0
ANN = Features("ann", 4, 4 / 128)
# Nothing is forgotten: counts are counts.
FOREVER = PredictorSettings(
    size_class=Level("class", 5.0, 1.0),
    user=Level("user", 3.0, 1.0),
    user_size=Level("user+size", 2.0, 1.0),
    user_size_kin=Level("user+size+kin", 2.0, 1.0),
    class_relative=Level("class/limit", 10.0, 1.0),
    user_relative=Level("user/limit", 3.0, 1.0),
    user_size_limit=Level("user+size+limit", 1.0, 1.0),
)


def bin_of(seconds: float) -> int:
    return bisect_right(EDGES[:-1], seconds) - 1


# --- an obviously right predictor: all observations are kept, everything is recounted ---


@dataclass
class Seen:
    """What a cell saw, in order: the bins reached and left or ended in, and where one ended."""

    rows: list[tuple[list[int], int | None]] = field(default_factory=list)

    def counts(self, at: int, decay: float) -> tuple[float, float]:
        ended = reached = 0.0
        for bins, end in self.rows:
            if end is not None:
                ended, reached = ended * decay, reached * decay
                ended += end == at
            reached += at in bins
        return ended, reached


class Slow:
    def __init__(self) -> None:
        self.cells: defaultdict[tuple[object, ...], Seen] = defaultdict(Seen)

    def places(self, of: Features) -> list[tuple[tuple[object, ...], float, float, int]]:
        """Key, kappa, decay and how far bins are shifted, level by level."""
        cls = sum(of.share >= part for part in (1 / 32, 1 / 8, 1 / 4))
        found: list[tuple[tuple[object, ...], float, float, int]] = [
            (("class", cls), 5, 0.999, 0),
            (("user", of.user), 3, 0.97, 0),
            (("user+size", of.user, of.size), 2, 0.92, 0),
            (("user+size+kin", of.user, of.size, of.kin), 2, 0.95, 0),
        ]
        if of.limit_seconds is not None:
            shift = -bin_of(of.limit_seconds)
            found += [
                (("class/limit", cls), 10, 0.999, shift),
                (("user/limit", of.user), 3, 0.97, shift),
                (("user+size+limit", of.user, of.size, of.limit_seconds), 1, 0.85, 0),
            ]
        return found

    def outlived(self, of: Features, start: float, stop: float) -> None:
        for key, _, _, shift in self.places(of):
            bins = [at + shift for at in range(bin_of(start), bin_of(stop))]
            self.cells[key].rows.append((bins, None))

    def ended(self, of: Features, seconds: float, counted: float) -> None:
        last = bin_of(seconds)
        for key, _, _, shift in self.places(of):
            bins = [at + shift for at in range(min(bin_of(counted), last), last + 1)]
            self.cells[key].rows.append((bins, last + shift))

    def index(self, of: Features, attained: float) -> float:
        limit = of.limit_seconds
        hazards: list[float] = []
        for at in range(42):
            hazard = 0.1
            for key, kappa, decay, shift in self.places(of):
                if shift == 0 or at + shift <= 0:
                    ended, reached = self.cells[key].counts(at + shift, decay)
                    hazard = (ended + kappa * hazard) / (reached + kappa)
            if limit is not None and at >= bin_of(limit):
                hazard = max(hazard, 0.95)
            hazards.append(hazard)
        hazards[-1] = 1.0
        first, alive, spent, ended, best = bin_of(attained), 1.0, 0.0, 0.0, inf
        for at in range(first, 42):
            width, hazard = EDGES[at + 1] - max(attained, EDGES[at]), hazards[at]
            if at == first:
                hazard = 1 - (1 - hazard) ** (width / (EDGES[at + 1] - EDGES[at]))
            spent += alive * (hazard * width / 2 + (1 - hazard) * width)
            ended += alive * hazard
            alive *= 1 - hazard
            best = min(best, spent / ended)
        return best if limit is None else (best + spent) / 2


sizes = st.sampled_from([1, 3, 4, 16, 31, 32, 128])
limits = st.sampled_from([None, HOUR, 2 * HOUR, 2.5 * HOUR, 5 * DAY])


def asked(user: str, size: int, limit: float | None, kin: int) -> Features:
    return Features(user, size, size / 128, limit, kin)


features = st.builds(asked, st.sampled_from(["ann", "bob"]), sizes, limits, st.integers(6, 7))
seconds = st.floats(0.0, EDGES[41] * 0.999)
observations = st.lists(st.tuples(st.booleans(), features, seconds, seconds), max_size=25)


def record_all(history: History | Slow, rows: list[tuple[bool, Features, float, float]]) -> None:
    for is_end, of, one, other in rows:
        low, high = min(one, other), max(one, other)
        if is_end:
            history.ended(of, high, low)
        else:
            history.outlived(of, low, high)


@settings(max_examples=25, deadline=None)
@given(observations, features, seconds)
def test_the_fast_predictor_agrees_with_counting_again(
    rows: list[tuple[bool, Features, float, float]], of: Features, attained: float
) -> None:
    fast, slow = History(), Slow()
    record_all(fast, rows)
    record_all(slow, rows)
    assert fast.index(of, attained) == pytest.approx(slow.index(of, attained), rel=1e-7)


def test_worked_by_hand() -> None:
    history = History()
    assert history.hazards(ANN) == [0.1] * 41 + [1.0]
    history.ended(ANN, 10.0)
    # Class (1 + 5 x .1) / 6 = .25, user (1 + 3 x .25) / 4 = .4375, user and size
    # (1 + 2 x .4375) / 3 = .625, kin (1 + 2 x .625) / 3 = .75.
    first, second, *_ = history.hazards(ANN)
    assert first == pytest.approx(0.75)
    assert second == pytest.approx(0.1)
    # Each knows as much as it has in common: another kin, another size, another user, a class.
    assert history.hazards(replace(ANN, kin=5))[0] == pytest.approx(0.625)
    assert history.hazards(replace(ANN, size=5, share=5 / 128))[0] == pytest.approx(0.4375)
    assert history.hazards(replace(ANN, user="bob"))[0] == pytest.approx(0.25)
    # 16 of 128 nodes are the next class.
    assert history.hazards(Features("bob", 16, 16 / 128))[0] == pytest.approx(0.1)
    # One more at 15 s, also in bin 0: by then the first weighs .999, .97, .92 and .95.
    history.ended(ANN, 15.0)
    hazard = 0.1
    for kappa, seen in ((5, 1.999), (3, 1.97), (2, 1.92), (2, 1.95)):
        hazard = (seen + kappa * hazard) / (seen + kappa)
    assert history.hazards(ANN)[0] == pytest.approx(hazard)
    assert history.mean_seconds == 12.5


def test_kin_is_how_the_last_one_like_it_ended() -> None:
    history = History()
    nothing_known = history.kin("ann", 4)
    # 20 x 1.35^17 = 3,285 s and 20 x 1.35^18 = 4,435 s are the edges around an hour: bin 18, the
    # sixth class of three. 10 s are in bin 0, the class before all others.
    history.ended(ANN, HOUR)
    of_an_hour = history.kin("ann", 4)
    assert of_an_hour == 1 + 18 // 3
    # Another size: the user's last task counts, but as another kin.
    of_the_user = history.kin("ann", 8)
    assert of_the_user == 1000 + 18 // 3
    history.ended(replace(ANN, size=8, share=8 / 128), 10.0)
    assert (history.kin("ann", 4), history.kin("ann", 8)) == (of_an_hour, 1)
    assert history.kin("ann", 16) == 1000
    assert history.kin("bob", 4) == nothing_known
    assert len({nothing_known, of_an_hour, of_the_user, 1, 1000}) == 5
    # Only an end is evidence: a run that goes on may still have any duration.
    history.outlived(ANN, 0.0, 5 * DAY)
    assert history.kin("ann", 4) == of_an_hour
    history.ended(ANN, 3300.0)
    assert history.kin("ann", 4) == of_an_hour
    history.ended(ANN, 3280.0)
    assert history.kin("ann", 4) == 1 + 17 // 3


def test_kin_separates_what_a_user_alternates_between() -> None:
    """Failed starts of a minute come in rows, and so do runs of ten hours."""
    history = History()
    for _ in range(8):
        for seconds in (60.0, 60.0, 60.0, 10 * HOUR, 10 * HOUR, 10 * HOUR):
            kin = history.kin("ann", 4)
            history.ended(replace(ANN, kin=kin), seconds)
    after_long = replace(ANN, kin=history.kin("ann", 4))
    history.ended(after_long, 60.0)
    after_short = replace(ANN, kin=history.kin("ann", 4))
    assert 1.3 * history.index(after_short, 0.0) < history.index(after_long, 0.0)


def test_living_tasks_warn_of_their_siblings() -> None:
    fresh, warned = History(), History()
    for _ in range(20):
        fresh.ended(ANN, 60.0)
        warned.ended(ANN, 60.0)
    before = warned.index(ANN, 0.0)
    for _ in range(20):
        warned.outlived(ANN, 0.0, HOUR)
    assert warned.index(ANN, 0.0) > 1.5 * before
    assert fresh.index(ANN, 0.0) == before


def test_a_task_near_its_usual_end_is_worth_finishing() -> None:
    history = History()
    for _ in range(50):
        history.ended(ANN, 5 * HOUR)
    assert history.index(ANN, 4.5 * HOUR) < HOUR < history.index(ANN, 0.0)


def test_a_limit_is_read_as_an_estimate() -> None:
    history = History()
    short, long = replace(ANN, limit_seconds=600.0), replace(ANN, limit_seconds=10 * DAY)
    assert history.index(short, 0.0) < history.index(long, 0.0)
    assert history.index(short, 0.0) < 600.0
    # The habit of using a tenth of the limit carries over to other limits.
    tenth = History()
    for limit in (HOUR, 3 * HOUR, 10 * HOUR):
        for _ in range(20):
            tenth.ended(replace(ANN, limit_seconds=limit), limit / 10)
    new = replace(ANN, user="bob", limit_seconds=30 * HOUR)
    hazards = tenth.hazards(new)
    usual = bin_of(3 * HOUR)
    # Whole bins: the habit lies in this one or beside it.
    assert max(hazards[usual - 1 : usual + 2]) > 2 * max(hazards[usual - 2], hazards[usual + 2])


@pytest.mark.parametrize("limit", [None, 0.0, -5.0, nan, inf])
def test_limits_without_information_are_none(limit: float | None) -> None:
    history = History()
    history.ended(ANN, HOUR)
    assert history.index(replace(ANN, limit_seconds=limit), 10.0) == history.index(ANN, 10.0)


def from_quantiles(mean: float, alpha: float | None) -> History:
    """A history of 4,000 ends of an exponential, or of a Pareto's tail."""
    history, count = History(FOREVER), 4000
    durations = [
        -mean * log(1 - (k + 0.5) / count)
        if alpha is None
        else mean * (1 - (k + 0.5) / count) ** (-1 / alpha)
        for k in range(count)
    ]
    Random(5).shuffle(durations)
    for duration in durations:
        history.ended(ANN, duration)
    return history


def test_of_an_exponential_the_index_is_its_mean_at_any_age() -> None:
    history = from_quantiles(2 * HOUR, None)
    for attained in (0.0, 600.0, HOUR, 2 * HOUR, 4 * HOUR):
        assert history.index(ANN, attained) == pytest.approx(2 * HOUR, rel=0.12)


def test_of_a_heavy_tail_the_index_grows_with_age() -> None:
    history = from_quantiles(600.0, 1.2)
    at = [history.index(ANN, 1800.0 * 2**k) for k in range(6)]
    assert at == sorted(at)
    # For a Pareto distribution it is a / alpha: it doubles with the age.
    assert at[4] / at[0] == pytest.approx(16.0, rel=0.3)
    assert at[2] == pytest.approx(7200.0 / 1.2, rel=0.2)


@settings(max_examples=30, deadline=None)
@given(observations, features, st.floats(allow_nan=True, allow_infinity=True))
def test_hazards_are_parts_and_the_index_is_positive_and_finite(
    rows: list[tuple[bool, Features, float, float]], of: Features, attained: float
) -> None:
    history = History()
    record_all(history, rows)
    hazards = history.hazards(of)
    assert len(hazards) == 42
    assert all(0.0 < hazard <= 1.0 for hazard in hazards)
    index = history.index(of, attained)
    assert isfinite(index)
    assert index > 0.0


@pytest.mark.parametrize("odd", [-1.0, nan, inf, 1e300, EDGES[42], 0.0])
def test_odd_durations_do_no_harm(odd: float) -> None:
    history = History()
    for of in (ANN, replace(ANN, limit_seconds=HOUR)):
        history.ended(of, odd, odd)
        history.outlived(of, odd, odd)
        history.outlived(of, 0.0, odd)
        history.outlived(of, HOUR, 60.0)
        assert 0.0 < history.index(of, odd) <= NUMBERS.ceiling_seconds
    assert isfinite(history.mean_seconds)


def test_beyond_the_last_edge_the_index_grows_with_age() -> None:
    history = History()
    ages = [EDGES[41], EDGES[42], 2 * EDGES[42], 100 * EDGES[42]]
    at = [history.index(ANN, age) for age in ages]
    assert at == sorted(at)
    # No jump at the last edge either.
    assert history.index(ANN, EDGES[41] * 0.999999) == pytest.approx(at[0], rel=1e-3)


def test_the_index_hardly_jumps_at_edges() -> None:
    history = from_quantiles(2 * HOUR, None)
    # Where bins are narrower than the mean.
    for edge in EDGES[5:22]:
        before, after = history.index(ANN, edge * (1 - 1e-7)), history.index(ANN, edge)
        assert before == pytest.approx(after, rel=0.15)


@settings(max_examples=25, deadline=None)
@given(features, st.lists(seconds, min_size=2, max_size=5))
def test_outlived_in_steps_is_outlived_at_once(of: Features, run_times: list[float]) -> None:
    run_times = sorted(run_times)
    once, steps = History(), History()
    for history in (once, steps):
        history.ended(of, HOUR)
    once.outlived(of, run_times[0], run_times[-1])
    for start, stop in pairwise(run_times):
        steps.outlived(of, start, stop)
    assert once.dump() == steps.dump()
    # An end counts only what was not counted yet, so slices change nothing about it but when.
    once.ended(of, run_times[-1], run_times[-1])
    steps.ended(of, run_times[-1], run_times[-1])
    assert once.dump() == steps.dump()


@settings(max_examples=25, deadline=None)
@given(observations, st.randoms(use_true_random=False))
def test_without_forgetting_the_order_does_not_matter(
    rows: list[tuple[bool, Features, float, float]], random: Random
) -> None:
    other = list(rows)
    random.shuffle(other)
    one, two = History(FOREVER), History(FOREVER)
    record_all(one, rows)
    record_all(two, other)
    for of in (ANN, replace(ANN, limit_seconds=HOUR), Features("bob", 32, 0.25)):
        assert one.hazards(of) == pytest.approx(two.hazards(of), rel=1e-12)
    assert one.mean_seconds == pytest.approx(two.mean_seconds)


def test_others_do_not_touch_a_users_cells() -> None:
    quiet, busy = History(), History()
    bob = Features("bob", 64, 0.5)
    for k in range(30):
        quiet.ended(ANN, 100.0 * k)
        busy.ended(ANN, 100.0 * k)
        busy.ended(bob, 7.0 * k)
    assert quiet.hazards(ANN) == busy.hazards(ANN)


def test_many_ends_overflow_nothing() -> None:
    history = History()
    limited = replace(ANN, limit_seconds=HOUR)
    for k in range(5000):
        history.ended(limited, 60.0 + k % 600)
    for _ in range(20):
        history.ended(limited, HOUR / 2)
    # The latest twenty ends are what the user does now.
    hazards = history.hazards(limited)
    assert hazards[bin_of(HOUR / 2)] > 0.8
    assert all(0.0 < hazard <= 1.0 for hazard in hazards)


@settings(max_examples=25, deadline=None)
@given(observations, features, seconds)
def test_a_dump_is_json_and_loads_to_the_same(
    rows: list[tuple[bool, Features, float, float]], of: Features, attained: float
) -> None:
    history = History()
    record_all(history, rows)
    again = History.load(json.loads(json.dumps(history.dump())))
    assert again.hazards(of) == pytest.approx(history.hazards(of), rel=1e-7)
    assert again.index(of, attained) == pytest.approx(history.index(of, attained), rel=1e-3)
    assert (again.mean_seconds, again.ends) == (history.mean_seconds, history.ends)
    for user, size in (("ann", 4), ("ann", 128), ("bob", 1), ("eve", 3)):
        assert again.kin(user, size) == history.kin(user, size)
    # And goes on the same.
    for either in (history, again):
        either.ended(of, attained)
    assert again.hazards(of) == pytest.approx(history.hazards(of), rel=1e-7)


def rows_of(dump: dict[str, object]) -> list[dict[str, object]]:
    return cast("list[dict[str, object]]", dump["cells"])


def test_cells_are_bounded_and_the_latest_stay() -> None:
    numbers = replace(NUMBERS, cells_max=20)
    history = History(numbers)
    for k in range(500):
        history.ended(replace(ANN, user=f"user{k}"), HOUR)
        history.ended(ANN, 5.0)
    assert len(rows_of(history.dump())) == 21
    # A user who is seen again and again is never forgotten; the oldest ones are.
    first = history.hazards(replace(ANN, user="user0"))
    assert first == history.hazards(replace(ANN, user="never seen"))
    assert history.hazards(ANN)[0] > 0.95 > first[0]
    assert history.kin("user0", 4) == history.kin("never seen", 4) != history.kin("ann", 4)
    dump = history.dump(cells_max=4)
    # Each end touches the user, the user's size and the kin, in this order.
    assert [row["key"] for row in rows_of(dump)] == [
        ["class", 1],
        ["user+size+kin", "user499", 4, 0],
        ["user", "ann"],
        ["user+size", "ann", 4],
        ["user+size+kin", "ann", 4, 0],
    ]
    assert dump["last_ends"] == [
        [["user499"], 18],
        [["user499", 4], 18],
        [["ann"], 0],
        [["ann", 4], 0],
    ]
    assert len(json.dumps(dump)) < 2000
    assert history.dump(cells_max=0)["last_ends"] == []
    # A smaller predictor takes the latest of a bigger one's.
    smaller = History.load(history.dump(), replace(NUMBERS, cells_max=3)).dump()
    assert smaller["last_ends"] == [[["user499", 4], 18], [["ann"], 0], [["ann", 4], 0]]
    assert len(rows_of(smaller)) == 4


def broken(change: dict[str, object]) -> dict[str, object]:
    history = History()
    history.ended(ANN, HOUR)
    dump = history.dump()
    return {**dump, "cells": [{**rows_of(dump)[0], **change}]}


NO_DUMPS: list[object] = [
    None,
    [],
    {},
    {**History().dump(), "version": 1},
    {**History().dump(), "last_ends": [[["ann"], 42]]},
    {**History().dump(), "last_ends": [[["ann"], -1]]},
    {**History().dump(), "last_ends": [["ann"]]},
    {**History().dump(), "last_ends": [[["ann"], "x"]]},
    {**History().dump(), "bins": 10},
    {**History().dump(), "mean_seconds": nan},
    {**History().dump(), "ends": -1},
    {**History().dump(), "cells": [{"key": []}]},
    broken({"first": 40}),
    broken({"first": -1}),
    broken({"ended": [2.0] * 18}),
    broken({"reached": [nan] * 18}),
    broken({"reached": [1.0]}),
    broken({"ended": ["x"] * 18}),
]


@pytest.mark.parametrize("value", NO_DUMPS)
def test_a_malformed_dump_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"histor|argument|unpack"):
        History.load(value)


@pytest.mark.parametrize(
    "change",
    [
        {"bins": 1},
        {"ratio": 1.0},
        {"first_seconds": 0.0},
        {"flat_hazard": 0.0},
        {"limit_hazard": 1.0},
        {"limit_mean_part": 1.5},
        {"user": Level("user", 0.0, 0.9)},
        {"user": Level("user", 1.0, 0.0)},
        {"user_size_kin": Level("user+size+kin", 2.0, 1.1)},
        {"kin_bins": 0},
        {"cells_max": 0},
    ],
)
def test_numbers_that_cannot_be_meant_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"above|at least|from 0"):
        replace(NUMBERS, **change)  # pyright: ignore[reportArgumentType] - wrong on purpose
