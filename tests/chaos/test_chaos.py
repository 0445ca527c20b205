from __future__ import annotations

import pytest

from tests.chaos.chaos import Plan, play, print_line


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(300)
async def test_everything_may_die() -> None:
    report = await play(Plan(seed=20_26, seconds=20.0, nodes=2), print_line)
    assert not report.complaints
    assert len(report.faults) >= 5
    assert report.counts["acknowledged checkpoints"] > 0
