"""``shiftwork up --detach``: what an interrupted start leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services.allinone import cli
from services.allinone.data_folder import DataFolder, Options


def test_an_interrupt_while_the_process_is_created_ends_that_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def interrupted(_: list[str], **options: object) -> subprocess.Popen[bytes]:
        """`Popen`, with Ctrl-C after the process exists and before its caller knows it."""
        words = [sys.executable, "-c", "import time; time.sleep(60)"]
        process = subprocess.Popen(words, start_new_session=True)
        started.append(process)
        os.kill(os.getpid(), signal.SIGINT)
        return process

    class Subprocess:
        DEVNULL = subprocess.DEVNULL
        Popen = staticmethod(interrupted)

    monkeypatch.setattr(cli, "subprocess", Subprocess)
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(KeyboardInterrupt):
            cli._detached(DataFolder(tmp_path / "data"), Options(port=0, tasks_as_root=True))
        assert started[0].wait(timeout=5) == -signal.SIGTERM
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        for process in started:
            process.kill()
            process.wait()
