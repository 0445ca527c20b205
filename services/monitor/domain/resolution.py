"""Which steps there are, and which of them answers a question. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from services.monitor.domain.blocks import POINTS


@dataclass(frozen=True, slots=True)
class Resolution:
    """Points at one distance, and how long they are kept."""

    step_s: int
    keep_s: float


@dataclass(frozen=True, slots=True)
class Choice:
    """The stored step that is read, and the distance of the points in the answer: a multiple."""

    base_s: int
    step_s: int


def check_steps(steps: Sequence[int]) -> None:
    """Raise ValueError unless blocks of each step lie whole in blocks of the next one, and each
    point of those is made of whole points."""
    for fine, coarse in itertools.pairwise(steps):
        width, rest = divmod(coarse, fine)
        if rest or width <= 1 or POINTS % width:
            widths = [each for each in range(2, POINTS + 1) if POINTS % each == 0]
            allowed = ", ".join(str(fine * each) for each in widths)
            raise ValueError(f"{coarse} s does not follow {fine} s; after {fine} s use {allowed}")


def choose(
    resolutions: Sequence[Resolution],
    *,
    begins_s: float,
    ends_s: float,
    now_s: float,
    wanted_s: int,
    points_max: int,
) -> Choice:
    """Choose as fine as the question wants, as its length allows, and as is kept so far back."""
    seconds = max(1.0, ends_s - begins_s)
    least = max(wanted_s, math.ceil(seconds / points_max))
    kept = [each.step_s for each in resolutions if now_s - begins_s <= each.keep_s]
    steps = kept or [resolutions[-1].step_s]
    # The coarsest that is fine enough costs the fewest rows.
    base = max((step for step in steps if step <= least), default=steps[0])
    return Choice(base, math.ceil(max(least, base) / base) * base)
