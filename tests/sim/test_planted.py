"""The simulation finds what it is there to find: each planted defect, within so many worlds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest

from tests.sim import planted
from tests.sim.world import World, run_world

# (defect, world, a judge that finds it, the worlds that are tried at most)
DEFECTS = [
    pytest.param(planted.double_assignment, World, "slots_never_double_booked", 10),
]


@pytest.mark.parametrize(("defect", "world", "judge", "worlds"), DEFECTS)
def test_a_planted_defect_is_found(
    defect: Callable[[], AbstractContextManager[None]],
    world: type[World],
    judge: str,
    worlds: int,
) -> None:
    with defect():
        for seed in range(worlds):
            complaints = run_world(seed, world).complaints
            if any(judge in text for text in complaints):
                return
    pytest.fail(f"{judge} found nothing in {worlds} worlds")


def test_interleaved_commits_alone_do_no_harm() -> None:
    for seed in range(8):
        with nullcontext():
            assert not run_world(seed, planted.InterleavedWorld).complaints
