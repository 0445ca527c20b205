"""A settings class as a table for people: variable, default, bounds, and the comment above it.

Read from the class and its own source, so that the page matches the code. Used by
``generate_docs.py``.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
_WORDS = {str: "text", int: "number", float: "number", bool: "true or false", Path: "path"}


def settings_table(settings: type[BaseSettings], prefix: str) -> list[str]:
    """The lines of a table with one row for each field that the class itself declares, or a part of
    it that is no settings class of its own."""
    rows = ["| variable | default | may be | |", "| --- | --- | --- | --- |"]
    comments = comments_of(settings)
    for base in settings.__mro__[1:]:
        if (
            issubclass(base, BaseModel)
            and not issubclass(base, BaseSettings)
            and base is not BaseModel
        ):
            comments = comments_of(base) | comments
    for name, comment in comments.items():
        info = settings.model_fields[name]
        variable, bounds = f"`{prefix}{name.upper()}`", _cell(_bounds(info))
        rows.append(f"| {variable} | {_default(info)} | {bounds} | {_cell(comment)} |")
    return rows


def all_comments_of(settings: type[BaseModel]) -> dict[str, str]:
    """The same of every class that the settings are made of, the base classes first."""
    found: dict[str, str] = {}
    for base in reversed(settings.__mro__):
        if issubclass(base, BaseModel) and base not in (BaseModel, BaseSettings):
            found |= comments_of(base)
    return found


def comments_of(settings: type[BaseModel]) -> dict[str, str]:
    """Field -> the comment right above it, in the order of the source."""
    source = textwrap.dedent(inspect.getsource(settings))
    lines = source.splitlines()
    (body,) = ast.parse(source).body
    assert isinstance(body, ast.ClassDef), "the source of a class is a class"
    found: dict[str, str] = {}
    for statement in body.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        above: list[str] = []
        at = statement.lineno - 2
        while lines[at].strip().startswith("#"):
            above.insert(0, lines[at].strip().lstrip("# "))
            at -= 1
        found[statement.target.id] = " ".join(above)
    return found


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "**must be given**"
    value = info.get_default(call_default_factory=True)
    if value in (None, "", {}):
        return ""
    if isinstance(value, Enum):
        return f"`{value.value}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float):
        return f"`{value:.15g}`"
    text = str(value)
    # The interpreter's own folder is another one on every machine.
    return "`PYTHON_FOLDER:" + text.partition(":")[2] + "`" if _is_task_path(text) else f"`{text}`"


def _is_task_path(text: str) -> bool:
    return text.endswith("/usr/local/bin:/usr/bin:/bin")


def _bounds(info: FieldInfo) -> str:
    words = [_type(info.annotation)]
    for limit in info.metadata:
        words += [
            f"{sign} {getattr(limit, name):.15g}"
            for name, sign in _SIGNS.items()
            if getattr(limit, name, None) is not None
        ]
        if getattr(limit, "pattern", None):
            # Written so that no reader takes it for a link.
            words.append("<code>" + limit.pattern.replace("](", "]&#40;") + "</code>")
    return ", ".join(words)


def _type(kind: Any) -> str:  # noqa: ANN401 - any annotation
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        kind = next(each for each in typing.get_args(kind) if each is not type(None))
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(f"`{word}`" for word in typing.get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(f"`{each.value}`" for each in kind)
    return _WORDS.get(kind, "JSON")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
