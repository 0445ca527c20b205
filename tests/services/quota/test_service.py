from __future__ import annotations

from random import Random

from libs.bus.memory import MemoryBus
from libs.bus.memory_broker import MemoryBroker
from libs.service.definition import Ports
from libs.store.memory import MemoryDatabase, MemoryStore
from services.quota.main import WIRING, build
from services.quota.settings import QuotaSettings
from services.quota.tables import TABLES
from tests.services.quota.world import Hands, numbers


async def test_the_service_is_wired() -> None:
    clock = Hands()
    store = MemoryStore(MemoryDatabase(), TABLES, clock=clock, source="quota", new_id=numbers())
    bus = MemoryBus(MemoryBroker(Random(1)), "quota")
    settings = QuotaSettings(database_url="postgresql://quota@/x", nats_url="nats://127.0.0.1")
    service = build(settings, Ports(store=store, bus=bus, clock=clock))
    assert service.name == WIRING.name == TABLES.schema
    assert set(service.handlers) == set(WIRING.consumes)
    assert {kind.__name__ for kind in service.commands} == {"SetQuota", "Reemit"}
