"""Predicts how long a task will still run, from ended and living tasks.

Running time is cut into logarithmic bins. For each of several *levels* of likeness (the size
class, the user, the user at this size, ...) a cell counts how many tasks reached a bin and how
many ended in it; the hazard of a bin is shrunk from level to level, each trusting its own counts
as far as they go. Living tasks count too: they show that a bin was outlived before any task ended.

The timeshare discipline reports ends, preemptions and slices to ``History`` and reads the index
that a key contains: once per arrival, slice end and end of a task, so it must be fast. Old counts
fade lazily: instead of shrinking all counts at each end, the next observation weighs more.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping
from itertools import pairwise
from math import ceil, inf, log
from typing import TypeAlias, cast

from services.scheduler.domain.disciplines.timeshare.features import (
    Features,
    Level,
    PredictorSettings,
)
from services.scheduler.domain.disciplines.timeshare.gittins import (
    NEGLIGIBLE,
    gittins_index,
    mean_residual,
)

# At this weight of an observation, a cell is rewritten with a weight of 1.
_WEIGHT_MAX = 1e9
_DUMP_VERSION = 2
# The shortest prediction.
_SECONDS_MIN = 1e-9

_Key: TypeAlias = "tuple[str | float, ...]"


class _Cell:
    """The counts of one cell; an observation made now counts ``weight``."""

    __slots__ = ("ended", "reached", "weight")

    def __init__(self, size: int) -> None:
        self.ended = [0.0] * size
        self.reached = [0.0] * size
        self.weight = 1.0

    def outlived(self, first: int, last: int) -> None:
        """A task reached and left the bins from ``first`` to before ``last``.

        Bins beyond the cell's last one (those after a limit) are not kept.
        """
        weight, reached = self.weight, self.reached
        for at in range(first, min(last, len(reached))):
            reached[at] += weight

    def end(self, first: int, last: int, decay: float) -> None:
        """A task ended in bin ``last``; the bins before ``first`` are counted already."""
        self.weight /= decay
        if self.weight > _WEIGHT_MAX:
            self.normalise()
        self.outlived(first, last + 1)
        if last < len(self.ended):
            self.ended[last] += self.weight

    def normalise(self) -> None:
        """Write the counts for a weight of 1."""
        part = 1.0 / self.weight
        self.ended = [part * count for count in self.ended]
        self.reached = [part * count for count in self.reached]
        self.weight = 1.0

    def dump(self, key: _Key) -> dict[str, object]:
        """The cell as JSON values, without the zeros on either side."""
        part = 1.0 / self.weight
        filled = [at for at, count in enumerate(self.reached) if count > 0.0]
        first, last = (filled[0], filled[-1] + 1) if filled else (0, 0)
        return {
            "key": list(key),
            "first": first,
            "ended": [_rounded(part * count) for count in self.ended[first:last]],
            "reached": [_rounded(part * count) for count in self.reached[first:last]],
        }

    @classmethod
    def load(cls, row: Mapping[str, object], size: int) -> _Cell:
        """The cell that ``dump`` wrote."""
        first = cast("int", row["first"])
        ended, reached = cast("list[float]", row["ended"]), cast("list[float]", row["reached"])
        counts = zip(ended, reached, strict=True)
        if not (
            0 <= first <= size - len(reached)
            and all(0.0 <= some <= total < inf for some, total in counts)
        ):
            raise ValueError(f"the counts of cell {row['key']!r} of a history are out of range")
        cell = cls(size)
        cell.ended[first : first + len(ended)] = map(float, ended)
        cell.reached[first : first + len(reached)] = map(float, reached)
        return cell


def _rounded(count: float) -> float:
    return float(f"{count:.9g}")


# A cell that a task belongs to: its level, its key, the index of the task's bin 0 in the cell's
# counts, and the cells that hold it.
_Cells: TypeAlias = "OrderedDict[_Key, _Cell]"
_Place: TypeAlias = "tuple[Level, _Key, int, _Cells]"


class History:
    """The predictor of one pool."""

    def __init__(self, settings: PredictorSettings | None = None) -> None:
        self._settings = numbers = settings or PredictorSettings()
        edges = [0.0, *(numbers.first_seconds * numbers.ratio**k for k in range(numbers.bins))]
        self._starts = edges[:-1]
        self._widths = [high - low for low, high in pairwise(edges)]
        self._last = numbers.bins - 1
        self._flat = [numbers.flat_hazard] * numbers.bins
        # This many bins after the limit almost no task is left.
        self._limit_bins = ceil(log(NEGLIGIBLE) / log(1.0 - numbers.limit_hazard)) + 1
        self._levels, self._limit_levels = numbers.levels, numbers.limit_levels
        # Few: one for each class, and again for those with limits.
        self._class_cells: _Cells = OrderedDict()
        # The one without an observation for longest comes first.
        self._user_cells: _Cells = OrderedDict()
        # The bin in which the last task of a user, and of a user at a size, ended.
        self._last_ends: OrderedDict[_Key, int] = OrderedDict()
        self._mean = numbers.mean_seconds
        self._ends = 0

    @property
    def mean_seconds(self) -> float:
        """The mean running time of ended tasks."""
        return self._mean

    @property
    def ends(self) -> int:
        """How many ends the mean is taken over."""
        return self._ends

    def kin(self, user: str, size: float) -> int:
        """The class of tasks that a new one is most like.

        The end of the user's last task at this size decides; else of the last one at any size.
        """
        width = self._settings.kin_bins
        same = self._last_ends.get((user, size))
        if same is not None:
            return 1 + same // width
        of_user = self._last_ends.get((user,))
        return -1 if of_user is None else 1000 + of_user // width

    def ended(self, features: Features, seconds: float, counted_seconds: float = 0.0) -> None:
        """A task ended by itself after ``seconds`` of running.

        ``counted_seconds``: the running time that ``outlived`` has counted already.
        """
        seconds = self._bounded(seconds)
        last = bisect_right(self._starts, seconds) - 1
        first = min(last, self._bin(counted_seconds))
        for level, key, shift, cells in self._places(features, self._limit_bin(features)):
            self._cell(key, cells).end(first + shift, last + shift, level.decay)
        for key in ((features.user,), (features.user, features.size)):
            self._last_ends[key] = last
            self._last_ends.move_to_end(key)
        self._drop()
        self._ends = min(self._ends + 1, self._settings.mean_window)
        self._mean += (seconds - self._mean) / self._ends

    def outlived(self, features: Features, from_seconds: float, to_seconds: float) -> None:
        """A living task came from one running time to another: it outlived the bins between."""
        first, last = self._bin(from_seconds), self._bin(to_seconds)
        if first < last:
            for _, key, shift, cells in self._places(features, self._limit_bin(features)):
                self._cell(key, cells).outlived(first + shift, last + shift)

    def hazards(self, features: Features, first: int = 0) -> list[float]:
        """The shrunk hazards of the bins from ``first`` on; in the last one all end."""
        return self._hazards(features, self._limit_bin(features), first, self._settings.bins)

    def index(self, features: Features, attained_seconds: float) -> float:
        """How much more running a task of these features is worth, in seconds; always above 0.

        The Gittins index: small for a task that may end soon, whatever its mean. Where the user
        gave a limit, the mean of what remains has a part in it.
        """
        numbers = self._settings
        hazards, widths, limited = self._ahead(features, attained_seconds)
        index = gittins_index(hazards, widths, numbers.ceiling_seconds)
        if limited:
            mean = mean_residual(hazards, widths, numbers.ceiling_seconds)
            index += numbers.limit_mean_part * (mean - index)
        return index

    def left(self, features: Features, attained_seconds: float, part: float) -> float:
        """How long a task will still run: this part of the tasks like it has ended by then."""
        alive, passed, stay = 1.0, 0.0, 1.0 - part
        hazards, widths, _ = self._ahead(features, attained_seconds)
        for hazard, width in zip(hazards, widths, strict=False):
            ends = alive * hazard
            if alive - ends <= stay:
                return passed + width * (alive - stay) / ends
            alive -= ends
            passed += width
        return passed

    def _ahead(
        self, features: Features, attained_seconds: float
    ) -> tuple[list[float], list[float], bool]:
        """Hazards and widths of the remaining bins, and whether the task has a usable limit."""
        numbers, starts = self._settings, self._starts
        attained = self._bounded(attained_seconds)
        first = bisect_right(starts, attained) - 1
        limit = self._limit_bin(features)
        end = numbers.bins if limit is None else max(limit, first) + self._limit_bins
        hazards, widths = self._hazards(features, limit, first, end), self._widths[first:end]
        if first < self._last:
            # The hazard of a bin is spread evenly over it; what was passed of it is gone.
            left = max(starts[first + 1] - attained, _SECONDS_MIN)
            hazards[0] = 1.0 - (1.0 - hazards[0]) ** (left / widths[0])
            widths[0] = left
        else:
            # Beyond the last edge all running times are one bin, as wide as a bin would be there.
            widths[0] = attained * (numbers.ratio - 1.0)
        return hazards, widths, limit is not None

    def dump(self, cells_max: int | None = None) -> dict[str, object]:
        """All of it as JSON values; of the users' cells at most the latest ``cells_max``."""
        kept, ends = list(self._user_cells.items()), list(self._last_ends.items())
        if cells_max is not None:
            kept = kept[max(len(kept) - cells_max, 0) :]
            ends = ends[max(len(ends) - cells_max, 0) :]
        return {
            "version": _DUMP_VERSION,
            "bins": self._settings.bins,
            "mean_seconds": self._mean,
            "ends": self._ends,
            "last_ends": [[list(key), last] for key, last in ends],
            "cells": [cell.dump(key) for key, cell in [*self._class_cells.items(), *kept]],
        }

    @classmethod
    def load(cls, value: object, settings: PredictorSettings | None = None) -> History:
        """The history that ``dump`` wrote; ``ValueError`` for another shape or other bins."""
        history = cls(settings)
        try:
            history._read(cast("Mapping[str, object]", value))
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(f"not a dump of a history: {error!r}") from error
        return history

    def _read(self, value: Mapping[str, object]) -> None:
        if (value["version"], value["bins"]) != (_DUMP_VERSION, self._settings.bins):
            raise ValueError("the dump of a history has another version or other bins")
        mean, ends = cast("tuple[float, int]", (value["mean_seconds"], value["ends"]))
        if not 0.0 <= mean < inf or ends < 0:
            raise ValueError("the dump of a history has a mean or a number of ends out of range")
        self._mean, self._ends = float(mean), int(ends)
        for parts, last in cast("list[tuple[list[str | float], int]]", value["last_ends"]):
            if not 0 <= last <= self._last:
                raise ValueError("the dump of a history has an end beyond its bins")
            self._last_ends[tuple(parts)] = int(last)
        of_classes = {self._settings.size_class.name, self._settings.class_relative.name}
        for row in cast("list[Mapping[str, object]]", value["cells"]):
            key = tuple(cast("list[str | float]", row["key"]))
            cells = self._class_cells if key[0] in of_classes else self._user_cells
            cells[key] = _Cell.load(row, self._settings.bins)
        self._drop()

    def _hazards(self, features: Features, limit: int | None, first: int, end: int) -> list[float]:
        hazards = self._flat[first:end]
        for level, key, shift, cells in self._places(features, limit):
            cell = cells.get(key)
            if cell is None:
                continue
            start, stop, kappa = first + shift, end + shift, level.kappa * cell.weight
            shrunk = [
                (ended + kappa * hazard) / (reached + kappa)
                for hazard, ended, reached in zip(
                    hazards, cell.ended[start:stop], cell.reached[start:stop], strict=False
                )
            ]
            # A cell counted from the limit has no counts for the bins after it.
            hazards[: len(shrunk)] = shrunk
        if limit is not None:
            least, at = self._settings.limit_hazard, max(limit - first, 0)
            hazards[at:] = [max(hazard, least) for hazard in hazards[at:]]
        if end > self._last:
            hazards[-1] = 1.0
        return hazards

    def _places(self, features: Features, limit: int | None) -> list[_Place]:
        """The cells of a task; ``limit`` is the bin of its limit."""
        classes, users = self._class_cells, self._user_cells
        user, size = features.user, features.size
        size_class = bisect_right(self._settings.class_shares, features.share)
        level, by_user, by_size, by_kin = self._levels
        places: list[_Place] = [
            (level, (level.name, size_class), 0, classes),
            (by_user, (by_user.name, user), 0, users),
            (by_size, (by_size.name, user, size), 0, users),
            (by_kin, (by_kin.name, user, size, features.kin), 0, users),
        ]
        if limit is not None:
            # The limit's bin is the last one.
            shift = self._last - limit
            level, by_user, by_size = self._limit_levels
            places += [
                (level, (level.name, size_class), shift, classes),
                (by_user, (by_user.name, user), shift, users),
                (by_size, (by_size.name, user, size, features.limit_seconds or 0.0), 0, users),
            ]
        return places

    def _cell(self, key: _Key, cells: _Cells) -> _Cell:
        """The cell, new where there is none; it becomes the latest of its kind."""
        cell = cells.get(key)
        if cell is None:
            cell = cells[key] = _Cell(self._settings.bins)
            self._drop()
        else:
            cells.move_to_end(key)
        return cell

    def _drop(self) -> None:
        for kept in (self._user_cells, self._last_ends):
            while len(kept) > self._settings.cells_max:
                kept.popitem(last=False)

    def _bounded(self, seconds: float) -> float:
        # Below 0 and not a number count as 0.
        return min(seconds, self._settings.ceiling_seconds) if seconds > 0.0 else 0.0

    def _bin(self, seconds: float) -> int:
        return bisect_right(self._starts, seconds) - 1 if seconds > 0.0 else 0

    def _limit_bin(self, features: Features) -> int | None:
        """The bin of a usable limit."""
        limit = features.limit_seconds
        return self._bin(limit) if limit is not None and 0.0 < limit < inf else None
