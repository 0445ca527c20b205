"""Logs: readable by machines, and without what must not be in them."""

from __future__ import annotations

import io
import json

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
