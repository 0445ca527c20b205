"""Nodes, quotas, users and tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import typer
from shiftwork.cli import render
from shiftwork.cli.failures import INTERRUPTED

from tests.libs.sdk.cli.server import NOW, CliServer, a_task, problem

if TYPE_CHECKING:
    from tests.libs.sdk.cli.conftest import Shiftwork

pytestmark = pytest.mark.server


def test_nodes(shiftwork: Shiftwork, server: CliServer) -> None:
    node = {
        "group": "default",
        "gpus": 2,
        "free_gpus": 1,
        "gpu_model": "",
        "cpus": 4.0,
        "memory_bytes": 8 * 2**30,
        "tasks": ["ta"],
        "schedulable": True,
        "ready": True,
    }
    server.nodes = [
        {"id": "local-0", **node, "labels": {"zone": "a", "b": "c"}, "taints": ["flaky", "x=y"]},
        {"id": "local-1", **node, "schedulable": False},
        {"id": "local-2", **node, "ready": False},
        {"id": "local-3", **node, "schedulable": False, "draining": True},
    ]
    rows = [line.split() for line in shiftwork("nodes").out.splitlines()[1:]]
    plain = ["local-0", "default", "ready", "1/2", "4", "8", "GiB", "ta"]
    assert rows[0] == [*plain, "b=c", "zone=a", "flaky", "x=y"]
    assert [row[2] for row in rows] == ["ready", "cordoned", "lost", "draining"]
    assert len(shiftwork("nodes", "--json").json["items"]) == 4


def test_nodes_show_how_many_tasks_of_others_hold_them(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    node = {"id": "n", "group": "g", "gpus": 2, "free_gpus": 0, "schedulable": False, "ready": True}
    server.nodes = [{**node, "draining": True, "tasks": ["ta"], "hidden_tasks": 2}]
    assert "draining" in shiftwork("nodes").out
    assert "ta, 2 of others" in shiftwork("nodes", "--group", "g").out
    asked = [each.query for each in server.seen if each.path == "/v1/nodes"]
    assert asked[-1] == {**asked[-1], "group": "g"}
    server.nodes = [{**node, "draining": True, "tasks": [], "hidden_tasks": 1}]
    assert "draining" in shiftwork("nodes").out


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("cordon", {"schedulable": False}),
        ("uncordon", {"schedulable": True}),
        ("drain", {"schedulable": False, "drain": True}),
    ],
)
def test_cordon(shiftwork: Shiftwork, server: CliServer, verb: str, body: dict[str, bool]) -> None:
    assert shiftwork("node", verb, "local-0").code == 0
    assert server.asked("PUT", "/v1/nodes/local-0/schedulable").body == body


def test_node_label(shiftwork: Shiftwork, server: CliServer) -> None:
    done = shiftwork("node", "label", "local-0", "zone=a", "leaf=")
    assert server.asked("PUT", "/v1/nodes/local-0/labels").body == {
        "set": {"zone": "a", "leaf": ""}
    }
    assert "local-0 has labels leaf= zone=a, taints none" in done.err
    shiftwork("node", "label", "local-0", "zone", "leaf=", "--remove")
    assert server.asked("PUT", "/v1/nodes/local-0/labels").body == {"remove": ["zone", "leaf"]}
    assert shiftwork("node", "label", "local-0", "zone").code == 2


def test_node_taint(shiftwork: Shiftwork, server: CliServer) -> None:
    done = shiftwork("node", "taint", "local-0", "flaky", "reserved=vision")
    assert server.asked("PUT", "/v1/nodes/local-0/taints").body == {
        "set": ["flaky", "reserved=vision"]
    }
    assert "taints flaky reserved=vision" in done.err
    shiftwork("node", "taint", "local-0", "reserved=vision", "--remove")
    assert server.asked("PUT", "/v1/nodes/local-0/taints").body == {"remove": ["reserved"]}
    server.nodes = [{"id": "local-0", "taints": ["reserved=vision"]}]
    done = shiftwork("node", "taint", "local-0", "flaky", "reserved", "--remove")
    assert (done.code, "warning: local-0 had no taint flaky\n" in done.err) == (0, True)
    assert shiftwork("node", "taint", "local-0", "reserved=").code == 2


def test_quota_set(shiftwork: Shiftwork, server: CliServer) -> None:
    line = "quota set --user bob --priority high --group default --gpus 4"
    done = shiftwork(*line.split())
    assert (done.code, done.out) == (0, "")
    assert "quota of bob in group default at priority high: at most 4 GPUs" in done.err
    assert server.asked("PUT", "/v1/quotas").body == {
        "group": "default",
        "user": "bob",
        "team": None,
        "priority": "high",
        "unit": "gpus",
        "limit": 4,
    }
    assert shiftwork("quota", "set", "--unlimited", "--json").json == {"version": 7}
    assert server.asked("PUT", "/v1/quotas").body["unlimited"] is True
    shiftwork("quota", "set", "--nodes", "0")
    assert server.asked("PUT", "/v1/quotas").body["limit"] == 0
    assert shiftwork("quota", "set", "--gpus", "1", "--nodes", "1").code == 2
    assert shiftwork("quota", "set").code == 2


def test_quota_ls(shiftwork: Shiftwork, server: CliServer) -> None:
    assert "everything is unlimited" in shiftwork("quota", "ls").err
    server.quotas = [{"group": "dev", "user": None, "limit": 3, "unit": "nodes", "changed_at": NOW}]
    assert shiftwork("quota", "ls").out.splitlines()[1].split()[:7] == [
        "cap",
        "dev",
        "every",
        "every",
        "every",
        "3",
        "nodes",
    ]


@pytest.mark.parametrize("kind", [(), ("--grant",)], ids=["cap", "grant"])
def test_a_row_that_loses_its_end_is_warned_of(
    shiftwork: Shiftwork, server: CliServer, kind: tuple[str, ...]
) -> None:
    row = {"user": "eve", "limit": 1, "unit": "nodes", "expires_at": "2030-01-02T03:04:05Z"}
    server.quotas = [{**row, "grant": bool(kind), "priority": "high"}]
    line = ("quota", "set", *kind, "--user", "eve", "--priority", "high")
    lost = "it does not expire any more: the row that it replaces ended 2030-01-02 03:04Z"
    assert lost in shiftwork(*line, "--nodes", "0").err
    # With an end of its own, of another row, and removed.
    for other in (
        (*line, "--nodes", "0", "--expires", "1h"),
        (*line, "--group", "dev", "--nodes", "0"),
        (*line, "--remove"),
    ):
        done = shiftwork(*other)
        assert (done.code, "any more" in done.err) == (0, False)


def test_a_cap_that_is_removed_is_not_called_no_limit(shiftwork: Shiftwork) -> None:
    """Grants still limit."""
    for how in ("--remove", "--unlimited"):
        done = shiftwork("quota", "set", "--user", "ann", how)
        assert done.err == "quota of ann in every group: removed\n"


def test_a_priority_is_no_default_and_the_fix_has_the_option(shiftwork: Shiftwork) -> None:
    refused = shiftwork("quota", "default", "high")
    assert refused.code == 2
    assert "write: shiftwork quota default unlimited --up-to high" in refused.err


def test_grants_are_set_with_an_end_and_removed(shiftwork: Shiftwork, server: CliServer) -> None:
    line = "quota set --grant --user bob --priority high --gpus 4 --expires 2030-01-02T03:04:05Z"
    done = shiftwork(*line.split())
    assert (
        "grant of bob in every group at priority high: at most 4 GPUs until 2030-01-02" in done.err
    )
    assert server.asked("PUT", "/v1/quotas").body == {
        "grant": True,
        "group": None,
        "user": "bob",
        "team": None,
        "priority": "high",
        "unit": "gpus",
        "limit": 4,
        "expires_at": "2030-01-02T03:04:05Z",
    }
    assert shiftwork("quota", "set", "--gpus", "1", "--expires", "soon").code == 2
    shiftwork("quota", "set", "--grant", "--user", "bob", "--remove")
    assert server.asked("PUT", "/v1/quotas").body["remove"] is True


@pytest.mark.parametrize(
    ("setting", "body"),
    [
        ("unlimited", {"grant": True, "unlimited": True}),
        ("normal", {"grant": True, "unlimited": True, "level_max": "normal"}),
        ("8", {"grant": True, "limit": 8, "unit": "gpus_or_nodes"}),
    ],
)
def test_quota_default_is_the_grant_without_names(
    shiftwork: Shiftwork, server: CliServer, setting: str, body: dict[str, Any]
) -> None:
    assert shiftwork("quota", "default", setting).code == 0
    assert server.asked("PUT", "/v1/quotas").body == body
    assert shiftwork("quota", "default", "much").code == 2
    assert shiftwork("quota", "default", "normal", "--up-to", "high").code == 2
    done = shiftwork("quota", "default", "8", "--up-to", "high")
    assert server.asked("PUT", "/v1/quotas").body["level_max"] == "high"
    assert done.err == (
        "default of the site, for each user in each group: at most 8 GPUs, or nodes for runs"
        " without GPUs, up to priority high\n"
    )


def test_quota_explain_shows_what_decides(shiftwork: Shiftwork, server: CliServer) -> None:
    permission = {
        "group": "default",
        "priority": "high",
        "permitted": True,
        "limit": 4,
        "unit": "gpus",
        "held": 1,
        "free": 3,
        "gpus_held": 1,
        "nodes_held": 1,
        "because": "ann's grant of 4 GPUs at high in each group",
        "site": False,
        "expires_at": "2030-01-02T03:04:05Z",
        "caps": [{"team": "lab", "limit": 8, "unit": "gpus", "held": 6, "free": 2}],
    }
    server.permissions = {"user": "ann", "team": None, "permissions": [permission]}
    out = shiftwork("quota", "explain", "--user", "ann").out
    for text in ("4 gpus", "ann's grant", "2030-01-02 03:04Z", "team lab in every group: 6 of 8"):
        assert text in out
    assert shiftwork("quota", "explain", "--json").json == server.permissions
    # Of somebody else, to who may not see the usage of others.
    nothing = {"held": None, "free": None}
    cap = {"team": "(hidden)", "limit": 8, "unit": "gpus", **nothing}
    hidden = {**permission, **nothing, "gpus_held": None, "nodes_held": None, "caps": [cap]}
    hidden.update(binds="cap", granted={**nothing, "limit": 4, "unit": "gpus"})
    server.permissions = {"user": "ann", "team": None, "permissions": [hidden]}
    out = shiftwork("quota", "explain", "--user", "ann").out
    assert "team (hidden) in every group: 8 gpus" in out
    assert ("hidden" in out, "None" in out) == (True, False)


def test_quota_explain_shows_the_row_that_binds_first(
    shiftwork: Shiftwork, server: CliServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cap that leaves nothing, under a grant that would permit more; each end at its row."""
    cap = {"user": "ann", "limit": 2, "unit": "gpus", "held": 2, "free": 0}
    other = {"team": "lab", "limit": 9, "unit": "gpus", "held": 2, "free": 7}
    number = {"unit": "gpus", "held": 2}
    row = a_permission(
        "normal",
        **{**number, "limit": 2, "free": 0, "binds": "cap"},
        granted={**number, "limit": 8, "free": 6},
        because="ann's grant of 8 GPUs in each group",
        expires_at="2030-01-02T03:04:05Z",
        caps=[cap, {**other, "expires_at": "2031-01-02T03:04:05Z"}],
    )
    server.permissions = {"user": "ann", "team": None, "permissions": [row]}
    _, line = shiftwork("quota", "explain").out.splitlines()
    assert line.split()[:6] == ["default", "normal", "2", "gpus", "2", "0"]
    texts = [
        "cap of ann in every group: 2 of 2 gpus",
        "ann's grant of 8 GPUs in each group (2 held)",
        "cap of team lab in every group: 2 of 9 gpus, until 2031-01-02 03:04Z",
    ]
    assert line.endswith("; ".join(texts))
    monkeypatch.setattr(render, "is_narrow", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    out = " ".join(shiftwork("quota", "explain").out.split())
    texts[1] += ", until 2030-01-02 03:04Z"
    pieces = " ".join("; ".join(texts).split())
    assert all(word in out for word in pieces.split())
    assert out.index("(2 held)") < out.index("2030-01-02") < out.index("cap of team")
    monkeypatch.undo()


def test_users_and_tokens(shiftwork: Shiftwork, server: CliServer) -> None:
    assert shiftwork("user", "add", "bob", "--team", "lab", "--admin").code == 0
    assert server.asked("POST", "/v1/users").body == {
        "name": "bob",
        "role": "admin",
        "team": "lab",
    }
    assert "ada" in shiftwork("user", "ls").out
    done = shiftwork("token", "create", "--name", "laptop", "--expires-in", "90d")
    assert done.out == "swt_fresh\n"
    assert server.asked("POST", "/v1/tokens").body == {
        "user": "ada",
        "name": "laptop",
        "expires_in_seconds": 7_776_000.0,
    }
    server.tokens = [{"id": "k1", "user": "ada", "created_at": NOW}]
    assert "k1" in shiftwork("token", "ls").out
    assert shiftwork("token", "revoke", "k1", "--json").json == {"id": "k1", "revoked": True}


def test_teams(shiftwork: Shiftwork, server: CliServer) -> None:
    assert shiftwork("team", "add", "lab").code == 0
    assert server.asked("POST", "/v1/teams").body == {"name": "lab"}
    assert "lab" in shiftwork("team", "ls").out
    assert shiftwork("user", "set", "ada", "--team", "lab", "--member", "--disable").code == 0
    asked = server.asked("PATCH", "/v1/users/ada")
    assert asked.body == {"team": "lab", "role": "user", "disabled": True}
    assert shiftwork("user", "set", "ada").code == 2
    both = shiftwork("user", "set", "ada", "--admin", "--member")
    assert (both.code, "--admin and --member contradict each other" in both.err) == (2, True)
    assert shiftwork("user", "set", "ada", "--enable", "--disable").code == 2
    assert shiftwork("user", "set", "ada", "--enable").code == 0
    assert server.asked("PATCH", "/v1/users/ada").body == {"disabled": False}
    assert shiftwork("team", "rm", "lab", "--json").json == {"name": "lab", "removed": True}
    assert server.asked("DELETE", "/v1/teams/lab").body is None


def changes(server: CliServer) -> list[Any]:
    """The requests that change a user."""
    return [each for each in server.seen if each.method == "PATCH" and not each.query]


@pytest.mark.parametrize("option", ["--disable", "--archive"])
@pytest.mark.parametrize("more", [(), ("--yes",)])
def test_nothing_is_asked_about_a_change_of_a_user_that_the_server_refuses(
    shiftwork: Shiftwork, server: CliServer, option: str, more: tuple[str, ...]
) -> None:
    server.tasks = {"ta": a_task("ta", name="one", owner="bob")}
    fix = "ask an administrator"
    wrong = {"field": "", "value": "", "message": "op may not change users and teams", "fix": fix}
    detail = f"{wrong['message']}; {fix}"
    server.first["PATCH", "/v1/users/bob"] = [problem(403, "forbidden", detail, wrong)]
    refused = shiftwork("user", "set", "bob", option, *more)
    assert refused.code != 0
    assert refused.err.startswith("error: op may not change users and teams\n")
    assert f"fix:   {fix}\n" in refused.err
    assert "stop" not in refused.err
    assert not changes(server)


@pytest.mark.parametrize("option", ["--disable", "--archive"])
def test_shutting_a_user_out_says_how_many_tasks_it_stops_and_asks(
    shiftwork: Shiftwork, server: CliServer, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    server.tasks = {
        "ta": a_task("ta", name="one", owner="bob"),
        "tb": a_task("tb", name="two", owner="bob", state="running"),
        "tc": a_task("tc", name="leaves", owner="bob", goal="stop"),
        "td": a_task("td", name="other", owner="ada"),
    }
    refused = shiftwork("user", "set", "bob", option)
    deed = option[2:]
    assert refused.code == 2
    wanted = f"this would {deed} bob and stop 2 tasks, which save first: two, one"
    assert (wanted in refused.err, "add --yes" in refused.err) == (True, True), refused.err
    assert not changes(server)

    shown: list[str] = []
    monkeypatch.setattr(render, "is_terminal", lambda _stream: True)
    monkeypatch.setattr("typer.confirm", lambda text, **_: shown.append(text))
    done = shiftwork("user", "set", "bob", option)
    question = f"{deed.capitalize()} bob and stop 2 tasks, which save first: two, one?"
    assert (done.code, shown) == (0, [question])
    assert "2 tasks to save and to be stopped" in done.err
    # Whoever says no has changed nothing.
    server.seen.clear()

    def no(_text: str, **_: object) -> None:
        raise typer.Abort

    monkeypatch.setattr("typer.confirm", no)
    assert shiftwork("user", "set", "bob", option).code == INTERRUPTED
    assert not changes(server)

    assert shiftwork("user", "set", "bob", option, "--yes", "--json").json["stopped_tasks"] == 2
    # Nothing is stopped: nothing is asked.
    assert shiftwork("user", "set", "eve", option, "--json").json["stopped_tasks"] == 0


def test_groups_and_whoami(shiftwork: Shiftwork) -> None:
    assert shiftwork("group", "ls").out.splitlines()[1].split() == ["default", "1/2", "3/4"]
    assert shiftwork("whoami").out.splitlines()[0].split() == ["user", "ada"]


def a_letter(letter_id: str, service: str) -> dict[str, object]:
    return {
        "id": letter_id,
        "service": service,
        "type": "shiftwork.run.v1.RunStarted",
        "reason": "KeyError: x\nmore",
        "set_apart_at": NOW,
        "replays": 0,
        "replaying": False,
    }


def test_dead_letters(shiftwork: Shiftwork, server: CliServer) -> None:
    server.dead_letters = [a_letter("received-1", "quota"), a_letter("sent-2", "scheduler")]
    rows = [line.split() for line in shiftwork("dead-letters", "ls").out.splitlines()[1:]]
    assert [(row[0], row[1], row[2]) for row in rows] == [
        ("sent-2", "scheduler", "RunStarted"),
        ("received-1", "quota", "RunStarted"),
    ]
    listed = shiftwork("dead-letters", "ls", "--service", "quota", "--json").json
    assert [each["id"] for each in listed["items"]] == ["received-1"]

    done = shiftwork("dead-letters", "replay", "received-1")
    assert done.code == 0
    assert server.asked("POST", "/v1/dead-letters:replay").body == {
        "service": "quota",
        "ids": ["received-1"],
    }
    assert "quota: 1 to be tried again" in done.err
    assert len(shiftwork("dead-letters", "replay", "--all", "--json").json["items"]) == 2
    # Not the ids: a request names a bounded number of letters, and there may be more.
    assert server.asked("POST", "/v1/dead-letters:replay").body == {"service": "gateway"}


def test_dead_letters_are_discarded_by_id_or_all_of_a_service(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    server.dead_letters = [a_letter("received-1", "quota"), a_letter("sent-2", "scheduler")]
    done = shiftwork("dead-letters", "discard", "sent-2")
    assert (done.code, done.err) == (0, "scheduler: 1 discarded\n")
    asked = server.asked("POST", "/v1/dead-letters:discard").body
    assert asked == {"service": "scheduler", "ids": ["sent-2"]}
    assert shiftwork("dead-letters", "discard", "--all", "--service", "quota").code == 0
    assert server.asked("POST", "/v1/dead-letters:discard").body == {"service": "quota"}
    # What is there is discarded; what is not is named.
    done = shiftwork("dead-letters", "discard", "sent-2", "sent-3")
    assert done.code == 2
    assert "scheduler: 1 discarded" in done.err
    assert "no service has the dead letter sent-3" in done.err


@pytest.mark.parametrize("verb", ["replay", "discard"])
@pytest.mark.parametrize(
    "arguments", [(), ("received-1", "--all"), ("--all", "--service", "nobody"), ("received-9",)]
)
def test_a_command_selects_the_dead_letters(
    shiftwork: Shiftwork, verb: str, arguments: tuple[str, ...]
) -> None:
    done = shiftwork("dead-letters", verb, *arguments)
    assert done.code in (1, 2)
    assert done.err


def test_a_user_is_shown_with_accounts_and_password(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    account = {"issuer": "https://login", "account": "42", "linked_at": "2026-01-31T12:00:00Z"}
    password = {"changed_at": "2026-01-31T12:00:00Z", "changed_by": "root"}
    ada = {"name": "ada", "role": "user", "accounts": [account], "password": password}
    server.first["GET", "/v1/users/ada"] = [(200, ada)]
    shown = shiftwork("user", "show", "ada").out
    assert "42 of https://login, since 2026-01-31" in shown
    assert "by root" in shown


def test_roles_and_scopes(shiftwork: Shiftwork, server: CliServer) -> None:
    assert shiftwork("user", "add", "olga", "--role", "operator").code == 0
    assert server.asked("POST", "/v1/users").body == {"name": "olga", "role": "operator"}
    wrong = shiftwork("user", "add", "olga", "--role", "operater")
    assert (wrong.code, "did you mean operator?" in wrong.err) == (2, True)
    both = shiftwork("user", "set", "olga", "--role", "user", "--admin")
    assert (both.code, "--role and --admin contradict each other" in both.err) == (2, True)
    assert shiftwork("user", "set", "olga", "--archive").code == 0
    assert server.asked("PATCH", "/v1/users/olga").body == {"archived": True}
    assert shiftwork("user", "rm", "olga", "--json").json == {"name": "olga", "removed": True}
    assert shiftwork("token", "create", "--scope", "tasks", "--scope", "read").code == 0
    assert server.asked("POST", "/v1/tokens").body["scopes"] == ["tasks", "read"]
    unknown = shiftwork("token", "create", "--scope", "all")
    assert (unknown.code, "read, secrets, tasks, tokens, operate, people" in unknown.err) == (
        2,
        True,
    )


ENTRY = {
    "id": "e1",
    "at": NOW,
    "who": "ann",
    "action": "task.priority.low",
    "target": "t1",
    "outcome": "done",
    "detail": "=cmd()",
    "address": "10.0.0.7",
    "token": "k1",
    "before": {"priority": "normal"},
    "after": {"priority": "low"},
}


def test_the_audit_trail(shiftwork: Shiftwork, server: CliServer) -> None:
    server.first["GET", "/v1/audit"] = [(200, {"items": [ENTRY], "next_cursor": None})] * 2
    shown = shiftwork("audit", "--who", "ann", "--from", "7d", "--action", "task").out
    assert "priority: normal -> low" in shown
    query = server.asked("GET", "/v1/audit").query
    assert (query["who"], query["action"], "from" in query) == ("ann", "task", True)
    header, row = shiftwork("audit", "--csv").out.splitlines()
    assert header.startswith("at,who,action,target")
    # What somebody wrote is no formula of a spreadsheet.
    assert "'=cmd()" in row
    assert shiftwork("audit", "--csv", "--json").code == 2


def test_csv_has_nothing_that_a_terminal_obeys(shiftwork: Shiftwork, server: CliServer) -> None:
    """Such as the name of a task that was refused for its name."""
    bad = "\x1b]0;owned\x07 \x9b2J \u202e\nline"
    entry = {**ENTRY, "target": bad, "detail": bad, "after": {"name": bad}}
    server.first["GET", "/v1/audit"] = [(200, {"items": [entry], "next_cursor": None})]
    _, row = shiftwork("audit", "--csv").out.splitlines()
    assert row.isprintable()
    assert r"\x1b]0;owned" in row


@pytest.mark.parametrize("written", ["train", "train-b2", "y5r3op"])
def test_the_target_of_the_audit_trail_may_be_a_task_as_tables_show_it(
    shiftwork: Shiftwork, server: CliServer, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    task_id = "t23ocaqooostdddy5r3op"
    server.tasks[task_id] = a_task(task_id, name="train-b2")
    error = {"field": "target", "value": written, "message": "no entry has it", "fix": "f"}
    unknown = (422, {"detail": "target: no entry has it", "errors": [error]})
    found = (200, {"items": [{**ENTRY, "target": task_id}], "next_cursor": None})
    server.first["GET", "/v1/audit"] = [unknown, found]
    monkeypatch.setattr(render, "is_narrow", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    done = shiftwork("audit", "--target", written)
    if written == "train":
        assert (done.code, "no entry and no task is called 'train'" in done.err) == (1, True)
        assert "did you mean train-b2?" in done.err
        return
    assert done.code == 0, done.err
    assert server.asked("GET", "/v1/audit").query["target"] == task_id
    # The end of the id, as other tables show it.
    assert "dddy5r3op" not in done.out
    assert "y5r3op" in done.out
    monkeypatch.undo()


def a_permission(priority: str, **fields: Any) -> dict[str, Any]:
    return {
        "group": "default",
        "priority": priority,
        "permitted": True,
        "limit": None,
        "unit": None,
        "held": None,
        "free": None,
        "gpus_held": 0,
        "nodes_held": 0,
        "because": "the site's default (any amount, nothing above normal)",
        "site": True,
        "expires_at": None,
        "caps": [],
        **fields,
    }


def test_quota_explain_fits_a_terminal_and_merges_equal_priorities(
    shiftwork: Shiftwork, server: CliServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    no = {"permitted": False}
    cap = {"team": "lab", "limit": 8, "unit": "gpus", "held": 6, "free": 2}
    server.permissions = {
        "user": "ann",
        "team": None,
        "permissions": [
            *(a_permission(each, **no) for each in ("extreme_high", "very_high", "high")),
            *(a_permission(each) for each in ("normal", "below_normal", "low")),
            a_permission("idle", caps=[cap], expires_at="2030-01-02T03:04:05Z"),
        ],
    }
    monkeypatch.setattr(render, "is_narrow", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    lines = shiftwork("quota", "explain").out.splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    for part in ("extreme_high to high", "normal to low", "not permitted", "2030-01-02 03:04Z"):
        assert part in text
    assert sum(line.startswith("default") for line in lines) == 3
    assert "6 of 8 gpus" in text
    assert "EXPIRES" not in text
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("default", "options", "text"),
    [
        ({"unlimited": True, "level_max": "normal"}, (), "warning: it replaces the site's default"),
        ({"unlimited": True, "level_max": None}, (), "\nit replaces the site's default there"),
        ({"unlimited": True, "level_max": "normal"}, ("--priority", "high"), ""),
    ],
)
def test_a_grant_at_every_priority_says_that_it_replaces_the_default(
    shiftwork: Shiftwork,
    server: CliServer,
    default: dict[str, Any],
    options: tuple[str, ...],
    text: str,
) -> None:
    server.quotas = [{"grant": True, "limit": None, "unit": None, **default}]
    line = ("quota", "set", "--grant", "--user", "ada", "--gpus", "4")
    done = shiftwork(*line, *options)
    assert done.code == 0
    assert ("grant of ada in every group at every priority: at most 4 GPUs" in done.err) == bool(
        text
    )
    assert (text in done.err) if text else ("replaces" not in done.err)


def test_the_defaults_are_shown(shiftwork: Shiftwork, server: CliServer) -> None:
    assert "the site has no default" in shiftwork("quota", "default").out
    server.quotas = [
        {"grant": True, "unlimited": True, "level_max": "normal"},
        {"grant": True, "team": "lab", "priority": "high", "limit": 4, "unit": "gpus"},
        {"grant": True, "user": "ada", "limit": 4, "unit": "gpus"},
        {"limit": 8, "unit": "gpus"},
    ]
    assert shiftwork("quota", "default").out.splitlines() == [
        "default of the site, for each user in each group: any amount up to priority normal",
        "grant of team lab in every group at priority high: at most 4 GPUs",
    ]
    assert len(shiftwork("quota", "default", "--json").json["items"]) == 2


def test_a_user_is_shown_with_the_defaults(shiftwork: Shiftwork, server: CliServer) -> None:
    ada = {"name": "ada", "role": "user", "team": "lab", "created_at": NOW}
    ada |= {"default_group": "a100", "default_priority": "low"}
    server.first["GET", "/v1/users/ada"] = [(200, ada)] * 3
    out = shiftwork("user", "show", "ada").out
    assert [line.split() for line in out.splitlines()][:2] == [["user", "ada"], ["role", "user"]]
    assert all(text in out for text in ("lab", "enabled", "a100", "low"))
    assert shiftwork("user", "show", "ada", "--json").json == ada
    assert shiftwork("user", "show", "ada", "-o", "name").out == "ada\n"
    server.first["GET", "/v1/users"] = [(200, {"items": [ada], "next_cursor": None})]
    header, row = shiftwork("user", "ls").out.splitlines()
    assert header.endswith("DEFAULT GROUP  DEFAULT PRIORITY")
    assert row.split()[-2:] == ["a100", "low"]


def test_whoami_shows_whose_tasks_are_seen(shiftwork: Shiftwork, server: CliServer) -> None:
    me = {"user": "ada", "role": "user", "team": "lab", "visibility": "team", "token": {}}
    server.first["GET", "/v1/whoami"] = [(200, me)]
    assert "own tasks and the team's" in shiftwork("whoami").out


@pytest.mark.parametrize(
    ("state", "present", "shown"),
    [
        ("running", {"team": "nlp"}, "vision (as submitted; ada is in team nlp now)"),
        ("running", {"team": "vision"}, ""),
        ("failed", {"team": "nlp"}, ""),
        ("running", None, ""),
    ],
)
def test_a_live_task_of_a_former_team_says_so(
    shiftwork: Shiftwork, server: CliServer, state: str, present: Any, shown: str
) -> None:
    server.tasks["ta"] = a_task("ta", state=state, team="vision")
    reply = (200, present) if present else problem(403, "forbidden", "ada may not")
    server.first["GET", "/v1/users/ada"] = [reply] * 2
    out = shiftwork("show", "ta").out
    assert (shown or "vision") in out
    assert ("as submitted" in out) == bool(shown)
    assert ("as submitted" in shiftwork("explain", "ta").out) == bool(shown)


@pytest.mark.parametrize(("number", "text"), [(1, "1 node"), (2, "2 nodes")])
def test_what_is_held_is_counted(
    shiftwork: Shiftwork, server: CliServer, number: int, text: str
) -> None:
    held = a_permission("low", nodes_held=number)
    server.permissions = {"user": "ann", "team": None, "permissions": [held]}
    assert f"  {text}  " in shiftwork("quota", "explain").out
