"""Idle GPUs and quiet runs: what counts, from when on, and what is published of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
from prometheus_client import REGISTRY

from libs.contracts.messages import RunActivityChanged, TaskState
from services.monitor.activities import ActivityRow
from services.monitor.domain.activity import Activity, ActivityLimits, ActivityState, RankUse
from tests.kit.clock import at
from tests.kit.service import ServiceHarness
from tests.services.monitor.events import a_change
from tests.services.monitor.series.samples import TASK, a_rank, a_sample
from tests.services.monitor.series.test_recording import hearing, send

LIMITS = ActivityLimits(
    idle_percent=10.0, idle_seconds=60.0, quiet_cores=0.05, quiet_seconds=60.0, sample_seconds=30.0
)


def observed(
    *samples: tuple[float, Sequence[float | None], float | None], gpus: Sequence[int] = (0, 1)
) -> Activity:
    """A run of one rank. Each sample: when, its GPUs in percent, its processors."""
    activity = Activity(samples[0][0], samples[0][0])
    for at_s, percent, cores in samples:
        use = RankUse(0, gpus, cores)
        activity.observe("n1", at_s, [use], dict(enumerate(percent)), LIMITS)
    return activity


def test_a_gpu_is_idle_once_its_utilization_was_low_for_long() -> None:
    samples = [(t, (5.0, 95.0), 1.0) for t in range(0, 60, 10)]
    assert observed(*samples).state(LIMITS).idle_gpus == 0
    assert observed(*samples, (60, (5.0, 95.0), 1.0)).state(LIMITS) == ActivityState(2, 1, 0, None)
    # One busy sample in between begins the time again.
    again = observed(*samples, (60, (50.0, 95.0), 1.0), (70, (5.0, 95.0), 1.0))
    assert again.state(LIMITS) == ActivityState(2, 0, None, None)


def test_the_sums_are_those_of_the_times_between_samples() -> None:
    found = observed((0, (0, 0), 1.0), (10, (0, 50), 1.0), (20, (50, 0), 1.0))
    assert (found.measured_gpu_s, found.idle_gpu_s) == (40.0, 20.0)


def test_a_gap_counts_as_one_sample_at_most() -> None:
    assert observed((0, (0, 0), 1.0), (1000, (0, 0), 1.0)).measured_gpu_s == 60.0


def test_what_is_not_measured_is_neither_idle_nor_busy() -> None:
    samples = [(t, (None, None), None) for t in range(0, 200, 10)]
    found = observed(*samples)
    assert found.state(LIMITS) == ActivityState(0, 0, None, None)
    assert (found.measured_gpu_s, found.idle_gpu_s) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("percent", "cores", "quiet"),
    [
        ((0.0, 0.0), 0.0, True),
        ((0.0, 0.0), 0.5, False),
        ((0.0, 50.0), 0.0, False),
        # Slots without a GPU, or a driver that gives no utilization: what is measured counts.
        ((0.0, None), 0.0, True),
        ((None, None), 0.0, True),
        ((None, 50.0), 0.0, False),
        ((None, None), 0.5, False),
        ((0.0, 0.0), None, False),
    ],
)
def test_a_run_is_quiet_without_processors_and_gpus(
    percent: Sequence[float | None], cores: float | None, quiet: bool
) -> None:
    samples = [(t, percent, cores) for t in range(0, 100, 10)]
    assert observed(*samples).state(LIMITS).quiet_since_s == (0 if quiet else None)


def test_a_run_without_gpus_can_be_quiet_and_one_busy_rank_is_enough() -> None:
    found = observed(*((t, (), 0.0) for t in range(0, 100, 10)), gpus=())
    assert found.state(LIMITS) == ActivityState(0, 0, None, 0)
    found.observe("n2", 90, [RankUse(1, (), 2.0)], {}, LIMITS)
    assert found.state(LIMITS).quiet_since_s is None
    # That rank is over, and its node is not sampled any more.
    found.observe("n1", 200, [RankUse(0, (), 0.0)], {}, LIMITS)
    found.forget_old(150)
    assert found.state(LIMITS).quiet_since_s == 0


@pytest.fixture
async def monitor(service: ServiceHarness) -> AsyncIterator[ServiceHarness]:
    service.clock.move_to(0)
    await service.lead()
    async with hearing(service):
        yield service


async def run_for(
    monitor: ServiceHarness, begin: int, end: int, percent: float, cores: float = 1.0
) -> list[RunActivityChanged]:
    """Samples every 10 s, written every minute; what was published."""
    for t in range(begin, end, 10):
        ranks = [a_rank(0, gpus=[0], cores=cores)]
        await send(monitor, a_sample(t, gpus=[percent, 99.0], ranks=ranks))
        if t % 60 == 50:
            await monitor.step("activity")
    return [each for each in await monitor.published() if isinstance(each, RunActivityChanged)]


async def test_a_change_is_published_once_and_the_sums_now_and_then(
    monitor: ServiceHarness,
) -> None:
    assert await run_for(monitor, 0, 300, 80.0) == []
    sums, begins = await run_for(monitor, 300, 960, 3.0)
    assert (sums.measured_until, sums.idle_gpus) == (at(650), 0)
    assert (begins.task_id, begins.gpus, begins.idle_gpus) == (TASK, 1, 1)
    assert begins.idle_since == at(300)
    assert begins.quiet_since is None
    assert begins.measured_from == at(0)
    (sums,) = await run_for(monitor, 960, 1560, 3.0)
    assert sums.measured_until > begins.measured_until
    (ends,) = await run_for(monitor, 1560, 1620, 80.0)
    assert (ends.idle_gpus, ends.idle_since) == (0, None)
    assert ends.idle_gpu_seconds == pytest.approx(1260, abs=10)
    assert ends.measured_gpu_seconds == pytest.approx(1610, abs=10)


def counted(name: str, group: str) -> float:
    full = f"shiftwork_held_gpu_{name}_seconds_total"
    return REGISTRY.get_sample_value(full, {"group": group}) or 0.0


async def test_activity_is_counted_by_group_once_it_is_stored(monitor: ServiceHarness) -> None:
    await monitor.handle(a_change(monitor, 1, TaskState.RUNNING, TASK, group="train"))
    names = ("measured", "idle", "busy")
    before = {name: counted(name, "train") for name in names}
    await run_for(monitor, 0, 60, 80.0)
    await run_for(monitor, 60, 120, 5.0)
    found = {name: counted(name, "train") - before[name] for name in names}
    assert found == {
        # One GPU is held; the last sample before a write counts.
        "measured": pytest.approx(110),
        "idle": pytest.approx(60),
        "busy": pytest.approx(50 * 0.8 + 60 * 0.05),
    }
    # Nothing is counted twice, by this leader or the next.
    await monitor.step("activity")
    monitor.service.on_lead_end()
    await monitor.lead()
    await monitor.step("activity")
    assert counted("measured", "train") - before["measured"] == pytest.approx(110)


async def test_the_sums_are_published_after_the_last_sample_whoever_leads_then(
    monitor: ServiceHarness,
) -> None:
    assert await run_for(monitor, 0, 120, 3.0) == []
    monitor.service.on_lead_end()
    await monitor.lead()
    monitor.clock.move_to(600)
    await monitor.step("activity")
    (last,) = [e for e in await monitor.published() if isinstance(e, RunActivityChanged)]
    assert (last.measured_until, last.idle_gpus) == (at(110), 0)
    assert last.idle_gpu_seconds == pytest.approx(110)
    await monitor.step("activity")
    assert await monitor.published() == []


async def test_a_new_leader_goes_on_with_sums_and_idle_times(monitor: ServiceHarness) -> None:
    await run_for(monitor, 0, 480, 3.0)
    monitor.service.on_lead_end()
    await monitor.lead()
    (found,) = await run_for(monitor, 480, 660, 3.0)
    assert found.idle_since == at(0)
    (row,) = await monitor.rows(ActivityRow)
    # The time between the two leaders' samples is not measured.
    assert row.idle_gpu_seconds == pytest.approx(640, abs=1)
