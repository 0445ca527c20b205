"""The adapters with the real libraries, in the environment that `make test-frameworks` sets up."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-frameworks/bin/python"


@pytest.fixture(scope="session")
def frameworks_python() -> Path:
    """The interpreter that has PyTorch and the others."""
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} is missing: run `make test-frameworks`")
    return PYTHON
