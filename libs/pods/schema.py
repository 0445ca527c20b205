"""How a table of fields is written, and how a document is held against it: every fault with its
path. The table itself is ``fields.py``; ``overrides.py`` asks.

What the table does not name is refused, so that no field gets through by being new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, cast

from libs.contracts.messages import FieldError
from libs.pods.asker import Asker
from libs.pods.faults import fault
from libs.pods.policy import Permission, PodPolicy

Faults = Iterator[FieldError]


@dataclass(frozen=True, slots=True)
class View:
    """What a field is judged by, beside its value."""

    asker: Asker
    policy: PodPolicy
    # Inside the container of the task itself.
    in_main: bool = False
    # Volumes that the template declares.
    volumes: frozenset[str] = frozenset()

    def inside(self, *, main: bool) -> View:
        """The view from inside a container."""
        return replace(self, in_main=main)


HIDDEN = "(not shown)"
NAME_COMPARED_MAX = 64
Judge = Callable[[str, Any, View], Faults]
KINDS: Mapping[str, Callable[[object], bool]] = {
    "a text": lambda value: isinstance(value, str),
    "a whole number": lambda value: type(value) is int,
    "true or false": lambda value: isinstance(value, bool),
    "a text or a whole number": lambda value: type(value) in (str, int),
    "a list of texts": lambda value: (
        isinstance(value, list) and all(isinstance(each, str) for each in cast("list[Any]", value))
    ),
    "a list of whole numbers": lambda value: (
        isinstance(value, list) and all(type(each) is int for each in cast("list[Any]", value))
    ),
    "an object": lambda value: isinstance(value, dict),
}


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value of one kind, with a judgement of its own."""

    kind: str
    judge: Judge | None = None
    # What it holds may be a secret: faults do not repeat it.
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Struct:
    """An object with the fields named here and no others."""

    fields: Mapping[str, Node]
    required: tuple[str, ...] = ()
    judge: Judge | None = None


@dataclass(frozen=True, slots=True)
class Items:
    """A list of objects; ``key`` names the field by which two are the same one."""

    of: Struct
    key: str = ""
    # Called with each item: the view from inside it.
    enter: Callable[[Mapping[str, Any], View], View] | None = None


@dataclass(frozen=True, slots=True)
class Mapped:
    """An object with free keys; the judgement sees ``(path, (key, value), view)``."""

    kind: str
    judge: Judge | None = None


@dataclass(frozen=True, slots=True)
class Never:
    """Not to be said here, except where it says what is so anyway."""

    why: str
    fix: str
    harmless: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Needs:
    """To be said only with a permission of the policy, or where it is harmless."""

    permission: Permission
    of: Node
    harmless: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Beside:
    """Said of other containers; of the task's own it is the task's field that says it."""

    of: Node
    field: str


Node = Leaf | Struct | Items | Mapped | Never | Needs | Beside


def check_value(node: Node, field: str, value: Any, view: View) -> Faults:  # noqa: ANN401 - JSON
    """Every fault of a value at a path."""
    if value is None:
        yield fault(field, "null", "says nothing", "leave it out; null removes nothing here")
        return
    yield from _CHECKS[type(node)](node, field, value, view)


def _leaf(node: Leaf, field: str, value: Any, view: View) -> Faults:  # noqa: ANN401 - JSON
    if not KINDS[node.kind](value):
        told = HIDDEN if node.hidden else _told(value)
        yield fault(field, told, f"is not {node.kind}", f"write {node.kind}")
    elif node.judge:
        yield from node.judge(field, value, view)


def _struct(node: Struct, field: str, value: Any, view: View) -> Faults:  # noqa: ANN401 - JSON
    if not isinstance(value, dict):
        yield fault(field, HIDDEN, "is not an object", "write its fields")
        return
    found = cast("dict[str, Any]", value)
    clean = True
    for name in node.required:
        if name not in found:
            clean = False
            yield fault(f"{field}.{name}", "", "is missing", "write it")
    for name, part in found.items():
        at = f"{field}.{name}"
        known = node.fields.get(name)
        if known is None:
            clean = False
            what = "is no field that this platform knows here"
            yield fault(at, HIDDEN, what, _near(name, node))
            continue
        # One at a time: whoever asks may have enough of them.
        for found_fault in check_value(known, at, part, view):
            clean = False
            yield found_fault
    if clean and node.judge:
        yield from node.judge(field, found, view)


def _near(name: str, node: Struct) -> str:
    """What to do about a field that is not known. Long names are compared with nothing: that costs
    time in proportion to their length, and no known name is long.
    """
    near = get_close_matches(name, node.fields, 1) if len(name) <= NAME_COMPARED_MAX else []
    return f"did you mean {near[0]}?" if near else "leave it out"


def _items(node: Items, field: str, value: Any, view: View) -> Faults:  # noqa: ANN401 - JSON
    if not isinstance(value, list):
        yield fault(field, HIDDEN, "is not a list", "write a list of objects")
        return
    seen: set[object] = set()
    for index, item in enumerate(cast("list[Any]", value)):
        at = f"{field}[{index}]"
        inside = view
        if isinstance(item, dict):
            found = cast("dict[str, Any]", item)
            inside = node.enter(found, view) if node.enter else view
            name = found.get(node.key)
            if node.key and isinstance(name, str | int):
                if name in seen:
                    yield fault(f"{at}.{node.key}", name, "is given twice", "give it once")
                seen.add(name)
        yield from check_value(node.of, at, item, inside)


def _mapped(node: Mapped, field: str, value: Any, view: View) -> Faults:  # noqa: ANN401 - JSON
    if not isinstance(value, dict):
        yield fault(field, HIDDEN, "is not an object", "write keys and values")
        return
    for key, part in cast("dict[str, Any]", value).items():
        at = f"{field}.{key}"
        if not KINDS[node.kind](part):
            yield fault(at, _told(part), f"is not {node.kind}", f"write {node.kind}")
        elif node.judge:
            yield from node.judge(at, (key, part), view)


def _never(node: Never, field: str, value: Any, view: View) -> Faults:  # noqa: ANN401 - JSON
    del view
    if not _is_one_of(value, node.harmless):
        yield fault(field, value, node.why, node.fix)


def _needs(node: Needs, field: str, value: Any, view: View) -> Faults:  # noqa: ANN401 - JSON
    if _is_one_of(value, node.harmless):
        return
    if not view.policy.allows(node.permission, view.asker):
        fix = f"leave it out, or ask an administrator to allow {node.permission}"
        yield fault(field, value, "is not allowed for this task", fix)
        return
    yield from check_value(node.of, field, value, view)


def _beside(node: Beside, field: str, value: Any, view: View) -> Faults:  # noqa: ANN401 - JSON
    if view.in_main:
        fix = f"use {node.field} of the task"
        yield fault(field, HIDDEN, "is the task's own to say", fix)
        return
    yield from check_value(node.of, field, value, view)


def _told(value: object) -> object:
    """A value of the wrong kind: what is made of parts may hold variables, and is not shown."""
    return HIDDEN if isinstance(value, dict | list) else value


def _is_one_of(value: object, among: Sequence[object]) -> bool:
    """As equal as JSON has it: ``False`` is not ``0``."""
    return any(type(value) is type(each) and value == each for each in among)


_CHECKS: Mapping[type, Callable[[Any, str, Any, View], Faults]] = {
    Leaf: _leaf,
    Struct: _struct,
    Items: _items,
    Mapped: _mapped,
    Never: _never,
    Needs: _needs,
    Beside: _beside,
}
