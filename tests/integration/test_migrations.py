from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from libs.store import migrate
from libs.store.connections import Address
from services.allinone.composition import WIRINGS

if TYPE_CHECKING:
    from libs.service.wiring import Wiring
    from tests.harness.postgres import Database


@pytest.mark.server
@pytest.mark.parametrize("wiring", WIRINGS, ids=lambda wiring: wiring.name)
async def test_a_schema_is_made_from_nothing_and_is_what_the_code_expects(
    database: Database, wiring: Wiring
) -> None:
    role = await database.role(wiring.name)
    address = Address(url=role.url, password=role.password)
    assert await migrate.current(address, wiring.tables) == ""
    await migrate.upgrade(address, wiring.tables, wiring.migrations)
    made = await migrate.current(address, wiring.tables)
    assert made == migrate.newest(wiring.migrations)
    await migrate.upgrade(address, wiring.tables, wiring.migrations)
    assert await migrate.current(address, wiring.tables) == made
    assert await migrate.check(address, wiring.tables) == []
