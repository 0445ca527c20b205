"""Labels and taints of nodes: those from the runtime, and those from operators.

Operators cannot override those from the runtime, which the settings determine. Called by
``handlers.py`` and ``inventory.py``; pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from libs.contracts.ids import (
    LABEL_KEY_RULE,
    LABEL_VALUE_RULE,
    is_label_key,
    is_label_value,
    is_taint,
)
from libs.contracts.messages import FieldError, Node, Refusal, RefusalCode, SetNodeMarks
from services.launcher.domain.model import NodeRow

LABELS_MAX = 64


def key_of(taint: str) -> str:
    """The key of ``key`` or ``key=value``."""
    return taint.partition("=")[0]


def by_key(taints: Iterable[str]) -> dict[str, str]:
    """Taints by their keys; of several with the same key, the last one."""
    return {key_of(taint): taint for taint in taints}


def merge_labels(own: Node, labels: Mapping[str, str], taints: Iterable[str]) -> dict[str, Any]:
    """The labels and taints of a node together with the operators', as fields of ``Node``."""
    every = {**by_key(own.taints), **by_key(taints)}
    return {"labels": {**own.labels, **labels}, "taints": tuple(sorted(every.values()))}


def apply_command(row: NodeRow, command: SetNodeMarks, now: datetime) -> NodeRow | Refusal:
    """Apply an operator's command to a row. Returns the same row if nothing changes."""
    own_labels = row.node.labels.keys() - row.labels.keys()
    own_taints = by_key(row.node.taints).keys() - by_key(row.taints).keys()
    wanted = by_key(command.taints)
    errors = [
        *_format_errors(command),
        *_runtime_owned("labels", {*command.labels, *command.unlabel} & own_labels),
        *_runtime_owned("taints", {*wanted, *command.untaint} & own_taints),
    ]
    gone_labels, gone_taints = set(command.unlabel), set(command.untaint)
    labels = {key: row.labels[key] for key in row.labels if key not in gone_labels}
    labels |= command.labels
    taints = {key: each for key, each in by_key(row.taints).items() if key not in gone_taints}
    taints |= wanted
    for field, count in (("labels", len(labels)), ("taints", len(taints))):
        if count > LABELS_MAX:
            errors.append(
                _error(field, str(count), f"a node has at most {LABELS_MAX} of them", "remove some")
            )
    if errors:
        return _refusal(errors)
    kept = tuple(sorted(taints.values()))
    if (labels, kept) == (dict(row.labels), row.taints):
        return row
    own = row.node.model_copy(
        update={
            "labels": {key: row.node.labels[key] for key in sorted(own_labels)},
            "taints": tuple(t for t in row.node.taints if key_of(t) in own_taints),
        }
    )
    return replace(
        row,
        labels=labels,
        taints=kept,
        node=row.node.model_copy(update=merge_labels(own, labels, kept)),
        version=row.version + 1,
        changed_at=now,
    )


def _format_errors(command: SetNodeMarks) -> Iterator[FieldError]:
    for key, value in command.labels.items():
        if not is_label_key(key):
            yield _error("labels", key, "is not a label's key", f"use {LABEL_KEY_RULE}")
        elif not is_label_value(value):
            fix = f"use {LABEL_VALUE_RULE}"
            yield _error(f"labels.{key}", value, "is not a label's value", fix)
    for taint in command.taints:
        if not is_taint(taint):
            fix = f"write KEY or KEY=VALUE; a key is {LABEL_KEY_RULE}"
            yield _error("taints", taint, "is not a taint", fix)
    for field, both in (
        ("labels", command.labels.keys() & set(command.unlabel)),
        ("taints", by_key(command.taints).keys() & set(command.untaint)),
    ):
        for key in sorted(both):
            yield _error(field, key, "is both set and removed", "do one of them")


def _runtime_owned(field: str, keys: Iterable[str]) -> Iterator[FieldError]:
    for key in sorted(keys):
        fix = "change it in the launcher's settings, or use another key"
        yield _error(field, key, "comes from the node itself", fix)


def _error(field: str, value: str, message: str, fix: str) -> FieldError:
    return FieldError(field=field, value=value[:80], message=message, fix=fix)


def _refusal(errors: list[FieldError]) -> Refusal:
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    detail = f"{first.field}: {first.value} {first.message}{more}"
    return Refusal(code=RefusalCode.INVALID, detail=detail, errors=tuple(errors))
