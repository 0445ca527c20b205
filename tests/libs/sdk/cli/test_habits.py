"""Tests what users type out of habit: several tasks, aliases, options of other tools, and Tab."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
import typer
from shiftwork.cli import guide, main

from tests.libs.sdk.cli.server import TOKEN, CliServer, a_task, problem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.libs.sdk.cli.conftest import Shiftwork

pytestmark = pytest.mark.server
MAIN = "from shiftwork.cli.main import main; main()"


@pytest.fixture
def three(server: CliServer) -> CliServer:
    for name in ("one", "two", "three"):
        server.tasks[f"t{name}"] = a_task(f"t{name}", name=name)
    return server


def test_several_tasks_are_each_reported_although_one_fails(
    shiftwork: Shiftwork, three: CliServer
) -> None:
    done = shiftwork("stop", "one", "nothing", "two")
    assert done.code == 1
    assert "there is no task 'nothing'" in done.err
    assert [three.tasks[f"t{name}"]["goal"] for name in ("one", "two", "three")] == [
        *("stop", "stop", "run")
    ]
    stopped = [line.split()[0] for line in done.err.splitlines() if "is being stopped" in line]
    assert stopped == ["one", "two"]
    done = shiftwork("priority", "one", "two", "high", "--json")
    assert [each["id"] for each in done.json["items"]] == ["tone", "ttwo"]
    assert shiftwork("pause", "one").code == 0
    assert three.tasks["tone"]["goal"] == "pause"
    assert shiftwork("show", "one", "two").out.count("priority") == 2
    assert len(shiftwork("show", "one", "two", "--json").json["items"]) == 2
    assert shiftwork("show", "one", "--json").json["id"] == "tone"


def test_waiting_for_several_fails_if_any_failed(shiftwork: Shiftwork, three: CliServer) -> None:
    three.tasks["tone"]["state"] = "succeeded"
    three.tasks["ttwo"]["state"] = "failed"
    assert shiftwork("wait", "one").code == 0
    done = shiftwork("wait", "one", "two")
    assert (done.code, done.out) == (1, "one: succeeded\ntwo: failed\n")
    assert shiftwork("wait", "two", "--for", "failed").code == 0


def test_a_retry_prints_the_new_id(shiftwork: Shiftwork, three: CliServer) -> None:
    three.first["POST", "/v1/tasks/tone/retry"] = [(201, a_task("tnew"))]
    assert shiftwork("retry", "one").out == "tnew\n"
    assert len(three.asked("POST", "/v1/tasks/tone/retry").headers["idempotency-key"]) >= 16


def test_going_on_with_an_ended_task_prints_the_new_id(
    shiftwork: Shiftwork, three: CliServer
) -> None:
    path = "/v1/tasks/tone/continue"
    saved = {"no": 3, "step": 30, "uri": "/c/30", "attempt": 2, "task": "tone", "saved_at": None}
    made = a_task("tnew", checkpoint=saved, continues="tone", chain="tone")
    three.first["POST", path] = [(201, made), (201, {**made, "checkpoint": None})]
    done = shiftwork("continue", "one")
    assert (done.code, done.out, done.err) == (0, "tnew\n", "")
    assert len(three.asked("POST", path).headers["idempotency-key"]) >= 16
    done = shiftwork("continue", "one")
    assert "saved no checkpoint: it starts from the beginning" in done.err


def test_a_chain_is_listed_by_any_of_its_tasks_whatever_their_states(
    shiftwork: Shiftwork, three: CliServer
) -> None:
    three.tasks["tone"] |= {"chain": "tfirst", "state": "failed"}
    assert shiftwork("ls", "--chain", "one").code == 0
    query = three.asked("GET", "/v1/tasks").query
    assert (query["chain"], query.get("state", "")) == ("tfirst", "")


def test_a_task_shows_what_it_goes_on_with_and_the_size_of_its_life_state(
    shiftwork: Shiftwork, three: CliServer
) -> None:
    saved = {"no": 3, "step": 30, "uri": "/c/30", "attempt": 2, "task": "tzero", "saved_at": None}
    state = {"version": 2, "bytes": 11, "attempt": 1, "saved_at": "2026-01-01T00:00:01Z"}
    three.tasks["tone"] |= {"checkpoint": saved, "continues": "tzero", "life_state": state}
    shown = shiftwork("show", "one").out
    assert re.search(r"continues +tzero", shown)
    assert re.search(r"life state +11 bytes, ", shown)
    assert ", task tzero: /c/30" in shown


def test_stopping_all_needs_a_confirmation_or_yes(shiftwork: Shiftwork, three: CliServer) -> None:
    three.tasks["tthree"]["owner"] = "bob"
    done = shiftwork("stop", "--all", "-l", "a=b")
    assert (done.code, "--yes" in done.err) == (2, True)
    query = three.asked("GET", "/v1/tasks").query
    assert (query["owner"], query["label"], query["all"]) == ("ada", "a=b", "false")
    assert shiftwork("stop", "--all", "--yes").code == 0
    goals = [three.tasks[f"t{name}"]["goal"] for name in ("one", "two", "three")]
    assert goals == ["stop", "stop", "run"]
    assert shiftwork("stop", "--all", "--all-users", "--yes").code == 0
    assert three.tasks["tthree"]["goal"] == "stop"
    for wrong in (("stop",), ("stop", "--all", "one"), ("stop", "one", "-l", "a=b")):
        assert shiftwork(*wrong).code == 2


@pytest.mark.parametrize(("answer", "goal"), [(b"y\n", "stop"), (b"n\n", "run")])
def test_stop_all_requests_confirmation_on_a_terminal(
    three: CliServer, home: Path, answer: bytes, goal: str
) -> None:
    ours, theirs = pty.openpty()
    environ = {**os.environ, "HOME": str(home), "SHIFTWORK_URL": three.url}
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "stop", "--all"],
        env={**environ, "SHIFTWORK_TOKEN": TOKEN},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    while b"?" not in shown:
        shown += os.read(ours, 1024)
    os.write(ours, answer)
    assert process.wait(timeout=30) == (0 if goal == "stop" else 130)
    os.close(ours)
    assert three.tasks["tone"]["goal"] == goal


def test_lists_are_sorted_and_filtered_by_the_server(
    shiftwork: Shiftwork, three: CliServer
) -> None:
    assert shiftwork("ls", "-l", "a=b", "--label", "c=d", "--sort", "-name").code == 0
    query = three.asked("GET", "/v1/tasks").query
    assert query["sort"] == "-name"
    assert shiftwork("ls", "-l", "=a").code == 2
    filters = {"owner": "ann", "team": "vision", "group": "a100", "priority": "high"}
    options = [word for name, value in filters.items() for word in (f"--{name}", value)]
    assert shiftwork("ls", *options).code == 0
    assert filters.items() <= three.seen[-1].query.items()
    assert shiftwork("ls", "--mine", "--owner", "ann").code == 2


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("cancel", "one"), ("stop", "one")),
        (("kill", "one", "two"), ("stop", "one", "two")),
        (("ps", "--all"), ("ls", "--all")),
        (("status",), ("ls",)),
        (("status", "one"), ("show", "one")),
        (("status", "--json"), ("ls", "--json")),
        (("pending",), ("queue",)),
    ],
)
def test_command_names_of_other_tools_are_understood(
    shiftwork: Shiftwork, three: CliServer, typed: tuple[str, ...], meant: tuple[str, ...]
) -> None:
    by_alias, requests = shiftwork(*typed), [(s.method, s.path, s.query) for s in three.seen]
    three.seen.clear()
    by_command = shiftwork(*meant)
    assert (by_alias.code, by_alias.out) == (by_command.code, by_command.out)
    assert [(s.method, s.path, s.query) for s in three.seen] == requests


def test_aliases_neither_hide_commands_nor_appear_in_the_help(elsewhere: Shiftwork) -> None:
    root = typer.main.get_command(main.app)
    commands = {*root.list_commands(typer.Context(root))}
    assert not commands & {*guide.ALIASES, "status"}
    shown = elsewhere("--help").out
    assert shown.index("First steps") < shown.index("The platform")
    assert "Other commands" not in shown
    assert "cancel" not in shown


def test_the_help_of_every_command_has_the_same_plain_form(elsewhere: Shiftwork) -> None:
    """Also of those that the platform's package adds."""
    paths = list(every_command())
    assert {("backup",), ("up",), ("k8s",), ("user", "set"), ()} <= {*paths}
    for path in paths:
        done = elsewhere(*path, "--help")
        assert done.code == 0, path
        assert done.out.startswith(f"Usage: {' '.join(['shiftwork', *path])} "), path
        # Drawn by another library: boxes and colours.
        assert not re.search(r"[\u2500-\u257f\x1b]", done.out), path


