"""Every test of submit's handlers runs on the memory store and on PostgreSQL, migrated."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from services.submit.ids import TimeSortedIds
from services.submit.main import WIRING
from services.submit.settings import SubmitSettings
from tests.kit.memory import MemoryPlatform
from tests.kit.service import ServiceHarness

if TYPE_CHECKING:
    from libs.service.wiring import Wiring
    from libs.store.port import Store


@pytest.fixture
def wiring() -> Wiring:
    return WIRING


def submit_service(
    platform: MemoryPlatform | None = None, store: Store | None = None, **changes: Any
) -> ServiceHarness:
    """The service with ids from a seed; on a store in memory if none is given."""
    settings = SubmitSettings(database_url="-", nats_url="-", **changes)
    make_id = TimeSortedIds(Random(7).getrandbits)
    platform = platform or MemoryPlatform()
    return ServiceHarness(platform, WIRING, settings, store=store, make_id=make_id)


@pytest.fixture
def service(platform: MemoryPlatform, store: Store) -> ServiceHarness:
    return submit_service(platform, store)
