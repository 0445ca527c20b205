from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from libs.store.migrate import check, upgrade
from services.log_collector.main import WIRING

if TYPE_CHECKING:
    from libs.store.connections import Address


@pytest.mark.server
async def test_the_migrations_make_what_the_tables_say_twice_over(address: Address) -> None:
    await upgrade(address, WIRING.tables, WIRING.migrations)
    assert await check(address, WIRING.tables) == []
