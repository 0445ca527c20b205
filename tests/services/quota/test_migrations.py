from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from libs.store.migrate import check, upgrade
from services.quota.main import WIRING

if TYPE_CHECKING:
    from libs.store.connections import Address


@pytest.mark.server
async def test_the_migrations_make_the_tables_and_may_run_twice(address: Address) -> None:
    await upgrade(address, WIRING.tables, WIRING.migrations)
    assert await check(address, WIRING.tables) == []
