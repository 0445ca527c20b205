"""What the scheduler refuses to start with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from services.scheduler.settings import SchedulerSettings


def settings(**fields: Any) -> SchedulerSettings:
    return SchedulerSettings(database_url="-", nats_url="-", **fields)


def test_a_policy_file_is_read_at_start(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("groups: {training: {policy: fifo}, dev: {}}")
    found = settings(policy_file=path).policies()
    assert [(each.group, each.policy, each.from_file) for each in found] == [
        ("training", "fifo", True),
        ("dev", settings().policy().policy, True),
    ]
    assert settings().policies() == ()


def test_a_wrong_policy_file_is_refused_with_all_its_errors(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("groups: {a: {polcy: fifo}, b: {protected: x}}")
    with pytest.raises(ValidationError) as refused:
        settings(policy_file=path)
    (error,) = refused.value.errors()
    assert error["loc"] == ("policy_file",)
    assert "groups.a.polcy: 'fifo' is no key of this section; did you mean policy?" in error["msg"]
    assert "groups.b.protected: 'x' is not a duration" in error["msg"]
    with pytest.raises(ValidationError, match="cannot be read"):
        settings(policy_file=tmp_path / "nothing.yaml")
