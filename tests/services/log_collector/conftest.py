"""log-collector on the memory store and on PostgreSQL, migrated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from services.log_collector.main import WIRING
from services.log_collector.sources.memory import MemorySource
from tests.services.log_collector.collector_harness import CollectorHarness, collecting

if TYPE_CHECKING:
    from libs.service.wiring import Wiring
    from libs.store.port import Store
    from tests.kit.memory import MemoryPlatform


@pytest.fixture
def wiring() -> Wiring:
    return WIRING


@pytest.fixture
def source() -> MemorySource:
    return MemorySource()


@pytest_asyncio.fixture
async def harness(store: Store, platform: MemoryPlatform, source: MemorySource) -> CollectorHarness:
    return await collecting(source, platform=platform, store=store)
