"""Nodes, groups and quotas over HTTP, with the real quota service behind."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from shiftwork.cli import typed

from libs.bus.port import RawMessage
from libs.contracts import messages as m
from libs.service import dead_letters
from libs.store.dead_letters import DeadLetterBody, Direction
from services.quota.tables import TABLES as QUOTA_TABLES
from tests.kit.waiting import until
from tests.services.gateway.gateway_harness import GatewayHarness, a_node, assigned, exited


async def test_nodes_show_which_tasks_hold_their_gpus(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    task = await harness.submitted(ann)
    await harness.project(
        a_node("n0", unusable_gpus=(3,)), a_node("n1", ready=False), assigned(task["id"])
    )
    first, second = (await ann.get("/v1/nodes")).json()["items"]
    assert first["held"] == {"0": task["id"], "1": task["id"]}
    assert first["tasks"] == [task["id"]]
    assert (first["gpus"], first["free_gpus"], first["unusable_gpus"]) == (4, 1, [3])
    assert (second["ready"], second["free_gpus"], second["tasks"]) == (False, 4, [])
    assert (await ann.get("/v1/nodes/n0")).json() == first
    (group,) = (await ann.get("/v1/groups")).json()["items"]
    # Of the node that is not ready nothing is free.
    nodes = {"nodes": 2, "ready_nodes": 1, "used_nodes": 1, "free_nodes": 0}
    gpus = {"gpus": 8, "used_gpus": 2, "free_gpus": 1}
    assert group == {"name": "default", **nodes, **gpus, "waiting": 1}
    await harness.project(exited(task["id"]))
    assert (await ann.get("/v1/nodes/n0")).json()["tasks"] == []


async def test_an_older_event_of_a_node_changes_nothing(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    await harness.project(a_node("n0", 3, ready=False))
    await harness.project(a_node("n0", 2, ready=True))
    assert (await ann.get("/v1/nodes/n0")).json()["ready"] is False
    await harness.project(a_node("n0", 4, removed=True))
    assert (await ann.get("/v1/nodes/n0")).status_code == 404
    assert (await ann.get("/v1/nodes")).json()["items"] == []


async def test_nodes_come_in_pages(harness: GatewayHarness, ann: httpx.AsyncClient) -> None:
    await harness.project(*(a_node(f"n{number}") for number in range(5)))
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = (await ann.get(f"/v1/nodes?limit=2&cursor={cursor}")).json()
        found += [node["id"] for node in page["items"]]
        cursor = page["next_cursor"]
    assert found == ["n0", "n1", "n2", "n3", "n4"]


async def test_cordon(harness: GatewayHarness, admin: httpx.AsyncClient) -> None:
    harness.others.nodes = {"n0"}
    reply = await admin.put("/v1/nodes/n0/schedulable", json={"schedulable": False})
    assert reply.status_code == 200
    assert reply.json() == {"id": "n0", "schedulable": False, "draining": False}
    asked = harness.others.asked[-1]
    assert isinstance(asked, m.SetSchedulable)
    assert (asked.node_id, asked.schedulable, asked.asked_by) == ("n0", False, "admin")
    assert not asked.drain
    reply = await admin.put("/v1/nodes/n9/schedulable", json={"schedulable": True})
    assert reply.status_code == 404
    assert reply.json()["errors"][0] == {
        "field": "node_id",
        "value": "n9",
        "message": "is not known",
        "fix": "see nodes",
    }
    reply = await admin.put("/v1/nodes/n0/schedulable", json={"schedulable": "perhaps"})
    assert reply.json()["errors"][0]["fix"] == "give true or false"


async def test_drain(harness: GatewayHarness, admin: httpx.AsyncClient) -> None:
    harness.others.nodes = {"n0"}
    drain = {"schedulable": False, "drain": True}
    reply = await admin.put("/v1/nodes/n0/schedulable", json=drain)
    assert reply.json() == {"id": "n0", "schedulable": False, "draining": True}
    asked = harness.others.asked[-1]
    assert isinstance(asked, m.SetSchedulable)
    assert (asked.schedulable, asked.drain) == (False, True)
    reply = await admin.put("/v1/nodes/n0/schedulable", json={"schedulable": True, "drain": True})
    assert (reply.status_code, reply.json()["errors"][0]["field"]) == (422, "drain")
    assert harness.others.asked[-1] is asked


async def test_labels_and_taints(
    harness: GatewayHarness, admin: httpx.AsyncClient, ann: httpx.AsyncClient
) -> None:
    body: dict[str, Any] = {"set": {"zone": "a"}, "remove": ["disk"]}
    reply = await admin.put("/v1/nodes/n0/labels", json=body)
    assert reply.json() == {"id": "n0", "labels": {"zone": "a"}, "taints": []}
    asked = harness.others.asked[-1]
    assert asked == m.SetNodeMarks(
        node_id="n0", labels={"zone": "a"}, unlabel=("disk",), asked_by="admin"
    )
    body = {"set": ["reserved=vision"], "remove": ["flaky"]}
    reply = await admin.put("/v1/nodes/n0/taints", json=body)
    assert reply.json()["taints"] == ["reserved=vision"]
    asked = harness.others.asked[-1]
    assert asked == m.SetNodeMarks(
        node_id="n0", taints=("reserved=vision",), untaint=("flaky",), asked_by="admin"
    )
    assert (await ann.put("/v1/nodes/n0/taints", json=body)).status_code == 403
    assert harness.others.asked[-1] is asked


async def test_a_task_shows_its_node_selector_and_tolerations(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    await harness.project(a_node("n0", labels={"disk": "nvme"}, taints=("reserved",)))
    node = (await ann.get("/v1/nodes/n0")).json()
    assert (node["labels"], node["taints"]) == ({"disk": "nvme"}, ["reserved"])
    wanted = {"node_selector": {"disk": "nvme"}, "tolerations": ["reserved"]}
    task = await harness.submitted(ann, **wanted)
    shown = (await ann.get(f"/v1/tasks/{task['id']}")).json()
    assert {key: shown[key] for key in wanted} == wanted


async def test_a_quota_is_set_listed_and_removed(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    await harness.member("ann")
    body: dict[str, Any] = {"group": "default", "user": "ann", "unit": "gpus", "limit": 8}
    reply = await admin.put("/v1/quotas", json=body)
    assert reply.status_code == 200, reply.text
    (quota,) = await listed(admin, 1)
    assert body.items() <= quota.items()
    assert (quota["team"], quota["priority"], quota["changed_by"]) == (None, None, "admin")
    await admin.put("/v1/quotas", json={**body, "limit": 4})

    async def lowered() -> bool:
        return (await listed(admin, 1))[0]["limit"] == 4

    await until(lowered)
    gone = {"group": "default", "user": "ann", "unit": "gpus", "unlimited": True}
    assert (await admin.put("/v1/quotas", json=gone)).status_code == 200
    assert await listed(admin, 0) == []
    # Grants still limit: nothing is unlimited.
    (entry, *_) = (await admin.get("/v1/audit?action=quota.set")).json()["items"]
    assert (entry["detail"], entry["after"]) == ("removed", None)


async def test_a_grant_is_set_beside_a_cap_and_removed(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    await harness.member("ann")
    cap: dict[str, Any] = {"user": "ann", "limit": 8}
    grant = {**cap, "grant": True, "limit": 4, "expires_at": "2090-01-02T03:04:05Z"}
    for body in (cap, grant):
        assert (await admin.put("/v1/quotas", json=body)).status_code == 200
    first, second = await listed(admin, 2)
    assert (first["grant"], first["limit"], first["unit"]) == (False, 8, "gpus")
    assert (second["grant"], second["limit"]) == (True, 4)
    assert second["expires_at"].startswith("2090-01-02T03:04:05")
    gone = {"user": "ann", "grant": True, "remove": True}
    assert (await admin.put("/v1/quotas", json=gone)).status_code == 200
    (left,) = await listed(admin, 1)
    assert left["grant"] is False


async def test_a_row_that_is_not_there_cannot_be_removed(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    await harness.member("ann")
    grant = {"user": "ann", "grant": True, "priority": "high", "limit": 4}
    assert (await admin.put("/v1/quotas", json=grant)).status_code == 200
    await listed(admin, 1)
    gone = {"user": "ann", "grant": True, "remove": True}
    reply = await admin.put("/v1/quotas", json=gone)
    (error,) = reply.json()["errors"]
    assert (reply.status_code, error["field"]) == (404, "remove")
    assert "`shiftwork quota set --grant --user ann --priority high --remove`" in error["fix"]
    await listed(admin, 1)


async def test_the_sites_default_is_one_row(admin: httpx.AsyncClient) -> None:
    normal = {"grant": True, "unlimited": True, "level_max": "normal"}
    assert (await admin.put("/v1/quotas", json=normal)).status_code == 200
    (row,) = await listed(admin, 1)
    assert (row["unlimited"], row["level_max"], row["limit"], row["unit"]) == (
        *(True, "normal", None, None),
    )
    assert (await admin.put("/v1/quotas", json={"grant": True, "remove": True})).status_code == 200
    await listed(admin, 0)
    number = {"grant": True, "limit": 8, "unit": "gpus_or_nodes"}
    assert (await admin.put("/v1/quotas", json=number)).status_code == 200
    (row,) = await listed(admin, 1)
    assert (row["unlimited"], row["limit"], row["unit"]) == (False, 8, "gpus_or_nodes")


async def test_a_quota_of_an_unknown_user_is_refused_unless_forced(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    await harness.member("anna")
    await admin.post("/v1/teams", json={"name": "vision"})
    reply = await admin.put("/v1/quotas", json={"user": "ana", "team": "vison", "limit": 1})
    assert reply.status_code == 422
    user, team = reply.json()["errors"]
    assert (user["field"], user["value"], team["field"]) == ("user", "ana", "team")
    assert user["fix"].startswith("did you mean anna?")
    assert team["fix"].startswith("did you mean vision?")
    assert await listed(admin, 0) == []
    body = {"user": "someone-new", "unit": "gpus", "limit": 1}
    reply = await admin.put("/v1/quotas", json=body)
    assert "GET /v1/users lists them" in reply.json()["errors"][0]["fix"]
    assert (await admin.put("/v1/quotas?force=true", json=body)).status_code == 200
    await listed(admin, 1)
    # A limit of a user who no longer exists can be removed.
    gone = {"user": "someone-new", "unit": "gpus", "unlimited": True}
    assert (await admin.put("/v1/quotas", json=gone)).status_code == 200


async def test_removing_a_limit_of_a_misspelt_user_is_refused(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    """Accepting it would remove nothing without a notice."""
    await harness.member("dana")
    body = {"user": "dana", "unit": "gpus", "limit": 3}
    assert (await admin.put("/v1/quotas", json=body)).status_code == 200
    await listed(admin, 1)
    reply = await admin.put("/v1/quotas", json={"user": "dna", "unlimited": True})
    assert reply.status_code == 422
    assert reply.json()["errors"][0]["fix"].startswith("did you mean dana?")
    gone = {"user": "dana", "unit": "gpus", "unlimited": True}
    assert (await admin.put("/v1/quotas", json=gone)).status_code == 200
    # The next one removes nothing.
    assert (await admin.put("/v1/quotas", json=gone)).status_code == 404


async def test_a_quota_of_a_misspelt_group_is_refused_once_nodes_are_known(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    body = {"group": "defualt", "unit": "gpus", "limit": 1}
    await harness.project(a_node("n0"))
    reply = await admin.put("/v1/quotas", json=body)
    assert reply.status_code == 422
    (error,) = reply.json()["errors"]
    assert (error["field"], error["value"]) == ("group", "defualt")
    assert error["fix"].startswith("did you mean default?")
    assert (await admin.put("/v1/quotas?force=true", json=body)).status_code == 200
    assert (await admin.put("/v1/quotas", json={**body, "group": "default"})).status_code == 200


async def listed(client: httpx.AsyncClient, length: int) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []

    async def there() -> bool:
        items[:] = (await client.get("/v1/quotas")).json()["items"]
        return len(items) == length

    await until(there)
    return items


@pytest.mark.parametrize(
    "body",
    [
        {"group": "default"},
        {"group": "default", "limit": 1, "unlimited": True},
        {"group": "default", "limit": -1},
        {"group": "default", "limit": 1, "unit": "cores"},
    ],
)
async def test_a_wrong_quota_names_the_field(
    admin: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    reply = await admin.put("/v1/quotas", json=body)
    assert reply.status_code == 422
    assert reply.json()["errors"][0]["field"] in {"limit", "unit"}


async def set_apart(harness: GatewayHarness, *ids: str) -> None:
    """Give quota dead letters that nobody can read."""
    store = harness.store(QUOTA_TABLES)
    async with store.transaction() as tx:
        for each in ids:
            raw = RawMessage("evt.task.t.submitted", {"ce-id": each}, b"secret no json")
            await dead_letters.keep(tx, Direction.RECEIVED, raw, f"{each} does not fit")


async def test_dead_letters_are_listed_in_pages_and_without_their_bodies(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    await set_apart(harness, "a", "b", "c")
    found: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        path = f"/v1/dead-letters?service=quota&limit=2&cursor={cursor}"
        answer = await admin.get(path)
        assert "secret" not in answer.text
        found += answer.json()["items"]
        cursor = answer.json()["next_cursor"]
    assert [each["id"] for each in found] == ["received-a", "received-b", "received-c"]
    assert found[0]["reason"] == "a does not fit"
    assert (found[0]["service"], found[0]["direction"]) == ("quota", "received")
    assert (found[0]["bytes"], found[0]["replays"], found[0]["replaying"]) == (14, 0, False)
    reply = await admin.get("/v1/dead-letters?service=nobody")
    assert reply.status_code == 422


async def test_a_replay_of_all_lists_each_of_many_letters(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    ids = [f"{number:03}" for number in range(450)]
    await set_apart(harness, *ids)
    reply = await admin.post("/v1/dead-letters:replay", json={"service": "quota"})
    assert reply.status_code == 202
    assert reply.json()["ids"] == [f"received-{each}" for each in ids]


async def test_a_replay_is_carried_out_and_audited(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    await set_apart(harness, "a", "b")
    body = {"service": "quota", "ids": ["received-a"]}
    reply = await admin.post("/v1/dead-letters:replay", json=body)
    assert (reply.status_code, reply.json()) == (202, body)

    async def tried() -> bool:
        items = (await admin.get("/v1/dead-letters?service=quota")).json()["items"]
        return [each["replays"] for each in items] == [1, 0]

    # It still cannot be read: the letter stays, with what is wrong now.
    await until(tried)
    wrong = {"service": "quota", "ids": ["received-z"]}
    assert (await admin.post("/v1/dead-letters:replay", json=wrong)).status_code == 404
    trail = (await admin.get("/v1/audit?limit=2")).json()["items"]
    recorded = [(each["action"], each["target"], each["outcome"]) for each in trail]
    assert recorded == [
        ("dead-letters.replay", "quota: 1", "not-found"),
        ("dead-letters.replay", "quota: 1", "done"),
    ]


async def test_discarded_letters_are_gone_and_audited(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    ids = [f"{number:03}" for number in range(250)]
    await set_apart(harness, *ids)
    body = {"service": "quota", "ids": ["received-007"]}
    reply = await admin.post("/v1/dead-letters:discard", json=body)
    assert (reply.status_code, reply.json()) == (200, body)
    # What is gone cannot be named again, and then nothing else is dropped.
    wrong = {"service": "quota", "ids": ["received-001", "received-007"]}
    refused = await admin.post("/v1/dead-letters:discard", json=wrong)
    assert refused.status_code == 404
    assert "received-007" in refused.text
    reply = await admin.post("/v1/dead-letters:discard", json={"service": "quota"})
    assert len(reply.json()["ids"]) == 249
    left = (await admin.get("/v1/dead-letters?service=quota")).json()["items"]
    assert left == []
    bodies = harness.database.rows(QUOTA_TABLES, DeadLetterBody)
    assert not bodies
    trail = (await admin.get("/v1/audit?limit=3")).json()["items"]
    assert [(each["action"], each["target"], each["outcome"]) for each in trail] == [
        ("dead-letters.discard", "quota: all", "done"),
        ("dead-letters.discard", "quota: 2", "not-found"),
        ("dead-letters.discard", "quota: 1", "done"),
    ]


async def test_a_limit_out_of_range_has_a_readable_error(admin: httpx.AsyncClient) -> None:
    body = b'{"limit": 99999999999999999999}'
    reply = await admin.put(
        "/v1/quotas", content=body, headers={"content-type": "application/json"}
    )
    (error,) = reply.json()["errors"]
    assert (error["message"], error["fix"]) == ("is too large", "give a smaller number")


async def test_a_team_with_users_is_refused_with_how_to_move_them(
    admin: httpx.AsyncClient,
) -> None:
    await admin.post("/v1/teams", json={"name": "nlp"})
    await admin.post("/v1/users", json={"name": "bob", "team": "nlp"})
    (error,) = (await admin.delete("/v1/teams/nlp")).json()["errors"]
    shown = typed.in_commands(error["fix"])
    assert shown == "move them first: shiftwork user set bob --team=TEAM"


async def test_lists_of_nodes_tokens_users_and_audit_entries_are_filtered(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    await harness.project(
        a_node("n0", labels={"disk": "ssd"}), a_node("n1", ready=False), a_node("n2", group="b")
    )
    token = await harness.member("ann")
    await admin.post("/v1/users", json={"name": "bob"})
    await admin.patch("/v1/users/bob", json={"disabled": True})
    async with harness.client(token) as ann:
        (made,) = (await ann.get("/v1/tokens")).json()["items"]
        other = (await ann.post("/v1/tokens", json={"name": "other"})).json()["id"]
        await ann.delete(f"/v1/tokens/{other}")

    async def found(path: str, key: str) -> list[str]:
        reply = await admin.get(path)
        assert reply.status_code == 200, reply.text
        return [item[key] for item in reply.json()["items"]]

    assert await found("/v1/nodes?ready=true", "id") == ["n0", "n2"]
    assert await found("/v1/nodes?ready=false", "id") == ["n1"]
    assert await found("/v1/nodes?schedulable=true&group=default", "id") == ["n0", "n1"]
    assert await found("/v1/nodes?label=disk=ssd", "id") == ["n0"]
    assert (await admin.get("/v1/nodes?label=disk")).status_code == 422
    assert await found("/v1/tokens?user=ann&revoked=false", "id") == [made["id"]]
    assert await found("/v1/tokens?user=ann&revoked=true", "id") == [other]
    assert await found("/v1/users?disabled=true", "name") == ["bob"]
    actions = await found(f"/v1/audit?token={made['id']}", "action")
    assert actions == ["token.revoke", "token.add"]
    assert await found("/v1/audit?address=192.0.2.1", "id") == []
