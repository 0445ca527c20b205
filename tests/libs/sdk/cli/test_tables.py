"""Tables at several widths, with long names, wide characters and hostile text."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from shiftwork.cli import client, follow, ids, render

from tests.libs.sdk.cli.server import TOKEN, CliServer, a_task

if TYPE_CHECKING:
    from tests.libs.sdk.cli.conftest import Shiftwork

COLUMNS = (
    render.Column("ID"),
    render.Column("NAME", least=12),
    render.Column("STATE"),
    render.Column("STEP", drop=2),
    render.Column("REASON", drop=1, least=20),
)
REASON = "waits for 2 nodes with 8 GPUs each to come free in group train, behind 3 tasks of bob"
ROWS = [
    ["k7n2mq", "resnet", "running", "1200", ""],
    ["x3b5aa", "a-very-long-name-of-a-training-that-somebody-gave-it", "queued", "", REASON],
    ["p2q4zz", "训练训练训练模型一二", "paused", "7", "it"],
    ["mmmmmm", "\U0001f680\U0001f680 to the moon \U0001f680", "failed", "", REASON],
]
SNAPSHOTS = {
    40: """\
ID      NAME                     STATE
k7n2mq  resnet                   running
x3b5aa  a-very-long-name-of-a-…  queued
p2q4zz  训练训练训练模型一二     paused
mmmmmm  🚀🚀 to the moon 🚀      failed
""",
    80: """\
