"""Fields of a task under names that they do not have: those of the command line's options, and
words of other tools. Called by ``problems.py`` for a field that is not known. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache

from pydantic import BaseModel

from libs.contracts.base import Message
from libs.contracts.kinds import kinds
from libs.contracts.messages import TaskSpec
from libs.contracts.rank_sizes import ROLE_FIELDS
from libs.contracts.shown import Read
from libs.contracts.wording import Suggestions
from services.gateway.spec_bodies import RoleBody, TaskSpecBody

# Words of other tools, and short forms: the field that does it.
ALIASES: Mapping[str, str] = {
    "cmd": "command",
    "script": "command",
    "cwd": "working_directory",
    "dir": "working_directory",
    "directory": "working_directory",
    "working_dir": "working_directory",
    "environment": "env",
    "variables": "env",
    "gpu": "gpus_per_node",
    "num_gpus": "gpus_per_node",
    "num_nodes": "nodes",
    "node": "nodes",
    "force": "wait_for_nodes",
    "partition": "group",
    "queue": "group",
    "restarts": "retry.max_retries",
    "time": "max_run_seconds",
    "time_limit": "max_run_seconds",
    "timeout": "max_run_seconds",
    "walltime": "max_run_seconds",
    "selector": "node_selector",
    "constraint": "node_selector",
}
# The modes of a task, which are words for one field; with true, as other tools have them.
MODES: Mapping[str, str] = {"debug": "debug", "paused": "pause", "pause": "pause"}
# Options of `shiftwork submit` that are no part of a task.
WITHOUT_FIELD = frozenset({"venv", "file", "key", "dry_run", "follow"})
# Fields whose values are never repeated in a message.
_SECRET = frozenset({"env", "pod.template"})
SHOWN_MAX = 60


@cache
def _fields_of_options() -> Mapping[str, str]:
    """Each option's name as a field would be called, with the field that it sets."""
    return dict(_options(TaskSpec, ""))


def _options(kind: type[Message], above: str) -> Iterator[tuple[str, str]]:
    for name, field in kinds(kind).items():
        path = above + name
        target = f"{path}.mode" if field.shown.read is Read.MODE else path
        for option in field.shown.options:
            if option.startswith("--"):
                yield option[2:].replace("-", "_"), target
        if field.message and not field.repeated:
            yield from _options(field.message, f"{path}.")


def advice(part: type[BaseModel] | None, name: str, value: object, suggestions: Suggestions) -> str:
    """What may have been meant by a field that ``part`` of a body does not have; empty if nothing
    is near."""
    fields = part.model_fields if part is not None else {}
    if part is None or not issubclass(part, TaskSpecBody | RoleBody):
        return suggestions.meant(name, fields)
    if name in MODES and isinstance(value, bool) and issubclass(part, TaskSpecBody):
        return f"did you mean run_mode? Write {example('run_mode', MODES[name])}."
    known = {**ALIASES, **_fields_of_options()}
    path = known.get(name, "")
    if name in WITHOUT_FIELD and issubclass(part, TaskSpecBody):
        option = "--" + name.replace("_", "-")
        return f"the option {option} of `shiftwork submit` does it; a task has no field for it."
    if not path and name in _fields_elsewhere(part):
        path = name
    if path:
        return _meant_field(part, path, value)
    names = {**known, **{each: each for each in (*_fields_elsewhere(part), *fields)}}
    near = suggestions.meant(name, names)
    found = next((path for each, path in names.items() if near == f"did you mean {each}?"), "")
    return _meant_field(part, found, None) if found else ""


def _fields_elsewhere(part: type[BaseModel]) -> Mapping[str, object]:
    """The fields of roles for a task, and those of tasks for a role."""
    return (TaskSpecBody if issubclass(part, RoleBody) else RoleBody).model_fields


def _meant_field(part: type[BaseModel], path: str, value: object) -> str:
    """The question whether this field is meant, where it belongs, and how it is written."""
    if issubclass(part, RoleBody):
        path = ROLE_FIELDS.get(path, path)
        if path not in part.model_fields:
            return f"did you mean {path}? It is a field of the whole task: write it beside roles."
    elif path in RoleBody.model_fields and path not in (*part.model_fields, "command"):
        return f"did you mean {path}? It belongs to a role: roles: [{{..., {path}: ...}}]."
    written = "..." if value is None else example(path, value)
    is_more = value is not None and ("." in path or "..." not in written)
    return f"did you mean {path}?" + (f" Write {written}." if is_more else "")


def is_secret(name: str) -> bool:
    """True if the field that is meant by another name holds secrets."""
    return {**ALIASES, **_fields_of_options()}.get(name) in _SECRET


def example(path: str, value: object, *, of_list: bool = False) -> str:
    """A field with its value as a task file has it: ``retry: {max_retries: 3}``."""
    head, _, last = path.partition(".")
    shown = "..." if path in _SECRET else _shown(value)
    if of_list:
        shown = f"[{json.dumps(shown)}]"
    if last == "mode" and ":" in shown:
        mode, _, signal = shown.partition(":")
        shown = f"{mode}, signal: {signal}"
    return f"{head}: {{{last}: {shown}}}" if last else f"{head}: {shown}"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    simple = isinstance(value, str | int | float) and 0 < len(text) <= SHOWN_MAX
    return text if simple and text.isprintable() else "..."
