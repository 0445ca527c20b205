"""``shiftwork queue``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.libs.sdk.cli.server import CliServer, a_task

if TYPE_CHECKING:
    from tests.libs.sdk.cli.conftest import Shiftwork

pytestmark = pytest.mark.server


def test_the_queue_is_shown_in_the_servers_order_with_what_each_task_waits_for(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    server.tasks = {
        "tz": a_task("tz", name="first"),
        "tr": a_task("tr", state="running"),
        "ta": a_task("ta", name="second", owner="bob"),
    }
    lines = [line.split() for line in shiftwork("queue").out.splitlines()]
    assert lines[0][:4] == ["PLACE", "ID", "NAME", "OWNER"]
    assert [row[:4] for row in lines[1:]] == [
        ["1", "tz", "first", server.tasks["tz"]["owner"]],
        ["2", "ta", "second", "bob"],
    ]
    assert "waits for 1 GPU" in " ".join(lines[1])
    document = shiftwork("queue", "--json").json
    assert [row["id"] for row in document["items"]] == ["tz", "ta"]


def test_ones_own_tasks_keep_their_places(shiftwork: Shiftwork, server: CliServer) -> None:
    server.tasks = {"ta": a_task("ta", owner="bob"), "tb": a_task("tb")}
    lines = shiftwork("queue", "--mine").out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["2", "tb"]]


def test_a_hidden_task_is_a_place_without_a_name(shiftwork: Shiftwork, server: CliServer) -> None:
    hidden = {"id": None, "name": None, "owner": None, "team": None, "reason": None}
    server.tasks = {"ta": a_task("ta", hidden=True, **hidden), "tb": a_task("tb")}
    first, second = shiftwork("queue").out.splitlines()[1:]
    assert first.split()[:4] == ["1", "-", "-", "-"]
    assert second.split()[1] == "tb"


def test_an_empty_queue_and_a_queue_that_is_cut(shiftwork: Shiftwork, server: CliServer) -> None:
    assert "no task waits" in shiftwork("queue").err
    server.first["GET", "/v1/queue"] = [(200, {"items": [], "next_cursor": "x"})]
    assert "raise --limit" in shiftwork("queue", "--limit", "1").err
    assert server.asked("GET", "/v1/queue").query["limit"] == "1"


def test_one_group_alone_is_asked_for(shiftwork: Shiftwork, server: CliServer) -> None:
    shiftwork("queue", "--group", "dev")
    assert server.asked("GET", "/v1/queue").query["group"] == "dev"
