"""Every test of the monitor's handlers runs on the memory store and on PostgreSQL, migrated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from services.monitor.main import WIRING
from services.monitor.settings import MonitorSettings
from tests.kit.service import ServiceHarness

if TYPE_CHECKING:
    from libs.service.wiring import Wiring
    from libs.store.port import Store
    from tests.kit.memory import MemoryPlatform


@pytest.fixture
def wiring() -> Wiring:
    return WIRING


@pytest.fixture
def service(platform: MemoryPlatform, store: Store) -> ServiceHarness:
    settings = MonitorSettings(database_url="-", nats_url="-")
    return ServiceHarness(platform, WIRING, settings, store=store)
