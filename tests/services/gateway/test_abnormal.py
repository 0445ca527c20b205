"""Abnormal tasks at the gateway: tags by events in any order, audit trail, and who sees what."""

from __future__ import annotations

import itertools

import httpx
import pytest

from libs.contracts import messages as m
from services.gateway.permissions import Role
from services.monitor.abnormal.store import FindingRow
from services.monitor.main import WIRING as MONITOR
from tests.kit.clock import at
from tests.kit.waiting import until
from tests.services.gateway.gateway_harness import GatewayHarness


def changed(task_id: str, version: int, *, tagged: bool = True) -> m.AbnormalTaskChanged:
    over = version % 2 == 0
    return m.AbnormalTaskChanged(
        task_id=task_id,
        attempt=1,
        rule="idle_gpus",
        version=version,
        began_at=at(version),
        ended_at=at(version) if over else None,
        detail="2 of 4 GPUs",
        suggestion="shiftwork metrics x",
        tagged=tagged and not over,
        changed_at=at(version),
    )


def settled(task_id: str, outcome: m.AbnormalOutcome) -> m.AbnormalActionSettled:
    return m.AbnormalActionSettled(
        task_id=task_id,
        attempt=1,
        rule="idle_gpus",
        version=1,
        action=m.AbnormalAction.STOP,
        outcome=outcome,
        detail="it was asked to stop",
        settled_at=at(5),
    )


async def tags(admin: httpx.AsyncClient, task_id: str) -> list[str]:
    return (await admin.get(f"/v1/tasks/{task_id}")).json()["abnormal"]


async def all_projected(
    harness: GatewayHarness, admin: httpx.AsyncClient, task_id: str, marker: int
) -> None:
    """Everything that was published is projected: an event behind it is in the log."""
    await harness.publish(m.RunListened(task_id=task_id, attempt=marker, asked_at=at(1)))

    async def logged() -> bool:
        reply = await admin.get("/v1/events?type=run.listened")
        return marker in {each["attempt"] for each in reply.json()["items"]}

    await until(logged)


@pytest.mark.parametrize("order", [*itertools.permutations((1, 2, 3))])
async def test_the_newest_event_of_a_rule_decides_the_tag(
    harness: GatewayHarness, admin: httpx.AsyncClient, order: tuple[int, ...]
) -> None:
    task = (await harness.submitted(admin))["id"]
    seen: list[int] = []
    for version in order:
        seen.append(version)
        await harness.publish(changed(task, version), changed(task, version))
        await all_projected(harness, admin, task, version)
        assert await tags(admin, task) == (["idle_gpus"] if max(seen) % 2 else [])


async def test_a_rule_that_does_not_tag_leaves_the_task_as_it_is(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    task = (await harness.submitted(admin))["id"]
    await harness.project(changed(task, 1, tagged=False))
    assert await tags(admin, task) == []


async def test_the_audit_trail_names_the_rule_once(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    task = (await harness.submitted(admin))["id"]
    done = settled(task, m.AbnormalOutcome.DONE)
    withdrawn = settled(task, m.AbnormalOutcome.WITHDRAWN).model_copy(update={"version": 3})
    await harness.publish(done, done, withdrawn)
    await all_projected(harness, admin, task, 1)
    (entry,) = (await admin.get("/v1/audit?action=abnormal")).json()["items"]
    assert (entry["who"], entry["action"]) == ("rule:idle_gpus", "abnormal.stop")
    assert (entry["target"], entry["outcome"]) == (task, "done")
    assert entry["detail"] == f"it was asked to stop (task {task}, attempt 1)"
    logged = (await admin.get("/v1/events?type=task.abnormal_action_settled")).json()["items"]
    assert [each["data"]["version"] for each in logged] == [1, 3]


@pytest.mark.parametrize(
    ("harness", "seen"),
    [
        ({"visibility": "own"}, {"tann"}),
        ({"visibility": "team"}, {"tann", "tbob"}),
        ({"visibility": "all"}, {"tann", "tbob", "teve"}),
    ],
    indirect=["harness"],
)
async def test_a_user_sees_the_findings_of_the_tasks_that_it_sees(
    harness: GatewayHarness, admin: httpx.AsyncClient, seen: set[str]
) -> None:
    ann = await harness.member("ann", team="vision", role=Role.USER)
    monitor = harness.store(MONITOR.tables)
    async with monitor.transaction() as tx:
        for owner, team in (("ann", "vision"), ("bob", "vision"), ("eve", "speech")):
            tx.put(
                FindingRow(
                    id=f"t{owner}.idle_gpus",
                    task_id=f"t{owner}",
                    rule="idle_gpus",
                    owner=owner,
                    team=team,
                    group="default",
                    name="train",
                    attempt=1,
                    version=1,
                    began_at=at(1),
                    detail="2 of 4 GPUs",
                    suggestion="shiftwork metrics x",
                    tagged=True,
                )
            )

    async def listed(client: httpx.AsyncClient, query: str = "") -> set[str]:
        reply = await client.get(f"/v1/abnormal{query}")
        assert reply.status_code == 200, reply.text
        return {each["task_id"] for each in reply.json()["items"]}

    async with harness.client(ann) as client:
        assert await listed(client) == seen
        assert await listed(client, "?task_id=teve") == seen & {"teve"}
    assert await listed(admin) == {"tann", "tbob", "teve"}
    assert await listed(admin, "?team=vision&rule=idle_gpus") == {"tann", "tbob"}
    page = (await admin.get("/v1/abnormal?limit=2")).json()
    assert len(page["items"]) == 2
    assert await listed(admin, f"?cursor={page['next_cursor']}") == {"teve"}
    wrong = await admin.get("/v1/abnormal?rule=idle")
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "rule")
    rules = (await admin.get("/v1/abnormal/rules")).json()["items"]
    assert [each["name"] for each in rules][:2] == ["idle_gpus", "long_run"]
    assert rules[0]["actions"] == ["notify", "tag"]
