"""What waits in the outbox, as operators see it."""

from __future__ import annotations

import asyncio

from prometheus_client import REGISTRY

from libs.contracts import messages as m
from tests.kit.clock import START
from tests.kit.virtual_time import virtually
from tests.libs.service.service_harness import TABLES, CountingService, until

WAITING, AGE = "shiftwork_outbox_waiting", "shiftwork_outbox_oldest_age_seconds"


def shown(name: str) -> float | None:
    return REGISTRY.get_sample_value(name, {"service": "quota"})


def test_number_and_age_of_what_waits_are_shown_while_the_bus_is_down() -> None:
    async def main() -> None:
        platform = CountingService()
        platform.broker.stop()
        async with platform.store(TABLES).transaction() as tx:
            for number in range(300):
                await platform.on_run_started(
                    tx, m.RunStarted(task_id=f"t{number}", attempt=1, started_at=START)
                )
        task = asyncio.ensure_future(platform.runner().run())
        # More than one page, and all of them.
        await until(lambda: shown(WAITING) == 300)
        await asyncio.sleep(90)
        assert shown(WAITING) == 300
        assert 60 < (shown(AGE) or 0) < 120
        platform.broker.start()
        await until(lambda: len(platform.usages()) == 300)
        await until(lambda: shown(WAITING) == 0)
        assert shown(AGE) == 0
        # Another process leads from now on: what this one knew is no news.
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (shown(WAITING), shown(AGE)) == (None, None)

    virtually(main())
