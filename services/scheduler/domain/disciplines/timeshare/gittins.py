"""How long a task will still run, from the hazards of the bins of running time before it.

A hazard is the part of the tasks that, having reached a bin, end in it. Called by ``history.py``
once per key: plain loops over lists, which stop where nothing can change any more.
"""

from __future__ import annotations

from collections.abc import Sequence

# Ends are spread evenly over a bin: on average at half of it.
_HALF = 0.5
# The part of the tasks still alive that no longer matters.
NEGLIGIBLE = 1e-9


def gittins_index(hazards: Sequence[float], widths: Sequence[float], ceiling: float) -> float:
    """The least expected running time per task that ends, over all times to look again.

    That is min over D of E[min(R, D)] / P(R <= D), R the time a task will still run, D the end of
    one of the bins. ``widths`` may only grow from the second on: where half a bin is as long as
    the best so far, no later bin can lower it. Seconds; at most ``ceiling``.
    """
    alive, ended, spent, best = 1.0, 0.0, 0.0, ceiling
    for hazard, width in zip(hazards, widths, strict=False):
        if _HALF * width >= best:
            break
        share = alive * hazard
        spent += width * (alive - _HALF * share)
        ended += share
        alive -= share
        if spent < best * ended:
            best = spent / ended
    return best


def mean_residual(hazards: Sequence[float], widths: Sequence[float], ceiling: float) -> float:
    """The expected time a task will still run; what is alive after the last bin ends there.

    Seconds; at most ``ceiling``.
    """
    alive, spent = 1.0, 0.0
    for hazard, width in zip(hazards, widths, strict=False):
        share = alive * hazard
        spent += width * (alive - _HALF * share)
        alive -= share
        if alive < NEGLIGIBLE:
            break
    return min(spent, ceiling)
