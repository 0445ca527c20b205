"""Refusals as people read them: the field, the value, what may have been meant, and the route that
helps."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from shiftwork.cli import typed

from libs.contracts import messages as m
from services.gateway.api.app import templates
from tests.services.gateway.gateway_harness import SEES_ALL, GatewayHarness, a_node, assigned, state

ROOT = Path(__file__).parents[3]


def only(refused: httpx.Response, status: int) -> dict[str, str]:
    assert refused.status_code == status, refused.text
    (error,) = refused.json()["errors"]
    return error


async def test_an_unknown_team_is_refused(admin: httpx.AsyncClient) -> None:
    await admin.post("/v1/teams", json={"name": "vision"})
    await admin.post("/v1/users", json={"name": "zoe"})
    for refused in (
        await admin.post("/v1/users", json={"name": "eve", "team": "vison"}),
        await admin.patch("/v1/users/zoe", json={"team": "vison"}),
    ):
        error = only(refused, 422)
        assert (error["field"], error["value"]) == ("team", "vison")
        assert error["message"] == 'there is no team "vison"'
        assert error["fix"].startswith("did you mean vision? ")
        assert "POST /v1/teams" in error["fix"]


@pytest.mark.parametrize(
    ("method", "path", "body", "field", "kind"),
    [
        ("POST", "/v1/tokens", {"user": "amdin"}, "user", "user"),
        ("GET", "/v1/users/amdin", None, "name", "user"),
        ("PATCH", "/v1/users/amdin", {"disabled": True}, "name", "user"),
        ("DELETE", "/v1/teams/amdin", None, "name", "team"),
        ("GET", "/v1/nodes/amdin", None, "node_id", "node"),
        ("GET", "/v1/tasks/amdin", None, "task_id", "task"),
        ("DELETE", "/v1/tokens/amdin", None, "token_id", "token"),
    ],
)
async def test_a_reference_to_something_unknown_is_a_field_error_with_a_fix(  # noqa: PLR0917 - one row of the table
    harness: GatewayHarness,
    admin: httpx.AsyncClient,
    method: str,
    path: str,
    body: Any,
    field: str,
    kind: str,
) -> None:
    await admin.post("/v1/teams", json={"name": "admins"})
    await harness.project(a_node("admin-0"))
    refused = await admin.request(method, path, json=body)
    error = only(refused, 404)
    assert (error["field"], error["value"]) == (field, "amdin")
    assert error["message"] == f'there is no {kind} "amdin"'
    assert refused.json()["detail"].startswith(error["message"])
    assert f"GET /v1/{kind}s lists them" in error["fix"]
    near = {"user": "admin", "team": "admins", "node": "admin-0"}.get(kind)
    assert near is None or f"did you mean {near}?" in error["fix"]


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/users", {"name": "admin"}), ("/v1/teams", {"name": "lab"})]
)
async def test_a_name_that_exists_already_is_a_field_error(
    admin: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    await admin.post("/v1/teams", json={"name": "lab"})
    error = only(await admin.post(path, json=body), 409)
    assert (error["field"], error["value"]) == ("name", body["name"])
    assert error["fix"]


@pytest.mark.parametrize(
    ("body", "field", "message", "fix"),
    [
        ({"nodez": 1}, "nodez", "there is no such field", "did you mean nodes?"),
        (
            {"preemption": {"ack_deadline": 5}},
            "preemption.ack_deadline",
            "",
            "ack_deadline_seconds",
        ),
        ({"roles": [{"comand": ["x"]}]}, "roles[0].comand", "", "did you mean command?"),
        ({"comand": ["x"]}, "comand", "there is no such field", "did you mean command?"),
        ({"resume": {"command": ["x"]}}, "resume", "there is no", "It belongs to a role"),
        ({"resum": {}}, "resum", "there is no", "did you mean resume? It belongs to a role"),
        (
            {"roles": [{"name": "a", "prioritty": "high"}]},
            "roles[0].prioritty",
            "",
            "did you mean priority? It is a field of the whole task",
        ),
        ({"roles": [{"resum": {}}]}, "roles[0].resum", "", "did you mean resume? Else"),
        (
            {"roles": [{"ready": {"port": 0}}]},
            "roles[0].ready.port",
            "is not the name of a port",
            "name one of the role's ports",
        ),
        ({"pod": {"imgae": "x"}}, "pod.imgae", "", "did you mean image?"),
        ({"zzzzz": 1}, "zzzzz", "there is no such field", "leave this field out"),
        ({"command": "python x"}, "command", "is not a list", '["python", "x"]'),
        ({"debug": True}, "debug", "there is no", "did you mean run_mode? Write run_mode: debug."),
        ({"paused": True}, "paused", "there is no", "Write run_mode: pause."),
        ({"debug": {"command": ["x"]}}, "debug", "there is no", "It belongs to a role"),
        ({"roles": "a"}, "roles", "is not a list", "give a list: [{name: a}]"),
        (
            {"roles": [{"starts_after": "ps"}]},
            "roles[0].starts_after",
            "is not a list",
            "give a list: [{role: ps}]",
        ),
        (
            {"roles": [{"starts_after": {"role": "ps"}}]},
            "roles[0].starts_after",
            "is not a list",
            "give a list: [{role: ...}]",
        ),
        ({"roles": [{"ready": True}]}, "roles[0].ready", "is not an object", "write ready: {}"),
        ({"retry": True}, "retry", "is not an object", "write retry: {max_retries: ...}"),
        ({"command": 'say "it'}, "command", "is not a list", "give a list"),
        ({"command": ["x", True]}, "command[1]", "is not a text", "quotation marks"),
        ({"env": {"A": 1}}, "env.A", "is not a text", "quotation marks"),
        (
            {"retries": 3},
            "retries",
            "there is no",
            "retry.max_retries? Write retry: {max_retries: 3}",
        ),
        ({"preempt": "signal"}, "preempt", "there is no", "Write preemption: {mode: signal}"),
        (
            {"preempt": "signal:TERM"},
            "preempt",
            "",
            "Write preemption: {mode: signal, signal: TERM}",
        ),
        ({"gpus": 1}, "gpus", "there is no", "did you mean gpus_per_node? Write gpus_per_node: 1"),
        ({"directory": "/d"}, "directory", "there is no", "Write working_directory: /d"),
        ({"workdir": "/d"}, "workdir", "there is no", "did you mean working_directory?"),
        ({"cwd": "/d"}, "cwd", "there is no", "did you mean working_directory?"),
        ({"ack_deadline": 5}, "ack_deadline", "", "Write preemption: {ack_deadline_seconds: 5}"),
        ({"force": True}, "force", "there is no", "Write wait_for_nodes: true"),
        ({"environment": {"A": "secret"}}, "environment", "there is no", "did you mean env? Else"),
        ({"venv": "v"}, "venv", "there is no", "the option --venv of `shiftwork submit` does it"),
        ({"image": "x:1"}, "image", "there is no", "Write pod: {image: x:1}"),
        ({"retrys": 1}, "retrys", "there is no", "did you mean retry?"),
        ({"fence_afer": 1}, "fence_afer", "there is no", "did you mean fence_after_seconds?"),
        ({"retry": 3}, "retry", "is not an object", "write retry: {max_retries: 3}"),
        (
            {"preemption": "kill"},
            "preemption",
            "is not an object",
            "write preemption: {mode: kill}",
        ),
        (
            {"completion": "chief[0]"},
            "completion",
            "is not an object",
            'write completion: {success: ["chief[0]"]}',
        ),
        ({"env": "A=1"}, "env", "is not an object", "write env: {NAME: VALUE}"),
        ({"labels": ["a"]}, "labels", "is not an object", "write labels: {NAME: VALUE}"),
        ({"roles": ["a"]}, "roles[0]", "is not an object", "write roles: [{name: ...}]"),
        ({"priority": "hgh"}, "priority", "is not known here", "did you mean high? give one of"),
        (
            {"max_run_seconds": "4h"},
            "max_run_seconds",
            "is not a number",
            "a number of seconds: 14400",
        ),
        ({"fence_after_seconds": "x"}, "fence_after_seconds", "", "give a number of seconds"),
        # The declared bounds, and not those of the type.
        ({"gpus_per_node": 3_000_000_000}, "gpus_per_node", "is more than 1024", "1024 or less"),
        ({"nodes": -1}, "nodes", "is less than 1", "give 1 or more"),
        ({"cpus": -1}, "cpus", "is not more than 0", "give more than 0"),
        ({"max_run_seconds": 4e9}, "max_run_seconds", "is more than 316224000", "316224000 "),
        ({"gpus_per_node": True}, "gpus_per_node", "is not a whole number", "whole number"),
        ({"cpus": True}, "cpus", "is not a number", "give a number"),
        ({"memory_bytes": False}, "memory_bytes", "is not a whole number", "whole number"),
        ({"max_run_seconds": True}, "max_run_seconds", "is not a number", "a number of seconds"),
    ],
)
async def test_an_unknown_field_gets_a_suggestion(
    ann: httpx.AsyncClient, body: dict[str, Any], field: str, message: str, fix: str
) -> None:
    refused = await ann.post("/v1/tasks", json={"command": ["true"], **body})
    assert refused.status_code == 422
    error = next(each for each in refused.json()["errors"] if each["field"] == field)
    assert error["message"].startswith(message)
    assert fix in error["fix"]
    batch = await ann.post("/v1/tasks:batch", json={"tasks": [{"command": ["true"], **body}]})
    error = next(e for e in batch.json()["errors"] if e["field"] == f"tasks[0].{field}")
    assert fix in error["fix"]


@pytest.mark.parametrize(
    ("role", "named", "message", "fix"),
    [
        ({"replicas": -1}, "replicas -1", "is less than 1", "give 1 or more"),
        ({"ports": [{"name": "a", "port": -1}]}, "ports[0].port -1", "", "give 1024 or more"),
        ({"gpus": 3_000_000_000}, "gpus 3000000000", "is more than 1024", "give 1024 or less"),
        ({"gpus": 3000}, "gpus 3000", "is not between 0 and 1024", "choose a value in that"),
        ({"gpus": True}, "gpus true", "is not a whole number", "give a whole number"),
        ({"auxiliary": True}, "auxiliary true", "no role is left", "leave auxiliary out"),
    ],
)
async def test_a_number_of_a_role_is_compared_with_its_declared_bounds(
    ann: httpx.AsyncClient, role: dict[str, Any], named: str, message: str, fix: str
) -> None:
    task = {"roles": [{"command": ["true"], **role}]}
    error = only(await ann.post("/v1/tasks", json=task), 422)
    assert f"{error['field']} {error['value']}" == f"roles[0].{named}"
    assert message in error["message"]
    assert fix in error["fix"]


async def test_a_field_of_the_task_in_a_role_is_reported_as_such(ann: httpx.AsyncClient) -> None:
    role = {"command": ["true"], "partition": "dev", "priority": "low"}
    refused = await ann.post("/v1/tasks", json={"roles": [role]})
    fixes = {each["field"]: each["fix"] for each in refused.json()["errors"]}
    assert fixes["roles[0].partition"].startswith(
        "did you mean group? It is a field of the whole task: write it beside roles."
    )
    assert "write it beside roles" in fixes["roles[0].priority"]
    refused = await ann.post("/v1/tasks", json={"roles": [{"command": ["x"], "gpus_per_node": 2}]})
    (error,) = refused.json()["errors"]
    assert error["field"] == "roles[0].gpus_per_node"
    assert error["fix"].startswith("did you mean gpus? Write gpus: 2.")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"nodes": 0}, "nodes"),
        ({"preemption": {"ack_deadline_seconds": 0}}, "preemption.ack_deadline_seconds"),
    ],
)
async def test_zero_is_not_treated_as_missing(
    ann: httpx.AsyncClient, body: dict[str, Any], field: str
) -> None:
    error = only(await ann.post("/v1/tasks", json={"command": ["true"], **body}), 422)
    assert (error["field"], error["message"]) == (field, "is less than 1")
    assert error["fix"] == "give 1 or more, or leave it out"


async def test_no_replicas_are_refused(ann: httpx.AsyncClient) -> None:
    roles = [{"command": ["true"], "replicas": 0}, {"name": "b", "command": ["true"]}]
    error = only(await ann.post("/v1/tasks", json={"roles": roles}), 422)
    assert (error["field"], error["message"]) == ("roles[0].replicas", "is less than 1")


async def test_errors_name_a_command_as_it_was_given(ann: httpx.AsyncClient) -> None:
    body = {"command": [""], "env": {"1A": "b"}}
    for path in ("/v1/tasks", "/v1/tasks:dry-run"):
        refused = (await ann.post(path, json=body)).json()
        assert [each["field"] for each in refused["errors"]] == ["command", "env"]
        assert refused["errors"][1]["value"] == "1A"
        assert refused["detail"].startswith("command: is empty")
        assert "--" not in refused["errors"][0]["fix"]
    batch = (await ann.post("/v1/tasks:batch", json={"tasks": [body]})).json()
    assert batch["items"][0]["problem"]["errors"][0]["field"] == "command"


async def test_errors_never_repeat_a_secret(ann: httpx.AsyncClient) -> None:
    for body in ({"environment": "A=s3cret"}, {"env": "s3cret"}, {"pod_template": "s3cret"}):
        refused = await ann.post("/v1/tasks", json={"command": ["true"], **body})
        assert refused.status_code == 422
        assert "s3cret" not in refused.text


async def test_a_missing_name_has_a_readable_error(admin: httpx.AsyncClient) -> None:
    for path in ("/v1/users", "/v1/teams"):
        error = only(await admin.post(path, json={"name": "Bob B"}), 422)
        assert error["message"] == "is not a name"
        assert error["fix"] == "use 1 to 63 of a-z, 0-9, - and _, a letter or digit at both ends"


async def test_retry_of_a_live_task_is_refused_as_such(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    task = (await harness.submitted(ann, name="demo"))["id"]
    for change, current in (
        ((), "queued"),
        ((assigned(task), state(task, m.TaskState.RUNNING, 2)), "running"),
    ):
        await harness.project(*change)
        error = only(await ann.post(f"/v1/tasks/{task}/retry"), 409)
        assert (error["field"], error["value"]) == ("task_id", task)
        assert error["message"] == f"the task is still {current}"
        assert "PUT /v1/tasks/ID/goal" in error["fix"]


async def test_a_policy_for_a_group_that_is_not_there_is_refused(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    harness.others.policy_set = m.SetPolicyReply(groups={"groups.trainig": "trainig"})
    text = "groups: {trainig: {policy: fifo}}"
    routes = (("PUT", "/v1/policies"), ("POST", "/v1/policies:dry-run"))
    for method, path in routes:
        # While no node is known, each group may be one that is to come.
        assert (await admin.request(method, path, content=text)).status_code == 200
    await harness.project(a_node("n0", group="training"))
    for method, path in routes:
        error = only(await admin.request(method, path, content=text), 422)
        assert (error["field"], error["value"]) == ("groups.trainig", "trainig")
        assert error["message"] == 'there is no group "trainig"'
        assert error["fix"].startswith("did you mean training?")
        forced = await admin.request(method, f"{path}?force=true", content=text)
        assert forced.status_code == 200
    assert (await admin.delete("/v1/policies/trainig")).status_code == 200


async def test_a_list_is_sorted_by_state_in_both_directions(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    first = (await harness.submitted(ann, name="a"))["id"]
    second = (await harness.submitted(ann, name="b"))["id"]
    await harness.project(assigned(second), state(second, m.TaskState.RUNNING, 2))
    for order, found in (("state", [first, second]), ("-state", [second, first])):
        listed = (await ann.get(f"/v1/tasks?sort={order}")).json()["items"]
        assert [each["id"] for each in listed] == found


def test_each_route_that_a_message_names_is_one_and_has_a_command() -> None:
    """Messages of services name routes; the command line shows its command instead."""
    # The kinds of things that messages report as absent, each with the route that lists them.
    found = {f"GET /v1/{kind}s" for kind in ("task", "node", "group", "user", "team", "token")}
    for folder in ("services", "libs/contracts", "libs/pods"):
        for file in (ROOT / folder).rglob("*.py"):
            text = re.sub(r'"""(.|\n)*?"""', "", file.read_text())
            found |= {
                f"{method} {path}"
                for method, path in re.findall(
                    r'["\'][^"\'\n]*\b(GET|PUT|POST|PATCH|DELETE) (/v1/[\w/{}.:\[\]-]+)', text
                )
            }
    found.discard("GET /v1/{kind}s")
    assert len(found) > 10
    for each in found:
        method, path = each.split()
        path = re.sub(r"\{[^}]*\}|\b[A-Z]+\b", "x", path).rstrip(".")
        assert templates().of(path) != "none", each
        command = typed.in_commands(f"{method} {path}")
        assert command.startswith("`shiftwork "), each


@SEES_ALL
@pytest.mark.parametrize(
    ("method", "path", "body", "action"),
    [
        ("PUT", "goal", {"goal": "stop"}, "stop it"),
        ("PUT", "goal", {"goal": "pause"}, "pause it"),
        ("PUT", "goal", {"goal": "run"}, "resume it"),
        ("PUT", "priority", {"priority": "high"}, "give it another priority"),
        ("POST", "retry", None, "submit it again"),
    ],
)
async def test_the_refusal_for_another_users_task_names_the_requested_change(  # noqa: PLR0917 - the table's
    harness: GatewayHarness,
    ann: httpx.AsyncClient,
    bob: httpx.AsyncClient,
    method: str,
    path: str,
    body: dict[str, Any] | None,
    action: str,
) -> None:
    task = (await harness.submitted(ann, name="demo"))["id"]
    error = only(await bob.request(method, f"/v1/tasks/{task}/{path}", json=body), 403)
    assert (error["field"], error["value"]) == ("task_id", task)
    assert error["message"] == f"the task is ann's, and bob may not {action}"
    may = "administrator" if path == "retry" else "operator"
    assert error["fix"] == f"ask ann or an {may}"


@pytest.mark.parametrize(
    ("path", "body", "verb"),
    [
        ("schedulable", {"schedulable": False, "drain": True}, "drain"),
        ("schedulable", {"schedulable": False}, "cordon"),
        ("schedulable", {"schedulable": True}, "uncordon"),
        ("labels", {"set": {"a": "b"}}, "label"),
        ("taints", {"set": ["a"]}, "taint"),
    ],
)
async def test_the_refusal_for_members_names_the_requested_change(
    ann: httpx.AsyncClient, path: str, body: dict[str, Any], verb: str
) -> None:
    refused = await ann.put(f"/v1/nodes/n0/{path}", json=body)
    assert refused.status_code == 403
    assert refused.json()["detail"] == f"ann may not {verb} nodes; ask an operator"
