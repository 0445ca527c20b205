"""Counts how often misspelt names are compared with known ones, which takes time."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

import pytest

from libs.contracts import wording


def counted_comparisons(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with each comparison by the number of names that it goes through."""
    found: list[int] = []

    def counted(word: str, known: Sequence[str], n: int, cutoff: float) -> list[str]:
        found.append(len(known))
        return get_close_matches(word, known, n, cutoff)

    monkeypatch.setattr(wording, "get_close_matches", counted)
    return found
