"""What ``up`` checks before it starts: what it refuses, with which fix; nothing is written."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from shiftwork.cli import contexts, homes
from shiftwork.cli.contexts import Named
from shiftwork.cli.failures import Failure

from services.allinone import checks, chosen, doctor
from services.allinone.data_folder import DataFolder, Holder, Options

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may")
PLAIN = Options(port=0, tasks_as_root=True)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_CONFIG_HOME", "SHIFTWORK_URL", "SHIFTWORK_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def refused(data: Path, options: Options = PLAIN) -> Failure:
    before = os.path.lexists(data) if len(data.name) <= 255 else False
    with pytest.raises(Failure) as failed:
        checks.check_start(DataFolder(data), options, lambda _: None)
    assert before or len(data.name) > 255 or not os.path.lexists(data)
    assert failed.value.fix
    return failed.value


@pytest.mark.parametrize("below", ["file", "file/below/it"])
def test_a_file_is_no_data_folder(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    failed = refused(tmp_path / below)
    assert (failed.what.split(",")[0], failed.where) == (f"{tmp_path / 'file'} is a file", "--data")


@pytest.mark.parametrize("below", ["link", "link/below/it"])
def test_a_link_to_nowhere_is_no_data_folder(tmp_path: Path, below: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    failed = refused(tmp_path / below)
    assert failed.what.startswith(f"{tmp_path / 'link'} is a symbolic link to {tmp_path}/nowhere")
    assert failed.where == "--data"


def test_a_missing_home_is_not_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "ann"))
    failed = refused(tmp_path / "ann" / "data")
    assert (failed.what, failed.where) == (
        f"the home folder {tmp_path}/ann does not exist",
        "HOME",
    )
    # Named by itself, a folder is created with those above it.
    checks.check_start(DataFolder(tmp_path / "new" / "data"), PLAIN, lambda _: None)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "none" / "share"))
    assert refused(tmp_path / "none" / "share" / "shiftwork").where == "XDG_DATA_HOME"
    message = chosen.make_current(DataFolder(tmp_path / "data"), "http://127.0.0.1:1")
    assert message.startswith(f"no context: the home folder {tmp_path}/ann does not exist (HOME)")
    assert not (tmp_path / "ann").exists()


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ("/proc/shiftwork", "lies on a file system (proc)"),
        ("/sys/shiftwork", "lies on a file system (sysfs)"),
        ("/tmp/" + "x" * 300, "File name too long"),
        ("/tmp/" + "x/" * 500, "more than 900 bytes"),
    ],
)
def test_a_path_that_cannot_hold_data_is_refused(data: str, what: str) -> None:
    assert what in refused(Path(data)).what


def test_a_folder_of_something_else_is_refused_and_one_of_ours_is_not(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "lost+found").mkdir()
    checks.check_start(DataFolder(data), PLAIN, lambda _: None)
    (data / "thesis.tex").touch()
    failed = refused(data)
    assert failed.what == f"the data folder {data} holds something else (thesis.tex)"
    (data / "admin-token").touch()
    checks.check_start(DataFolder(data), PLAIN, lambda _: None)


@needs_root
def test_root_is_warned_that_a_folder_is_another_users(tmp_path: Path) -> None:
    os.chown(tmp_path, 12_345, 12_345)
    messages: list[str] = []
    checks.check_start(
        DataFolder(tmp_path), Options(port=0, task_users="390000-390009"), messages.append
    )
    assert any("belongs to user 12345" in each for each in messages)


def test_an_ordinary_user_is_refused_a_folder_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    (finding,) = [
        each for each in checks.folder(DataFolder(tmp_path), PLAIN) if each.level == "bad"
    ]
    assert "not to you" in finding.what


@needs_root
def test_a_full_disk_and_a_read_only_one_are_named(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this container may not mount")
    try:
        levels = {
            each.level: each.what for each in checks.folder(DataFolder(small / "data"), PLAIN)
        }
        assert "is in memory" in levels["warn"]
        assert levels["bad"].endswith("is full: 8 MiB free, at least 256 MiB are needed")
        subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
        assert "its file system is read-only" in refused(small / "data").what
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_taken_port_is_named_with_the_process_that_has_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        failed = refused(tmp_path / "data", Options(port=port, tasks_as_root=True))
    assert failed.where == "--port"
    assert failed.what.startswith(f"port {port} is taken by process {os.getpid()} (")
    assert "--port N" in failed.fix


def test_a_port_of_another_platform_is_reported_with_how_to_end_it(tmp_path: Path) -> None:
    other = DataFolder(tmp_path / "the other")
    other.take()
    try:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            failed = refused(tmp_path / "data", Options(port=port, tasks_as_root=True))
    finally:
        other.release()
    assert failed.what.startswith(f"port {port} is taken by the platform of {other.data}")
    assert f"shiftwork down --data '{other.data}'" in failed.fix


@pytest.mark.parametrize(
    ("host", "what"),
    [("192.0.2.77", "192.0.2.77 is no address"), ("no such host", "'no such host' is no address")],
)
def test_an_address_that_is_not_this_machines_is_refused(
    tmp_path: Path, host: str, what: str
) -> None:
    failed = refused(tmp_path / "data", Options(host=host, port=0, tasks_as_root=True))
    assert failed.what.startswith(what)
    assert (failed.where, "127.0.0.1" in failed.fix) == ("--host", True)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user may read; those of tests are private."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def somebody() -> Iterator[None]:
    """The test runs as an ordinary user."""
    os.seteuid(12_345)
    yield
    os.seteuid(0)


@needs_root
@pytest.mark.parametrize("closed_above", [False, True])
def test_of_a_platform_of_another_user_nothing_is_claimed(
    home: Path, public: Path, request: pytest.FixtureRequest, closed_above: bool
) -> None:
    data = (home if closed_above else public) / "data"
    data_folder = DataFolder(data)
    data_folder.take()
    data_folder.keep_options(PLAIN)
    data_folder.runs.mkdir(parents=True)
    home.chmod(0o700)
    request.getfixturevalue("somebody")
    assert not data_folder.left_over()
    problem = checks.owner_problem(data)
    assert problem is not None
    assert problem.level == "bad"
    findings = doctor.examine(data_folder)
    assert not [each for each in findings if each.what.startswith("not running")]
    (bad,) = [each for each in findings if each.level == "bad" and str(data) in each.what]
    assert bad.where == "--data"


@needs_root
def test_errors_name_the_flags_as_they_are_typed(tmp_path: Path) -> None:
    failed = refused_usage(tmp_path / "data", Options(port=0, task_user="nobdoy"))
    assert failed.what == "--task-user 'nobdoy' is no user of this machine"
    assert failed.fix.startswith("did you mean nobody?")
    failed = refused_usage(tmp_path / "data", Options(port=0, task_users="9-1"))
    assert failed.what.startswith("--task-users 9-1 must go up")
    assert "300000-309999" in failed.fix
    failed = refused_usage(tmp_path / "data", Options(port=0, task_users="some"))
    assert failed.fix == "write FIRST-LAST"
    options = Options(port=0, tasks_as_root=True, service_user="nobdoy")
    failed = refused_usage(tmp_path / "data", options)
    assert failed.where == "--service-user"
    assert failed.fix.startswith("did you mean nobody?")
    options = Options(port=0, tasks_as_root=True, service_user="root")
    failed = refused_usage(tmp_path / "data", options)
    assert failed.what.endswith(": root is root, and PostgreSQL does not run as root")
    assert "does not exist" not in failed.what


def refused_usage(data: Path, options: Options) -> Failure:
    with pytest.raises(Failure) as failed:
        checks.check_start(DataFolder(data), options, lambda _: None)
    assert failed.value.code == 2
    return failed.value


@needs_root
def test_up_warns_of_an_interpreter_that_tasks_cannot_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "python").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(closed / "python"))
    (found,) = checks.interpreter(DataFolder(tmp_path), Options(task_users="390000-390009"))
    assert found.level == "warn"
    assert found.what.startswith(f"tasks cannot run {closed}/python")
    assert "rm -r .venv && make setup PYTHON=" in found.fix
    assert checks.interpreter in checks.BEFORE_START


def test_settings_of_the_environment_that_cannot_be_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the service dies again and again, and the platform is never ready."""
    name = "SHIFTWORK_SCHEDULER_PROTECTED_SECONDS"
    monkeypatch.setenv(name, "one minute")
    failed = refused_usage(tmp_path / "data", PLAIN)
    assert failed.what.startswith(f"{name}='one minute': Input should be a valid number")
    assert failed.where == name
    monkeypatch.setenv(name, "60")
    checks.check_start(DataFolder(tmp_path / "data"), PLAIN, lambda _: None)


