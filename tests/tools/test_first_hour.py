"""The runner of ``make first-hour`` on small pages: a wrong claim is found, with its line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.first_hour.__main__ import fresh_environment
from tools.first_hour.documents import DocumentError, Step, printed_as_shown, steps
from tools.first_hour.terminal import StepError, Terminal
from tools.first_hour.walk import WalkError, typed, walk

FENCE = "```"


def page(*lines: str) -> str:
    return "\n".join(lines).replace("~~~", FENCE) + "\n"


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    with Terminal(tmp_path, os.environ, tmp_path) as opened:
        yield opened


def follow(folder: Path, terminal: Terminal, text: str) -> list[str]:
    (folder / "page.md").write_text(text)
    lines: list[str] = []
    walk(folder, ["page.md"], terminal, lines.append)
    return lines


def test_blocks_of_shell_become_steps_with_what_they_print() -> None:
    text = page(
        "Prose.", "", "~~~sh", "echo one", "~~~", "", "~~~text", "one", "~~~", "", "- In a list:",
        "  ~~~sh", "  echo two", "    indented", "  ~~~", "", "More prose.", "", "~~~text",
        "no claim about a command", "~~~",
    )  # fmt: skip
    assert steps("p.md", text) == [
        Step("p.md:3", "echo one\n", expected="one\n"),
        Step("p.md:12", "echo two\n  indented\n"),
    ]


def test_remarks_skip_write_and_run() -> None:
    text = page(
        "<!-- first-hour: skip needs a cluster -->", "~~~sh", "kubectl get pods", "~~~",
        "<!-- first-hour: file task.yaml -->", "~~~yaml", "a: 1", "~~~",
        "<!-- first-hour: run echo hidden -->",
    )  # fmt: skip
    assert steps("p.md", text) == [
        Step("p.md:2", "kubectl get pods\n", skipped="needs a cluster"),
        Step("p.md:6", "a: 1\n", file="task.yaml"),
        Step("p.md:9", "echo hidden\n"),
    ]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["<!-- first-hour: skip -->", "~~~sh", "x", "~~~"], "p.md:1: give a file or a reason"),
        (["<!-- first-hour: leap far -->"], "p.md:1: 'leap' is none of"),
        (["<!-- first-hour: skip no block -->"], "stands before no block"),
        (["<!-- first-hour: skip x -->", "~~~text", "~~~"], "p.md:2: a text block is never run"),
        (["", "~~~sh", "never closed"], "p.md:2: the block is not closed"),
        (["~~~python", "if:", "~~~"], "p.md:1: the python example is wrong"),
        (["~~~json", "{", "~~~"], "p.md:1: the json example is wrong"),
    ],
)
def test_a_page_that_cannot_be_followed_is_named_with_its_line(
    lines: list[str], message: str
) -> None:
    with pytest.raises(DocumentError, match=message.replace("(", r"\(")):
        steps("p.md", page(*lines))


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("one\ntwo\n", "one\ntwo", True),
        ("one\n", "one\ntwo\n", False),
        ("one\n...\n", "one\ntwo\nthree\n", True),
        ("at http://...:8642 (a+b)", "at http://127.0.0.1:8642 (a+b)", True),
        ("at http://...:8642 (a+b)", "at http://127.0.0.1:8643 (a+b)", False),
        ("NAME  STATE\n", "NAME         STATE  \n", True),
        ("...", "", True),
    ],
)
def test_three_dots_stand_for_anything(shown: str, printed: str, *, same: bool) -> None:
    assert printed_as_shown(shown, printed) is same


def test_what_a_block_sets_stays_for_the_next_one(tmp_path: Path, terminal: Terminal) -> None:
    text = page(
        "~~~sh", "mkdir sub && cd sub   # a comment", "export WORD='a # b'", "sleep 60 &", "~~~",
        "~~~sh", "basename $PWD; echo $WORD; echo err >&2", "kill %1", "~~~",
        "~~~text", "sub", "a # b", "...", "~~~",
    )  # fmt: skip
    steps = follow(tmp_path, terminal, text)
    assert [line.split()[0] for line in steps] == ["page.md:1", "page.md:6"]


def test_a_wrong_claim_is_found_with_both_outputs(tmp_path: Path, terminal: Terminal) -> None:
    text = page("Words.", "~~~sh", "echo right", "~~~", "~~~text", "wrong", "~~~")
    with pytest.raises(WalkError) as raised:
        follow(tmp_path, terminal, text)
    message = str(raised.value)
    assert message.startswith("page.md:2: prints something else")
    assert {"wrong", "right", "echo right"} <= set(message.splitlines())


def test_a_command_that_fails_ends_its_block_and_is_found(
    tmp_path: Path, terminal: Terminal
) -> None:
    text = page("~~~sh", "echo before", "(exit 3)", "echo behind", "~~~")
    with pytest.raises(WalkError) as raised:
        follow(tmp_path, terminal, text)
    message = str(raised.value)
    assert message.startswith("page.md:1: failed (3)")
    assert message.endswith("--- printed\nbefore\n")


def test_a_command_that_does_not_end_is_given_up(terminal: Terminal) -> None:
    with pytest.raises(StepError) as raised:
        terminal.run("echo began; sleep 60\n", seconds=1)
    assert (raised.value.status, raised.value.printed) == (None, "began\n")


def test_all_substitutions_are_in_one_table() -> None:
    assert typed("make test    # the whole suite\necho x # y\n") == "make help\necho x # y\n"
    assert '--data "$HOME/data"' in typed("shiftwork up    # or: --nodes 2\n")
    assert typed("shiftwork upload\n") == "shiftwork upload\n"


def test_the_home_of_the_hour_has_nothing_of_an_activated_environment(tmp_path: Path) -> None:
    mine = {
        "PATH": "/srv/mine/bin:/usr/bin",
        "VIRTUAL_ENV": "/srv/mine",
        "SHIFTWORK_URL": "http://x",
        "SHIFTWORK_TOKEN": "secret",
        "LANG": "C.UTF-8",
    }
    found = fresh_environment(mine, tmp_path)
    assert (found["PATH"], found["HOME"]) == ("/usr/bin", str(tmp_path))
    assert found["LANG"] == "C.UTF-8"
    assert not found.keys() & {"VIRTUAL_ENV", "SHIFTWORK_URL", "SHIFTWORK_TOKEN"}
