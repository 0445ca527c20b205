"""Numbers as text: charts of one line, and values with their units. Pure."""

from __future__ import annotations

import math
from typing import Any, Mapping, Sequence

BARS = "▁▂▃▄▅▆▇█"
PLAIN_BARS = "_.,-=+*#"
GAP = " "
_SIZES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
# The end of a signal's name, what stands behind its value, and by how much that is divided.
_UNITS = (("_percent", " %"), ("_watts", " W"), ("_celsius", " C"), ("_seconds", " s"))


def sparkline(
    points: Sequence[Mapping[str, Any]],
    begin: float,
    end: float,
    width: int,
    *,
    step: float | None = None,
    plain: bool = False,
) -> str:
    """The averages of points as a line of bars over a time; where there is no point is a gap.

    ``step``: how much time each point stands for; None: a moment. The lowest bar is the smallest
    value, the highest the largest.
    """
    bars = PLAIN_BARS if plain else BARS
    column = max(end - begin, 1e-9) / width
    sums, counts = [0.0] * width, [0] * width
    for point in points:
        value = number(point["average"])
        if value is None:
            continue
        first = int((point["at_seconds"] - begin) / column)
        last = int((point["at_seconds"] + step - begin) / column - 1e-6) if step else first
        for place in range(max(0, first), min(width - 1, max(first, last)) + 1):
            sums[place] += value
            counts[place] += 1
    means = [total / count if count else None for total, count in zip(sums, counts)]
    known = [mean for mean in means if mean is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    span = high - low
    line = ""
    for mean in means:
        if mean is None:
            line += GAP
        else:
            share = (mean - low) / span if span else 0.5
            line += bars[min(len(bars) - 1, int(share * len(bars)))]
    return line.rstrip()


def number(value: object) -> float | None:
    """A number of a document; None for one that is none (NaN and infinities are texts there)."""
    if isinstance(value, (int, float)) and math.isfinite(value):
        return float(value)
    return None


def valued(signal: str, value: float | None) -> str:
    """A value with the unit that its signal's name ends with."""
    if value is None:
        return "-"
    if signal.endswith("_bytes_per_second"):
        return f"{size_text(value)}/s"
    if signal.endswith("_bytes"):
        return size_text(value)
    for ending, unit in _UNITS:
        if signal.endswith(ending):
            return f"{_short(value)}{unit}"
    return _short(value)


def size_text(value: float) -> str:
    """A number of bytes: ``512 MiB``, ``1.5 GiB``. The platform's own commands use it, too."""
    for size, unit in _SIZES:
        if abs(value) >= size:
            return f"{round(value / size, 1):.12g} {unit}"
    return f"{value:.0f} B"


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"  # noqa: PLR2004 - three digits
