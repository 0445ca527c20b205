from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.services.launcher.runtimes.test_process import Box


@pytest_asyncio.fixture
async def box(tmp_path: Path) -> AsyncIterator[Box]:
    """A node that a launcher leads."""
    made = Box(tmp_path / "machine")
    await made.lead()
    yield made
    await made.clear()