@pytest.mark.parametrize(
    ("given", "what", "fix"),
    [
        (
            {"SHIFTWORK_MONITOR_MAIL_HOST": "mail"},
            "SHIFTWORK_MONITOR_MAIL_HOST needs SHIFTWORK_MONITOR_MAIL_FROM, the sender's address",
            "set SHIFTWORK_MONITOR_MAIL_FROM",
        ),
        (
            {"SHIFTWORK_MONITOR_SERIES_KEEP_SECONDS": "100"},
            "SHIFTWORK_MONITOR_SERIES_KEEP_SECONDS (100 s) is too short",
            "set SHIFTWORK_MONITOR_SERIES_KEEP_SECONDS to 172800 or more",
        ),
        (
            {"SHIFTWORK_MONITOR_SERIES_MIDDLE_STEP_SECONDS": "15"},
            "15 s does not follow 10 s",
            "SHIFTWORK_MONITOR_SERIES_MIDDLE_STEP_SECONDS",
        ),
        (
            {"SHIFTWORK_LOG_COLLECTOR_BUCKET_URL": "s3://b/x"},
            "needs SHIFTWORK_LOG_COLLECTOR_BUCKET_KEY_ID_FILE and",
            "unset SHIFTWORK_LOG_COLLECTOR_BUCKET_URL",
        ),
        (
            {"SHIFTWORK_LOG_COLLECTOR_BUCKET_URL": "https://b/x"},
            "write s3://BUCKET or s3://BUCKET/PREFIX",
            "correct or unset SHIFTWORK_LOG_COLLECTOR_BUCKET_URL",
        ),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "127.0.0.1:4318"},
            "give one such as http://collector:4318",
            "correct or unset OTEL_EXPORTER_OTLP_ENDPOINT",
        ),
        (
            {"SHIFTWORK_LAUNCHER_FENCE_SECONDS": "0.5"},
            "SHIFTWORK_LAUNCHER_FENCE_SECONDS is below SHIFTWORK_LAUNCHER_LEASE_SECONDS",
            "set SHIFTWORK_LAUNCHER_FENCE_SECONDS",
        ),
    ],
)
def test_problems_of_settings_name_each_variable_once_and_a_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], what: str, fix: str
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    (found,) = checks.settings(DataFolder(tmp_path / "data"), PLAIN)
    assert found.level == "bad"
    assert what in found.what
    assert fix in found.fix
    assert found.where in given
    assert "_=" not in found.what


