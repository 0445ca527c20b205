"""Lines and bars as inline SVG. Pure text; colours and dashes come from the page's style.

Series ``n`` is drawn with class ``s<n>``: the style gives it a colour for light and dark and a dash
of its own, so that colour is never the only difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

Points = Sequence[tuple[float, float]]
Format = Callable[[float], str]

WIDTH, HEIGHT = 640.0, 300.0
NAME_SHOWN_MAX = 20
LEFT, RIGHT, TOP, BOTTOM = 56.0, 26.0, 14.0, 40.0
_SPANS = (
    (1.0, "1 s"),
    (10.0, "10 s"),
    (60.0, "1 min"),
    (600.0, "10 min"),
    (3600.0, "1 h"),
    (6 * 3600.0, "6 h"),
    (86_400.0, "1 d"),
    (7 * 86_400.0, "7 d"),
    (30 * 86_400.0, "30 d"),
    (365 * 86_400.0, "1 y"),
    (3650 * 86_400.0, "10 y"),
    (36_500 * 86_400.0, "100 y"),
)
_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale with its ticks; ``log`` needs a least value above 0."""

    least: float
    most: float
    ticks: tuple[tuple[float, str], ...]
    label: str
    log: bool = False

    def part(self, value: float) -> float:
        """The position of a value, from 0 to 1."""
        low, high, at = self.least, self.most, min(max(value, self.least), self.most)
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return (at - low) / (high - low) if high > low else 0.0


@dataclass(frozen=True, slots=True)
class Series:
    """One line: ``number`` gives its style."""

    number: int
    name: str
    points: Points


def span(seconds: float | None) -> str:
    """``42 s``, ``3.5 h``, ``12 d``: three figures at most."""
    if seconds is None:
        return "\u2013"
    if seconds == 0:
        return "0"
    size, unit = next((each for each in _UNITS if seconds >= each[0] * 1.5), _UNITS[-1])
    value = seconds / size
    digits = 0 if value >= 100 else 1 if value >= 10 else 2  # noqa: PLR2004 - figures shown
    text = f"{value:.{digits}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + f" {unit}"


def spans(values: Sequence[float | None]) -> Callable[[float | None], str]:
    """``span`` for the values of one column: all in one unit, so that they compare."""
    known = [value for value in values if value]
    if not known:
        return span
    # The largest unit of which the smallest value is at least a half.
    size, unit = next((each for each in _UNITS if min(known) >= each[0] * 0.5), _UNITS[-1])

    def text(seconds: float | None) -> str:
        if not seconds:
            return span(seconds)
        value = seconds / size
        return f"{value:,.{2 if value < 10 else 1}f} {unit}"  # noqa: PLR2004 - figures shown

    return text


def number(value: float | None) -> str:
    """Three figures: ``1,204``, ``31.2``, ``0.45``."""
    if value is None:
        return "\u2013"
    size = abs(value)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2  # noqa: PLR2004 - figures shown
    return f"{value:,.{digits}f}"


def percent(value: float | None) -> str:
    """``93.4 %`` of 0.934."""
    return "\u2013" if value is None else f"{100 * value:.{1 if value >= 0.1 else 2}f} %"  # noqa: PLR2004 - figures


def linear(least: float, most: float, label: str, text: Format = number) -> Axis:
    """A linear axis with about five round ticks; it ends on one."""
    if most <= least:
        most = least + 1.0
    raw = (most - least) / 5.0
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * m for m in (1.0, 2.0, 2.5, 5.0, 10.0) if size * m >= raw * 0.999)
    first, last = math.floor(least / step + 1e-9), math.ceil(most / step - 1e-9)
    ticks = tuple((n * step, text(n * step)) for n in range(first, last + 1))
    return Axis(first * step, last * step, ticks, label)


def time_axis(most: float, label: str) -> Axis:
    """A linear axis of elapsed time, in its natural unit."""
    size, unit = next(
        ((s, u) for s, u in _UNITS if most >= 3 * s),  # at least a few of a unit
        (1.0, "s"),
    )
    inner = linear(0.0, most / size, label)
    ticks = tuple((at * size, f"{at:g}") for at, _ in inner.ticks)
    return Axis(0.0, max(most, size), tuple(t for t in ticks if t[0] <= most), f"{label} ({unit})")


def log_spans(most: float, label: str) -> Axis:
    """A logarithmic axis of durations from a second up."""
    end = next((at for at, _ in _SPANS if at >= most), max(most, _SPANS[-1][0]))
    end = max(end, _SPANS[3][0])
    ticks = [tick for tick in _SPANS if tick[0] <= end]
    far = end > _SPANS[6][0]
    shown = [tick for n, tick in enumerate(ticks) if not (far and n in {1, 3, 5})]
    return Axis(1.0, end, tuple(shown), label, log=True)


def log_numbers(most: float, label: str) -> Axis:
    """A logarithmic axis of numbers from 1 up."""
    powers = max(1, math.ceil(math.log10(max(most, 1.0)) - 1e-9))
    ticks = tuple((10.0**n, f"{10**n:,}") for n in range(powers + 1))
    return Axis(1.0, 10.0**powers, ticks, label, log=True)


