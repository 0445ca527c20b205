"""Where a task's command is looked up, and the hint when a module is missing there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from shiftwork.cli import contexts, environments
from shiftwork.cli.failures import Failure

from tests.libs.sdk.cli.conftest import PATH

if TYPE_CHECKING:
    from pathlib import Path

    from tests.libs.sdk.cli.conftest import Shiftwork
    from tests.libs.sdk.cli.server import CliServer

LOCAL = contexts.Target("http://127.0.0.1:8642", "")
REMOTE = (
    contexts.Target("http://gpu-server:8642", ""),
    contexts.Target("http://127.0.0.1:8642", "", remote=True),
)


def an_environment(folder: Path, marker_file: str = "pyvenv.cfg") -> Path:
    """Write the files by which the command line recognizes an environment."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").write_text("")
    (folder / "bin/python").chmod(0o755)
    (folder / marker_file).write_text("")
    return folder


def added(
    body: dict[str, Any], target: contexts.Target, venv: Path | None = None, *, user: str = ""
) -> Any:
    is_here = environments.runs_here(body, target, lambda: user)
    environments.add(body, venv, is_here=is_here)
    return body.get("env")


@pytest.mark.usefixtures("home")
def test_the_activated_environment_is_passed_to_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    activated = {"PATH": "/srv/mine/bin:/bin", "VIRTUAL_ENV": "/srv/mine"}
    for name, value in {**activated, "SECRET": "s", "PYTHONPATH": "/x"}.items():
        monkeypatch.setenv(name, value)
    assert added({"env": {"A": "1"}}, LOCAL) == {**activated, "A": "1"}
    monkeypatch.setenv("CONDA_PREFIX", "/srv/conda")
    monkeypatch.setenv("CONDA_DEFAULT_ENV", "base")
    conda = {"CONDA_PREFIX": "/srv/conda", "CONDA_DEFAULT_ENV": "base"}
    assert added({}, LOCAL) == {**activated, **conda}


@pytest.mark.usefixtures("home")
def test_a_path_that_the_task_sets_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", "/srv/mine")
    assert added({"env": {"PATH": "/opt/x"}}, LOCAL) == {"PATH": "/opt/x"}


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("target", REMOTE)
def test_no_environment_is_passed_to_another_machine(
    target: contexts.Target, tmp_path: Path
) -> None:
    assert added({}, target) is None
    venv = an_environment(tmp_path / "mine")
    with pytest.raises(Failure, match="--venv names a folder of this machine") as raised:
        added({}, target, venv)
    assert (raised.value.code, raised.value.where) == (2, str(venv))


@pytest.mark.usefixtures("home")
def test_no_environment_is_passed_into_a_pod() -> None:
    assert added({"pod": {"image": "x"}}, LOCAL) is None


@pytest.mark.usefixtures("home")
def test_a_server_of_processes_ignores_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", "/srv/mine")
    found = added({"pod": {"image": "x"}}, LOCAL, user="ada")
    assert found["VIRTUAL_ENV"] == "/srv/mine"


@pytest.mark.usefixtures("home")
def test_variables_that_are_no_object_are_left_for_the_server_to_refuse() -> None:
    assert added({"env": ["A=1"]}, LOCAL) == ["A=1"]


def test_a_program_called_by_its_path_counts_as_activated(tmp_path: Path) -> None:
    venv = an_environment(tmp_path / "platform")
    program = str(venv / "bin/shiftwork")
    called = {"PATH": f"{venv}/bin:/bin", "VIRTUAL_ENV": str(venv)}
    assert environments.activated({"PATH": "/bin"}, program) == called
    on_path = {"PATH": f"/bin:{venv}/bin"}
    assert environments.activated(on_path, program) == on_path
    other = {"PATH": "/srv/mine/bin:/bin", "VIRTUAL_ENV": "/srv/mine"}
    assert environments.activated(other, program) == other
    tool = tmp_path / "local/bin/shiftwork"
    assert environments.activated({"PATH": "/bin"}, str(tool)) == {"PATH": "/bin"}


