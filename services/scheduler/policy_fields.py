"""One value of a policy file: read, or rejected with its path, the value and the fix.

Used by ``policy_documents.py``. Each ``Field`` also writes its value back, so that a policy that is
shown can be edited and set again, and its reader has the JSON schema of what it accepts: `make gen`
writes the gateway's schemas of policy documents from it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from libs.contracts.ids import NAME_FORM, NAME_RULE, is_name
from libs.contracts.messages import FieldError, Priority
from libs.contracts.wording import Suggestions, cut

PROBLEMS_MAX = 100
KNOWN_SHOWN_MAX = 24
DAY = 86_400.0
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(s|m|h|d)?")
_SECONDS: Mapping[str | None, float] = {None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY}
_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_./]{0,251}[A-Za-z0-9])?")
LEVELS: Mapping[str, Priority] = {
    level.name.lower(): level
    for level in Priority
    if level not in {Priority.UNSPECIFIED, Priority.AUTO}
}
DURATION_FIX = "write seconds, or 90s, 15m, 4h, 2d"


@dataclass(slots=True)
class Problems:
    """The errors and warnings of a document; both are bounded."""

    errors: list[FieldError] = field(default_factory=list[FieldError])
    warnings: list[FieldError] = field(default_factory=list[FieldError])
    # Beyond PROBLEMS_MAX they are only counted.
    more: int = 0
    suggestions: Suggestions = field(default_factory=Suggestions)

    def add(self, path: str, value: object, message: str, fix: str) -> None:
        """Add an error: the value is rejected."""
        if len(self.errors) < PROBLEMS_MAX:
            self.errors.append(_error(path, value, message, fix))
        else:
            self.more += 1

    def warn(self, path: str, value: object, message: str, fix: str) -> None:
        """Add a warning: the value is accepted."""
        if len(self.warnings) < PROBLEMS_MAX:
            self.warnings.append(_error(path, value, message, fix))


def _error(path: str, value: object, message: str, fix: str) -> FieldError:
    return FieldError(field=path, value=shown(value), message=message, fix=fix)


def shown(value: object) -> str:
    """A value as an error shows it: short, and valid in any encoding."""
    if value is None or isinstance(value, dict | list):
        return ""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**18:
        return "a number beyond all bounds"
    text = str(value).encode("utf-8", "replace").decode()
    return cut(text)


def at(path: str, key: object) -> str:
    """The path of a key: ``groups.training``."""
    name_ = shown(key) or "''"
    return f"{path}.{name_}" if path else name_


def nth(path: str, index: int) -> str:
    """The path of an entry of a list: ``virtual_clusters[2]``."""
    return f"{path}[{index}]"


def closest(word: object, known: Collection[str], problems: Problems) -> str:
    """The fix for a word that is not known."""
    if len(problems.errors) >= PROBLEMS_MAX:
        return ""
    near = problems.suggestions.meant(str(word).lower(), known)
    if near:
        return near
    names = sorted(known)
    more = f" and {len(names) - KNOWN_SHOWN_MAX} more" if len(names) > KNOWN_SHOWN_MAX else ""
    return "known here: " + (", ".join(names[:KNOWN_SHOWN_MAX]) or "none") + more


def mapping(value: object, path: str, problems: Problems) -> dict[object, object]:
    """The mapping; an empty one for null; an error for anything else."""
    if isinstance(value, dict):
        return cast("dict[object, object]", value)
    if value is not None:
        problems.add(path, value, "is not a mapping", "write keys with values below it")
    return {}


def listing(value: object, path: str, length_max: int, problems: Problems) -> list[object]:
    """The list; an empty one for null; an error for anything else."""
    if isinstance(value, list):
        items = cast("list[object]", value)
        if len(items) <= length_max:
            return items
        problems.add(path, None, f"has {len(items)} entries", f"give at most {length_max}")
    elif value is not None:
        problems.add(path, value, "is not a list", "write a list: [a, b]")
    return []


# The value, or None after an error.
Read = Callable[[object, str, Problems], Any]


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads a value, and has the JSON schema of the values that it accepts. A schema with a
    ``title`` is a type of its own."""

    read: Read
    schema: Mapping[str, Any]

    def __call__(self, value: object, path: str, problems: Problems) -> Any:  # noqa: ANN401 - any value
        """The value, or None after an error."""
        return self.read(value, path, problems)


