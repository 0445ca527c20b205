"""Logs: readable by machines, and without what must not be in them."""

from __future__ import annotations

import io
import json
import logging
import os
import platform
import warnings
from pathlib import Path

import pytest
import structlog
from prometheus_client import generate_latest

from libs.service import observability
from libs.service.version import VERSION


def fail(token: str) -> None:
    raise ValueError("it broke" * bool(token))


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_traceback_contains_no_local_variables(form: str) -> None:
    out = io.StringIO()
    observability.set_up_logs(form, "info", out)
    try:
        fail("sat_" + "x" * 9)
    except ValueError:
        structlog.get_logger(service="x").exception("part died")
    finally:
        structlog.reset_defaults()
    output = out.getvalue()
    assert "it broke" in output
    assert "part died" in output
    assert "sat_xxxxxxxxx" not in output
    if form == "json":
        assert json.loads(output)["level"] == "error"


HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202e\r\u2028\ud800"


def fail_with(text: str) -> None:
    raise ValueError(text)


class Strange:
    def __repr__(self) -> str:
        return HOSTILE


@pytest.mark.parametrize("form", ["json", "console"])
def test_nothing_that_a_terminal_obeys_reaches_the_log(form: str) -> None:
    """Texts of other people come into errors: the answer of a receiver, the name of a task."""
    out = io.StringIO()
    # pytest's own handlers keep what they get for a report, which cannot have lone surrogates.
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []
    observability.set_up_logs(form, "info", out)
    try:
        try:
            fail_with(f"{HOSTILE}\n2026-01-01 [info     ] a line that was never logged")
        except ValueError:
            structlog.get_logger(service="x").exception(HOSTILE, **{HOSTILE: 1}, answer=HOSTILE)
            # What libraries log goes the same way, and objects have texts of their own.
            logging.getLogger("library").exception("%s", HOSTILE)
            structlog.get_logger().info("object", found=Strange(), listed=[HOSTILE])
    finally:
        root.handlers = handlers
        structlog.reset_defaults()
    output = out.getvalue()
    assert output.count("owned") >= 5
    assert [each for each in output if not each.isprintable() and each != "\n"] == []
    # Only the platform's own lines begin where lines begin.
    begun = [line for line in output.split("\n") if line and not line.startswith(" ")]
    assert [line for line in begun if "never logged" in line and form == "console"] == []
    assert output.count("Traceback") + output.count("exc_type") >= 2


class Disk(io.StringIO):
    """Refuses what is written while it is full."""

    full = False

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(28, "No space left on device")
        return super().write(text)


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_log_on_a_full_disk_ends_no_process_and_notes_what_is_missing(form: str) -> None:
    disk = Disk()
    observability.set_up_logs(form, "info", disk)
    try:
        log = observability.log("x")
        log.info("first")
        disk.full = True
        log.info("lost")
        log.error("lost, too")
        disk.full = False
        log.info("last")
    finally:
        structlog.reset_defaults()
    output = disk.getvalue()
    assert "lost" not in output
    assert [word for word in ("first", "missing here", "last") if word not in output] == []
    lines = output.splitlines()
    assert json.loads(next(line for line in lines if "missing here" in line))["lines"] == 2


def test_a_log_to_a_closed_pipe_ends_nobody() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        observability.set_up_logs("json", "info", pipe)
        try:
            observability.log("x").info("nobody reads this")
        finally:
            structlog.reset_defaults()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk here that is always full")
def test_a_real_full_disk_refuses_each_line_by_itself() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:  # noqa: PTH123 - a device
        observability.set_up_logs("json", "info", full)
        try:
            for _ in range(3):
                observability.log("x").info("lost")
        finally:
            structlog.reset_defaults()


def test_what_libraries_log_and_warnings_are_json_lines_too() -> None:
    out = io.StringIO()
    logging.captureWarnings(False)  # an earlier test's, which pytest has undone by half
    observability.set_up_logs("json", "info", out)
    try:
        logging.getLogger("uvicorn.error").warning("Invalid %s", "request")
        logging.getLogger("asyncio").info("too quiet to be kept")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("old", DeprecationWarning, stacklevel=1)
        try:
            fail("sat_" + "x" * 9)
        except ValueError:
            logging.getLogger("nats").exception("it fell")
    finally:
        logging.captureWarnings(False)
        structlog.reset_defaults()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(line["logger"], line["level"]) for line in lines] == [
        ("uvicorn.error", "warning"),
        ("py.warnings", "warning"),
        ("nats", "error"),
    ]
    assert lines[0]["event"] == "Invalid request"
    assert all("timestamp" in line for line in lines)
    assert "sat_xxxxxxxxx" not in out.getvalue()


def test_metrics_name_the_build_and_have_no_series_of_creation_times() -> None:
    text = generate_latest().decode()
    assert (
        f'shiftwork_build_info{{python="{platform.python_version()}",version="{VERSION}"}}' in text
    )
    assert "_created" not in text
