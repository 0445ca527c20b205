"""The command line as a function, against a server of its own, in an empty home."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from shiftwork.cli import client, environments, follow, main

from tests.libs.sdk.cli.server import TOKEN, CliServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Shiftwork:
    def __init__(self, capture: pytest.CaptureFixture[bytes]) -> None:
        self._capture = capture

    def __call__(self, *arguments: str) -> Done:
        self._capture.readouterr()
        code = main.run(list(arguments))
        captured = self._capture.readouterr()
        return Done(
            code, captured.out.decode("utf-8", "replace"), captured.err.decode("utf-8", "replace")
        )


# What programs a shell of these tests finds: no environment is activated in it.
PATH = f"{Path(sys.executable).parent}:/usr/bin:/bin"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(sys, "argv", ["shiftwork"])
    for name in environments.ACTIVATED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", PATH)
    monkeypatch.setattr(client, "TRIES", client.Tries(wait_seconds=0.01))
    monkeypatch.setattr(follow, "AGAIN_SECONDS", 0.02)
    return tmp_path


@pytest.fixture
def server() -> Iterator[CliServer]:
    running = CliServer()
    yield running
    running.stop()


@pytest.fixture
def elsewhere(home: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Shiftwork:
    """The command line with no server known."""
    del home
    return Shiftwork(capfdbinary)


@pytest.fixture
def shiftwork(
    elsewhere: Shiftwork, server: CliServer, monkeypatch: pytest.MonkeyPatch
) -> Shiftwork:
    monkeypatch.setenv("SHIFTWORK_URL", server.url)
    monkeypatch.setenv("SHIFTWORK_TOKEN", TOKEN)
    return elsewhere
