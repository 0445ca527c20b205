"""Which server, which token, which options, which exit code."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from importlib import metadata
from typing import TYPE_CHECKING

import pytest
from shiftwork.cli import contexts, installed, session
from shiftwork.cli.contexts import Named, Target
from shiftwork.cli.failures import Failure
from shiftwork.cli.main import app
from typer.testing import CliRunner

from tests.libs.sdk.cli.server import TOKEN, CliServer, a_task

if TYPE_CHECKING:
    from collections.abc import Iterator
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
    """Otherwise a task in a pod would get a folder of the submitter's machine."""
    a_context(home, "local", "http://127.0.0.1:1")
    assert target(home).is_local
    (home / "token").write_text("t")
    named = Named("http://127.0.0.1:8642", str(home / "token"), remote=True)
    contexts.save(contexts.default_path(), lambda _: "kubernetes", named)
    assert contexts.load(contexts.default_path())[1]["kubernetes"] == named
    assert not target(home).is_local
    assert not target(home, token="another", url="http://localhost:8642").is_local
    assert target(home, context="local").is_local


def test_a_platform_of_this_machine_is_local_at_any_address(home: Path) -> None:
    """`up --host 192.168.1.5`: tasks are to run in the directory they are submitted from."""
    (home / "token").write_text("t")
    named = Named("http://192.168.1.5:8642", str(home / "token"), data=str(home / "data"))
    contexts.save(contexts.default_path(), lambda _: "local", named)
    assert target(home).is_local
    assert not target(home, url="http://192.168.1.6:8642").is_local


def test_contexts_are_readable_by_their_owner_only(home: Path) -> None:
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


def test_an_unknown_context_is_wrong_usage(home: Path) -> None:
    a_context(home, "local", "http://127.0.0.1:8642")
    with pytest.raises(Failure) as failed:
        target(home, context="nowhere")
    assert failed.value.code == 2
    assert "local" in failed.value.fix


def test_a_context_is_forgotten_and_no_other_is_chosen_in_its_place(
    elsewhere: Shiftwork, home: Path
) -> None:
    a_context(home, "other", "http://127.0.0.1:2")
    a_context(home, "dead", "http://127.0.0.1:1")
    assert elsewhere("context", "rm", "daed").code == 2
    done = elsewhere("context", "rm", "dead")
    assert done.code == 0
    assert "no context is the current one: `shiftwork context use NAME`" in done.err
    current, known = contexts.load(contexts.default_path())
    assert (current, list(known)) == ("", ["other"])
    assert (home / "dead-token").exists()
    assert elsewhere("ls").code == 3
    assert elsewhere("context", "rm", "other", "--json").json == {"name": "other", "removed": True}


def test_a_missing_token_file_is_named(home: Path) -> None:
    a_context(home, "local", "http://127.0.0.1:8642")
    (home / "local-token").unlink()
    with pytest.raises(Failure, match="the token cannot be read") as failed:
        target(home)
    assert failed.value.where == str(home / "local-token")


@pytest.mark.parametrize("left", ["\n", "\r\n", " "])
def test_white_space_around_a_token_is_ignored(home: Path, left: str) -> None:
    a_context(home, "local", "http://127.0.0.1:8642")
    (home / "local-token").write_bytes(f"\ufeffswt_abc{left}".encode())
    assert target(home).token == "swt_abc"
    environ = {"SHIFTWORK_TOKEN": f"swt_abc{left}"}
    assert target(home, environ, url="http://x:1").token == "swt_abc"
    assert target(home, url="http://x:1", token=f"{left}swt_abc").token == "swt_abc"