def every_command() -> Iterator[tuple[str, ...]]:
    """The words of each command and group that is not hidden."""

    def below(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield path
        if hasattr(command, "list_commands"):
            context = typer.Context(command)
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                if not found.hidden:
                    yield from below(found, (*path, name))

    yield from below(typer.main.get_command(main.app), ())


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (("submit", "--gpu", "2", "--", "true"), "did you mean --gpus-per-node?"),
        (("submit", "--prioriti", "high", "--", "true"), "did you mean --priority?"),
        (("submit", "--partition", "x", "--", "true"), "did you mean --group?"),
        (("ls", "--lable", "a=b"), "did you mean --label?"),
        (("quota", "set", "--gpu", "1"), "did you mean --gpus?"),
        (("stopp", "x"), "did you mean stop?"),
    ],
)
def test_unknown_commands_and_options_get_a_suggestion(
    elsewhere: Shiftwork, line: tuple[str, ...], error: str
) -> None:
    done = elsewhere(*line)
    assert done.code == 2
    assert error in done.err


def test_gpus_is_an_alias_of_gpus_per_node(shiftwork: Shiftwork, server: CliServer) -> None:
    assert shiftwork("submit", "--gpus", "2", "--", "true").code == 0
    assert server.asked("POST", "/v1/tasks").body["gpus_per_node"] == 2


