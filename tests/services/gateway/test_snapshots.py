"""Answers to reads: their ETags, and their place in the event log."""

from __future__ import annotations

import httpx

from tests.services.gateway.gateway_harness import GatewayHarness, a_node


async def test_an_answer_that_the_caller_has_is_not_sent_again(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    await harness.project(a_node("n0"))
    first = await admin.get("/v1/nodes")
    etag = first.headers["etag"]
    for known in (etag, f'"other", {etag}', f"W/{etag}", "*"):
        again = await admin.get("/v1/nodes", headers={"if-none-match": known})
        assert (again.status_code, again.content) == (304, b""), known
        assert again.headers["etag"] == etag
        assert int(again.headers["x-shiftwork-position"]) >= 1
    assert (await admin.get("/v1/nodes", headers={"if-none-match": '"x"'})).status_code == 200
    await harness.project(a_node("n1"))
    changed = await admin.get("/v1/nodes", headers={"if-none-match": etag})
    assert (changed.status_code, changed.headers["etag"] != etag) == (200, True)


async def test_a_refusal_has_no_etag(admin: httpx.AsyncClient) -> None:
    reply = await admin.get("/v1/tasks/nobody", headers={"if-none-match": "*"})
    assert (reply.status_code, "etag" in reply.headers) == (404, False)


async def test_events_continue_from_the_position_of_an_answer(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    await harness.submitted(admin)
    nodes = await admin.get("/v1/nodes")
    position = nodes.headers["x-shiftwork-position"]
    assert nodes.json()["items"] == []
    await harness.project(a_node("n0"))
    page = (await admin.get(f"/v1/events?from={position}")).json()["items"]
    assert "node.changed" in [event["type"] for event in page]
    latest = (await admin.get("/v1/nodes")).headers["x-shiftwork-position"]
    assert (await admin.get(f"/v1/events?from={latest}")).json()["items"] == []
