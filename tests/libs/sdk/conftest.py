"""One run server per test, and a process state of its own for the SDK."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

import pytest
from shiftwork import training
from shiftwork.live import Limits

from tests.libs.sdk.run_server import TOKEN, RunServer

if TYPE_CHECKING:
    from collections.abc import Iterator

QUICK = dataclasses.replace(
    Limits(),
    poll_seconds=5.0,
    answer_seconds=1.0,
    backoff_seconds_min=0.01,
    backoff_seconds_max=0.1,
    metrics_tick_seconds=0.02,
    exit_flush_seconds=1.0,
    warn_after_seconds=0.2,
)


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Off the platform, with nothing remembered."""
    for name in list(os.environ):
        if name.startswith(("SHIFTWORK_", "PET_")) or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)
    monkeypatch.setattr("shiftwork.context.FIXED_PATH", "/nonexistent/context.json")
    monkeypatch.setattr(training, "_process", training._Process(QUICK))
    yield
    live = training._process.live
    if live is not None:
        live.close()


@pytest.fixture
def server() -> Iterator[RunServer]:
    running = RunServer()
    yield running
    running.stop()


def task_environment(server: RunServer) -> dict[str, str]:
    return {
        "SHIFTWORK_TASK": "ta",
        "SHIFTWORK_ATTEMPT": "1",
        "SHIFTWORK_RANK": "0",
        "SHIFTWORK_WORLD_SIZE": "1",
        "SHIFTWORK_URL": server.url,
        "SHIFTWORK_RUN_TOKEN": TOKEN,
    }


@pytest.fixture
def on_platform(server: RunServer, monkeypatch: pytest.MonkeyPatch) -> RunServer:
    for name, value in task_environment(server).items():
        monkeypatch.setenv(name, value)
    return server