def test_every_example_of_the_help_can_be_parsed() -> None:
    root = typer.main.get_command(main.app)
    for path, lines in guide.EXAMPLES.items():
        for line in lines:
            words = line.split(" > ")[0].split()
            assert words[: len(path.split())] == path.split(), line
            command, rest = root, words
            while hasattr(command, "commands"):
                context = typer.Context(command)
                found = command.get_command(context, rest[0])
                assert found is not None, line
                command, rest = found, rest[1:]
            command.make_context(path, rest)
            assert f"shiftwork {line}" in (command.epilog or "")


def test_a_drain_waits_until_the_node_is_empty(shiftwork: Shiftwork, server: CliServer) -> None:
    busy, empty = {"id": "n0", "tasks": ["ta", "tb"]}, {"id": "n0", "tasks": []}
    server.first["GET", "/v1/nodes/n0"] = [(200, busy), (200, empty)]
    done = shiftwork("node", "drain", "n0", "--wait")
    assert done.code == 0
    assert "n0: 2 still there: ta tb" in done.err
    assert "nothing runs on n0 any more" in done.err
    server.first["GET", "/v1/nodes/n0"] = [(200, busy)] * 9
    done = shiftwork("node", "drain", "n0", "--wait", "--timeout", "0.5s")
    assert (done.code, "2 tasks are still on n0" in done.err) == (1, True)
    assert shiftwork("node", "drain", "n0", "--timeout", "1s").code == 2


