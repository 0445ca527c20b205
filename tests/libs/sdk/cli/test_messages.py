"""Errors in the terms of the command line that was typed: options, values, names and commands."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from shiftwork.cli import contexts, render, typed

from libs.contracts import wording
from tests.libs.sdk.cli.server import CliServer, a_task, problem

if TYPE_CHECKING:
    from pathlib import Path

    from tests.libs.sdk.cli.conftest import Shiftwork

pytestmark = pytest.mark.server


def field(name: str, value: str, message: str, fix: str) -> dict[str, str]:
    return {"field": name, "value": value, "message": message, "fix": fix}


def refusal(status: int, *errors: dict[str, str]) -> tuple[int, Any]:
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return problem(status, "no", f"{errors[0]['field']}: {errors[0]['message']}{more}", *errors)


ENDED = field(
    "goal",
    "stop",
    "the task has already succeeded",
    "run it again with: POST /v1/tasks/ID/retry",
)


def test_an_ended_task_is_named_with_the_command_that_runs_it_again(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    server.tasks = {"ta": a_task("ta", name="one"), "tb": a_task("tb", name="two")}
    for task in ("ta", "tb"):
        server.first["PUT", f"/v1/tasks/{task}/goal"] = [refusal(409, ENDED)] * 2
    done = shiftwork("stop", "one")
    assert done.code == 1
    assert done.err == (
        "error: one has already succeeded\n"
        "  where: TASK\n  fix:   run it again with: shiftwork retry one\n"
    )
    done = shiftwork("stop", "one", "tb")
    assert "error: one has already succeeded\n" in done.err
    assert "error: tb has already succeeded\n" in done.err
    assert "shiftwork retry tb\n" in done.err


def test_with_several_tasks_each_error_names_its_task(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    server.tasks = {"ta": a_task("ta", name="one"), "tb": a_task("tb", name="two")}
    detail = "bob may not change the goal; ask an administrator"
    for task in ("ta", "tb"):
        server.first["PUT", f"/v1/tasks/{task}/goal"] = [problem(403, "forbidden", detail)]
    done = shiftwork("pause", "one", "two", "three")
    assert f"error: one: {detail}" in done.err
    assert f"error: two: {detail}" in done.err
    assert "error: there is no task 'three'" in done.err
    assert "PUT" not in done.err


NAMELESS = "prints nothing that has a name"


@pytest.mark.parametrize("verb", ["stop", "pause"])
def test_somebody_elses_task_is_named_as_it_was_typed(
    shiftwork: Shiftwork, server: CliServer, verb: str
) -> None:
    server.tasks = {"ta": a_task("ta", name="resnet", owner="ann")}
    message, fix = f"the task is ann's, and bob may not {verb} it", "ask ann or an administrator"
    theirs = field("task_id", "ta", message, fix)
    server.first["PUT", "/v1/tasks/ta/goal"] = [refusal(403, theirs)]
    assert shiftwork(verb, "resnet").err == (
        f"error: resnet is ann's, and bob may not {verb} it\n  where: TASK\n  fix:   {fix}\n"
    )


def test_retry_of_a_live_task_suggests_what_to_do(shiftwork: Shiftwork, server: CliServer) -> None:
    server.tasks["ta"] = a_task("ta", name="demo", state="running")
    live = field(
        "task_id",
        "ta",
        "the task is still running",
        "wait for its end, or end it first with: PUT /v1/tasks/ID/goal",
    )
    server.first["POST", "/v1/tasks/ta/retry"] = [refusal(409, live)]
    done = shiftwork("retry", "demo")
    assert done.err == (
        "error: demo is still running\n  where: TASK\n"
        "  fix:   wait for its end, or end it first with: shiftwork stop demo\n"
    )


@pytest.mark.parametrize(
    ("verb", "goal", "state", "message"),
    [
        ("resume", "run", "running", "demo (ta) is already running"),
        ("resume", "run", "queued", "demo (ta) is already queued"),
        ("pause", "pause", "paused", "demo (ta) is already paused"),
        ("pause", "pause", "preempting", "demo (ta) is already being paused"),
        ("stop", "stop", "preempting", "demo (ta) is already being stopped"),
    ],
)
def test_a_goal_that_a_task_has_already(  # noqa: PLR0917 - one row of the table
    shiftwork: Shiftwork, server: CliServer, verb: str, goal: str, state: str, message: str
) -> None:
    server.tasks["ta"] = a_task("ta", name="demo", state=state, goal=goal)
    server.first["PUT", "/v1/tasks/ta/goal"] = [(202, {"task": "ta", "revision": 1})]
    done = shiftwork(verb, "demo")
    assert (done.code, done.err) == (0, f"{message}\n")


def test_a_resume_of_a_task_in_debug_mode_names_what_runs_its_program(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    server.tasks["ta"] = a_task("ta", name="demo", state="running", debug=True)
    server.first["PUT", "/v1/tasks/ta/goal"] = [(202, {"task": "ta", "revision": 7})]
    expected = "demo (ta) is already running, in debug mode; its program runs after:"
    assert shiftwork("resume", "demo").err == f"{expected} shiftwork debug ta --off\n"


@pytest.mark.parametrize(
    ("verb", "message"),
    [
        ("resume", "demo (ta) is resumed"),
        ("pause", "demo (ta) is being paused"),
        ("stop", "demo (ta) is being stopped"),
    ],
)
def test_a_new_goal(shiftwork: Shiftwork, server: CliServer, verb: str, message: str) -> None:
    server.tasks["ta"] = a_task("ta", name="demo", state="paused")
    assert shiftwork(verb, "demo").err == f"{message}\n"


def test_an_argument_stands_for_the_field_of_the_route(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    there = field(
        "node_id",
        "locl-0",
        'there is no node "locl-0"',
        "did you mean local-0? GET /v1/nodes lists them",
    )
    answer = problem(404, "not-found", 'there is no node "locl-0"; did you mean local-0?', there)
    server.first["PUT", "/v1/nodes/locl-0/schedulable"] = [answer, answer]
    done = shiftwork("node", "drain", "locl-0")
    assert done.err == (
        'error: there is no node "locl-0"; did you mean local-0?\n  where: NODE\n'
        "  fix:   did you mean local-0? `shiftwork nodes` lists them\n"
    )
    found = json.loads(shiftwork("node", "drain", "locl-0", "--json").err)
    (error,) = found["errors"]
    assert (error["field"], error["option"], error["value"]) == ("node_id", "NODE", "locl-0")


def test_routes_in_an_advice_become_commands(shiftwork: Shiftwork, server: CliServer) -> None:
    team = field(
        "team", "typo", "there is no team typo", "add it with POST /v1/teams, or leave it out"
    )
    server.first["POST", "/v1/users"] = [refusal(422, team)]
    done = shiftwork("user", "add", "bob", "--team", "typo")
    assert "error: --team typo: there is no team typo" in done.err
    assert "add it with `shiftwork team add NAME`, or leave it out" in done.err
    assert "/v1" not in done.err
    user = field(
        "user", "typo", "there is no user typo", "did you mean tyco? GET /v1/users lists them"
    )
    server.first["POST", "/v1/tokens"] = [refusal(404, user)]
    done = shiftwork("token", "create", "--user", "typo")
    assert "error: --user typo: there is no user typo" in done.err
    assert "did you mean tyco? `shiftwork user ls` lists them" in done.err
    assert "/v1" not in done.err


def test_a_refusal_without_a_field_names_the_server_and_no_route(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    server.first["DELETE", "/v1/teams/lab"] = [problem(409, "conflict", "ann is in lab")]
    done = shiftwork("team", "rm", "lab")
    assert done.err == f"error: ann is in lab\n  where: {server.url}\n"


def test_the_advice_about_a_whole_request_has_no_label(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    whole = field("", "", "eve may not set quotas", "ask an operator")
    server.first["PUT", "/v1/quotas"] = [refusal(403, whole)]
    done = shiftwork("quota", "set", "--gpus", "4")
    assert done.err.endswith("  fix:   ask an operator\n")


def test_the_fix_of_a_whole_request_is_said_once_and_in_commands(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    fix = "ask an administrator to enable the user: PATCH /v1/users/ann with disabled: false"
    whole = field("", "", "user ann is disabled", fix)
    status, body = refusal(401, whole)
    body["detail"] = f"user ann is disabled; {fix}"
    server.first["GET", "/v1/whoami"] = [(status, body)]
    assert shiftwork("whoami").err == (
        f"error: user ann is disabled\n  where: {server.url}\n"
        "  fix:   ask an administrator to enable the user: shiftwork user set ann --enable\n"
    )


def test_a_conflict_says_its_fix_once(shiftwork: Shiftwork, server: CliServer) -> None:
    fix = "disable the user first: PATCH /v1/users/bob with disabled: true"
    status, body = refusal(409, field("name", "bob", "is not disabled", fix))
    body["detail"] = f"bob is not disabled; {fix}"
    server.first["DELETE", "/v1/users/bob"] = [(status, body)]
    assert shiftwork("user", "rm", "bob").err == (
        "error: bob is not disabled\n  where: NAME\n"
        "  fix:   disable the user first: shiftwork user set bob --disable\n"
    )


def test_values_are_shown_as_they_were_typed(shiftwork: Shiftwork, server: CliServer) -> None:
    name = "preemption.ack_deadline_seconds"
    fix = "choose a time in that range; a limit: SHIFTWORK_SUBMIT_ACK_DEADLINE_SECONDS_MAX"
    deadline = field(name, "32400.0", "is not between 1 s and 3600 s", fix)
    server.first["POST", "/v1/tasks"] = [refusal(422, deadline)] * 3
    done = shiftwork("submit", "--ack-deadline", "9h", "--", "true")
    assert "error: --ack-deadline 9h: is not between 1s and 1h\n" in done.err
    done = shiftwork("submit", "--ack-deadline=9h", "--", "true", "--ack-deadline", "8h")
    assert "error: --ack-deadline 9h: " in done.err
    found = json.loads(shiftwork("submit", "--ack-deadline", "9h", "--json", "--", "true").err)
    assert found["errors"] == [
        {
            "field": name,
            "option": "--ack-deadline",
            "value": "9h",
            "message": "is not between 1s and 1h",
            "fix": fix,
        }
    ]
    variable = field("env.RANK", "(not shown)", "is set by the platform", "remove it")
    many = field("env", "600 variables", "has more than 512 variables", "use a file")
    server.first["POST", "/v1/tasks"] = [refusal(422, many), refusal(422, variable)]
    done = shiftwork("submit", "--env", "KEY=secret", "--", "true")
    assert "error: --env 600 variables: has more than 512 variables" in done.err
    assert "secret" not in done.err
    done = shiftwork("submit", "--env", "RANK=3", "--", "true")
    assert "error: --env RANK: is set by the platform" in done.err


@pytest.mark.parametrize("option", ["--gpus", "--gpus-per-node"])
def test_an_option_is_named_as_it_was_typed(
    shiftwork: Shiftwork, server: CliServer, option: str
) -> None:
    large = field(
        "gpus_per_node", "9", "the largest node has 2", "gpus_per_node 0 asks for CPUs only"
    )
    server.first["POST", "/v1/tasks"] = [refusal(422, large)] * 2
    for line in ((option, "9"), (f"{option}=9",)):
        done = shiftwork("submit", *line, "--", "true")
        assert f"error: {option} 9: the largest node has 2\n  where: {option}\n" in done.err
        assert f"fix:   {option}: {option} 0 asks for CPUs only" in done.err


@pytest.mark.parametrize("option", ["-l", "--label"])
def test_what_is_wrong_before_anything_is_sent_names_the_option_too(
    shiftwork: Shiftwork, option: str
) -> None:
    done = shiftwork("submit", option, "x", "--", "true")
    assert done.code == 2
    assert f"  where: {option}\n  fix:   write {option} KEY=VALUE\n" in done.err


@pytest.mark.parametrize(
    ("line", "what", "fix"),
    [
        (
            "events --from 8x",
            "--from 8x: is not a whole number",
            "give a whole number",
        ),
        (
            "submit --nodes 0 -- true",
            "--nodes 0: is not a whole number of 1 or more",
            "give a whole number of 1 or more",
        ),
        (
            "quota set --gpus four",
            "--gpus four: is not a whole number of 0 or more",
            "give a whole number of 0 or more",
        ),
        (
            "ls --limit=0",
            "--limit 0: is not a whole number from 1 to 100000",
            "give a whole number from 1 to 100000",
        ),
        ("node drain", "NODE is missing", "write: shiftwork node drain NODE"),
        (
            "priority one",
            "PRIORITY is missing",
            "write: shiftwork priority TASK... PRIORITY",
        ),
        (
            "priority high",
            "TASK... is missing",
            "write: shiftwork priority TASK... PRIORITY",
        ),
        ("wait one --for", "--for: the value is missing", "write: --for VALUE"),
        ("submit --gpus", "--gpus: the value is missing", "write: --gpus VALUE"),
        ("ls --sort", "--sort: the value is missing", "write: --sort VALUE"),
        ("submit -l", "-l: the value is missing", "write: -l VALUE"),
        ("node drain n0 --timeout", "--timeout: the value is missing", "write: --timeout VALUE"),
        ("submit --priority= -- true", "--priority: the value is empty", "give a value, or leave"),
        ("submit --name= -- true", "--name: the value is empty", "give a value, or leave"),
        ("ls one", "one: this argument is too much", "write: shiftwork ls"),
        ("ls --context", "--context: the value is missing", "write: --context VALUE"),
        ("debug ta off", "off: this argument is too much", "did you mean --off? write: "),
        ("debug ta on", "on: this argument is too much", "write: shiftwork debug"),
        ("debug ta --on", "no such option: --on", "`shiftwork debug --help` shows"),
        ("submit --debug -- true", "no such option: --debug", "did you mean --mode debug?"),
        ("ls --jsn", "no such option: --jsn", "did you mean --json?"),
        ("stpo one", "there is no command 'stpo'", "did you mean stop?"),
        ("node drian n0", "there is no command 'drian'", "did you mean drain?"),
        ("user drop bob", "there is no command 'drop'", "choose of add, set, passwd, rm, ls"),
        ("ls -o yml", "-o yml: there is no such form", "did you mean yaml? choose of wide, json"),
        ("ls -o name -o yaml", "-o name and -o yaml: a result has one form", "leave one out"),
        (
            "quota ls -o name",
            f"-o name: `shiftwork quota ls` {NAMELESS}",
            "choose of wide, json, yaml",
        ),
        ("submit -f -o name -- true", "-o name does not go with -f", "leave one of them out"),
        ("ls --interval 5", "--interval goes with --watch", "add --watch"),
        (
            "ls --watch",
            "--watch needs a terminal that can be redrawn",
            "leave it out, or add",
        ),
        ("ls --watch -o name", "-o name does not go with --watch", "leave one of them out"),
        ("ls -l a=1 -l a=2", "-l a=1 and a=2: no task has both", "a label has one value"),
        ("ls -l !=2", "'!=2' names no label", "write -l KEY=VALUE, -l KEY!=VALUE or -l KEY"),
        ("top -n 0.1", "-n 0.1: is not a number from 1 to 3600", "give a number from 1"),
    ],
)
def test_a_command_line_that_cannot_be_parsed(
    shiftwork: Shiftwork, line: str, what: str, fix: str
) -> None:
    done = shiftwork(*line.split())
    assert done.code == 2
    assert f"error: {what}\n" in done.err
    assert f"fix:   {fix}" in done.err


@pytest.mark.parametrize("option", ["--for", "--timeout"])
def test_the_error_for_a_missing_value_names_the_option(shiftwork: Shiftwork, option: str) -> None:
    done = shiftwork("wait", "one", option)
    assert f"  where: {option}\n" in done.err


def test_an_error_about_the_task_does_not_name_the_priority(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    server.tasks["ta"] = a_task("ta", name="one")
    ended = field("priority", "PRIORITY_HIGH", "the task has already succeeded", "submit it again")
    server.first["PUT", "/v1/tasks/ta/priority"] = [refusal(409, ended)]
    done = shiftwork("priority", "one", "high")
    assert done.err.startswith("error: one has already succeeded\n  where: TASK\n")


@pytest.mark.parametrize(
    ("line", "where"),
    [
        (["submit", "--", "python", "fich\udce9.py"], "fich\\xe9.py"),
        (["submit", "--label", "a=\udce9", "--", "true"], "--label"),
        (["show", "n\udce9"], "n\\xe9"),
        (["node", "drain", "n\udce9"], "n\\xe9"),
    ],
)
def test_an_argument_that_is_not_utf8_is_named_before_anything_is_sent(
    shiftwork: Shiftwork, server: CliServer, line: list[str], where: str
) -> None:
    done = shiftwork(*line)
    assert done.code == 2
    assert "\\xe9" in done.err.splitlines()[0]
    assert "is not UTF-8" in done.err
    assert f"  where: {where}\n" in done.err
    assert not server.seen


def test_the_error_for_an_address_names_its_source(
    shiftwork: Shiftwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "  where: --url\n" in shiftwork("ls", "--url", "127.0.0.1:1").err
    monkeypatch.setenv("SHIFTWORK_URL", "127.0.0.1:1")
    done = shiftwork("ls")
    assert done.code == 2
    assert "  where: SHIFTWORK_URL\n" in done.err


@pytest.mark.parametrize(
    ("fault", "what", "line"),
    [
        (
            field("priority", "hgh", "is not known here", "did you mean high?"),
            "priority hgh: is not known here",
            2,
        ),
        (field("group", "gpu", "no node belongs to this group", "x"), "group gpu: no node", 3),
        (field("env", "1A", "is not a variable's name", "x"), "env 1A: is not a", 4),
        (field("env.RANK", "(not shown)", "is set by the platform", "x"), "env.RANK: is set", 6),
        (field("wait_for_nodes", "maybe", "is neither", "x"), "wait_for_nodes maybe: is", 7),
        (field("command[0]", "", "holds a NUL character", "x"), "command[0]: holds", 8),
        (field("nodes", "4", "there are 2", "x"), "nodes 4: there are 2", 0),
    ],
)
def test_an_error_in_a_file_has_the_field_the_value_and_the_line(  # noqa: PLR0917 - the table's
    shiftwork: Shiftwork,
    server: CliServer,
    tmp_path: Path,
    fault: dict[str, str],
    what: str,
    line: int,
) -> None:
    file = tmp_path / "task.yaml"
    file.write_text(
        "name: x\npriority: hgh\ngroup: gpu\nenv:\n  1A: b\n  RANK: '1'\n"
        "wait_for_nodes: maybe\ncommand: ['true']\n"
    )
    server.first["POST", "/v1/tasks"] = [refusal(422, fault)]
    done = shiftwork("submit", "--file", str(file))
    assert done.err.startswith(f"error: {what}")
    assert f"\n  where: {file}{f', line {line}' if line else ''}\n" in done.err
    assert "--" not in done.err


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("nodes: 1\ncommand: [no-such-program]\n", 2, "'no-such-program'"),
        ("command: ['true']\nworking_directory: /nowhere\n", 2, "/nowhere: there is no such"),
        ("roles:\n- name: a\n  command: [no-such-program]\n", 3, "'no-such-program'"),
    ],
)
def test_the_error_for_an_unknown_name_has_its_line_in_the_file(
    shiftwork: Shiftwork, tmp_path: Path, text: str, line: int, what: str
) -> None:
    file = tmp_path / "task.yaml"
    file.write_text(text)
    done = shiftwork("submit", "--file", str(file))
    assert what in done.err
    assert f"  where: {file}, line {line}\n" in done.err


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("task.yaml", "nodes: 1\ncommand: ['true']\nnodes: 2\n", 3),
        ("task.yaml", "command: ['true']\nenv: {A: b, A: c}\n", 2),
        ("task.json", '{"command": ["true"], "nodes": 1, "nodes": 2}', 0),
    ],
)
def test_a_field_that_stands_twice_is_refused(  # noqa: PLR0917 - one row of the table
    shiftwork: Shiftwork, server: CliServer, tmp_path: Path, name: str, text: str, line: int
) -> None:
    file = tmp_path / name
    file.write_text(text)
    done = shiftwork("submit", "--file", str(file))
    assert done.code == 2
    assert "is there twice\n" in done.err
    assert f"  where: {file}{f', line {line}' if line else ''}\n" in done.err
    assert not server.seen


def test_two_files_are_refused(shiftwork: Shiftwork, server: CliServer) -> None:
    done = shiftwork("submit", "--file", "a.yaml", "--file", "b.yaml")
    assert done.code == 2
    assert "error: --file is there twice: a.yaml, b.yaml\n  where: --file\n" in done.err
    assert not server.seen


def test_wrong_usage_in_json_has_the_field_the_option_and_the_value(shiftwork: Shiftwork) -> None:
    for line, name, option, value in (
        ("submit --gpus four -- true", "gpus_per_node", "--gpus", "four"),
        (
            "submit --ack-deadline x -- true",
            "preemption.ack_deadline_seconds",
            "--ack-deadline",
            "x",
        ),
        ("ls --state dreaming", "state", "--state", "dreaming"),
        ("node label n0 disk", "key=value", "KEY=VALUE", ""),
    ):
        done = shiftwork("--json", *line.split())
        (error,) = json.loads(done.err)["errors"]
        assert (error["field"], error["option"], error["value"]) == (name, option, value)
        assert set(error) == {"field", "option", "value", "message", "fix"}


def test_a_label_without_a_value_gets_the_form(shiftwork: Shiftwork) -> None:
    done = shiftwork("node", "label", "local-0", "disk")
    assert done.code == 2
    assert done.err == (
        "error: 'disk' is not KEY=VALUE\n  where: KEY=VALUE\n  fix:   write disk=VALUE\n"
    )


def test_nothing_to_stop(shiftwork: Shiftwork) -> None:
    done = shiftwork("stop", "--all")
    assert (done.code, done.err) == (0, "there is nothing to stop\n")
    done = shiftwork("stop", "--all", "-l", "a=b")
    assert (done.code, done.err) == (0, "there is nothing to stop with label a=b\n")
    assert shiftwork("stop", "--all", "--json").json == {"items": []}


def test_the_message_for_one_task_is_singular(shiftwork: Shiftwork, server: CliServer) -> None:
    server.tasks["ta"] = a_task("ta", name="demo")
    assert "this would stop 1 task: demo" in shiftwork("stop", "--all").err


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (0, "0 tasks"),
        (1, "1 task"),
        (1.0, "1 task"),
        (1.5, "1.5 tasks"),
        (1_234_567, "1234567 tasks"),
    ],
)
def test_counted_nouns(number: float, message: str) -> None:
    assert render.counted(number, "task") == wording.counted(number, "task") == message


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("submitted", "submitted_at"),
        ("-SUBMITTED", "-submitted_at"),
        ("id", "submitted_at"),
        ("NAME", "name"),
        ("-priority", "-priority"),
        ("submitted_at", "submitted_at"),
        ("-state", "-state"),
        ("owner", "owner"),
        ("-team", "-team"),
        ("group", "group"),
    ],
)
def test_lists_are_sorted_by_the_headings_of_the_table(
    shiftwork: Shiftwork, server: CliServer, text: str, sent: str
) -> None:
    assert shiftwork("ls", "--sort", text).code == 0
    assert server.asked("GET", "/v1/tasks").query["sort"] == sent


def test_an_unknown_sort_order_lists_the_choices(shiftwork: Shiftwork, server: CliServer) -> None:
    for text in ("color", "submited"):
        done = shiftwork("ls", "--sort", text)
        assert done.code == 2
        assert f"error: --sort {text}: " in done.err
        assert "submitted, name, priority, state" in done.err
    assert "did you mean submitted?" in done.err
    assert not server.seen


@pytest.mark.parametrize(
    ("name", "text", "line", "problem_", "fix"),
    [
        ("task.yaml", "command: [true\nnodes: 1\n", 2, "expected ',' or ']'", "correct that line"),
        (
            "task.yaml",
            "completion:\n  success: [chief[0], worker[all]]\n",
            2,
            "expected ',' or ']'",
            'put a text with brackets in quotation marks: "chief[0]"',
        ),
        ("task.yaml", "a: b: c\n", 1, "mapping values are not allowed", "correct that line"),
        ("task.json", '{"command": ["x"]\n "nodes": 1}', 2, "Expecting ','", "correct that line"),
        ("task.yaml", "nodes: !!int x\n", 0, "invalid literal", "quotation marks"),
    ],
)
def test_a_broken_file_is_named_with_its_line(  # noqa: PLR0917 - one row of the table
    shiftwork: Shiftwork, tmp_path: Path, name: str, text: str, line: int, problem_: str, fix: str
) -> None:
    file = tmp_path / name
    file.write_text(text)
    done = shiftwork("submit", "--file", str(file))
    assert done.code == 2
    assert problem_ in done.err
    assert fix in done.err
    assert f"  where: {file}{f', line {line}' if line else ''}\n" in done.err
    assert "unicode string" not in done.err


def test_dates_in_a_file_are_texts(shiftwork: Shiftwork, server: CliServer, tmp_path: Path) -> None:
    file = tmp_path / "task.yaml"
    file.write_text("command: ['true']\nlabels: {day: 2026-01-02, at: 2026-01-02T03:04:05Z}\n")
    assert shiftwork("submit", "--file", str(file)).code == 0
    assert server.asked("POST", "/v1/tasks").body["labels"] == {
        "day": "2026-01-02",
        "at": "2026-01-02T03:04:05Z",
    }


@pytest.mark.parametrize(
    "line", [("submit", "--file"), ("policy", "set"), ("policy", "dry-run")], ids=" ".join
)
def test_a_file_that_is_not_there_gets_a_fix(
    shiftwork: Shiftwork, tmp_path: Path, line: tuple[str, ...]
) -> None:
    (tmp_path / "task.yaml").touch()
    done = shiftwork(*line, str(tmp_path / "tsk.yaml"))
    assert done.code == 2
    assert (
        f"error: the file cannot be read: No such file or directory\n  where: {tmp_path}"
        in done.err
    )
    assert f"fix:   did you mean {tmp_path}/task.yaml?" in done.err
    done = shiftwork(*line, str(tmp_path / "nothing-like-it"))
    assert "fix:   give the path of a file that is there" in done.err
    assert "fix:   give a file, not a directory" in shiftwork(*line, str(tmp_path)).err


def test_a_misspelt_task_gets_a_suggestion(shiftwork: Shiftwork, server: CliServer) -> None:
    server.tasks = {"ta": a_task("ta", name="resnet"), "tb": a_task("tb", name="bert")}
    done = shiftwork("show", "resent")
    assert "error: there is no task 'resent'" in done.err
    assert "fix:   did you mean resnet? `shiftwork ls --all` lists the tasks" in done.err


def test_every_command_that_replaces_a_route_exists(shiftwork: Shiftwork) -> None:
    """``--help`` of each of them is understood, so the command is there."""
    for command in typed.COMMANDS.values():
        words = [word for word in command.split()[1:] if not re.search("[A-Z{]", word)]
        assert shiftwork(*words, "--help").code == 0, command


def test_a_policy_from_standard_input_that_is_broken(
    shiftwork: Shiftwork, server: CliServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = field("line 1", "", "is not YAML: expected ']'", "correct that line")
    server.first["PUT", "/v1/policies"] = [refusal(422, broken)]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"groups: [")))
    done = shiftwork("policy", "set", "-")
    assert "  where: standard input\n" in done.err


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("wait ta --for runing", "did you mean running? choose of queued, "),
        ("ls --state faild", "did you mean failed? choose of queued, "),
        ("submit --priority hgh -- true", "did you mean high? choose of extreme_high, "),
        ("priority ta hgh", "did you mean high? choose of extreme_high, "),
        ("completion zhs", "did you mean zsh? choose of bash, "),
        ("dead-letters ls --service schedular", "did you mean scheduler? choose of submit, "),
        ("pause ta --all", "`shiftwork pause --help`"),
        ("ls --nodess 2", "`shiftwork ls --help`"),
    ],
)
def test_a_misspelt_choice_gets_a_suggestion(
    shiftwork: Shiftwork, server: CliServer, line: str, fix: str
) -> None:
    server.tasks["ta"] = a_task("ta")
    done = shiftwork(*line.split())
    assert done.code == 2
    assert f"  fix:   {fix}" in done.err


def test_a_context_that_is_misspelt_gets_a_suggestion(elsewhere: Shiftwork, home: Path) -> None:
    (home / "token").write_text("t")
    named = contexts.Named("http://127.0.0.1:1", str(home / "token"))
    contexts.save(contexts.default_path(), lambda _: "local", named)
    done = elsewhere("context", "use", "locl")
    assert "fix:   did you mean local? known contexts: local" in done.err


def test_the_error_for_missing_output_names_the_existing_ranks(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    server.tasks["ta"] = a_task("ta")
    server.output = {(1, 0): b"x", (1, 1): b"x", (2, 0): b"x"}
    done = shiftwork("logs", "ta", "--rank", "7")
    there = "attempt 1 with ranks 0, 1; attempt 2 with rank 0; roles: worker"
    assert (done.code, done.err) == (0, f"no output matches the options: there is {there}\n")


def test_a_value_below_an_option_is_shown_as_it_was_typed(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    signal = field("preemption.signal", "KILL", "is not a signal", "use one of TERM, USR1")
    label = field("node_selector.disk", "a b", "is not a label's value", "use letters")
    server.first["POST", "/v1/tasks"] = [refusal(422, signal), refusal(422, label)]
    done = shiftwork("submit", "--preempt", "signal:KILL", "--", "true")
    assert "error: --preempt signal:KILL: is not a signal\n" in done.err
    done = shiftwork("submit", "--node-selector", "disk=a b", "--", "true")
    assert "error: --node-selector disk=a b: is not a label's value\n" in done.err


@pytest.mark.parametrize("text", ["8Gi", "8GiB"])
def test_sizes_may_end_in_bytes(shiftwork: Shiftwork, server: CliServer, text: str) -> None:
    assert shiftwork("submit", "--shm", text, "--image", "x", "--", "true").code == 0
    assert server.asked("POST", "/v1/tasks").body["pod"]["shm_bytes"] == 8 << 30


def test_warnings_of_a_policy_name_commands(shiftwork: Shiftwork, server: CliServer) -> None:
    strange = field("groups.x", "x", "is a group without known nodes", "GET /v1/groups lists them")
    answer = {"versions": {"x": 0}, "changed": [], "warnings": [strange]}
    server.first["DELETE", "/v1/policies/x"] = [(200, answer)]
    done = shiftwork("policy", "unset", "x")
    assert done.err == (
        "warning: groups.x: is a group without known nodes; `shiftwork group ls` lists them\n"
        "x: nothing was set\n"
    )


@pytest.mark.parametrize(
    ("fix", "shown"),
    [
        ("give at most 2591999 s, or leave it out", "give at most 29d, or leave it out"),
        ("give at most 6660 s", "give at most 111m"),
        ("give 90 seconds or more", "give 90s or more"),
        ("give 86400 seconds or less", "give 1d or less"),
        ("give at most 59 s", "give at most 59s"),
    ],
)
def test_a_limit_of_a_duration_can_be_typed(
    shiftwork: Shiftwork, server: CliServer, fix: str, shown: str
) -> None:
    wrong = field("expires_in_seconds", "9", "no", fix)
    server.first["GET", "/v1/whoami"] = [(200, {"user": "ada", "token": {"id": "k1"}})]
    server.first["POST", "/v1/tokens"] = [refusal(422, wrong)]
    done = shiftwork("token", "create", "--expires-in", "9d")
    assert f"fix:   --expires-in: {shown}\n" in done.err


@pytest.mark.parametrize(
    ("expires", "note", "warning"),
    [
        (None, "token k2 of ada: never expires; good for: tasks", ""),
        ("2126-01-01T00:00:00Z", "expires 2126-01-01 00:00:00Z", ""),
        ("NOW", "token k2 of ada: expires ", "warning: the token is good for 29m only"),
    ],
)
def test_a_new_token_shows_its_end_and_its_scopes(
    shiftwork: Shiftwork, server: CliServer, expires: str | None, note: str, warning: str
) -> None:
    if expires == "NOW":
        expires = (datetime.now(UTC) + timedelta(minutes=29, seconds=59)).isoformat()
    server.first["GET", "/v1/whoami"] = [(200, {"user": "ada", "token": {"id": "k1"}})]
    made = {"id": "k2", "token": "swt_x", "expires_at": expires, "scopes": ["tasks"]}
    server.first["POST", "/v1/tokens"] = [(201, made)]
    done = shiftwork("token", "create", "--scope", "tasks")
    assert (done.code, done.out, note in done.err) == (0, "swt_x\n", True), done.err
    assert [line for line in done.err.splitlines() if "warning" in line] == [warning] * bool(
        warning
    )


def test_a_flag_of_an_archived_user_names_the_flag_that_helps(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    wrong = field("disabled", "false", "ann is archived", "give archived: false with it")
    server.first["PATCH", "/v1/users/ann"] = [refusal(409, wrong)]
    assert shiftwork("user", "set", "ann", "--enable").err == (
        "error: --enable: ann is archived\n  where: --enable\n"
        "  fix:   --enable: give --unarchive with it\n"
    )


def test_a_noun_without_a_command_prints_its_help(elsewhere: Shiftwork) -> None:
    done = elsewhere("user")
    assert (done.code, done.err.startswith("Usage: shiftwork user")) == (2, True)
    assert "error:" not in done.err
    assert elsewhere("user", "--json").code == 2


def test_the_form_of_a_command_has_the_options_that_it_needs(elsewhere: Shiftwork) -> None:
    assert "write: shiftwork restore --data DIR FILE" in elsewhere("restore", "x").err


@pytest.mark.parametrize("command", ["usage", "audit"])
@pytest.mark.parametrize("form", ["-o yaml", "--json", "-o json"])
def test_csv_and_a_document_are_named_as_they_were_typed(
    shiftwork: Shiftwork, command: str, form: str
) -> None:
    done = shiftwork(command, "--csv", *form.split())
    assert (done.code, f"leave out --csv or {form}" in done.err) == (2, True), done.err


def test_a_date_without_the_history_is_refused(shiftwork: Shiftwork, server: CliServer) -> None:
    done = shiftwork("ls", "--since", "7d")
    assert (done.code, "fix:   add --history" in done.err) == (2, True), done.err
    done = shiftwork("ls", "--history", "--state", "failed")
    assert (done.code, "--state does not go with --history" in done.err) == (2, True)
    server.tasks = {"ta": a_task("ta", owner="ann", state="failed"), "tb": a_task("tb")}
    assert shiftwork("ls", "--history", "--owner", "bob").json["items"] == []


def test_a_label_that_no_task_has_is_warned_of(shiftwork: Shiftwork, server: CliServer) -> None:
    server.first["GET", "/v1/tasks"] = [(200, {"items": [], "next_cursor": None})]
    server.tasks = {"ta": a_task("ta", labels={"project": "vision"})}
    done = shiftwork("ls", "-l", "projct=vision")
    assert "a label 'projct'; did you mean project?" in done.err


def test_a_wrong_occasion_is_refused_with_the_right_article(shiftwork: Shiftwork) -> None:
    done = shiftwork("notify", "set", "mine", "--to", "mail", "--on", "fail")
    assert "'fail' is not an occasion" in done.err
