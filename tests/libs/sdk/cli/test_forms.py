"""The forms of a result: ``-o wide``, ``json``, ``yaml`` and ``name``, for every command alike."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Any

import pytest
import typer
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from shiftwork.cli import guide, main, render

from tests.libs.sdk.cli.server import CliServer, a_task

if TYPE_CHECKING:
    from tests.libs.sdk.cli.conftest import Shiftwork

LISTS = ("ls", "nodes", "node ls", "group ls", "user ls", "team ls", "token ls", "quota ls")


@pytest.mark.server
@pytest.mark.parametrize("command", LISTS)
def test_yaml_has_the_values_of_json(shiftwork: Shiftwork, server: CliServer, command: str) -> None:
    server.tasks["ta"] = a_task("ta", labels={"on": "12:30", "no": "0x1f"}, name="a: b # c")
    shown = shiftwork(*command.split(), "-o", "yaml")
    assert shown.code == 0
    assert yaml.safe_load(shown.out) == shiftwork(*command.split(), "--json").json


@pytest.mark.server
def test_names_are_the_ids_alone(shiftwork: Shiftwork, server: CliServer) -> None:
    server.tasks = {task_id: a_task(task_id) for task_id in ("ta", "tb")}
    server.nodes = [{"id": "n0", "tasks": []}, {"id": "n1", "tasks": []}]
    for line, expected in (
        ("ls -o name", "tb\nta\n"),
        ("ls -oname", "tb\nta\n"),
        ("queue --output=name", "ta\ntb\n"),
        ("-o name show ta", "ta\n"),
        ("show ta tb -o name", "ta\ntb\n"),
        ("pause ta tb -o name", "ta\ntb\n"),
        ("nodes -o name", "n0\nn1\n"),
        ("group ls -o name", "default\n"),
        ("user ls -o name", "ada\n"),
    ):
        done = shiftwork(*line.split())
        assert (done.code, done.out, done.err) == (0, expected, ""), line


@pytest.mark.server
def test_nothing_is_done_where_a_form_is_refused(shiftwork: Shiftwork, server: CliServer) -> None:
    for line in ("quota set --user ada --gpus 1", "submit -f"):
        assert shiftwork(*line.split(), "-o", "name", "--", "true").code == 2
    assert not [each for each in server.seen if each.method != "GET"]


@pytest.mark.server
def test_failures_are_json_only_beside_json(shiftwork: Shiftwork) -> None:
    assert shiftwork("show", "nobody", "-o", "json").err.startswith("{")
    for form in ("yaml", "name", "wide"):
        assert shiftwork("show", "nobody", "-o", form).err.startswith("error: there is no task")


def test_every_command_with_names_exists() -> None:
    root: Any = typer.main.get_command(main.app)
    for path in guide.NAMES:
        command = root
        for word in path.split():
            command = command.get_command(typer.Context(command), word)
            assert command is not None, path


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.sampled_from(["no", "1e3", "12:30", "0x1f", "~", "a: b", "\x1b[2J", "\u202e", "-", "#"])
)
VALUES = st.lists(SCALARS, max_size=4) | st.dictionaries(st.text(max_size=8), SCALARS, max_size=4)


@settings(max_examples=50)
@given(VALUES)
def test_any_document_is_the_same_in_yaml_and_nothing_that_a_terminal_obeys(value: object) -> None:
    document = {"value": value}
    output = io.StringIO()
    render.configure(form="yaml", quiet=False, verbose=False)
    with contextlib.redirect_stdout(output):
        render.document(document)
    render.configure(form="", quiet=False, verbose=False)
    text = output.getvalue()
    assert render.safe(text) == text
    assert yaml.safe_load(text) == document
