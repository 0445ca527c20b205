"""Reads a YAML document strictly: each error names the path of the key and the fix.

Used by ``cluster_file.py`` and by the reader of Kueue's generator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from services.scheduler.lab.errors import LabError
from services.scheduler.policy_text import PolicyTextError, read_document

BYTES_MAX = 4 * 1024 * 1024
_MILLI = 1000


def read_yaml(text: str, where: str, bytes_max: int = BYTES_MAX) -> Any:  # noqa: ANN401 - any
    """The values of a text, read as strictly as a policy file. Raises LabError."""
    try:
        return read_document(text, bytes_max=bytes_max)
    except PolicyTextError as problem:
        error = problem.error
        raise LabError(f"{error.field} {error.message}", where=where, fix=error.fix) from None


@dataclass(frozen=True, slots=True)
class YamlMapping:
    """One mapping of a document, and its path."""

    value: Any
    path: str

    def __post_init__(self) -> None:
        if not isinstance(self.value, dict):
            raise LabError(f"it is {_kind(self.value)}", where=self.path, fix="write a mapping")

    def _mapping(self) -> Mapping[str, Any]:
        return cast("Mapping[str, Any]", self.value)

    def known(self, *names: str) -> None:
        """Reject every other key."""
        for name in self._mapping():
            if name not in names:
                raise LabError(
                    f"unknown key {name!r}", where=self.path, fix=f"known are {', '.join(names)}"
                )

    def get(self, name: str) -> Any:  # noqa: ANN401 - any value
        """The value of a key; None if it is absent."""
        return self._mapping().get(name)

    def at(self, name: str) -> str:
        """The path of a key."""
        return f"{self.path}.{name}"

    def text(self, name: str, default: str | None = None) -> str:
        """A text that is not empty; required unless there is a default."""
        value = self.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str) or not value:
            raise self._wrong(name, value, "write a text")
        return value

    def labels(self, name: str) -> dict[str, str]:
        """A mapping of names to texts or numbers; absent is an empty one."""
        value = self.get(name)
        if value is None:
            return {}
        inner = YamlMapping(value, self.at(name))
        return {key: inner.text(key) for key in inner.names()}

    def names(self) -> tuple[str, ...]:
        """Its keys, all of which are texts."""
        for key in self._mapping():
            if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance] - YAML
                raise LabError(f"the key {key!r} is no text", where=self.path, fix="quote it")
        return tuple(self._mapping())

    def whole(self, name: str, least: int, most: int) -> int:
        """A whole number in a range."""
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self._wrong(name, value, f"write a whole number from {least} to {most}")
        return value

    def quantity(self, name: str) -> int:
        """A Kubernetes quantity of whole units: ``20``, ``"20"`` or ``20000m``."""
        value = self.get(name)
        text = str(value).strip() if isinstance(value, (int, str)) else ""
        units, milli = (text[:-1], True) if text.endswith("m") else (text, False)
        if not units.isdecimal() or (milli and int(units) % _MILLI) or isinstance(value, bool):
            raise self._wrong(name, value, "write a whole number of units")
        return int(units) // (_MILLI if milli else 1)

    def items(self, name: str) -> Iterator[YamlMapping]:
        """The mappings of a list, each with its path; the list must not be empty."""
        value = self.get(name)
        listed = cast("list[Any]", value) if isinstance(value, list) else []
        if not listed:
            raise self._wrong(name, self.get(name), "write a list with at least one entry")
        for place, each in enumerate(listed):
            yield YamlMapping(each, f"{self.at(name)}[{place}]")

    def optional_items(self, name: str) -> Iterator[YamlMapping]:
        """The same, where the list may be absent or empty."""
        return iter(()) if self.get(name) in (None, []) else self.items(name)

    def _wrong(self, name: str, value: object, fix: str) -> LabError:
        what = "it is missing" if value is None else f"it is {_kind(value)}"
        return LabError(what, where=self.at(name), fix=fix)


def _kind(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    text = repr(value)
    return text if len(text) <= 40 else text[:40] + "…"  # noqa: PLR2004 - a message's width
