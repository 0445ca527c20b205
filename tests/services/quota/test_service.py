from __future__ import annotations

from services.quota.main import WIRING
from tests.kit.memory import MemoryPlatform


async def test_the_service_is_wired() -> None:
    service = MemoryPlatform().build(WIRING)
    assert service.name == WIRING.name == WIRING.tables.schema
    assert set(service.handlers) == set(WIRING.consumes)
    assert {kind.__name__ for kind in service.commands} == {"SetQuota", "Reemit"}