def test_settings_of_the_environment_without_effect_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHIFTWORK_SCHEDULER_PROTECED_SECONDS", "60")
    monkeypatch.setenv("SHIFTWORK_GATEWAY_HTTP_PORT", "9000")
    monkeypatch.setenv("SHIFTWORK_GATEWAY_HTTP_HEAD_SECONDS", "20")
    warnings = {
        each.where: each.what for each in checks.settings(DataFolder(tmp_path / "data"), PLAIN)
    }
    assert warnings.keys() == {
        "SHIFTWORK_SCHEDULER_PROTECED_SECONDS",
        "SHIFTWORK_GATEWAY_HTTP_PORT",
    }
    assert warnings["SHIFTWORK_SCHEDULER_PROTECED_SECONDS"].endswith(
        "='60': there is no such setting; did you mean SHIFTWORK_SCHEDULER_PROTECTED_SECONDS?"
    )
    fixed = warnings["SHIFTWORK_GATEWAY_HTTP_PORT"]
    assert fixed.endswith("='9000': it has no effect here: `up` sets it, some by its options")


def test_settings_of_two_services_that_contradict_are_refused_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_folder = DataFolder(tmp_path / "data")
    monkeypatch.setenv("SHIFTWORK_SUBMIT_TASKS_KEEP_SECONDS", str(401 * 86_400))
    (found,) = checks.settings(data_folder, PLAIN)
    assert found.level == "bad"
    assert "scheduler's ended_keep_seconds (34560000) is less than submit's" in found.what
    assert found.fix.startswith("set ended_keep_seconds of scheduler to 34646400 or more, or ")
    monkeypatch.setenv("SHIFTWORK_SCHEDULER_ENDED_KEEP_SECONDS", str(401 * 86_400))
    assert not [*checks.settings(data_folder, PLAIN)]
    monkeypatch.setenv("SHIFTWORK_GATEWAY_COMMAND_TIMEOUT_SECONDS", "3")
    assert [each.level for each in checks.settings(data_folder, PLAIN)] == ["warn", "warn"]