@pytest.mark.parametrize(
    ("marker_file", "variable"), [("pyvenv.cfg", "VIRTUAL_ENV"), ("conda-meta", "CONDA_PREFIX")]
)
def test_an_environment_named_by_venv(tmp_path: Path, marker_file: str, variable: str) -> None:
    venv = an_environment(tmp_path / "mine", marker_file)
    activated = {"PATH": "/bin", "VIRTUAL_ENV": "/another", "CONDA_DEFAULT_ENV": "base"}
    assert environments.named(venv, activated) == {"PATH": f"{venv}/bin:/bin", variable: str(venv)}


def test_venv_with_options_and_with_a_file(
    shiftwork: Shiftwork, server: CliServer, tmp_path: Path
) -> None:
    venv = an_environment(tmp_path / "mine")
    file = tmp_path / "task.json"
    file.write_text(json.dumps({"command": ["python", "train.py"], "env": {"A": "1"}}))
    expected = {"PATH": f"{venv}/bin:{PATH}", "VIRTUAL_ENV": str(venv)}
    assert shiftwork("submit", "--venv", str(venv), "--", "python").code == 0
    assert server.asked("POST", "/v1/tasks").body["env"] == expected
    assert shiftwork("submit", "--venv", str(venv), "--file", str(file)).code == 0
    bodies = [one.body for one in server.seen if one.method == "POST"]
    assert bodies[-1]["env"] == {**expected, "A": "1"}


def test_a_folder_that_is_no_environment_is_refused(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    done = shiftwork("submit", "--venv", "no-venv", "--", "python")
    assert done.code == 2
    assert "no-venv/bin/python is not a program" in done.err
    assert "where: --venv no-venv" in done.err
    assert "python3 -m venv no-venv" in done.err
    assert not [one for one in server.seen if one.method == "POST"]


def test_venv_and_path_together_are_refused(
    shiftwork: Shiftwork, server: CliServer, tmp_path: Path
) -> None:
    venv = an_environment(tmp_path / "mine")
    done = shiftwork("submit", "--venv", str(venv), "--env", "PATH=/bin", "--", "python")
    assert (done.code, "leave one of them out" in done.err) == (2, True)
    assert not [one for one in server.seen if one.method == "POST"]


TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "train.py", line 1, in <module>',
    "    import {module}",
    "ModuleNotFoundError: No module named '{module}'",
)


def test_the_hint_names_the_python_and_the_missing_module() -> None:
    lines = [line.format(module="torch.nn") for line in TRACEBACK]
    hint = environments.hint_for(lines, "/usr/bin/python3")
    assert hint.startswith("/usr/bin/python3 ran the task and has no module 'torch'")
    assert "/usr/bin/python3 -m pip install torch" in hint
    assert "--venv DIR" in hint
    assert "the task's Python has no module 'torch'" in environments.hint_for(lines)
    # torchrun puts the rank in front, and its own lines behind.
    behind = ["[rank0]: " + lines[-1], "torch.distributed.elastic: ChildFailedError"]
    assert environments.hint_for(behind) == environments.hint_for(lines)


def test_the_hint_for_the_sdk_names_its_source() -> None:
    lines = [line.format(module="shiftwork") for line in TRACEBACK]
    hint = environments.hint_for(lines, "/venv/bin/python")
    assert "install the SDK there (/venv/bin/python -m pip install " in hint
    # Installed from this tree.
    assert "libs/sdk" in hint


def test_other_failures_have_no_hint() -> None:
    assert environments.hint_for([]) == ""
    assert environments.hint_for(["ValueError: No module", "KeyError: 'torch'"]) == ""


def test_the_interpreter_is_the_one_on_the_tasks_path(tmp_path: Path) -> None:
    mine = an_environment(tmp_path / "mine") / "bin"
    roles = [{"command": ["python", "train.py"], "env": {}}]
    task = {"roles": roles, "env": {"PATH": f"{mine}:/bin"}}
    assert environments.interpreter_of(task) == f"{mine}/python"
    launched = {**task, "roles": [{"command": ["torchrun", "train.py"]}]}
    assert environments.interpreter_of(launched) == f"{mine}/python"
    absolute = {**task, "roles": [{"command": [f"{mine}/python", "train.py"]}]}
    assert environments.interpreter_of(absolute) == f"{mine}/python"
    assert environments.interpreter_of({"roles": roles}) == ""
    assert environments.interpreter_of({}) == ""
