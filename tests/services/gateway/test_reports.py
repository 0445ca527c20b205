"""A history in two rows is the history that one row would be."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from services.gateway import reports, store
from services.gateway.reports import Limits, Sample
from services.gateway.rows import MetricsRow, MetricTailRow, ProgressRow
from services.gateway.tables import TABLES
from tests.kit.clock import at
from tests.kit.memory import MemoryPlatform
from tests.kit.virtual_time import virtually

NAMES = ("loss", "lr", "speed")


def sample(seconds: int, values: dict[str, float]) -> Sample:
    return at(seconds), values


VALUES = st.dictionaries(st.sampled_from(NAMES), st.floats(0, 1), min_size=1)
REPORTS = st.lists(
    st.tuples(st.integers(1, 2), st.lists(st.tuples(st.integers(0, 60), VALUES), max_size=40)),
    max_size=12,
)


@given(sent=REPORTS, points_max=st.integers(3, 60), values_max=st.integers(3, 90))
def test_moving_samples_into_the_long_row_neither_loses_nor_doubles_any(
    sent: list[tuple[int, list[tuple[int, dict[str, float]]]]], points_max: int, values_max: int
) -> None:
    """Both rows are thinned at their limits, at different times; until then they are equal."""
    limits = Limits(points_max=points_max, names_max=10, values_max=values_max)

    async def main() -> None:
        kept, one = MemoryPlatform().store(TABLES), None
        for attempt, given_samples in sent:
            samples = [sample(*each) for each in given_samples]
            one = reports.add(
                one, task_id="t", rank=0, attempt=attempt, samples=samples, limits=limits
            )
            async with kept.transaction() as tx:
                await store.report(tx, "t", 0, attempt=attempt, samples=samples, limits=limits)
        async with kept.transaction() as tx:
            (two,) = await store.metrics(tx, limit=2) or (None,)
        if one is None or two is None:
            assert one is two
            return
        assert (two.attempt, two.at, two.latest, two.count) == (
            one.attempt,
            one.at,
            one.latest,
            one.count,
        )
        assert len(two.points) <= max(points_max, reports.POINTS_MIN)
        assert (two.points, two.stride) == (one.points, one.stride)

    virtually(main())


def test_a_report_writes_a_few_points_and_not_the_whole_history() -> None:
    limits = Limits(points_max=240, names_max=64, values_max=4_000)

    async def main() -> None:
        kept = MemoryPlatform().store(TABLES)
        long_rows, points = 0, 0
        for second in range(1000):
            async with kept.transaction() as tx:
                await store.report(
                    tx, "t", 0, attempt=1, samples=[sample(second, {"loss": 0.5})], limits=limits
                )
                written = tx._overlay.writes  # type: ignore[attr-defined]
                for rows in written.values():
                    for row in rows.values():
                        if isinstance(row, ProgressRow):
                            assert len(row.latest) <= reports.PROGRESS_NAMES_MAX
                            continue
                        assert isinstance(row, MetricsRow | MetricTailRow)
                        long_rows += isinstance(row, MetricsRow)
                        points += len(row.points)
        assert long_rows <= 1000 / reports.TAIL_POINTS_MAX
        # One row for everything: nearly 240 with each of the thousand reports.
        assert points <= 25 * 1000

    virtually(main())


def test_a_row_that_a_process_without_tails_wrote_meanwhile_counts() -> None:
    limits = Limits(points_max=240, names_max=64, values_max=4_000)

    async def main() -> None:
        kept = MemoryPlatform().store(TABLES)
        async with kept.transaction() as tx:
            await store.report(
                tx, "t", 0, attempt=1, samples=[sample(1, {"loss": 0.5})], limits=limits
            )
        async with kept.transaction() as tx:
            (row,) = await store.metrics(tx, limit=1)
            later = reports.add(
                row,
                task_id="t",
                rank=0,
                attempt=1,
                samples=[sample(2, {"loss": 0.4})],
                limits=limits,
            )
            tx.put(later)
        async with kept.transaction() as tx:
            (row,) = await store.metrics(tx, limit=1)
        assert (row.count, row.latest) == (2, {"loss": 0.4})

    virtually(main())
