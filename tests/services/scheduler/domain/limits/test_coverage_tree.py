"""A tree that is kept up to date in blocks answers as one walk along all rows does."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from services.scheduler.domain.limits import coverage_tree
from services.scheduler.domain.limits.coverage_tree import Tree
from services.scheduler.domain.limits.virtual_clusters import CoverageRow, Depth, VirtualClusters
from services.scheduler.domain.model.group_policy import GroupPolicy, VirtualCluster

CLUSTERS = (
    VirtualCluster("all", 12.0),
    VirtualCluster("left", 5.0, parent="all"),
    VirtualCluster("right", 4.0, parent="all"),
    VirtualCluster("small", 1.5, parent="right"),
)
SIZES = (0.0625, 1 / 3, 0.5, 1.0, 1.0, 3.0)


@pytest.fixture(autouse=True, scope="module", params=[(4, 2), (128, 32)])
def _blocks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Small blocks, so that few rows fill many; and those of the service."""
    with pytest.MonkeyPatch.context() as patch:
        most, least = request.param
        patch.setattr(coverage_tree, "ROWS_MAX", most)
        patch.setattr(coverage_tree, "ROWS_MIN", least)
        yield


CHANGES = st.lists(
    st.tuples(
        st.integers(0, 60),
        st.sampled_from([-1, -2, -3]),
        st.sampled_from(SIZES),
        st.sampled_from(CLUSTERS),
        st.integers(0, 3),
    ),
    max_size=120,
)


@settings(max_examples=80, deadline=None)
@given(changes=CHANGES)
def test_a_change_is_answered_as_by_counting_everything(
    changes: list[tuple[int, int, float, VirtualCluster, int]],
) -> None:
    clusters = VirtualClusters(GroupPolicy("default", virtual_clusters=CLUSTERS))
    tree = Tree(clusters)
    rows: dict[str, CoverageRow] = {}
    depths: dict[str, Depth] = {}
    for number, minus, size, cluster, together in changes:
        task_id = f"t{number}"
        if task_id in rows:
            tree.leave(rows.pop(task_id)[:3])
            depths.pop(task_id, None)
        else:
            rows[task_id] = minus, float(number % 7), task_id, size, cluster.name
            tree.enter(rows[task_id])
        if together:
            # Several changes are settled together.
            continue
        depths.update(tree.changed())
        ordered = sorted(rows.values())
        assert list(tree) == ordered
        assert depths == clusters.counted(ordered)
        for weight in (1, 2, 3):
            first = [row for row in ordered if row[0] <= -weight]
            own = -weight, 0.0, "", size, cluster.name
            expected = clusters.counted([*first, own])[own[2]]
            assert tree.claim(weight, size, cluster.name) == expected