def lines(title: str, description: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """A line chart. ``description`` is for screen readers."""
    parts = [*_frame(x, y), '<g class="lines">']
    for each in series:
        drawn = [f"{_x(x, at):.1f},{_y(y, value):.1f}" for at, value in each.points]
        if len(drawn) == 1:
            px, py = drawn[0].split(",")
            dot = f'<circle class="s{each.number}" cx="{px}" cy="{py}" r="3.5">'
            parts.append(f"{dot}<title>{escape(each.name)}</title></circle>")
        elif drawn:
            line = f'<polyline class="s{each.number}" points="{" ".join(drawn)}">'
            parts.append(f"{line}<title>{escape(each.name)}</title></polyline>")
    parts.append("</g>")
    return svg(title, description, WIDTH, HEIGHT, parts)


def bars(title: str, description: str, rows: Sequence[tuple[int, str, float, str]]) -> str:
    """Horizontal bars: series number, name, value, the value in words."""
    most = max((value for _, _, value, _ in rows), default=0.0) or 1.0
    height = 30.0 * len(rows) + 8.0
    name_width, word_width = 110.0, 96.0
    bar_width = WIDTH - name_width - word_width
    parts: list[str] = []
    for place, (series, name, value, text) in enumerate(rows):
        y = 30.0 * place + 8.0
        width = max(1.5, bar_width * value / most)
        middle = f"{y + 15:.0f}"
        shown, value_text = escape(name), escape(text)
        box = f'x="{name_width:.0f}" y="{y:.0f}" width="{width:.1f}" height="21" rx="3"'
        after = f"{name_width + width + 8:.1f}"
        parts += [
            f'<text class="name" x="{name_width - 10:.0f}" y="{middle}">{shown}</text>',
            f'<rect class="s{series}" {box}><title>{shown}: {value_text}</title></rect>',
            f'<text class="word" x="{after}" y="{middle}">{value_text}</text>',
        ]
    return svg(title, description, WIDTH, height, parts)


@dataclass(frozen=True, slots=True)
class Pair:
    """One row of a comparison: two values of one thing."""

    name: str
    one: float
    other: float


def pairs(title: str, description: str, axis: Axis, rows: Sequence[Pair]) -> str:
    """Two symbols on each row and the line between them: a disc for one, a ring for the other."""
    name_width, step, top = 150.0, 26.0, 10.0
    floor = top + step * len(rows)
    plot_width = WIDTH - name_width - RIGHT

    def at(value: float) -> float:
        return name_width + plot_width * axis.part(value)

    parts = ['<g class="grid">']
    parts += [
        f'<line x1="{at(value):.1f}" x2="{at(value):.1f}" y1="{top:.0f}" y2="{floor:.0f}"/>'
        for value, _ in axis.ticks
    ]
    parts.append('</g><g class="ticks">')
    parts += [
        f'<text class="x" x="{at(value):.1f}" y="{floor + 18:.0f}">{escape(text)}</text>'
        for value, text in axis.ticks
    ]
    middle = (name_width + WIDTH - RIGHT) / 2
    place = f'x="{middle:.0f}" y="{floor + 36:.0f}"'
    parts.append(f'<text class="x label" {place}>{escape(axis.label)}</text></g>')
    for turn, row in enumerate(rows):
        y = top + step * (turn + 0.5)
        name = row.name if len(row.name) <= NAME_SHOWN_MAX else row.name[: NAME_SHOWN_MAX - 1] + "…"
        worse = " worse" if row.one > row.other else ""
        value_text = f"{escape(row.name)}: {span(row.one)}, alone {span(row.other)}"
        parts += [
            f'<g class="pair{worse}"><title>{value_text}</title>',
            f'<text class="name" x="{name_width - 12:.0f}" y="{y + 4:.1f}">{escape(name)}</text>',
            f'<line x1="{at(row.one):.1f}" x2="{at(row.other):.1f}" y1="{y:.1f}" y2="{y:.1f}"/>',
            f'<circle class="ring" cx="{at(row.other):.1f}" cy="{y:.1f}" r="5"/>',
            f'<circle class="disc" cx="{at(row.one):.1f}" cy="{y:.1f}" r="5"/></g>',
        ]
    return svg(title, description, WIDTH, floor + 44.0, parts)


def svg(title: str, description: str, width: float, height: float, parts: Sequence[str]) -> str:
    """The picture, named for screen readers."""
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-label="{escape(title, quote=True)}. {escape(description, quote=True)}">'
        f"{''.join(parts)}</svg>"
    )


def _x(axis: Axis, value: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * axis.part(value)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * axis.part(value)


def _frame(x: Axis, y: Axis) -> list[str]:
    """Grid, ticks and axis names."""
    floor = HEIGHT - BOTTOM
    parts = ['<g class="grid">']
    parts += [
        f'<line x1="{LEFT:.0f}" x2="{WIDTH - RIGHT:.0f}" y1="{at:.1f}" y2="{at:.1f}"/>'
        for at in (_y(y, value) for value, _ in y.ticks)
    ]
    parts += [
        f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{floor:.0f}" y2="{floor + 4:.0f}"/>'
        for at in (_x(x, value) for value, _ in x.ticks)
    ]
    parts.append('</g><g class="ticks">')
    parts += [
        f'<text class="y" x="{LEFT - 8:.0f}" y="{_y(y, value) + 4:.1f}">{escape(text)}</text>'
        for value, text in y.ticks
    ]
    parts += [
        f'<text class="x" x="{_x(x, value):.1f}" y="{floor + 18:.0f}">{escape(text)}</text>'
        for value, text in x.ticks
    ]
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts += [
        f'<text class="x label" x="{middle:.0f}" y="{HEIGHT - 5:.0f}">{escape(x.label)}</text>',
        "</g>",
    ]
    return parts
