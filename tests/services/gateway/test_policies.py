"""Policies over HTTP; the tests answer as the scheduler would."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from libs.contracts import messages as m
from tests.kit.clock import at
from tests.services.gateway.gateway_harness import GatewayHarness

FILE = "groups:\n  training: {policy: fifo}\n"


def a_record(group: str, **fields: Any) -> m.PolicyRecord:
    known: dict[str, Any] = {
        "group": group,
        "policy": "fifo",
        "document": json.dumps({"policy": "fifo", "protected": "10m"}),
        "version": 3,
        "source": m.PolicySource.COMMAND,
        "changed_by": "ada",
        "changed_at": at(5),
    }
    return m.PolicyRecord(**{**known, **fields})


async def test_everybody_may_read_how_groups_are_shared(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    plain = {"source": m.PolicySource.DEFAULT, "version": 0, "changed_by": "", "changed_at": None}
    harness.others.policies = [a_record("dev", **plain), a_record("training")]
    first, second = (await ann.get("/v1/policies")).json()["items"]
    assert (first["source"], first["version"], first["changed_at"]) == ("default", 0, None)
    assert second == {
        "group": "training",
        "policy": "fifo",
        "document": {"policy": "fifo", "protected": "10m"},
        "version": 3,
        "source": "command",
        "changed_by": "ada",
        "changed_at": "2026-01-01T00:00:05Z",
    }
    assert (await ann.get("/v1/policies/training")).json() == second
    missing = await ann.get("/v1/policies/nowhere")
    assert (missing.status_code, missing.json()["type"]) == (404, "not-found")


async def test_policies_come_in_pages(harness: GatewayHarness, ann: httpx.AsyncClient) -> None:
    harness.others.policies = [a_record(f"g{number}") for number in range(5)]
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = (await ann.get(f"/v1/policies?limit=2&cursor={cursor}")).json()
        found += [each["group"] for each in page["items"]]
        cursor = page["next_cursor"]
    assert found == ["g0", "g1", "g2", "g3", "g4"]
    assert (await ann.get("/v1/policies?cursor=nonsense")).status_code == 422


async def test_a_file_goes_to_the_scheduler_as_it_is(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    strange = m.FieldError(field="groups.training", value="", message="m", fix="f")
    harness.others.policy_set = m.SetPolicyReply(
        versions={"training": 4}, changed=("training",), warnings=(strange,)
    )
    kind = {"content-type": "application/yaml"}
    reply = await admin.put("/v1/policies", content=FILE, headers=kind)
    assert reply.status_code == 200, reply.text
    assert reply.json() == {
        "versions": {"training": 4},
        "changed": ["training"],
        "warnings": [strange.model_dump()],
    }
    asked = harness.others.asked[-1]
    assert asked == m.SetPolicy(document=FILE, asked_by="admin")
    (entry,) = (await admin.get("/v1/audit?limit=1")).json()["items"]
    assert (entry["action"], entry["target"]) == ("policy.set", "group=*")
    assert entry["detail"] == "changed: training"


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", "/v1/policies"), ("POST", "/v1/policies:dry-run")]
)
async def test_a_policy_for_an_unknown_user_is_refused_unless_forced(
    harness: GatewayHarness, admin: httpx.AsyncClient, method: str, path: str
) -> None:
    await harness.member("anna")
    place = "groups.training.virtual_clusters[0].users[1]"
    harness.others.policy_set = m.SetPolicyReply(users={"a": "anna", place: "ana"}, teams={})
    reply = await admin.request(method, path, content=FILE)
    assert reply.status_code == 422
    (error,) = reply.json()["errors"]
    assert (error["field"], error["value"]) == (place, "ana")
    assert error["fix"].startswith("did you mean anna?")
    asked = harness.others.asked[-1]
    assert isinstance(asked, m.SetPolicy)
    assert asked.check_only
    assert (await admin.request(method, f"{path}?force=true", content=FILE)).status_code == 200
    (entry, *_) = (await admin.get("/v1/audit?limit=1")).json()["items"]
    if method == "PUT":
        assert entry["outcome"] == "done"


async def test_one_groups_policy_is_set_and_removed(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    reply = await admin.put("/v1/policies/training", json={"policy": "fifo"})
    assert reply.status_code == 200, reply.text
    asked = harness.others.asked[-1]
    assert isinstance(asked, m.SetPolicy)
    assert (json.loads(asked.document), asked.group) == ({"policy": "fifo"}, "training")
    assert (await admin.delete("/v1/policies/training")).status_code == 200
    asked = harness.others.asked[-1]
    assert isinstance(asked, m.SetPolicy)
    assert (json.loads(asked.document), asked.group) == ({"groups": {"training": None}}, "")


async def test_the_schedulers_errors_come_with_their_paths(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    path = "groups.training.virtual_clusters[2].parent"
    error = m.FieldError(field=path, value="vison", message="is none", fix="did you mean vision?")
    refusal = m.Refusal(code=m.RefusalCode.INVALID, detail="is none", errors=(error,))
    harness.others.policy_set = m.SetPolicyReply(refusal=refusal)
    harness.others.policy_dry_run = m.DryRunPolicyReply(refusal=refusal)
    for reply in (
        await admin.put("/v1/policies", content=FILE),
        await admin.post("/v1/policies:dry-run", content=FILE),
    ):
        assert reply.status_code == 422
        assert reply.headers["content-type"] == "application/problem+json"
        assert reply.json()["errors"] == [error.model_dump()]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/v1/policies"),
        ("PUT", "/v1/policies/training"),
        ("DELETE", "/v1/policies/training"),
        ("POST", "/v1/policies:dry-run"),
    ],
)
async def test_only_administrators_change_or_try_policies(
    harness: GatewayHarness, ann: httpx.AsyncClient, method: str, path: str
) -> None:
    reply = await ann.request(method, path, content=None if method == "DELETE" else FILE)
    assert (reply.status_code, reply.json()["type"]) == (403, "forbidden")
    assert not any(isinstance(each, m.SetPolicy | m.DryRunPolicy) for each in harness.others.asked)


async def test_a_body_must_be_text(harness: GatewayHarness, admin: httpx.AsyncClient) -> None:
    assert (await admin.put("/v1/policies", content=b"\xff\xfe")).status_code == 400
    empty = await admin.put("/v1/policies", content=b" \n")
    assert (empty.status_code, empty.json()["errors"][0]["field"]) == (422, "document")
    large = await admin.put("/v1/policies", content=b"# " + b"x" * 2_000_000)
    assert large.status_code == 413
    assert not any(isinstance(each, m.SetPolicy) for each in harness.others.asked)


async def test_a_dry_run_lists_the_differences(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    waits = m.Reason(code=m.ReasonCode.WAITS_FOR_CAPACITY)
    asked_to_go = m.Verdict(
        kind="preempt",
        reason=m.Reason(code=m.ReasonCode.PREEMPTED_BY, names={"task": "new"}),
        beneficiary="new",
    )
    effect = m.PolicyEffect(
        task_id="t1",
        name="train",
        owner="ann",
        group="training",
        state=m.TaskState.RUNNING,
        nodes=2,
        now=m.Verdict(),
        then=asked_to_go,
    )
    outlook = m.PolicyOutlook(
        group="training",
        now=m.PolicyRound(waiting=1, gpus_held=16),
        then=m.PolicyRound(preemptions=1, promised=1, gpu_seconds_at_risk=1.5),
    )
    waiting = m.Verdict(kind="wait", reason=waits)
    second = effect.model_copy(update={"task_id": "t2", "now": waiting, "then": m.Verdict()})
    harness.others.policy_dry_run = m.DryRunPolicyReply(
        effects=(effect, second), more=7, outlooks=(outlook,), decided_at=at(1)
    )
    reply = await admin.post("/v1/policies:dry-run?group=training&limit=2", json={"policy": "fifo"})
    assert reply.status_code == 200, reply.text
    asked = harness.others.asked[-1]
    assert isinstance(asked, m.DryRunPolicy)
    assert (asked.group, asked.limit) == ("training", 2)
    found = reply.json()
    assert (found["more"], found["warnings"], found["decided_at"]) == (
        7,
        [],
        "2026-01-01T00:00:01Z",
    )
    one, two = found["effects"]
    assert (one["task"], one["state"], one["now"]) == ("t1", "running", None)
    assert one["then"]["decision"] == "preempt"
    assert one["then"]["beneficiary"] == "new"
    assert one["then"]["reason"]["code"] == "preempted_by"
    assert (two["now"]["decision"], two["now"]["beneficiary"], two["then"]) == ("wait", None, None)
    assert found["outlooks"][0]["then"]["gpu_seconds_at_risk"] == 1.5
    assert found["outlooks"][0]["now"]["gpus_held"] == 16
    assert (await admin.post("/v1/policies:dry-run?limit=0", content=FILE)).status_code == 422


async def test_a_change_is_in_the_event_log_once(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    record = a_record("training")
    event = m.PolicyChanged(group="training", policy=record, version=3, changed_at=at(5))
    await harness.project(event)
    # The event is published again, as after a reemit; the later one shows that it has been read.
    later = event.model_copy(update={"version": 4, "policy": a_record("training", version=4)})
    await harness.publish(event)
    await harness.project(later)
    items = (await ann.get("/v1/events?type=policy.changed")).json()["items"]
    assert [each["data"]["version"] for each in items] == [3, 4]
    assert items[0]["data"]["policy"]["changed_by"] == "ada"


async def test_what_the_scheduler_refuses_and_names_that_are_not_there_are_refused_together(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    shape = m.FieldError(field="groups.a.policy", value="x", message="is no policy", fix="f")
    refusal = m.Refusal(code=m.RefusalCode.INVALID, detail="d", errors=(shape,))
    await harness.member("ann")
    harness.others.policy_set = m.SetPolicyReply(refusal=refusal, users={"groups.a.users[0]": "an"})
    reply = await admin.put("/v1/policies", content=FILE)
    assert reply.status_code == 422
    fields = [error["field"] for error in reply.json()["errors"]]
    assert fields == ["groups.a.policy", "groups.a.users[0]"]
    assert reply.json()["detail"] == "groups.a.policy: is no policy (and 1 more)"