def accepts(schema: Mapping[str, Any]) -> Callable[[Read], Reader]:
    """Make a reader of a function."""
    return lambda read: Reader(read, schema)


@dataclass(frozen=True, slots=True)
class Field:
    """How one key of a section becomes one attribute, and back."""

    attribute: str
    read: Reader
    write: Callable[[Any], object] = lambda value: value


def section(
    value: object, path: str, fields: Mapping[str, Field], problems: Problems
) -> dict[str, Any]:
    """The attributes that a mapping gives; every unknown key is an error."""
    found: dict[str, Any] = {}
    for key, given in mapping(value, path, problems).items():
        below = at(path, key)
        one = fields.get(key) if isinstance(key, str) else None
        if one is None:
            problems.add(below, given, "is no key of this section", closest(key, fields, problems))
        elif given is not None:
            read = one.read(given, below, problems)
            if read is not None:
                found[one.attribute] = read
    return found


def section_schema(
    made: type, fields: Mapping[str, Field], required: Collection[str] = ()
) -> dict[str, Any]:
    """The JSON schema of a section, named by the class that it becomes. A key that is null is read
    as left out, unless it is required."""
    return {
        "title": f"Policy{made.__name__.removesuffix('Policy')}",
        "description": " ".join((made.__doc__ or "").split()),
        "type": "object",
        "properties": {
            key: one.read.schema
            if key in required
            else {"anyOf": [one.read.schema, {"type": "null"}]}
            for key, one in fields.items()
        },
        "required": list(required),
        "additionalProperties": False,
    }


def list_schema(item: Mapping[str, Any], length_max: int) -> dict[str, Any]:
    """The JSON schema of a list."""
    return {"type": "array", "items": item, "maxItems": length_max}


def nested(attribute: str, made: type, fields: Mapping[str, Field]) -> Field:
    """A section that is the value of a key."""

    def read(value: object, path: str, problems: Problems) -> object:
        return made(**section(value, path, fields, problems))

    return Field(
        attribute,
        Reader(read, section_schema(made, fields)),
        lambda found: written(found, fields),
    )


def written(value: object, fields: Mapping[str, Field]) -> dict[str, object]:
    """A section with every key, as a document has it."""
    return {key: one.write(getattr(value, one.attribute)) for key, one in fields.items()}


def duration(low: float, high: float) -> Reader:
    """Seconds of ``90``, ``90s``, ``15m``, ``4h`` or ``2d``."""
    text = {"type": "string", "pattern": f"^{_DURATION.pattern}$"}
    span = f"{duration_text(low)} to {duration_text(high)}"
    schema = {
        "description": f"{span}; {DURATION_FIX}",
        "anyOf": [_range("number", low, high), text],
    }
    read = _bounded("is not a duration", _seconds, low, high, fix=DURATION_FIX, text=duration_text)
    return Reader(read, schema)


def number(low: float, high: float) -> Reader:
    """A number in that range."""
    return Reader(_bounded("is not a number", _number, low, high), _range("number", low, high))


def whole(low: int, high: int) -> Reader:
    """A whole number in that range."""
    read = _bounded("is not a whole number", _whole, low, high)

    @accepts(_range("integer", low, high))
    def read_whole(value: object, path: str, problems: Problems) -> int | None:
        found = read(value, path, problems)
        return None if found is None else int(found)

    return read_whole


def _range(kind: str, low: float, high: float) -> dict[str, Any]:
    return {"type": kind, "minimum": plain_number(low), "maximum": plain_number(high)}


def _bounded(
    message: str,
    parse: Callable[[object], float | None],
    low: float,
    high: float,
    *,
    fix: str = "",
    text: Callable[[float], object] | None = None,
) -> Read:
    low_text, high_text = map(text or plain_number, (low, high))
    span = f"give {low_text} to {high_text}"

    def read(value: object, path: str, problems: Problems) -> float | None:
        found = parse(value)
        if found is None:
            problems.add(path, value, message, fix or span)
        elif not low <= found <= high:
            problems.add(path, value, "is out of range", span)
        else:
            return float(found)
        return None

    return read


