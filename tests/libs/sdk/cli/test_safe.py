"""Text of other users cannot control the reader's terminal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shiftwork.cli import render

from tests.libs.sdk.cli.server import CliServer, a_task, an_exit

if TYPE_CHECKING:
    from tests.libs.sdk.cli.conftest import Shiftwork

# Retitle the window, clear the screen, an 8-bit CSI, a line of its own, right to left, half a
# character.
EVIL = "a\x1b]0;owned\x07\x1b[2J\x9b31mb\nstate  succeeded\r\u202egnp.exe\ud800"
OBEYED = "\x1b\x07\x9b\r\u202e\ud800"


@pytest.mark.server
def test_no_text_of_a_task_controls_the_terminal(shiftwork: Shiftwork, server: CliServer) -> None:
    reason = {"code": "queued", "text": EVIL}
    server.tasks["ta"] = a_task(
        "ta",
        name=EVIL,
        labels={EVIL: EVIL},
        roles=[{"name": "worker", "replicas": 1, "command": [EVIL], "image": EVIL}],
        working_directory=EVIL,
        state="failed",
        reason=reason,
        exit={**an_exit("failed", 1), "text": EVIL},
    )
    for command in (("ls", "--all"), ("show", "ta"), ("show", "ta", "--json"), ("show", EVIL[:20])):
        done = shiftwork(*command)
        printed = done.out + done.err
        assert not set(printed) & set(OBEYED), command
        assert "\nstate  succeeded" not in printed, command
    document = json.loads(shiftwork("show", "ta", "--json").out)
    assert document["name"] == EVIL


@pytest.mark.server
def test_output_of_tasks_is_unchanged(shiftwork: Shiftwork, server: CliServer) -> None:
    """Colours and progress bars are part of the output, as with docker and kubectl."""
    server.tasks["ta"] = a_task("ta", state="succeeded", exit=an_exit("ok", 0))
    server.output = {(1, 0): b"\x1b[32mgreen\x1b[0m\r100%\n"}
    assert "\x1b[32mgreen\x1b[0m" in shiftwork("logs", "ta").out


@given(st.text())
def test_safe_text_has_no_control_sequence_and_loses_no_letter(text: str) -> None:
    shown = render.one_line(text)
    assert not set(shown) & {chr(number) for number in (*range(0x20), *range(0x7F, 0xA0))}
    shown.encode()
    if text.isprintable() and text.isascii():
        assert shown == text


@pytest.mark.server
def test_rows_that_the_server_cannot_show_are_reported_as_left_out(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    server.tasks["ta"] = a_task("ta")
    server.unreadable = [{"id": "tb", "problem": "it cannot be shown"}]
    done = shiftwork("ls", "--all")
    assert "ta" in done.out
    assert "warning: tb is left out: it cannot be shown" in done.err
    assert json.loads(shiftwork("ls", "--json").out)["unreadable"][0]["id"] == "tb"
