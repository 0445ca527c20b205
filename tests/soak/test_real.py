"""Nothing grows with the number of tasks on real servers: the reduced form of ``make soak``."""

from __future__ import annotations

import pytest

from tests.soak.growth import Samples
from tests.soak.real import soak_real

TASKS, PER_SAMPLE, KEEP_SECONDS = 300, 75, 4.0


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_nothing_grows_on_real_servers() -> None:
    assert await soak_real(TASKS, PER_SAMPLE, keep_seconds=KEEP_SECONDS) == []


def test_growth_before_the_middle_is_not_a_leak() -> None:
    samples = Samples()
    for filled, leaking in ((10, 10), (60, 60), (90, 110), (90, 160), (90, 210)):
        samples.add({"filled": filled, "leaking": leaking})
    assert samples.growing(slack=20, since=2) == ["leaking: 110 -> 210"]
