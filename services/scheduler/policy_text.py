"""The text of a policy file: YAML, or JSON, read strictly into plain values.

Called by ``policy_documents.py`` and the lab. People write these files by hand, so a text must have
one meaning: a repeated key, an alias, too deep nesting or a too large file is rejected, by line.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import yaml

from libs.contracts.messages import FieldError

DOCUMENT_BYTES_MAX = 262_144
DEPTH_MAX = 16
# With libyaml, where PyYAML was built with it, ten times as fast.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_yaml: Any = yaml


class PolicyTextError(ValueError):
    """The text cannot be read; ``error`` names the line and the fix."""

    def __init__(self, field: str, message: str, fix: str, value: str = "") -> None:
        super().__init__(f"{field}: {message}; {fix}")
        self.error = FieldError(field=field, value=value, message=message, fix=fix)


def read_document(text: str, *, bytes_max: int = DOCUMENT_BYTES_MAX) -> object:
    """The values of a policy file; PolicyTextError if it cannot be read."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > bytes_max:
        raise PolicyTextError(
            "document",
            f"has {size} bytes, more than {bytes_max}",
            "set a few groups at a time",
        )
    try:
        with contextlib.suppress(json.JSONDecodeError, RecursionError):
            return json.loads(text, object_pairs_hook=_object)
        for depth, event in _depths(text):
            if isinstance(event, yaml.AliasEvent):
                raise _at(event, "is an alias", "write the value out")
            if depth > DEPTH_MAX:
                raise _at(event, f"nests more than {DEPTH_MAX} deep", "see the examples")
        node: Any = _yaml.compose(text, Loader=_LOADER)
        if node is None:
            return None
        _refuse_repeated_keys(node)
        return _yaml.constructor.SafeConstructor().construct_document(node)
    except yaml.YAMLError as error:
        position = getattr(error, "problem_mark", None)
        where = f"line {position.line + 1}" if position else "document"
        problem = str(getattr(error, "problem", None) or error)
        raise PolicyTextError(where, f"is not YAML: {problem}", "correct that line") from None
    except ValueError as error:
        if isinstance(error, PolicyTextError):
            raise
        # Such as 2026-13-01, which looks like a date.
        raise PolicyTextError("document", f"is not YAML: {error}", "quote that value") from None


def _depths(text: str) -> Iterator[tuple[int, yaml.Event]]:
    """Every event of the text with its depth; needs no stack, whatever the depth."""
    depth = 0
    for event in _yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        yield depth, event


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            message = f"the key {_cut(name)!r} is there twice in one place"
            raise PolicyTextError("document", message, "keep one of them")
        found[name] = value
    return found


def _refuse_repeated_keys(node: yaml.Node) -> None:
    if isinstance(node, yaml.SequenceNode):
        for part in node.value:
            _refuse_repeated_keys(part)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                raise _at(key, "is no key", "write keys as plain words")
            if key.value in seen:
                raise _at(key, f"the key {_cut(key.value)!r} is there twice", "keep one of them")
            seen.add(key.value)
            _refuse_repeated_keys(value)


def _at(place: yaml.Node | yaml.Event, message: str, fix: str) -> PolicyTextError:
    position: Any = place.start_mark
    return PolicyTextError(f"line {position.line + 1}", message, fix)


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "…"  # noqa: PLR2004 - for people to read
