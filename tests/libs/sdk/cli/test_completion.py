"""Completion: whatever has a known set of values completes; all other options are named here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import pytest
import typer
from shiftwork.cli import main, server_choices
from shiftwork.client import types

from tests.libs.sdk.cli.server import TOKEN, CliServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.server
# Values that nobody can list: times, numbers, paths, names that are made, texts, addresses, what a
# task alone has.
FREE_OPTIONS = frozenset(
    {
        *("--from", "--to", "--since", "--timeout", "--interval", "--expires", "--expires-in"),
        *("--limit", "--tail", "--rank", "--attempt", "--nodes", "--gpus", "--gpus-per-node"),
        *("--retries", "--ack-deadline", "--fence-after", "--max-run-time", "--shm"),
        *("--env", "--label", "--name", "--key", "--image", "--mount", "--resource", "--tolerate"),
        *("--node-selector", "--file", "--pod-template", "--workdir", "--venv", "--secret-env"),
        *("--until", "--before", "--after", "-A", "-B", "-C"),
        *("--search", "--role of logs", "--role of exec", "--target", "--user of login"),
        *("--url", "--token", "--export", "--secret-file", "--signal", "--step"),
        "--mail",
    }
)
FREE_ARGUMENTS = frozenset(
    {
        *("team add NAME", "user add NAME", "node label KEY=VALUE ...", "submit -- CMD ..."),
        *("node taint KEY[=VALUE] ...", "exec [-- COMMAND...]"),
        *("policy set FILE", "policy dry-run FILE", "dead-letters discard ID..."),
        *("dead-letters replay ID...",),
    }
)
# Of this machine and of a cluster: paths, addresses, numbers and names of others.
PLATFORM = ("up", "down", "k8s", "doctor", "simulate", "backup", "restore", "monitor-credentials")


def commands(command: Any, *path: str) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", None)
    if below is None:
        yield " ".join(path), command
        return
    for name, each in below.items():
        yield from commands(each, *path, name)


def names_of(path: str, param: Any) -> set[str]:
    if param.param_type_name != "option":
        return {f"{path} {param.metavar}"}
    return {*param.opts, *(f"{opt} of {path}" for opt in param.opts)}


def parameters() -> Iterator[tuple[str, Any]]:
    root = typer.main.get_command(main.app)
    found = [("", each) for each in root.params]
    for path, command in commands(root):
        if path.split()[0] not in PLATFORM:
            found += [(path, each) for each in command.params]
    for path, param in found:
        if param.param_type_name != "option" or not (param.is_flag or param.count):
            yield path, param


def test_every_parameter_completes_or_is_free() -> None:
    without = [
        f"{path} {param.opts[0] if param.param_type_name == 'option' else param.metavar}"
        for path, param in parameters()
        if param._custom_shell_complete is None
        and not names_of(path, param) & {*FREE_OPTIONS, *FREE_ARGUMENTS}
    ]
    assert without == []


def test_what_is_named_as_free_is_there_and_completes_nothing() -> None:
    names = {name for path, param in parameters() for name in names_of(path, param)}
    assert {*FREE_OPTIONS, *FREE_ARGUMENTS} - names == set()


def test_completed_outcomes_equal_those_of_the_client_library() -> None:
    assert get_args(types.Outcome) == server_choices.USAGE_OUTCOMES


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ls -o y", ["yaml"]),
        ("-o n", ["name"]),
        ("quota ls --output j", ["json"]),
        ("ls --sort pr", ["priority"]),
        ("user add eve --role o", ["operator"]),
        ("user set a", ["ann"]),
        ("user set ann --default-priority v", ["very_high"]),
        ("team rm v", ["vision"]),
        ("token create --scope re", ["read"]),
        ("token revoke k", ["k1"]),
        ("usage --group-by user,te", ["user,team"]),
        ("usage --outcome succ", ["succeeded"]),
        ("audit --action quota.s", ["quota.set"]),
        ("audit --outcome forb", ["forbidden"]),
        ("policy show d", ["default"]),
        ("context use h", ["here"]),
        ("context rm h", ["here"]),
        ("quota default u", ["unlimited"]),
    ],
)
def test_values_are_completed(  # noqa: PLR0917 - the fixtures
    server: CliServer,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    line: str,
    expected: list[str],
) -> None:
    folder = home / ".config" / "shiftwork"
    folder.mkdir(parents=True)
    (folder / "contexts.json").write_text(
        '{"current": "", "contexts": {"here": {"url": "http://127.0.0.1:1"}}}'
    )
    (folder / "contexts.json").chmod(0o600)
    answers = {
        "users": {"name": "ann"},
        "teams": {"name": "vision"},
        "groups": {"name": "default"},
        "tokens": {"id": "k1", "user": "ann", "name": ""},
    }
    for noun, item in answers.items():
        server.first["GET", f"/v1/{noun}"] = [(200, {"items": [item], "next_cursor": None})]
    monkeypatch.setenv("SHIFTWORK_URL", server.url)
    monkeypatch.setenv("SHIFTWORK_TOKEN", TOKEN)
    monkeypatch.setenv("_SHIFTWORK_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"shiftwork {line}")
    monkeypatch.setenv("COMP_CWORD", str(len(line.split())))
    with pytest.raises(SystemExit):
        main.app(prog_name="shiftwork")
    assert capfd.readouterr() == ("\n".join(expected) + "\n", "")
