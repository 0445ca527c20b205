"""Reads the file in which a site sets its rules (``SHIFTWORK_MONITOR_RULES_FILE``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from libs.contracts.ids import is_name
from libs.contracts.messages import AbnormalAction
from libs.contracts.wording import meant
from services.monitor.domain.abnormal_rules import (
    RULES,
    Change,
    Changes,
    RuleBook,
    Setting,
    default_book,
)

FILE_BYTES_MAX = 262_144
# Parts of the file, and what the names of each are.
GROUPS, TEAMS = "groups", "teams"
NAMES_OF = {GROUPS: "a group; give one of a node", TEAMS: "a team; give one of a user"}
TEXT_TAG, MERGE_TAG = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"
ActionWord = Literal["notify", "tag", "lower_priority", "preempt", "stop", "cordon"]


class RulesFileError(ValueError):
    """The file cannot be used; the text names the field, the value and the fix."""


class _Loader(yaml.SafeLoader):
    """Reads each key as the text that it is: a group or team may be named 123, 0123 or on."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """See the library."""
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != MERGE_TAG:
                key.tag = TEXT_TAG
        return super().construct_mapping(node, deep=deep)


class _Entry(BaseModel):
    """What a file may say about one rule; what it leaves out stays as it is."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    threshold: Annotated[float, Field(gt=0, le=1e9)] | None = None
    actions: Annotated[list[ActionWord], Field(max_length=6)] | None = None
    enabled: bool | None = None
    dry_run: bool | None = None


def read_rules(path: Path | None, *, idle_seconds: float, quiet_seconds: float) -> RuleBook:
    """The rules of a file; the defaults if there is none. Raises RulesFileError."""
    if path is None:
        document: Any = {}
    else:
        document = _document(path)
    try:
        return parse_rules(document, idle_seconds=idle_seconds, quiet_seconds=quiet_seconds)
    except RulesFileError as error:
        raise RulesFileError(f"rules {path}: {error}") from error


def _document(path: Path) -> Any:  # noqa: ANN401 - whatever the file has
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise RulesFileError(f"rules {path}: is larger than {FILE_BYTES_MAX} bytes")
        text = path.read_text(encoding="utf-8")
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - it is a SafeLoader
    except OSError as error:
        raise RulesFileError(f"rules {path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RulesFileError(f"rules {path}: is neither YAML nor JSON: {error}") from error


def parse_rules(document: object, *, idle_seconds: float, quiet_seconds: float) -> RuleBook:
    """The rules of a document. An idle GPU and a quiet run count only after these times, so that a
    threshold below them would mean nothing."""
    least = {"idle_gpus": idle_seconds, "no_progress": quiet_seconds}
    given = dict(_mapping("the file", document))
    parts = {part: _mapping(part, given.pop(part, None)) for part in NAMES_OF}
    settings = {**default_book().settings}
    for name, setting in settings.items():
        if setting.threshold < least.get(name, 0):
            settings[name] = Setting(setting.rule, least[name])
    for name, change in _changes("", given, least).items():
        settings[name] = change.applied(settings[name])
    of: dict[str, dict[str, Changes]] = {part: {} for part in NAMES_OF}
    for part, entries in parts.items():
        for name, rules in entries.items():
            if not isinstance(name, str) or not is_name(name):
                raise RulesFileError(f"{part}: {name!r} is no name of {NAMES_OF[part]}")
            of[part][name] = _changes(f"{part}.{name}.", _mapping(name, rules), least)
    return RuleBook(settings, of[GROUPS], of[TEAMS])


def rules_schema() -> dict[str, Any]:
    """The JSON schema of a file, for values of the chart."""

    def entries() -> dict[str, Any]:
        return {"type": "object", "additionalProperties": False, "properties": rules}

    rules: dict[str, Any] = {}
    for rule in RULES.values():
        rules[rule.name] = entry = _Entry.model_json_schema()
        del entry["title"]
        if not rule.at_fault:
            actions = entry["properties"]["actions"]["anyOf"][0]["items"]
            actions["enum"] = [word for word in actions["enum"] if word != "cordon"]
    document = entries()
    parts = {part: {"type": "object", "additionalProperties": entries()} for part in NAMES_OF}
    return document | {"properties": rules | parts}


def _mapping(name: str, found: object) -> Mapping[Any, Any]:
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise RulesFileError(f"{name}: {found!r} is no mapping; give names of rules with settings")
    return cast("dict[Any, Any]", found)


def _changes(above: str, given: Mapping[Any, Any], least: Mapping[str, float]) -> dict[str, Change]:
    changes: dict[str, Change] = {}
    for name, fields in given.items():
        where = f"{above}{name}"
        if name not in RULES:
            fix = f"{meant(str(name), RULES)} give one of {', '.join(RULES)}".strip()
            raise RulesFileError(f"{where}: is no rule; {fix}")
        try:
            entry = _Entry.model_validate({} if fields is None else fields)
        except ValidationError as error:
            raise RulesFileError(_described(where, error)) from error
        if entry.threshold is not None and entry.threshold < least.get(name, 0):
            raise RulesFileError(
                f"{where}.threshold: {entry.threshold:g} is less than {least[name]:g} s, after"
                " which it counts at all; give more, or lower SHIFTWORK_MONITOR_"
                + ("IDLE_GPU_SECONDS" if name == "idle_gpus" else "QUIET_SECONDS")
            )
        if entry.actions and "cordon" in entry.actions and not RULES[name].at_fault:
            able = ", ".join(each.name for each in RULES.values() if each.at_fault)
            raise RulesFileError(
                f"{where}.actions: cordon: no node is at fault when a task {RULES[name].fact};"
                f" leave it out here, it is for {able}"
            )
        changes[name] = Change(
            entry.threshold,
            None if entry.actions is None else _actions(entry.actions),
            entry.enabled,
            entry.dry_run,
        )
    return changes


def _actions(words: list[ActionWord]) -> tuple[AbnormalAction, ...]:
    return tuple(AbnormalAction[word.upper()] for word in dict.fromkeys(words))


def _described(where: str, error: ValidationError) -> str:
    """The first of several errors: field, value, fix."""
    first = error.errors(include_url=False)[0]
    if not first["loc"]:
        known = ", ".join(_Entry.model_fields)
        return f"{where}: {first['input']!r} is no mapping; give some of {known}"
    at = ".".join([where, *(str(part) for part in first["loc"])])
    if first["type"] == "extra_forbidden":
        return f"{at}: is not known; give some of {', '.join(_Entry.model_fields)}"
    return f"{at}: {first['input']!r}: {first['msg']}"