@pytest.mark.parametrize(
    ("variable", "level"),
    [
        ("SHIFTWORK_LAUNCHER_INBOX_KEEP_SECONDS", "bad"),
        ("SHIFTWORK_SCHEDULER_EARLY_KEEP_SECONDS", "bad"),
        ("SHIFTWORK_SUBMIT_REMOVED_NODE_KEEP_SECONDS", "bad"),
        ("SHIFTWORK_GATEWAY_REMOVED_QUOTA_KEEP_SECONDS", "bad"),
        ("SHIFTWORK_GATEWAY_TASKS_KEEP_SECONDS", "warn"),
    ],
)
def test_what_an_event_needs_is_kept_as_long_as_the_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, level: str
) -> None:
    monkeypatch.setenv(variable, str(13 * 86_400))
    found = [*checks.settings(DataFolder(tmp_path / "data"), PLAIN)]
    assert level in {each.level for each in found}
    assert all("1209600" in each.fix for each in found if each.level == level)
    monkeypatch.setenv("SHIFTWORK_PROVISION_EVENT_AGE_SECONDS", str(12 * 86_400))
    assert level not in {
        each.level for each in checks.settings(DataFolder(tmp_path / "data"), PLAIN)
    }


@pytest.fixture
def live(tmp_path: Path) -> Iterator[DataFolder]:
    data_folder = DataFolder(tmp_path / "live")
    data_folder.take()
    data_folder.keep_options(Options(port=0, nodes=2, slots=2, tasks_as_root=True))
    data_folder.report(Holder(os.getpid(), "http://127.0.0.1:8777", ready=True))
    yield data_folder
    data_folder.release()


@pytest.mark.parametrize(
    "typed",
    [{}, {"nodes": 2}, {"port": 8777}, {"port": 0}, {"nodes": 2, "tasks_as_root": True}],
)
def test_the_options_of_the_live_platform_may_be_repeated(
    live: DataFolder, typed: Mapping[str, Any]
) -> None:
    checks.check_same(live, typed)


