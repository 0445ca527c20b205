"""Nodes, quotas, users and tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.libs.sdk.cli.server import NOW, CliServer

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
        {"id": "local-0", **node},
        {"id": "local-1", **node, "schedulable": False},
        {"id": "local-2", **node, "ready": False},
    ]
    rows = [line.split() for line in shiftwork("nodes").out.splitlines()[1:]]
    assert rows[0] == ["local-0", "default", "ready", "1/2", "4", "8", "GiB", "ta"]
    assert [row[2] for row in rows] == ["ready", "cordoned", "lost"]
    assert len(shiftwork("nodes", "--json").json["items"]) == 3


@pytest.mark.parametrize(("verb", "schedulable"), [("cordon", False), ("uncordon", True)])
def test_cordon(shiftwork: Shiftwork, server: CliServer, verb: str, schedulable: bool) -> None:
    assert shiftwork("node", verb, "local-0").code == 0
    asked = server.asked("PUT", "/v1/nodes/local-0/schedulable")
    assert asked.body == {"schedulable": schedulable}


def test_quota_set(shiftwork: Shiftwork, server: CliServer) -> None:
    line = "quota set --user bob --priority high --group default --gpus 4"
    done = shiftwork(*line.split())
    assert (done.code, done.out) == (0, "")
    assert "bob in default: at most 4 gpus" in done.err
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
    assert shiftwork("quota", "ls").out.splitlines()[1].split()[:6] == [
        "dev",
        "every",
        "every",
        "every",
        "3",
        "nodes",
    ]


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
