"""Nodes, quotas, people and shells by the real program."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from shiftwork.cli import timeline

from tests.e2e.conftest import TRAINING, Shiftwork

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(120)]

LONG = ("--gpus-per-node", "1", "--preempt", "kill", "--", "sleep", "600")


def state_of(shiftwork: Shiftwork, node: str) -> str:
    lines = [line.split() for line in shiftwork.good("nodes").out.splitlines()]
    return next(line[2] for line in lines if line[0] == node)


def node_of(shiftwork: Shiftwork, task: str) -> str:
    nodes = shiftwork.good("nodes", "--json").json["items"]
    return next(node["id"] for node in nodes if task in node["tasks"])


def test_nodes_are_listed(shiftwork: Shiftwork) -> None:
    nodes = shiftwork.good("nodes", "--json").json["items"]
    assert [(node["id"], node["gpus"], node["free_gpus"]) for node in nodes] == [
        ("local-0", 2, 2),
        ("local-1", 2, 2),
    ]
    assert shiftwork.good("group", "ls").out.splitlines()[1].split() == ["default", "2/2", "4/4"]


def test_cordoned_nodes_take_nothing_new(shiftwork: Shiftwork) -> None:
    task = shiftwork.submit("--name", "stays", *LONG)
    shiftwork.wait(task, "running")
    node = node_of(shiftwork, task)
    shiftwork.good("node", "cordon", node)
    assert state_of(shiftwork, node) == "cordoned"
    assert shiftwork.task(task)["state"] == "running"
    whole = shiftwork.submit("--name", "whole", "--nodes", "2", "--", "true")
    assert "come back" in shiftwork.good("explain", whole).out
    shiftwork.good("stop", task)
    shiftwork("wait", task)
    assert shiftwork.task(whole)["state"] == "queued"
    shiftwork.good("node", "uncordon", node)
    assert shiftwork("wait", whole, "--timeout", "20").code == 0


def test_a_drained_node_is_left_after_a_checkpoint(shiftwork: Shiftwork) -> None:
    line = ("--name", "drained", "--gpus-per-node", "1", "--", "python", "-c", TRAINING)
    task = shiftwork.submit(*line)
    shiftwork.wait(task, "running")
    first = node_of(shiftwork, task)
    shiftwork.good("node", "drain", first)
    # A program that saves at once has left before anybody looks.
    assert state_of(shiftwork, first) in {"draining", "drained"}
    shiftwork("wait", task, "--for", "queued,starting", "--timeout", "3")
    shiftwork.wait(task, "running")
    moved = shiftwork.task(task)
    assert moved["checkpoint"]["attempt"] == moved["attempt"] - 1
    assert node_of(shiftwork, task) != first
    assert f"leaves node {first}" in shiftwork.good("events", task).out


def test_quotas_refuse_delay_and_go_away(shiftwork: Shiftwork) -> None:
    scope = ("--user", "admin", "--group", "default")
    shiftwork.good("quota", "set", *scope, "--gpus", "1")
    try:
        assert shiftwork.good("quota", "ls").out.splitlines()[1].split()[:7] == [
            *("cap", "default", "admin", "every", "every", "1", "gpu")
        ]
        refused = shiftwork("submit", "--gpus-per-node", "2", "--", "true")
        assert (refused.code, "quota" in refused.err) == (1, True)
        first = shiftwork.submit("--name", "within", *LONG)
        shiftwork.wait(first, "running")
        second = shiftwork.submit("--name", "beyond", "--gpus-per-node", "1", "--", "true")
        shiftwork.wait(second, "queued")
        why = shiftwork.good("explain", second).out
        assert "waits for the quota of user admin in group default" in why
    finally:
        shiftwork.good("quota", "set", *scope, "--unlimited")
    assert shiftwork("wait", second, "--timeout", "20").code == 0
    assert shiftwork.good("quota", "ls").out == ""
    output = shiftwork.good("events", "--type", "quota.changed", "--from", "0").out
    assert "quota of admin in group default: at most 1 GPU, by admin" in output
    assert "quota of admin in group default: removed, by admin" in output


def test_grants_permit_expire_and_are_explained(shiftwork: Shiftwork) -> None:
    own = ("--grant", "--user", "admin")
    high = (*own, "--priority", "high", "--group", "default")
    shiftwork.good("quota", "default", "normal")
    first = ""
    try:
        refused = shiftwork("submit", "--priority", "high", "--", "true")
        assert (refused.code, "nothing above normal" in refused.err) == (1, True)
        shiftwork.good("quota", "set", *high, "--gpus", "1")
        first = shiftwork.submit("--priority", "high", *LONG)
        shiftwork.wait(first, "running")
        second = shiftwork.submit("--priority", "high", "--gpus-per-node", "1", "--", "true")
        shiftwork.wait(second, "queued")
        why = shiftwork.good("explain", second).out
        assert "waits for admin's grant of 1 GPU at high in group default: it needs 1 GPU" in why
        rows = shiftwork.good("quota", "explain", "--json").json["permissions"]
        (row,) = [each for each in rows if each["priority"] == "high"]
        assert (row["limit"], row["held"], row["free"], row["site"]) == (1, 1, 0, False)
        # What was granted for a while ends by itself; what runs goes on.
        shiftwork.good("quota", "set", *high, "--gpus", "2", "--expires", "6s")
        assert shiftwork("wait", second, "--timeout", "20").code == 0
        for _ in range(60):
            if "high" not in shiftwork.good("quota", "ls").out:
                break
            time.sleep(0.5)
        assert (
            "expired, set by admin"
            in shiftwork.good("events", "--type", "quota.changed", "--from", "0").out
        )
        assert shiftwork.task(first)["state"] == "running"
        assert shiftwork("submit", "--priority", "high", "--", "true").code == 1
    finally:
        if first:
            shiftwork("stop", first)
        shiftwork.good("quota", "set", "--grant", "--remove")


def test_members_change_their_own_tasks_only(shiftwork: Shiftwork) -> None:
    shiftwork.good("team", "add", "vision")
    shiftwork.good("user", "add", "ann", "--team", "vision")
    token = shiftwork.good("token", "create", "--user", "ann", "--name", "laptop").out.strip()
    ann = replace(shiftwork, environ={"SHIFTWORK_TOKEN": token})
    assert ann.good("whoami", "--json").json["team"] == "vision"
    theirs = shiftwork.submit("--name", "theirs", "--env", "SECRET=1", *LONG)
    assert ann.task(theirs)["state"] in ("queued", "starting", "running")
    assert "env" not in ann.task(theirs)
    for refused in (
        ("stop", theirs),
        ("priority", theirs, "low"),
        ("node", "drain", "local-0"),
        ("quota", "set", "--gpus", "1"),
        ("user", "add", "bob"),
    ):
        assert ann(*refused).code == 1, refused
    mine = ann.submit("--name", "mine", *LONG)
    assert [task["id"] for task in ann.good("ls", "--mine", "--json").json["items"]] == [mine]
    ann.good("stop", "mine")
    tokens = shiftwork.good("token", "ls", "--json").json["items"]
    assert token not in str(tokens)
    shiftwork.good("token", "revoke", next(each["id"] for each in tokens if each["user"] == "ann"))
    shiftwork.good("user", "set", "ann", "--disable")
    # A revoked token may be known for some seconds more.
    assert any(ann("ls").code == 1 for _ in range(20))


def test_every_kind_of_event_has_its_sentence(shiftwork: Shiftwork) -> None:
    shiftwork.good("submit", "-f", "--", "true")
    events = shiftwork.good("events", "--from", "0", "--json").json["items"]
    assert {event["type"] for event in events} <= set(timeline.SENTENCES)
    assert "node local-0 ready" in shiftwork.good("events", "--from", "0").out


def test_shells(shiftwork: Shiftwork) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "shiftwork" in shiftwork.good("completion", shell).out
    assert shiftwork("completion", "csh").code == 2
    assert shiftwork.good("version", "--json").json["client"]


def test_policies_are_tried_set_and_taken_away(shiftwork: Shiftwork, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("groups: {default: {polcy: fifo, virtual_clusters: [{name: a, nodes: 9}]}}")
    refused = shiftwork("policy", "set", str(file))
    assert refused.code == 1
    assert "groups.default.polcy fifo: is no key of this section (and 1 more)" in refused.err
    assert "did you mean policy?" in refused.err
    assert "guarantees 9 nodes of 2 that are known in the group" in refused.err
    file.write_text("groups: {default: {policy: fifo}}")
    assert shiftwork.good("policy", "dry-run", str(file), "--json").json["more"] == 0
    assert "default: version 1" in shiftwork.good("policy", "set", str(file)).err
    row = shiftwork.good("policy", "show").out.splitlines()[1].split()
    assert row[:6] == ["default", "fifo", "command", "1", "0", "admin"]
    shown = tmp_path / "shown.yaml"
    shown.write_text(shiftwork.good("policy", "show", "default").out)
    assert "default: version 1, unchanged" in shiftwork.good("policy", "set", str(shown)).err
    assert "default: version 2" in shiftwork.good("policy", "unset", "default").err
    assert shiftwork.good("policy", "show", "default", "--json").json["source"] == "default"
    output = shiftwork.good("events", "--type", "policy.changed", "--from", "0").out
    assert "policy of group default: fifo (version 1, command), by admin" in output