@pytest.mark.parametrize(
    ("typed", "what"),
    [
        ({"nodes": 3}, "runs with --nodes 2, not with --nodes 3"),
        ({"nodes": 2, "port": 9}, "runs with --port 8777, not with --port 9"),
        ({"visibility": "own"}, "runs without --visibility, not with --visibility own"),
        ({"task_users": "1-2"}, "runs without --task-users, not with --task-users 1-2"),
    ],
)
def test_options_that_differ_from_the_live_platform_are_refused(
    live: DataFolder, typed: Mapping[str, Any], what: str
) -> None:
    with pytest.raises(Failure, match=what) as failed:
        checks.check_same(live, typed)
    assert f"shiftwork down --data {live.data}" in failed.value.fix


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", '{"nodse": 1}', '{"port": "8642"}', '{"port": 99999}', '{"nodes": true}'),
        *('{"host": null}', '{"tasks_as_root": 1}', "[" * 100_000),
    ],
)
def test_options_that_were_broken_by_hand_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "options.json").write_text(text)
    with pytest.raises(Failure) as failed:
        DataFolder(tmp_path).options()
    assert failed.value.where == str(tmp_path / "options.json")
    assert any(each.level == "bad" for each in doctor.before_start(DataFolder(tmp_path)))


def test_a_step_of_a_start_is_seen_by_others_until_it_ends(tmp_path: Path) -> None:
    data_folder, seen = DataFolder(tmp_path / "data"), list[str]()
    data_folder.on_step = seen.append
    data_folder.take()
    data_folder.report_step("PostgreSQL and NATS")
    assert DataFolder(data_folder.data).step() == "PostgreSQL and NATS"
    assert DataFolder(data_folder.data).holder() is None
    data_folder.report(Holder(os.getpid(), "http://127.0.0.1:1", step="services"))
    holder = DataFolder(data_folder.data).holder()
    assert holder == Holder(os.getpid(), "http://127.0.0.1:1", step="services")
    data_folder.release()
    assert DataFolder(data_folder.data).step() == ""
    assert seen == ["PostgreSQL and NATS", "services"]


def test_a_home_and_a_folder_that_is_left_again_are_read_as_a_shell_does(home: Path) -> None:
    assert DataFolder(Path("~/x/../y")).data == home / "y"


# Which platform is meant


def make(data: Path, url: str) -> DataFolder:
    data_folder = DataFolder(data)
    data_folder.take()
    data_folder.release()
    (data_folder.data / "admin-token").write_text("t")
    assert chosen.make_current(data_folder, url) == ""
    return data_folder


def test_each_platform_of_a_machine_has_a_context_and_the_last_one_is_current(home: Path) -> None:
    one, two = make(home / "one", "http://127.0.0.1:1"), make(home / "my two", "http://127.0.0.1:2")
    current, known = contexts.load(contexts.default_path())
    assert (current, {name: each.data for name, each in known.items()}) == (
        "my-two",
        {"local": str(one.data), "my-two": str(two.data)},
    )
    found = chosen.chosen(None)
    assert (found.data_folder and found.data_folder.data, found.context) == (two.data, "my-two")
    contexts.use(contexts.default_path(), "local")
    found = chosen.chosen(None)
    assert found.data_folder is not None
    assert found.described == f"context local, data folder {one.data} (the current context)"
    # The same folder again: the context that it has.
    make(two.data, "http://127.0.0.1:3")
    assert contexts.load(contexts.default_path())[0] == "my-two"


