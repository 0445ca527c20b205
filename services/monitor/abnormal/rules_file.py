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
from services.monitor.domain.abnormal_rules import RULES, RuleBook, Setting, default_book

FILE_BYTES_MAX = 262_144
GROUPS = "groups"
ActionWord = Literal["notify", "tag", "lower_priority", "preempt", "stop", "cordon"]


class RulesFileError(ValueError):
    """The file cannot be used; the text names the field, the value and the fix."""


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
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RulesFileError(f"rules {path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RulesFileError(f"rules {path}: is neither YAML nor JSON: {error}") from error


def parse_rules(document: object, *, idle_seconds: float, quiet_seconds: float) -> RuleBook:
    """The rules of a document. An idle GPU and a quiet run count only after these times, so that a
    threshold below them would mean nothing."""
    least = {"idle_gpus": idle_seconds, "no_progress": quiet_seconds}
    given = dict(_mapping("the file", document))
    groups = _mapping(GROUPS, given.pop(GROUPS, None))
    settings = {**default_book().settings}
    for name, setting in settings.items():
        if setting.threshold < least.get(name, 0):
            settings[name] = Setting(setting.rule, least[name])
    settings |= _changed("", given, settings, least)
    of_groups: dict[str, Mapping[str, Setting]] = {}
    for group, entries in groups.items():
        if not is_name(str(group)):
            raise RulesFileError(f"{GROUPS}: {group!r} is no name of a group; give one of a node")
        of_groups[group] = _changed(f"{GROUPS}.{group}.", _mapping(group, entries), settings, least)
    return RuleBook(settings, of_groups)


def _mapping(name: str, found: object) -> Mapping[Any, Any]:
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise RulesFileError(f"{name}: {found!r} is no mapping; give names of rules with settings")
    return cast("dict[Any, Any]", found)


def _changed(
    above: str,
    given: Mapping[Any, Any],
    settings: Mapping[str, Setting],
    least: Mapping[str, float],
) -> dict[str, Setting]:
    changed: dict[str, Setting] = {}
    for name, fields in given.items():
        where = f"{above}{name}"
        if name not in RULES:
            fix = f"{meant(str(name), RULES)} give one of {', '.join(RULES)}".strip()
            raise RulesFileError(f"{where}: is no rule; {fix}")
        try:
            entry = _Entry.model_validate({} if fields is None else fields)
        except ValidationError as error:
            raise RulesFileError(_described(where, error)) from error
        before = settings[name]
        if entry.threshold is not None and entry.threshold < least.get(name, 0):
            raise RulesFileError(
                f"{where}.threshold: {entry.threshold:g} is less than {least[name]:g} s, after"
                " which it counts at all; give more, or lower SHIFTWORK_MONITOR_"
                + ("IDLE_GPU_SECONDS" if name == "idle_gpus" else "QUIET_SECONDS")
            )
        if entry.actions and "cordon" in entry.actions and not before.rule.names_nodes:
            able = ", ".join(each.name for each in RULES.values() if each.names_nodes)
            raise RulesFileError(
                f"{where}.actions: cordon: this rule names no node; leave it out here, {able} can"
            )
        changed[name] = Setting(
            before.rule,
            before.threshold if entry.threshold is None else entry.threshold,
            before.actions if entry.actions is None else _actions(entry.actions),
            before.enabled if entry.enabled is None else entry.enabled,
            before.dry_run if entry.dry_run is None else entry.dry_run,
        )
    return changed


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
