"""The adapters with the real libraries, in the environment that `make test-frameworks` sets up."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.conftest import Done, Shiftwork
from tests.frameworks.local_gang import BIN, HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

PYTHON = BIN / "python"
FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """However pytest is started: the usual limit is for tests that import no framework."""
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker(pytest.mark.timeout(HANG_SECONDS))


@pytest.fixture(scope="session")
def frameworks_python() -> Path:
    """The interpreter that has PyTorch and the others."""
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} is missing: run `make test-frameworks`")
    return PYTHON


class SlowShiftwork(Shiftwork):
    """The command line with a long limit: gangs that start keep a small machine busy."""

    def __call__(self, *arguments: str, seconds: float = HANG_SECONDS) -> Done:
        return super().__call__(*arguments, seconds=seconds)


@pytest.fixture(scope="session")
def platform(frameworks_python: Path) -> Iterator[Shiftwork]:
    """Two nodes of two slots each, shared by the tests of this folder."""
    del frameworks_python
    user = SlowShiftwork(Path(tempfile.mkdtemp(prefix="sw-frameworks-")))
    try:
        user.bring_up()
        yield user
        user.take_down()
    finally:
        shutil.rmtree(user.home, ignore_errors=True)