ID      NAME                         STATE    STEP  REASON
k7n2mq  resnet                       running  1200
x3b5aa  a-very-long-name-of-a-trai…  queued         waits for 2 nodes with 8 GP…
p2q4zz  训练训练训练模型一二         paused   7     it
mmmmmm  🚀🚀 to the moon 🚀          failed         waits for 2 nodes with 8 GP…
""",
}


def drawn(width: int | None) -> str:
    return "".join("".join(row).rstrip() + "\n" for row in render.fitted(COLUMNS, ROWS, width))


@pytest.mark.parametrize("width", list(SNAPSHOTS))
def test_a_table_in_a_narrow_terminal(width: int) -> None:
    assert drawn(width) == SNAPSHOTS[width]


@pytest.mark.parametrize("width", [120, 200])
def test_a_wider_terminal_shows_more(width: int) -> None:
    lines = drawn(width).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert "STEP" in lines[0]
    assert (REASON in lines[2]) is (width == 200)


def test_without_a_terminal_nothing_is_cut() -> None:
    assert REASON in drawn(None)
    assert ROWS[1][1] in drawn(None)


cells = st.text(max_size=120).map(render.one_line)


@given(st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=5), st.integers(30, 250))
def test_rows_are_lines_that_fit_and_align(rows: list[tuple[str, str, str]], width: int) -> None:
    columns = (
        render.Column("A", least=5),
        render.Column("B", drop=1, least=8),
        render.Column("C", drop=2, least=3),
    )
    shown = render.fitted(columns, rows, width)
    assert len({tuple(cell_len(cell) for cell in row[:-1]) for row in shown}) == 1
    for row in shown:
        assert cell_len("".join(row)) <= width
        assert "\n" not in "".join(row)


def test_the_last_column_may_go_on_in_further_lines() -> None:
    columns = (render.Column("ID"), render.Column("EVENT", least=10, wrap=True))
    rows = [["1", "running"], ["22", "asked to leave: its owner paused it"], ["3", "x" * 40]]
    lines = ["".join(row).rstrip() for row in render.fitted(columns, rows, 24)]
    assert lines == [
        "ID  EVENT",
        "1   running",
        "22  asked to leave: its",
        "    owner paused it",
        "3   " + "x" * 40,
    ]
    assert len(render.fitted(columns, rows, None)) == 4


words = st.lists(st.text("ab`(:é字\U0001f680", min_size=1, max_size=30))


@given(words, st.integers(20, 100), st.integers(0, 30))
def test_text_is_broken_between_words_and_keeps_all_of_them(
    parts: list[str], width: int, hang: int
) -> None:
    text = "  label  " + " ".join(parts)
    lines = render.wrapped(text, width, hang)
    assert " ".join(lines).split() == text.split()
    assert lines[0].startswith("  label")
    for line in lines:
        # Only a word that is too long by itself is longer than a line.
        assert cell_len(line) <= width or len(line.split()) == 1
    assert all(line.startswith(" " * min(hang, width - 20)) for line in lines[1:])


def test_a_command_in_backticks_is_not_broken() -> None:
    text = "raise its priority to above_normal (`shiftwork priority ylbnvu high`): it would start"
    assert render.wrapped(text, 50, 2) == [
        "raise its priority to above_normal",
        "  (`shiftwork priority ylbnvu high`): it would",
        "  start",
    ]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "is_terminal", lambda stream: stream is sys.stdout)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")


def many() -> dict[str, dict[str, Any]]:
    made = [a_task(f"tabcdefghijkkkkkkkkk{letter}") for letter in "abcdefghijkl"]
    for number, task in enumerate(made):
        task.update(name=f"train-{number}", reason={"code": "x", "text": REASON})
    made[1]["reason"]["text"] = f"makes room for task {made[0]['id']} at level high"
    return {task["id"]: task for task in made}


@pytest.mark.server
@pytest.mark.usefixtures("terminal")
def test_ls_fits_eighty_columns_and_names_tasks(
    shiftwork: Shiftwork, server: CliServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.tasks = many()
    lines = shiftwork("ls").out.splitlines()
    assert lines[0].split()[:2] == ["ID", "NAME"]
    assert max(map(cell_len, lines)) <= 80
    assert len(lines) == 13
    first = next(line.split()[0] for line in lines if "train-3 " in line)
    assert shiftwork("show", first, "--json").json["name"] == "train-3"
    monkeypatch.setenv("COLUMNS", "160")
    assert "makes room for task train-0 (kkkkka) at level high" in shiftwork("ls").out
    for wide in (("--wide",), ("-o", "wide")):
        assert REASON in shiftwork("ls", *wide).out
    assert shiftwork("ls", "-o", "json").json == shiftwork("ls", "--json").json
    assert yaml.safe_load(shiftwork("ls", "-o", "yaml").out) == shiftwork("ls", "--json").json


@pytest.mark.server
@pytest.mark.usefixtures("terminal")
def test_a_long_name_does_not_cut_the_progress(shiftwork: Shiftwork, server: CliServer) -> None:
    values = {"values": {"step": 387, "loss": 0.31234}, "at": None}
    runs = {"code": "started", "text": "attempt 1 runs"}
    server.tasks["ta"] = a_task(
        "ta",
        name="resnet-of-a-very-long-name-indeed-1",
        state="running",
        progress=values,
        reason=runs,
    )
    (_, row) = shiftwork("ls").out.splitlines()
    assert "step 387  loss 0.3123" in row
    assert cell_len(row) <= 80


@pytest.mark.server
@pytest.mark.usefixtures("terminal")
def test_facts_events_and_sentences_fit_eighty_columns(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    server.tasks["ta"] = a_task("ta", reason={"code": "x", "text": REASON})
    server.happen("ta", "run.preemption_requested", reason={"text": REASON}, deadline_at=None)
    server.explanation = {"remedies": [f"raise its priority: {REASON}"]}
    for command in ("explain", "events", "show"):
        lines = shiftwork(command, "ta").out.splitlines()
        output = re.sub(r"\x1b\[\d*m", "", "\n".join(lines))
        assert max(map(cell_len, output.splitlines())) <= 80, command
        assert REASON in " ".join(output.split()), command
        # Nothing but a name of a fact or of a column stands in front.
        assert REASON not in output
        assert REASON in shiftwork(command, "ta", "--wide").out.replace("\x1b[0m", "")


@pytest.mark.server
@pytest.mark.usefixtures("terminal")
def test_nodes_name_the_tasks_and_show_when_they_are_drained(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    server.tasks = many()
    task = next(iter(server.tasks.values()))
    task["state"] = "running"
    node = {"group": "default", "gpus": 2, "free_gpus": 1, "ready": True}
    off = {"schedulable": False, "draining": True}
    server.nodes = [
        {"id": "n0", **node, **off, "tasks": [task["id"]]},
        {"id": "n1", **node, **off, "tasks": []},
    ]
    lines = shiftwork("nodes").out.splitlines()
    assert f"train-0 ({ids.short(task['id'])})" in lines[1]
    assert [line.split()[2] for line in lines[1:]] == ["draining", "drained"]


def test_short_ids_are_as_long_as_it_takes() -> None:
    one, two, three = "taaaaaaaaaab234567abc", "taaaaaaaaaac234567abc", "taaaaaaaaaaz777777qqq"
    assert ids.shortened([one, two, three]) == {
        one: "b234567abc",
        two: "c234567abc",
        three: "777qqq",
    }
    assert ids.shortened(["ta", "ta"]) == {"ta": "ta"}


def test_sentences_name_tasks_and_commands_have_short_ids() -> None:
    task_id = "taaaaaaaaaab234567abc"
    text = f"1 run ends: {task_id} (`shiftwork stop {task_id}`)"
    tasks = {task_id: {"name": "train"}}
    assert ids.named(text, tasks) == "1 run ends: train (567abc) (`shiftwork stop 567abc`)"


ID = "t23oc4wkymi5qco4clsx7"


@pytest.mark.parametrize(
    "text",
    [
        f"checkpoint saved: step 8, /tmp/ckf/{ID}-attempt-0001-step-000000000008",
        f"/tmp/{ID}/x",
        f"/tmp/{ID}",
        f"file:///c/{ID}.json",
        f"s3://bucket/{ID}?part={ID}",
        f"{ID}.json",
        f"{ID}-1-worker-0 is pending",
        f"./{ID}",
        f"a:{ID}",
        f"cannot open '/data/{ID}'",
        f"C:\\{ID}",
        f"{ID}/out",
        f"no such image: registry/{ID}:latest",
    ],
)
def test_paths_uris_and_file_names_are_never_altered(text: str) -> None:
    assert ids.named(text, {ID: {"name": "train"}}) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("waits for ID", "waits for train (4clsx7)"),
        ("ID.", "train (4clsx7)."),
        (
            "free (ID, ID.2): ID's turn",
            "free (train (4clsx7), train (4clsx7).2): train (4clsx7)'s turn",
        ),
        ("`shiftwork stop ID`: 'ID'", "`shiftwork stop 4clsx7`: 'train (4clsx7)'"),
    ],
)
def test_an_id_that_is_a_word_becomes_a_name(text: str, expected: str) -> None:
    assert ids.named(text.replace("ID", ID), {ID: {"name": "train"}}) == expected


@pytest.mark.server
@pytest.mark.usefixtures("terminal")
def test_events_call_other_tasks_by_their_names_and_leave_paths_alone(
    shiftwork: Shiftwork, server: CliServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    other, gone = "t23oc4wkymi5qco4cbbbb", "t23oc4wkymi5qco4ccccc"
    path = f"/tmp/with space {ID}"
    server.tasks = {ID: a_task(ID, name="mine"), other: a_task(other, name="big")}
    text = f"makes room for task {other}"
    server.tasks[ID]["reason"]["text"] = text
    server.happen(ID, "run.preemption_requested", deadline_at=None, reason={"text": text})
    server.happen(ID, "run.checkpoint_saved", checkpoint={"step": 3, "uri": path})
    server.happen(ID, "run.kill_requested", reason={"text": f"makes room for task {gone}"})
    server.decisions = [{"kind": "preempt", "decided_at": None, "reason": {"text": text}}]
    for arguments in (("events", ID), ("events",)):
        output = shiftwork(*arguments).out
        assert "makes room for task big (4cbbbb)" in output
        assert f"checkpoint saved: step 3, {path}\n" in output
        assert "makes room for task 4ccccc" in output
    for arguments in (("show", ID), ("explain", ID, "--history")):
        assert "makes room for task big (4cbbbb)" in shiftwork(*arguments).out, arguments
    # Programs get ids.
    assert f"room for task {other}" in shiftwork("events", ID, "--wide").out


@pytest.mark.server
def test_the_line_at_the_bottom_calls_other_tasks_by_their_names(server: CliServer) -> None:
    task = a_task("ta", state="preempting", reason={"text": f"makes room for task {ID}"})
    server.tasks = {ID: a_task(ID, name="big"), "ta": task}
    api = client.Api(server.url, TOKEN)
    progress = render.Progress()
    progress.wanted = True
    shown: list[str] = []
    progress.show = shown.append  # type: ignore[method-assign]
    follow._Follower(api, task, progress)._show_progress()
    api.close()
    assert "makes room for task big (4clsx7)" in shown[0]


@pytest.mark.server
@pytest.mark.parametrize("text", ["77aaaa", "aaa77aaaa"])
def test_a_task_is_found_by_the_end_of_its_id(
    shiftwork: Shiftwork, server: CliServer, text: str
) -> None:
    server.tasks = {"tbcaaa77aaaa": a_task("tbcaaa77aaaa"), "tbcaaa77aaab": a_task("tbcaaa77aaab")}
    assert shiftwork("show", text, "--json").json["id"] == "tbcaaa77aaaa"


@pytest.mark.server
def test_an_end_of_two_ids_is_refused_with_both(shiftwork: Shiftwork, server: CliServer) -> None:
    server.tasks = {each: a_task(each, name=each[:2]) for each in ("tb77aaaa", "tc77aaaa")}
    done = shiftwork("stop", "77aaaa")
    assert done.code == 1
    assert "fits 2 tasks: tc77aaaa (tc of ada), tb77aaaa (tb of ada)" in done.err
    assert not [one for one in server.seen if one.method == "PUT"]


def test_a_column_without_values_takes_no_width() -> None:
    columns = (render.Column("A"), render.Column("B", drop=1), render.Column("C", drop=2))
    rows = [["a", "", "c"], ["b", "", "d"]]
    assert render.fitted(columns, rows, 80)[0] == ["A  ", "C"]
    assert render.fitted(columns, rows, None)[0] == ["A  ", "B  ", "C"]


@pytest.mark.server
@pytest.mark.usefixtures("terminal")
def test_a_dry_run_of_policies_names_the_tasks_in_its_reasons(
    shiftwork: Shiftwork, server: CliServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    first, second = list(many().values())[:2]
    reason = {"code": "x", "text": f"makes room for task {first['id']}"}
    effects = [
        {
            "task": task["id"],
            "name": task["name"],
            "owner": "ann",
            "group": "g",
            "state": "running",
            "nodes": 1,
            "now": None,
            "then": {"decision": "preempt", "reason": reason},
        }
        for task in (first, second)
    ]
    answer = {"effects": effects, "more": 0, "outlooks": [], "warnings": []}
    server.first["POST", "/v1/policies:dry-run"] = [(200, answer), (200, answer)]
    file = tmp_path / "policies.yaml"
    file.write_text("groups: {}")
    shown = shiftwork("policy", "dry-run", str(file)).out
    assert "preempt: makes room for task train-0 (kkkkka)" in shown
    assert first["id"] not in shown
    assert first["id"] in shiftwork("policy", "dry-run", str(file), "--wide").out
