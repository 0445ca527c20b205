from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from libs.contracts.messages import Quota, SetQuota, Unit
from libs.service.loop import pause
from libs.service.runner import Runner
from services.quota.handlers import set_quota
from services.quota.main import WIRING
from services.quota.settings import QuotaSettings
from services.quota.store import QuotaRow
from tests.kit.memory import MemoryPlatform, running
from tests.kit.virtual_time import LoopClock, virtually


async def test_the_service_is_wired() -> None:
    service = MemoryPlatform().build(WIRING)
    assert service.name == WIRING.name == WIRING.tables.schema
    assert set(service.handlers) == set(WIRING.consumes)
    assert {kind.__name__ for kind in service.commands} == {"SetQuota", "Reemit"}


def test_the_service_sleeps_until_the_next_row_expires() -> None:
    """However long its tick is: it neither polls nor comes late."""

    async def main() -> None:
        platform = MemoryPlatform(LoopClock())
        settings = QuotaSettings(database_url="-", nats_url="-", expire_tick_seconds=3600)
        service = platform.build(WIRING, settings)
        store, begin = service.ports.store, asyncio.get_running_loop().time()
        expires = {"ann": 90.5, "bob": 200.0, "cat": 5000.0}
        async with store.transaction() as tx:
            for user, seconds in expires.items():
                at = tx.now + timedelta(seconds=seconds)
                quota = Quota(user=user, unit=Unit.GPUS, limit=8, expires_at=at)
                await set_quota(tx, SetQuota(quota=quota, asked_by="root"))
        (loop,) = (each for each in service.loops if each.name == "expire")
        steps: list[float] = []

        async def counted(epoch: int) -> float | None:
            steps.append(asyncio.get_running_loop().time() - begin)
            return await loop.step(epoch)

        loops = [replace(each, step=counted) if each is loop else each for each in service.loops]
        async with running(Runner(replace(service, loops=tuple(loops)), settings)):
            await pause(6000)
        assert steps == pytest.approx([0, 90.5, 200, 3800, 5000], abs=0.1)
        async with store.transaction() as tx:
            rows = await tx.select(QuotaRow)
        late = [row.changed_at - row.expires_at for row in rows if row.expires_at and row.expired]
        assert len(late) == len(expires)
        assert max(late) < timedelta(seconds=0.1)

    virtually(main())
