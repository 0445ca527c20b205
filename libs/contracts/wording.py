"""Parts of sentences in messages for people: counted nouns and suggestions. Pure.

The command line, which is installed without this library, has the same in ``shiftwork.cli``.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

# Names that are longer are no typing errors, and comparing takes time.
COMPARED_CHARACTERS_MAX = 80


def counted(number: float, noun: str) -> str:
    """A number with its noun: ``1 run``, ``3 runs``."""
    return f"{round(number, 3):g} {noun}{'' if number == 1 else 's'}"


def meant(word: str, known: Iterable[str]) -> str:
    """``did you mean NAME?`` for the known name that is nearest; empty if none is near."""
    if len(word) > COMPARED_CHARACTERS_MAX:
        return ""
    near = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else ""
