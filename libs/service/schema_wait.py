"""Waits, before a service starts, until its schema is what its code expects.

Where a provisioner runs beside the services (a deployment's job), a process that starts first, or
one of a newer version, must not use tables that do not exist yet. Called by ``run.py``.
"""

from __future__ import annotations

import asyncio

from libs.service import observability
from libs.service.loop import Backoff
from libs.service.settings import BaseServiceSettings
from libs.service.wiring import Wiring
from libs.store.connections import Address
from libs.store.migrate import current, newest
from libs.store.port import StoreUnavailableError

FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.2, 2.0


async def wait_for_schema(wiring: Wiring, settings: BaseServiceSettings) -> None:
    """Return once the schema is at the newest migration of this code, or past it.

    Returns at once if ``schema_wait_seconds`` is 0. StoreUnavailableError, with what is missing,
    if it takes longer than that. Each new reason for waiting is logged once.
    """
    if settings.schema_wait_seconds == 0:
        return
    log, backoff = observability.log(wiring.name), Backoff(FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS)
    address = Address(settings.database_url, settings.database_password())
    missing = ""
    try:
        async with asyncio.timeout(settings.schema_wait_seconds):
            while now := await _missing(wiring, address):
                if now != missing:
                    log.info("waits for its schema", problem=now)
                    missing = now
                await backoff.wait()
    except TimeoutError:
        raise StoreUnavailableError(
            f"{missing or 'the database did not answer'}, and nobody changed that within "
            f"{settings.schema_wait_seconds:g} s: the provisioner's log has the reason"
        ) from None


async def _missing(wiring: Wiring, address: Address) -> str:
    """Describe what is missing; empty once everything is there."""
    wanted = newest(wiring.migrations)
    try:
        found = await current(address, wiring.tables)
    except StoreUnavailableError as problem:
        return f"the database is not ready: {problem}"
    if found >= wanted:
        return ""
    return f"schema {wiring.tables.schema} is at {found or 'nothing'}, this code needs {wanted}"