def test_platforms_that_start_at_once_all_have_a_context(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one writes its context while the first one is choosing a name."""
    second = threading.Thread(target=make, args=(home / "two", "http://127.0.0.1:2"))
    name_for = chosen.name_for

    def slow(known: Mapping[str, Named], data: Path) -> str:
        if data.name == "one":
            second.start()
            second.join(0.5)
        return name_for(known, data)

    monkeypatch.setattr(chosen, "name_for", slow)
    make(home / "one", "http://127.0.0.1:1")
    second.join()
    current, known = contexts.load(contexts.default_path())
    assert {name: each.url for name, each in known.items()} == {
        "local": "http://127.0.0.1:1",
        "two": "http://127.0.0.1:2",
    }
    assert current == "two"


def test_a_context_of_a_folder_that_is_gone_gives_its_name_back(home: Path) -> None:
    make(home / "one", "http://127.0.0.1:1")
    for file in (home / "one").iterdir():
        file.unlink()
    make(home / "two", "http://127.0.0.1:2")
    assert list(contexts.load(contexts.default_path())[1]) == ["local"]


def test_without_contexts_the_default_folder_is_meant_and_a_server_elsewhere_is_none(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = chosen.chosen(None)
    assert found.data_folder is not None
    assert found.because == "the default data folder"
    monkeypatch.setenv("SHIFTWORK_URL", "http://gpu-server:8642")
    found = chosen.chosen(None)
    assert (found.data_folder, found.because) == (None, "SHIFTWORK_URL")
    assert chosen.chosen(home / "data").because == "--data"


def test_an_older_context_is_known_by_its_token(home: Path) -> None:
    one = make(home / "one", "http://127.0.0.1:1")
    token = str(one.credentials.admin_token_file)
    contexts.save(contexts.default_path(), lambda _: "local", Named("http://127.0.0.1:1", token))
    found = chosen.chosen(None)
    assert found.data_folder is not None
    assert found.data_folder.data == one.data


def test_contexts_that_cannot_be_written_end_no_platform(home: Path) -> None:
    data_folder = DataFolder(home / "one")
    (home / ".config").write_text("a file")
    assert chosen.make_current(data_folder, "http://127.0.0.1:1").startswith("no context: ")
    (home / ".config").unlink()
    contexts.default_path().parent.mkdir(parents=True)
    contexts.default_path().write_text("{")
    message = chosen.make_current(data_folder, "http://127.0.0.1:1")
    assert "not understood: it is not JSON" in message
    assert "--url http://127.0.0.1:1" in message
    # What somebody wrote by hand is left as it is.
    assert contexts.default_path().read_text() == "{"


def test_options_travel_to_the_process_in_the_background() -> None:
    assert Options(**json.loads(json.dumps(asdict(PLAIN)))) == PLAIN


@pytest.mark.parametrize(
    ("declared", "where", "what"),
    [
        (
            {"nodes": 1, "slots": 99_999_999},
            "--slots",
            "--slots 99999999 is more than 1024 (give at most 1024)",
        ),
        ({"nodes": 100_000}, "--nodes", "--nodes 100000 is more than 4096 (give at most 4096)"),
    ],
)
def test_nodes_that_the_launcher_would_refuse_are_refused_before_a_start(
    tmp_path: Path, declared: Mapping[str, Any], where: str, what: str
) -> None:
    """Otherwise the launcher starts again and again, and the platform is never ready."""
    failed = refused_usage(tmp_path / "data", replace(PLAIN, **declared))
    assert (failed.where, f"{failed.what} ({failed.fix})") == (where, what)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("local-9: {group: dev}", "local-9 is no node of this machine; these are: local-0"),
        ("local-0: {grup: dev}", "local-0.grup: Extra inputs are not permitted"),
        ("local-0: [", "is neither YAML nor JSON"),
        ("- local-0", "the file: Input should be a valid dictionary"),
    ],
)
def test_a_nodes_file_that_the_launcher_would_refuse_is_refused_before_a_start(
    tmp_path: Path, content: str, what: str
) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text(content)
    failed = refused_usage(tmp_path / "data", replace(PLAIN, nodes=4, nodes_file=str(file)))
    assert failed.where == "--nodes-file"
    assert failed.what.startswith(str(file))
    assert what in failed.what
    assert "\n" not in failed.what


def test_fixes_name_the_data_folder_unless_it_is_the_default_one(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(homes, "default_data", lambda: home / "usual")
    for data, named in ((home / "usual", ""), (home / "my data", f" --data '{home}/my data'")):
        data_folder = DataFolder(data)
        data_folder.take()
        data_folder.release("out of memory")
        (found,) = [each for each in doctor.examine(data_folder) if each.what.startswith("crashed")]
        assert found.fix == f"see {data_folder.log}; shiftwork up{named}"
