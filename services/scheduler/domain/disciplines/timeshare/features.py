"""The features of a task for the predictor, and the predictor's numbers. Read by ``history.py``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Features:
    """The known properties of a task before it runs."""

    user: str
    # Its size in nodes or node equivalents.
    size: float
    # The same as a part of the pool.
    share: float
    # The user's own limit of the running time; None where there is none or it is not to be used.
    limit_seconds: float | None = None
    # The result of ``History.kin`` at its submission.
    kin: int = 0


@dataclass(frozen=True, slots=True)
class Level:
    """One level of similarity."""

    name: str
    # How many observations weigh as much as the estimate of the levels before.
    kappa: float
    # The weight of an observation after one more end in its cell.
    decay: float


@dataclass(frozen=True, slots=True)
class PredictorSettings:
    """The parameters of the predictor; times are in seconds."""

    # Bins of running time: the first ends at ``first_seconds``, each next one ``ratio`` later.
    bins: int = 42
    first_seconds: float = 20.0
    ratio: float = 1.35
    # The hazard of every bin before anything was seen.
    flat_hazard: float = 0.1
    # From a user's limit on, at least so many end in each bin.
    limit_hazard: float = 0.95
    # With a limit, the part of the mean residual in the index; what is left is the Gittins index.
    limit_mean_part: float = 0.5
    # Parts of the pool from which a task belongs to the next size class.
    class_shares: tuple[float, ...] = (1 / 32, 1 / 8, 1 / 4)
    # The levels, from the least alike to the most; those after ``kin`` only where there is a limit.
    size_class: Level = Level("class", 5.0, 0.999)
    user: Level = Level("user", 3.0, 0.97)
    user_size: Level = Level("user+size", 2.0, 0.92)
    user_size_kin: Level = Level("user+size+kin", 2.0, 0.95)
    # Running times in one class of kin differ at most by this many bins.
    kin_bins: int = 3
    class_relative: Level = Level("class/limit", 10.0, 0.999)
    user_relative: Level = Level("user/limit", 3.0, 0.97)
    user_size_limit: Level = Level("user+size+limit", 1.0, 0.85)
    # The mean duration before any task ended, and over how many ends it is taken.
    mean_seconds: float = 3600.0
    mean_window: int = 100_000
    # No prediction is longer, no attained time counts for more.
    ceiling_seconds: float = 1e10
    # Cells of users that are kept; the ones without an observation for longest go first.
    cells_max: int = 20_000

    def __post_init__(self) -> None:
        """Reject impossible numbers."""
        if self.bins < 2 or self.first_seconds <= 0 or self.ratio <= 1:  # noqa: PLR2004 - a bin and the last
            raise ValueError("bins: at least 2, first_seconds above 0, ratio above 1")
        if not 0 < self.flat_hazard < 1 or not 0 < self.limit_hazard < 1:
            raise ValueError("flat_hazard and limit_hazard: above 0 and below 1")
        if not 0 <= self.limit_mean_part <= 1:
            raise ValueError("limit_mean_part: from 0 to 1")
        for level in (*self.levels, *self.limit_levels):
            if level.kappa <= 0 or not 0 < level.decay <= 1:
                raise ValueError(f"level {level.name}: kappa above 0, decay above 0 and at most 1")
        if min(self.cells_max, self.mean_window, self.kin_bins) < 1:
            raise ValueError("cells_max, mean_window and kin_bins: at least 1")

    @property
    def levels(self) -> tuple[Level, Level, Level, Level]:
        """The levels of every task."""
        return (self.size_class, self.user, self.user_size, self.user_size_kin)

    @property
    def limit_levels(self) -> tuple[Level, Level, Level]:
        """The levels of tasks with a limit."""
        return (self.class_relative, self.user_relative, self.user_size_limit)
