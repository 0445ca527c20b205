"""These tests are about the embedded servers, wherever other tests get theirs from."""

from __future__ import annotations

import pytest

from tests.kit.infra import Infra


@pytest.fixture(scope="session")
def infra() -> Infra:
    return Infra.EMBEDDED
