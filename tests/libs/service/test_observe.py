"""Logs: readable by machines, and without what must not be in them."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
import structlog

from libs.service import observe


def fail(token: str) -> None:
    raise ValueError("it broke" * bool(token))


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_traceback_tells_no_local_variables(form: str) -> None:
    out = io.StringIO()
    observe.set_up_logs(form, "info", out)
    try:
        fail("sat_" + "x" * 9)
    except ValueError:
        structlog.get_logger(service="x").exception("part died")
    finally:
        structlog.reset_defaults()
    said = out.getvalue()
    assert "it broke" in said
    assert "part died" in said
    assert "sat_xxxxxxxxx" not in said
    if form == "json":
        assert json.loads(said)["level"] == "error"


class Disk(io.StringIO):
    """Refuses what is written while it is full."""

    full = False

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(28, "No space left on device")
        return super().write(text)


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_log_on_a_full_disk_ends_nobody_and_says_what_is_missing(form: str) -> None:
    disk = Disk()
    observe.set_up_logs(form, "info", disk)
    try:
        log = observe.log("x")
        log.info("first")
        disk.full = True
        log.info("lost")
        log.error("lost, too")
        disk.full = False
        log.info("last")
    finally:
        structlog.reset_defaults()
    said = disk.getvalue()
    assert "lost" not in said
    assert [word for word in ("first", "missing here", "last") if word not in said] == []
    lines = said.splitlines()
    assert json.loads(next(line for line in lines if "missing here" in line))["lines"] == 2


def test_a_log_to_a_closed_pipe_ends_nobody() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        observe.set_up_logs("json", "info", pipe)
        try:
            observe.log("x").info("nobody reads this")
        finally:
            structlog.reset_defaults()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk here that is always full")
def test_a_real_full_disk_refuses_each_line_by_itself() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:  # noqa: PTH123 - a device
        observe.set_up_logs("json", "info", full)
        try:
            for _ in range(3):
                observe.log("x").info("lost")
        finally:
            structlog.reset_defaults()
