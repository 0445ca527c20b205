from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from libs.service.schema_wait import wait_for_schema
from libs.store import migrate
from libs.store.connections import Address
from libs.store.port import StoreUnavailableError
from services.quota.main import WIRING
from services.quota.settings import QuotaSettings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kit.postgres import Database


def settings(url: str, password_file: Path, seconds: float) -> QuotaSettings:
    return QuotaSettings(
        database_url=url,
        database_password_file=password_file,
        nats_url="nats://127.0.0.1:1",
        schema_wait_seconds=seconds,
    )


@pytest.mark.server
async def test_a_service_waits_until_its_schema_is_what_its_code_expects(
    database: Database,
) -> None:
    role = await database.role("quota")
    waiting = asyncio.ensure_future(
        wait_for_schema(WIRING, settings(role.url, role.password_file, 20))
    )
    await asyncio.sleep(0.5)
    assert not waiting.done()
    await migrate.upgrade(Address(role.url, role.password), WIRING.tables, WIRING.migrations)
    await asyncio.wait_for(waiting, 5)


@pytest.mark.server
async def test_a_service_waits_for_a_role_that_is_not_there_yet(database: Database) -> None:
    await database.role("submit")
    url = database.server.url_of("quota_of_nobody", database.name)
    with pytest.raises(StoreUnavailableError, match="not ready"):
        await wait_for_schema(WIRING, settings(url, database.server.password_file, 0.5))


@pytest.mark.server
async def test_the_wait_times_out_naming_what_is_missing(database: Database) -> None:
    role = await database.role("quota")
    with pytest.raises(StoreUnavailableError, match="schema quota is at nothing"):
        await wait_for_schema(WIRING, settings(role.url, role.password_file, 0.5))


async def test_the_schema_is_not_checked_without_a_wait_time(tmp_path: Path) -> None:
    await wait_for_schema(WIRING, settings("postgresql://x@127.0.0.1:1/x", tmp_path, 0))
