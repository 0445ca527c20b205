"""The all-in-one's own use of the HTTP API: as the first administrator, on this machine.

It goes through the front door like everybody else, so that what it does is authenticated, audited
and refused where it must be.
"""

from __future__ import annotations

from typing import Any

import httpx

from services.allinone.data_folder import DataFolder

TIMEOUT_SECONDS = 15.0


def admin_client(data_folder: DataFolder, url: str) -> httpx.AsyncClient:
    """An HTTP client with the administrator's token."""
    return client_of(url, data_folder.credentials.admin_token_file.read_text().strip())


def client_of(url: str, token: str) -> httpx.AsyncClient:
    """An HTTP client with this token."""
    return httpx.AsyncClient(
        base_url=url,
        headers={"authorization": f"Bearer {token}"},
        timeout=TIMEOUT_SECONDS,
        trust_env=False,
    )


async def items(client: httpx.AsyncClient, path: str, **parameters: str | int) -> list[Any]:
    """Every item of a list, page by page; httpx.HTTPError if it is refused."""
    found: list[Any] = []
    cursor: str | None = None
    while True:
        query = parameters | ({"cursor": cursor} if cursor else {})
        answer = (await client.get(path, params=query)).raise_for_status().json()
        found += answer["items"]
        cursor = answer.get("next_cursor")
        if not cursor:
            return found
