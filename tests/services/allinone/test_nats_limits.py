"""Every configuration of a NATS server in this repository has the limits that are declared once."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from libs.bus.topology import STORE_BYTES
from libs.contracts.envelope import PAYLOAD_BYTES_MAX
from services.allinone.embedded.credentials import ensure_credentials
from services.allinone.embedded.nats import NatsOptions, configuration

ROOT = Path(__file__).parents[3]
UNITS = {"": 1, "MB": 2**20, "GB": 2**30}


def number(text: str, name: str) -> int:
    found = re.search(rf"{name}: (\d+)(MB|GB|)$", text, re.MULTILINE)
    assert found, f"no {name}"
    return int(found[1]) * UNITS[found[2]]


@pytest.mark.parametrize(
    "path",
    [
        "docker/nats.conf",
        "docker/nats-platform.conf",
        "deploy/k8s/charts/nats/templates/_config.tpl",
    ],
)
def test_the_largest_message_is_the_same_everywhere(path: str) -> None:
    assert number((ROOT / path).read_text(), "max_payload") == PAYLOAD_BYTES_MAX


def test_the_store_is_as_large_as_the_provisioner_believes() -> None:
    text = (ROOT / "docker" / "nats-platform.conf").read_text()
    assert number(text, "max_file_store") == STORE_BYTES


def test_the_embedded_server_has_the_declared_limits(tmp_path: Path) -> None:
    secrets = ensure_credentials(tmp_path, ())
    found = json.loads(configuration(NatsOptions(), secrets, {}, tmp_path, 4222))
    assert found["max_payload"] == PAYLOAD_BYTES_MAX
    assert found["jetstream"]["max_file_store"] == STORE_BYTES
