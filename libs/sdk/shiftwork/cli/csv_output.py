"""Results as comma-separated values, for ``--csv``."""

from __future__ import annotations

import csv
import json
import sys
from typing import Any, Iterable, Mapping, Sequence

from shiftwork.cli import render

# A cell of CSV that begins so is a formula to spreadsheets, and may come from anybody.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Comma-separated values on standard output, with a line of names. Lines end as RFC 4180 says,
    so that a cell with either sign of a line's end is quoted."""
    writer = csv.writer(sys.stdout)
    writer.writerow(names)
    writer.writerows([_cell(row.get(name)) for name in names] for row in rows)


def _cell(value: Any) -> str:  # noqa: ANN401 - JSON
    """Plain text of a value, which no spreadsheet takes for a formula and no terminal obeys."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return render.one_line(json.dumps(value, ensure_ascii=False))
    text = render.one_line(value)
    return f"'{text}" if text.startswith(_FORMULA) else text
