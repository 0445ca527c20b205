from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from libs.pods.pod_policy import PolicyError
from services.submit.domain.facts import Rules
from services.submit.main import WIRING
from services.submit.settings import SubmitSettings
from services.submit.tables import TABLES
from tests.kit.memory import MemoryPlatform

SERVERS: dict[str, Any] = {"database_url": "postgresql://submit@/x", "nats_url": "nats://127.0.0.1"}


def test_the_settings_are_the_domains_defaults() -> None:
    settings = SubmitSettings(**SERVERS)
    assert {name: getattr(settings, name) for name in Rules.model_fields} == Rules().model_dump()


def test_every_limit_of_the_domain_can_be_set_or_is_generous(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHIFTWORK_SUBMIT_ACK_DEADLINE_SECONDS_MAX", "90")
    assert SubmitSettings(**SERVERS).ack_deadline_seconds_max == 90.0


def test_a_default_outside_its_bounds_is_refused_at_start() -> None:
    with pytest.raises(ValidationError, match="DEFAULT_ACK_DEADLINE_SECONDS 60 is not between"):
        SubmitSettings(**SERVERS, ack_deadline_seconds_max=30.0)


async def test_the_service_is_wired() -> None:
    service = MemoryPlatform().build(WIRING)
    assert service.name == WIRING.name == TABLES.schema
    assert set(service.handlers) == set(WIRING.consumes)
    assert {kind.__name__ for kind in service.commands} == {
        "CreateTask",
        "CreateTasks",
        "SetGoal",
        "SetMode",
        "SetPriority",
        "Reemit",
    }


async def test_the_pod_policy_is_read_at_the_start(tmp_path: Path) -> None:
    platform = MemoryPlatform()
    file = tmp_path / "pods.yaml"
    file.write_text("default_image: site/train:1\n")
    assert platform.build(WIRING, SubmitSettings(**SERVERS, pod_policy_file=file)).name == "submit"
    file.write_text("defaultimage: site/train:1\n")
    with pytest.raises(PolicyError, match=r"pods\.yaml: defaultimage: is not known"):
        platform.build(WIRING, SubmitSettings(**SERVERS, pod_policy_file=file))
