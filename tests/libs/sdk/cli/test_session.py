"""Which server, which token, which options, which exit code."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from importlib import metadata
from typing import TYPE_CHECKING

import pytest
from shiftwork.cli import contexts, session
from shiftwork.cli.contexts import Named, Target
from shiftwork.cli.failures import Failure
from shiftwork.cli.main import app
from typer.testing import CliRunner

from tests.libs.sdk.cli.server import TOKEN, CliServer, a_task

if TYPE_CHECKING:
    from pathlib import Path

    from tests.libs.sdk.cli.conftest import Shiftwork

pytestmark = pytest.mark.server


def a_context(home: Path, name: str, url: str, token: str = TOKEN) -> None:
    token_file = home / f"{name}-token"
    token_file.write_text(token + "\n")
    contexts.save(contexts.default_path(), lambda _: name, Named(url, str(token_file)))


def target(home: Path, environ: dict[str, str] | None = None, **options: str) -> Target:
    given = {"url": "", "token": "", "context": "", **options}
    path = home / ".config" / "shiftwork" / "contexts.json"
    return contexts.target(**given, environ=environ or {}, path=path)


def test_the_current_context_needs_no_options(
    elsewhere: Shiftwork, home: Path, server: CliServer
) -> None:
    a_context(home, "local", server.url)
    assert elsewhere("ls").code == 0
    assert server.seen[-1].headers["authorization"] == f"Bearer {TOKEN}"


def test_a_tunnels_end_on_this_machine_is_not_this_machine(home: Path) -> None:
    """Else a task in a pod would be given a folder of whoever submits it."""
    a_context(home, "local", "http://127.0.0.1:1")
    assert target(home).is_local
    (home / "token").write_text("t")
    named = Named("http://127.0.0.1:8642", str(home / "token"), remote=True)
    contexts.save(contexts.default_path(), lambda _: "kubernetes", named)
    assert contexts.load(contexts.default_path())[1]["kubernetes"] == named
    assert not target(home).is_local
    assert not target(home, token="another", url="http://localhost:8642").is_local
    assert target(home, context="local").is_local


def test_contexts_are_their_owners_alone(home: Path) -> None:
    a_context(home, "local", "http://127.0.0.1:8642")
    path = contexts.default_path()
    assert path == home / ".config/shiftwork/contexts.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text()) == {
        "current": "local",
        "contexts": {
            "local": {"url": "http://127.0.0.1:8642", "token_file": str(home / "local-token")}
        },
    }


def test_option_then_environment_then_matching_context_then_current(home: Path) -> None:
    a_context(home, "other", "http://other:1", "of-other")
    a_context(home, "local", "http://127.0.0.1:8642", "of-local")
    environ = {"SHIFTWORK_URL": "http://env:1", "SHIFTWORK_TOKEN": "of-env"}
    assert target(home) == Target("http://127.0.0.1:8642", "of-local")
    assert target(home, environ) == Target("http://env:1", "of-env")
    assert target(home, environ, url="http://x:1", token="t") == Target("http://x:1", "t")
    assert target(home, url="http://other:1/") == Target("http://other:1/", "of-other")
    assert target(home, url="http://localhost:8642").token == "of-local"
    assert target(home, url="http://unknown:1") == Target("http://unknown:1", "")
    assert target(home, environ, context="other") == Target("http://other:1", "of-other")


def test_a_context_that_is_not_there_is_wrong_usage(home: Path) -> None:
    a_context(home, "local", "http://127.0.0.1:8642")
    with pytest.raises(Failure) as failed:
        target(home, context="nowhere")
    assert failed.value.code == 2
    assert "local" in failed.value.fix


def test_a_missing_token_file_says_where(home: Path) -> None:
    a_context(home, "local", "http://127.0.0.1:8642")
    (home / "local-token").unlink()
    with pytest.raises(Failure, match="the token cannot be read") as failed:
        target(home)
    assert failed.value.where == str(home / "local-token")


@pytest.mark.parametrize("text", ["{", "[]", '{"contexts": {"a": 1}}'])
def test_broken_contexts_are_told_or_taken_as_none(home: Path, text: str) -> None:
    path = home / ".config" / "shiftwork" / "contexts.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(Failure) as failed:
        target(home)
    assert failed.value.where == str(path)


def test_without_any_server_the_code_is_3(elsewhere: Shiftwork) -> None:
    done = elsewhere("ls")
    assert done.code == 3
    assert done.out == ""
    assert "error: no server is known" in done.err
    assert "fix:" in done.err
    assert "shiftwork up" in done.err


def test_a_server_that_is_down_is_3_and_one_problem_object(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    server.stop()
    done = shiftwork("ls", "--json")
    assert done.code == 3
    told = json.loads(done.err)
    assert told["type"] == "unreachable"
    assert server.url in told["where"]


def test_an_address_that_is_none_is_wrong_usage(elsewhere: Shiftwork) -> None:
    assert elsewhere("--url", "nonsense", "ls").code == 2


@pytest.mark.parametrize(
    "arguments",
    [("--json", "show", "ta"), ("show", "--json", "ta"), ("show", "ta", "--json")],
)
def test_global_options_stand_anywhere(
    shiftwork: Shiftwork, server: CliServer, arguments: tuple[str, ...]
) -> None:
    server.tasks["ta"] = a_task("ta")
    assert shiftwork(*arguments).json["id"] == "ta"


def test_what_follows_the_dashes_is_the_tasks() -> None:
    line = ["submit", "--name", "x", "-q", "--url=http://h:1", "--", "prog", "--json", "-v"]
    assert session.hoist(line) == (
        ["-q", "--url=http://h:1", "submit", "--name", "x", "--", "prog", "--json", "-v"],
        True,
    )


def test_a_wrong_token_is_refused_with_a_fix(shiftwork: Shiftwork) -> None:
    done = shiftwork("ls", "--token", "wrong")
    assert done.code == 1
    assert "this token is not known" in done.err
    assert "--token" in done.err
    assert "wrong" not in done.err


def test_wrong_usage_is_2_in_words_and_in_json(shiftwork: Shiftwork) -> None:
    assert shiftwork("sumbit").code == 2
    assert shiftwork("ls", "--limit", "none").code == 2
    done = shiftwork("--json", "show")
    assert done.code == 2
    assert json.loads(done.err)["type"] == "usage"


def test_a_part_that_restarts_is_asked_again(shiftwork: Shiftwork, server: CliServer) -> None:
    server.first["GET", "/v1/nodes"] = [(503, {"detail": "wait"}), (429, {}), (503, {})]
    assert shiftwork("nodes").code == 0


def test_a_failure_of_the_server_is_told(shiftwork: Shiftwork, server: CliServer) -> None:
    server.first["GET", "/v1/nodes"] = [(500, {"detail": "it broke"})]
    done = shiftwork("nodes")
    assert done.code == 1
    assert "it broke" in done.err
    assert f"where: GET {server.url}/v1/nodes" in done.err


def test_the_application_ends_alike_under_typers_own_runner(home: Path, server: CliServer) -> None:
    del home
    runner = CliRunner(env={"SHIFTWORK_URL": server.url, "SHIFTWORK_TOKEN": TOKEN})
    assert runner.invoke(app, ["nodes", "--json"]).exit_code == 0
    assert runner.invoke(app, ["show", "nothing"]).exit_code == 1
    assert runner.invoke(app, ["show"]).exit_code == 2
    assert runner.invoke(app, ["nodes", "--url", "http://127.0.0.1:1"]).exit_code == 3


def test_packages_add_commands_and_a_broken_one_ends_nothing(
    elsewhere: Shiftwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    def register(app: session.App) -> None:
        @app.command("levitate")
        def levitate(height: int) -> None:
            """Rise."""
            if height > 9:
                raise Failure("too high", fix="stay below 9")

    class Entry:
        def __init__(self, value: str, found: object) -> None:
            self.value = value
            self._found = found

        def load(self) -> object:
            if self._found is None:
                raise ImportError("no module named wings")
            return self._found

    class Found(list[Entry]):
        def select(self, group: str) -> list[Entry]:
            assert group == "shiftwork.commands"
            return list(self)

    both = Found([Entry("broken:register", None), Entry("good:register", register)])
    monkeypatch.setattr(metadata, "entry_points", lambda: both)
    session.plugins.cache_clear()
    try:
        assert elsewhere("levitate", "3").code == 0
        done = elsewhere("levitate", "12", "--json")
        assert (done.code, json.loads(done.err)["detail"]) == (1, "too high")
        assert "levitate" in elsewhere("--help").out
        session.plugins.cache_clear()
        assert "no module named wings" in elsewhere("levitate", "3").err
    finally:
        session.plugins.cache_clear()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(elsewhere: Shiftwork, shell: str) -> None:
    done = elsewhere("completion", shell)
    assert done.code == 0
    assert "_SHIFTWORK_COMPLETE" in done.out


def test_no_completion_for_an_unknown_shell(elsewhere: Shiftwork) -> None:
    assert elsewhere("completion", "csh").code == 2


def test_version(elsewhere: Shiftwork) -> None:
    assert elsewhere("version", "--json").json["client"]
    assert elsewhere("version").out.startswith("shiftwork ")


def test_a_reader_that_leaves_ends_the_command_quietly(home: Path, server: CliServer) -> None:
    for number in range(2000):
        server.tasks[f"t{number}"] = a_task(f"t{number}")
    program = "from shiftwork.cli.main import main; main()"
    done = subprocess.run(
        f"{sys.executable} -c '{program}' ls --limit 2000 | head -1",
        shell=True,
        env={
            "HOME": str(home),
            "SHIFTWORK_URL": server.url,
            "SHIFTWORK_TOKEN": TOKEN,
            "PATH": "/usr/bin:/bin",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("ID")
    assert done.stderr == ""
