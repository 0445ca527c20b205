"""Reads the groups, labels and taints of a machine's nodes from a small file.

Called by ``local_nodes.py`` at the start. YAML or JSON: an object for each node id, such as
``local-0: {group: dev, labels: {zone: a, leaf: a1}, taints: [reserved=vision]}``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from libs.contracts.ids import (
    LABEL_KEY_RULE,
    LABEL_VALUE_RULE,
    NAME_RULE,
    is_label_key,
    is_label_value,
    is_name,
    is_taint,
)

FILE_BYTES_MAX = 4_194_304


class NodeConfig(BaseModel):
    """The entry of one node."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # None: the group from the settings.
    group: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    taints: tuple[str, ...] = ()

    @field_validator("group")
    @classmethod
    def _group(cls, group: str | None) -> str | None:
        if group is not None and not is_name(group):
            raise ValueError(f"{group!r} is no group; use {NAME_RULE}")
        return group

    @field_validator("labels")
    @classmethod
    def _labels(cls, labels: dict[str, str]) -> dict[str, str]:
        check_labels(labels)
        return labels

    @field_validator("taints")
    @classmethod
    def _taints(cls, taints: tuple[str, ...]) -> tuple[str, ...]:
        check_taints(taints)
        return taints


def check_labels(labels: Mapping[str, str]) -> None:
    """Raise ``ValueError`` unless all are labels of a node."""
    for key, value in labels.items():
        if not is_label_key(key):
            raise ValueError(f"{key!r} is no label's key; use {LABEL_KEY_RULE}")
        if not is_label_value(value):
            raise ValueError(f"{value!r} is no value of label {key}; use {LABEL_VALUE_RULE}")


def check_taints(taints: Collection[str]) -> None:
    """Raise ``ValueError`` unless all are taints of a node."""
    for taint in taints:
        if not is_taint(taint):
            raise ValueError(f"{taint!r} is no taint; write KEY or KEY=VALUE, {LABEL_KEY_RULE}")


def read_nodes_file(path: Path, node_ids: Collection[str]) -> Mapping[str, NodeConfig]:
    """Read the entries by node. Raises ``ValueError`` with the place and the fix."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ValueError(f"nodes_file {path} is larger than {FILE_BYTES_MAX} bytes")
        found: Any = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise ValueError(f"nodes_file {path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"nodes_file {path} is neither YAML nor JSON: {error}") from error
    try:
        configs = TypeAdapter(dict[str, NodeConfig]).validate_python(found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ValueError(f"nodes_file {path}: {where}: {first['msg']}") from error
    for node_id in configs:
        if node_id not in node_ids:
            known = ", ".join(sorted(node_ids)[:5])
            raise ValueError(
                f"nodes_file {path}: {node_id} is no node of this machine; these are: {known}"
                + (", …" if len(node_ids) > 5 else "")  # noqa: PLR2004 - as many as are named
            )
    return configs