def complete(home: Path, url: str, line: str) -> tuple[list[str], str]:
    words = line.split(" ")
    done = subprocess.run(
        [sys.executable, "-c", "from shiftwork.cli.main import app; app(prog_name='shiftwork')"],
        env={
            **os.environ,
            "HOME": str(home),
            "SHIFTWORK_URL": url,
            "SHIFTWORK_TOKEN": TOKEN,
            "_SHIFTWORK_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.split(), done.stderr


def test_names_and_values_are_completed(three: CliServer, home: Path) -> None:
    three.nodes.append({"id": "n7", "tasks": []})
    three.tasks["t23oc746aabbcc"] = a_task("t23oc746aabbcc", name="other")
    for line, expected in (
        ("shiftwork stop t", ["three", "two"]),
        ("shiftwork logs on", ["one"]),
        ("shiftwork stop ton", ["tone"]),
        # As tables show it: the end of an id.
        ("shiftwork show aabb", ["aabbcc"]),
        ("shiftwork -o y", ["yaml"]),
        ("shiftwork priority one hi", ["high"]),
        ("shiftwork submit --priority very", ["very_high"]),
        ("shiftwork submit --group d", ["default"]),
        ("shiftwork ls --state queued,run", ["queued,running"]),
        ("shiftwork node drain n", ["n7"]),
        ("shiftwork quota set --user a", ["ada"]),
        ("shiftwork user add x --team l", ["lab"]),
    ):
        found, err = complete(home, three.url, line)
        assert (sorted(found), err) == (expected, ""), line
    # The server filters, so that a name is found among any number of tasks.
    asked = [each.query.get("name_prefix") for each in three.seen]
    assert {"t", "on", "ton", "aabb"} <= set(asked)


def test_completion_prints_nothing_and_ends_soon_without_a_server(home: Path) -> None:
    began = time.monotonic()
    assert complete(home, "http://127.0.0.1:1", "shiftwork stop t") == ([], "")
    assert complete(home, "no address", "shiftwork stop t") == ([], "")
    assert time.monotonic() - began < 60


def test_help_is_a_command_too(shiftwork: Shiftwork) -> None:
    assert shiftwork("help").out == shiftwork("--help").out
    for line in (["submit"], ["node", "drain"], ["ps"]):
        done = shiftwork("help", *line)
        assert (done.code, done.out) == (0, shiftwork(*line, "--help").out)
    assert "did you mean submit?" in shiftwork("help", "submitt").err
    assert shiftwork("--json", "help", "ls").out == shiftwork("ls", "--help").out


def test_node_ls_prints_the_same_as_nodes(shiftwork: Shiftwork) -> None:
    assert shiftwork("node", "ls").out == shiftwork("nodes").out


def test_the_error_without_a_token_lists_the_ways_to_provide_one(
    shiftwork: Shiftwork, server: CliServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHIFTWORK_TOKEN")
    header = "send the header Authorization: Bearer TOKEN"
    server.first["GET", "/v1/tasks"] = [problem(401, "unauthenticated", header)]
    done = shiftwork("ls")
    assert done.code == 1
    assert done.err.startswith(f"error: no token is given\n  where: {server.url}\n")
    assert "--token or SHIFTWORK_TOKEN, or choose a context" in done.err
    assert "header" not in done.err


def test_whoami_shows_which_token_is_used(shiftwork: Shiftwork, server: CliServer) -> None:
    token = {"id": "tok", "name": "laptop", "expires_at": "2027-01-01T00:00:00Z"}
    answer = {"user": "ada", "role": "member", "team": None, "token": token}
    server.first["GET", "/v1/whoami"] = [(200, answer), (200, {**answer, "token": {"id": "tok"}})]
    out = shiftwork("whoami").out
    assert "laptop" in out
    assert "2027-01-01" in out
    assert "never" in shiftwork("whoami").out


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("quota", "set", "--user", "ann", "--user", "bob", "--gpus", "1"), "--user"),
        (("ls", "--owner", "ann", "--owner=bob"), "--owner"),
        (("submit", "--gpus", "1", "--gpus-per-node=2", "--", "train"), "--gpus"),
    ],
)
def test_an_option_of_one_value_is_not_given_twice(
    shiftwork: Shiftwork, server: CliServer, words: tuple[str, ...], name: str
) -> None:
    """The last one alone would count, unnoticed."""
    done = shiftwork(*words)
    assert (done.code, f"{name}" in done.err, "is given 2 times" in done.err) == (2, True, True)
    assert not server.seen


def test_options_that_are_lists_and_words_of_the_command_may_repeat(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    line = ("submit", "--env", "A=1", "--env", "B=2", "--", "true", "--gpus", "1", "--gpus", "2")
    assert shiftwork(*line).code == 0