@pytest.mark.parametrize("wrong", ["\n", "é", "\0", "\x1b", "\udce9", "…"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_repeated(
    home: Path, wrong: str
) -> None:
    token = f"swt_se{wrong}cret"
    for where, environ, given in (
        ("--token", {}, token),
        ("SHIFTWORK_TOKEN", {"SHIFTWORK_TOKEN": token}, ""),
    ):
        with pytest.raises(Failure, match="no token has") as failed:
            target(home, environ, url="http://x:1", token=given)
        assert (failed.value.where, failed.value.code) == (where, 2)
        assert "cret" not in f"{failed.value.what} {failed.value.fix}"


BROKEN = {
    b"": "it is not JSON",
    b'{"current": "local", "cont': "it is not JSON",
    b"[" * 100_000: "it is not JSON",
    b'{"current": "\xff"}': "it is not UTF-8",
    b"null": "the file is null",
    b"[]": "the file is []",
    b'{"current": 7}': "current is 7",
    b'{"contexts": ["a"]}': 'contexts is ["a"]',
    b'{"contexts": {"a": 1}}': "contexts.a is 1",
    b'{"contexts": {"a": {"token_file": "/t"}}}': "contexts.a has no url",
    b'{"contexts": {"a": {"url": 1}}}': "contexts.a.url is 1",
    b'{"contexts": {"a": {"url": "http://h:1", "token_file": {}}}}': "contexts.a.token_file is {}",
    b'{"contexts": {"a": {"url": "http://h:1", "remote": "yes"}}}': 'contexts.a.remote is "yes"',
}


@pytest.mark.parametrize("data", BROKEN, ids=BROKEN.values())
def test_a_contexts_file_that_cannot_be_parsed_is_reported_and_never_overwritten(
    home: Path, data: bytes, shiftwork: Shiftwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = home / ".config" / "shiftwork" / "contexts.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    with pytest.raises(Failure) as failed:
        target(home)
    assert failed.value.where == str(path)
    assert BROKEN[data] in failed.value.what
    assert "correct the file" in failed.value.fix
    with pytest.raises(Failure, match="not understood"):
        a_context(home, "local", "http://127.0.0.1:8642")
    assert path.read_bytes() == data
    # With an address and a token from the environment no context is needed.
    assert shiftwork("ls").code == 0
    monkeypatch.delenv("SHIFTWORK_TOKEN")
    done = shiftwork("ls")
    assert (done.code, "not understood" in done.err) == (1, True)


def test_unknown_fields_in_the_contexts_file_stay(home: Path) -> None:
    a_context(home, "local", "http://127.0.0.1:8642")
    path = contexts.default_path()
    written = json.loads(path.read_text())
    written["contexts"]["local"]["color"] = written["style"] = "new"
    path.write_text(json.dumps(written))
    a_context(home, "other", "http://other:1")
    found = json.loads(path.read_text())
    assert (found["style"], found["contexts"]["local"]["color"]) == ("new", "new")
    assert found["current"] == "other"


def test_a_token_that_is_not_text_is_reported(home: Path) -> None:
    a_context(home, "local", "http://127.0.0.1:8642")
    (home / "local-token").write_bytes(b"\xff\xfe")
    with pytest.raises(Failure, match="it is not UTF-8") as failed:
        target(home)
    assert failed.value.where == str(home / "local-token")


def test_a_missing_home_is_not_created(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(home / "ann"))
    with pytest.raises(Failure) as failed:
        contexts.save(contexts.default_path(), lambda _: "a", Named("http://127.0.0.1:1", ""))
    assert (failed.value.where, f"{home}/ann does not exist" in failed.value.what) == ("HOME", True)
    # The last part of the folder in XDG_CONFIG_HOME is created, as the specification requires.
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "etc" / "config"))
    with pytest.raises(Failure) as failed:
        contexts.save(contexts.default_path(), lambda _: "a", Named("http://127.0.0.1:1", ""))
    assert failed.value.where == "XDG_CONFIG_HOME"
    assert not (home / "etc").exists()
    (home / "etc").mkdir()
    contexts.save(contexts.default_path(), lambda _: "a", Named("http://127.0.0.1:1", ""))
    assert stat.S_IMODE((home / "etc" / "config").stat().st_mode) == 0o700
    assert not (home / "ann").exists()


@pytest.fixture
def without_platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An environment with the SDK alone."""
    monkeypatch.setattr(installed, "entry_points", list)
    for cache in (installed.has_platform, session.plugins):
        cache.cache_clear()
    yield
    for cache in (installed.has_platform, session.plugins):
        cache.cache_clear()


@pytest.mark.usefixtures("without_platform")
def test_without_the_platforms_package_the_error_names_where_its_commands_are(
    elsewhere: Shiftwork, server: CliServer
) -> None:
    done = elsewhere("doctor")
    assert done.code == 2
    assert "`shiftwork doctor` belongs to the platform, which is not installed here" in done.err
    assert f"where: {sys.prefix}" in done.err
    assert ".venv/bin/shiftwork doctor" in done.err
    assert json.loads(elsewhere("--json", "up").err)["type"] == "usage"
    assert "there is no command 'levitate'" in elsewhere("levitate").err
    assert "`shiftwork up` in the platform's environment" in elsewhere("ls").err
    assert "`shiftwork up` in the platform's environment" in elsewhere("context", "ls").err
    down = elsewhere("ls", "--url", "http://127.0.0.1:1")
    assert "`shiftwork doctor` in the platform's environment looks closer" in down.err
    server.first["GET", "/v1/nodes"] = [(503, {})] * 9
    unwell = elsewhere("nodes", "--url", server.url, "--token", TOKEN)
    assert "`shiftwork doctor` in the platform's environment" in unwell.err


def test_for_an_unreachable_remote_server_no_start_command_is_suggested(
    elsewhere: Shiftwork,
) -> None:
    done = elsewhere("ls", "--url", "http://nowhere.invalid:1")
    assert (done.code, "Ask who runs the server" in done.err) == (3, True)
    assert "shiftwork up" not in done.err


def test_without_any_server_the_code_is_3(elsewhere: Shiftwork) -> None:
    done = elsewhere("ls")
    assert done.code == 3
    assert done.out == ""
    assert "error: no server is known" in done.err
    assert "fix:" in done.err
    assert "shiftwork up" in done.err


def test_for_a_local_platform_that_is_down_the_start_command_names_its_data_folder(
    elsewhere: Shiftwork, home: Path
) -> None:
    named = Named("http://127.0.0.1:1", str(home / "token"), data="/srv/my data")
    contexts.save(contexts.default_path(), lambda _: "local", named)
    missing = elsewhere("ls")
    assert "start `shiftwork up --data '/srv/my data'`" in missing.err
    (home / "token").write_text("t")
    down = elsewhere("ls")
    assert down.code == 3
    assert "`shiftwork up --data '/srv/my data'` starts one here" in down.err
    assert "`shiftwork doctor --data '/srv/my data'` looks closer" in down.err


def test_monitoring_users_are_those_of_the_current_contexts_platform(
    elsewhere: Shiftwork, home: Path
) -> None:
    for port, name in enumerate(("other", "mine"), 1):
        data = home / name
        (data / "nats").mkdir(parents=True)
        (data / "secrets").mkdir()
        (data / "nats" / "port").write_text("4222\n")
        named = Named(f"http://127.0.0.1:{port}", str(data / "token"), data=str(data))
        contexts.save(contexts.default_path(), lambda _, name=name: name, named)
    made = elsewhere("monitor-credentials", "dashboard")
    assert made.out == f"{home}/mine/monitoring/dashboard.json\n"
    assert f"data folder {home}/mine (" in made.err
    assert "dashboard" in elsewhere("monitor-credentials").out
    none = elsewhere("monitor-credentials", "--context", "other")
    assert (none.code, "dashboard" in none.out) == (0, False)
    assert f"data folder {home}/other (" in none.err
    assert "it has no monitoring user" in none.err
    assert elsewhere("monitor-credentials", "--data", str(home / "mine"), "-q").err == ""
    remote = elsewhere("monitor-credentials", "dashboard", "--url", "http://127.0.0.1:9")
    assert remote.code != 0
    assert "--data DIR" in remote.err


def test_a_part_that_does_not_answer_is_looked_for_in_the_platforms_data_folder(
    elsewhere: Shiftwork, server: CliServer, home: Path
) -> None:
    named = Named(server.url, str(home / "token"), data="/srv/my data")
    contexts.save(contexts.default_path(), lambda _: "local", named)
    (home / "token").write_text(TOKEN)
    server.first["GET", "/v1/nodes"] = [(503, {})] * 9
    assert "run `shiftwork doctor --data '/srv/my data'`" in elsewhere("nodes").err


def test_an_unreachable_server_is_exit_code_3_and_one_problem_object(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    server.stop()
    done = shiftwork("ls", "--json")
    assert done.code == 3
    problem = json.loads(done.err)
    assert problem["type"] == "unreachable"
    assert server.url in problem["where"]


def test_an_invalid_address_is_wrong_usage(elsewhere: Shiftwork) -> None:
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


def test_options_after_the_dashes_belong_to_the_task() -> None:
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


def test_wrong_usage_is_exit_code_2_as_text_and_as_json(shiftwork: Shiftwork) -> None:
    assert shiftwork("sumbit").code == 2
    assert shiftwork("ls", "--limit", "none").code == 2
    done = shiftwork("--json", "show")
    assert done.code == 2
    assert json.loads(done.err)["type"] == "usage"


def test_a_request_to_a_restarting_service_is_repeated(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    server.first["GET", "/v1/nodes"] = [(503, {"detail": "wait"}), (429, {}), (503, {})]
    assert shiftwork("nodes").code == 0


def test_a_failure_of_the_server_is_reported(shiftwork: Shiftwork, server: CliServer) -> None:
    server.first["GET", "/v1/nodes"] = [(500, {"detail": "it broke"})]
    done = shiftwork("nodes")
    assert done.code == 1
    assert "it broke" in done.err
    assert f"where: GET {server.url}/v1/nodes" in done.err


def test_the_exit_codes_are_the_same_under_typers_own_runner(home: Path, server: CliServer) -> None:
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
            self.value = self.name = value
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


def test_an_address_has_one_platform_of_this_machine(home: Path) -> None:
    """A platform that was restored takes the address of the one before."""
    path = contexts.default_path()
    for name, url, data in (
        ("local", "http://127.0.0.1:8642", "/a"),
        ("site", "http://127.0.0.1:8642", ""),
        ("other", "http://127.0.0.1:8643", "/c"),
        ("restored", "http://localhost:8642/", "/b"),
    ):
        named = contexts.Named(url, f"{data}/admin-token", data=data)
        contexts.save(path, lambda _, name=name: name, named)
    current, known = contexts.load(path)
    assert (current, {*known}) == ("restored", {"site", "other", "restored"})
    assert path.is_relative_to(home)
