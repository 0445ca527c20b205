"""Validates a document against a table of fields and yields every error with its path.

``pod_template.py`` validates templates with the table in ``template_fields.py``. A field that the
table does not name is rejected, so a new field of Kubernetes is not accepted by accident.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from libs.contracts.messages import FieldError
from libs.contracts.wording import meant
from libs.pods.field_errors import field_error
from libs.pods.pod_policy import Permission, PodPolicy
from libs.pods.requester import Requester

FieldErrors = Iterator[FieldError]


@dataclass(frozen=True, slots=True)
class View:
    """What a field is validated against, beside its value."""

    requester: Requester
    policy: PodPolicy
    # Inside the task's own container.
    in_main: bool = False
    # Volumes that the template declares.
    volumes: frozenset[str] = frozenset()

    def inside(self, *, main: bool) -> View:
        """Return the view that is valid inside a container."""
        return replace(self, in_main=main)


HIDDEN = "(not shown)"
Validator = Callable[[str, Any, View], FieldErrors]
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
    """A value of one kind, with an optional validator."""

    kind: str
    validate: Validator | None = None
    # The value may be a secret: errors do not repeat it.
    hidden: bool = False

    def check(self, field: str, value: Any, view: View) -> FieldErrors:  # noqa: ANN401, D102 - JSON
        if not KINDS[self.kind](value):
            shown = HIDDEN if self.hidden else _shown(value)
            yield field_error(field, shown, f"is not {self.kind}", f"write {self.kind}")
        elif self.validate:
            yield from self.validate(field, value, view)


@dataclass(frozen=True, slots=True)
class Struct:
    """An object with these fields and no others."""

    fields: Mapping[str, Node]
    required: tuple[str, ...] = ()
    validate: Validator | None = None

    def check(self, field: str, value: Any, view: View) -> FieldErrors:  # noqa: ANN401, D102 - JSON
        if not isinstance(value, dict):
            yield field_error(field, HIDDEN, "is not an object", "write its fields")
            return
        found = cast("dict[str, Any]", value)
        clean = True
        for name in self.required:
            if name not in found:
                clean = False
                yield field_error(f"{field}.{name}", "", "is missing", "write it")
        for name, part in found.items():
            at = f"{field}.{name}"
            known = self.fields.get(name)
            if known is None:
                clean = False
                what = "is no field that this platform knows here"
                yield field_error(at, HIDDEN, what, _near(name, self))
                continue
            # One at a time: the caller may stop after some.
            for found_error in check_value(known, at, part, view):
                clean = False
                yield found_error
        if clean and self.validate:
            yield from self.validate(field, found, view)


@dataclass(frozen=True, slots=True)
class Items:
    """A list of objects; ``key`` names the field that must be unique."""

    of: Struct
    key: str = ""
    # Returns the view that is valid inside an item.
    enter: Callable[[Mapping[str, Any], View], View] | None = None

    def check(self, field: str, value: Any, view: View) -> FieldErrors:  # noqa: ANN401, D102 - JSON
        if not isinstance(value, list):
            yield field_error(field, HIDDEN, "is not a list", "write a list of objects")
            return
        seen: set[object] = set()
        for index, item in enumerate(cast("list[Any]", value)):
            at = f"{field}[{index}]"
            inside = view
            if isinstance(item, dict):
                found = cast("dict[str, Any]", item)
                inside = self.enter(found, view) if self.enter else view
                name = found.get(self.key)
                if self.key and isinstance(name, str | int):
                    if name in seen:
                        yield field_error(
                            f"{at}.{self.key}", name, "is given twice", "give it once"
                        )
                    seen.add(name)
            yield from check_value(self.of, at, item, inside)


@dataclass(frozen=True, slots=True)
class Mapped:
    """An object with free keys; the validator gets ``(path, (key, value), view)``."""

    kind: str
    validate: Validator | None = None

    def check(self, field: str, value: Any, view: View) -> FieldErrors:  # noqa: ANN401, D102 - JSON
        if not isinstance(value, dict):
            yield field_error(field, HIDDEN, "is not an object", "write keys and values")
            return
        for key, part in cast("dict[str, Any]", value).items():
            at = f"{field}.{key}"
            if not KINDS[self.kind](part):
                yield field_error(at, _shown(part), f"is not {self.kind}", f"write {self.kind}")
            elif self.validate:
                yield from self.validate(at, (key, part), view)


@dataclass(frozen=True, slots=True)
class Forbidden:
    """A field that may not be set, except to a harmless value."""

    why: str
    fix: str
    harmless: tuple[object, ...] = ()

    def check(self, field: str, value: Any, _view: View) -> FieldErrors:  # noqa: ANN401, D102 - JSON
        if not _is_one_of(value, self.harmless):
            yield field_error(field, value, self.why, self.fix)


@dataclass(frozen=True, slots=True)
class NeedsPermission:
    """A field that needs a permission of the policy, except for a harmless value."""

    permission: Permission
    of: Node
    harmless: tuple[object, ...] = ()

    def check(self, field: str, value: Any, view: View) -> FieldErrors:  # noqa: ANN401, D102 - JSON
        if _is_one_of(value, self.harmless):
            return
        if not view.policy.allows(self.permission, view.requester):
            fix = f"leave it out, or ask an administrator to allow {self.permission}"
            yield field_error(field, value, "is not allowed for this task", fix)
            return
        yield from check_value(self.of, field, value, view)


@dataclass(frozen=True, slots=True)
class SidecarOnly:
    """A field of sidecar containers; for the task's own container, the task's ``field`` sets it."""

    of: Node
    field: str

    def check(self, field: str, value: Any, view: View) -> FieldErrors:  # noqa: ANN401, D102 - JSON
        if view.in_main:
            fix = f"use {self.field} of the task"
            yield field_error(field, HIDDEN, "is set in the task itself", fix)
            return
        yield from check_value(self.of, field, value, view)


Node = Leaf | Struct | Items | Mapped | Forbidden | NeedsPermission | SidecarOnly


def check_value(node: Node, field: str, value: Any, view: View) -> FieldErrors:  # noqa: ANN401 - JSON
    """Yield every error of a value at a path."""
    if value is None:
        yield field_error(field, "null", "has no effect", "leave it out; null removes nothing here")
        return
    yield from node.check(field, value, view)


def _near(name: str, node: Struct) -> str:
    """Return the fix for an unknown field."""
    return meant(name, node.fields) or "leave it out"


def _shown(value: object) -> object:
    """Return a value for an error. Objects and lists may hold secrets and are not shown."""
    return HIDDEN if isinstance(value, dict | list) else value


def _is_one_of(value: object, among: Sequence[object]) -> bool:
    """Compare as JSON does: ``False`` is not ``0``."""
    return any(type(value) is type(each) and value == each for each in among)