def _seconds(value: object) -> float | None:
    if isinstance(value, str):
        found = _DURATION.fullmatch(value.strip())
        return None if found is None else float(found[1]) * _SECONDS[found[2]]
    return _number(value)


def duration_text(seconds: float | None) -> object:
    """The shortest exact way to write it; a number where no unit fits."""
    if seconds is None:
        return None
    for unit, size in (("d", DAY), ("h", 3600.0), ("m", 60.0)):
        if seconds >= size and seconds % size == 0:
            return f"{int(seconds // size)}{unit}"
    return int(seconds) if seconds == int(seconds) else seconds


def _number(value: object) -> float | None:
    """A finite number, else None; a bool is none. A huge int cannot become a float, so it stays."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isinstance(value, int) or math.isfinite(value) else None


def _whole(value: object) -> float | None:
    found = _number(value)
    return found if found is not None and found == int(found) else None


@accepts({"type": "boolean"})
def flag(value: object, path: str, problems: Problems) -> bool | None:
    """True or false."""
    if isinstance(value, bool):
        return value
    problems.add(path, value, "is neither true nor false", "give true or false")
    return None


def one_of(message: str, choices: Mapping[str, Any]) -> Reader:
    """The value of one of these words."""

    @accepts({"type": "string", "enum": list(choices)})
    def read(value: object, path: str, problems: Problems) -> Any:  # noqa: ANN401 - any value
        if isinstance(value, str) and value in choices:
            return choices[value]
        problems.add(path, value, message, closest(value, choices, problems))
        return None

    return read


# A priority level by its lower-case name.
LEVEL = one_of("is no priority level", LEVELS)


def level_text(value: Priority) -> str:
    """The level's lower-case name."""
    return value.name.lower()


@accepts({"type": "string", "pattern": f"^{NAME_FORM}$"})
def name(value: object, path: str, problems: Problems) -> str | None:
    """The name of a group, user, team or virtual cluster."""
    if isinstance(value, str) and is_name(value):
        return value
    fix = f"use {NAME_RULE}"
    unquoted = "; put it in quotes" if not isinstance(value, str) else ""
    problems.add(path, value, "is not a name", fix + unquoted)
    return None


@accepts({"type": "string", "pattern": f"^{_LABEL.pattern}$"})
def label(value: object, path: str, problems: Problems) -> str | None:
    """The key of a node label."""
    if isinstance(value, str) and _LABEL.fullmatch(value):
        return value
    problems.add(path, value, "is not a node label's key", "use a-z, A-Z, 0-9 and -_./ inside")
    return None


def distinct(read: Reader, length_max: int) -> Reader:
    """A list without repeated entries."""

    @accepts({**list_schema(read.schema, length_max), "uniqueItems": True})
    def read_all(value: object, path: str, problems: Problems) -> tuple[Any, ...]:
        found: list[Any] = []
        for index, each in enumerate(listing(value, path, length_max, problems)):
            one = read(each, nth(path, index), problems)
            if one is not None and one in found:
                problems.add(nth(path, index), each, "is there twice", "keep one of them")
            elif one is not None:
                found.append(one)
        return tuple(found)

    return read_all


def weights(low: float, high: float, length_max: int) -> Reader:
    """Names with a number each."""
    read_number = number(low, high)
    schema = {
        "type": "object",
        "additionalProperties": read_number.schema,
        "propertyNames": name.schema,
        "maxProperties": length_max,
    }

    @accepts(schema)
    def read(value: object, path: str, problems: Problems) -> dict[str, float]:
        given = mapping(value, path, problems)
        if len(given) > length_max:
            problems.add(path, None, f"has {len(given)} entries", f"give at most {length_max}")
            return {}
        found: dict[str, float] = {}
        for key, each in given.items():
            owner = name(key, at(path, key), problems)
            weight = read_number(each, at(path, key), problems)
            if owner is not None and weight is not None:
                found[owner] = weight
        return found

    return read


def plain_number(value: float | None) -> object:
    """A float without a fraction as an int."""
    return int(value) if value is not None and value == int(value) else value
