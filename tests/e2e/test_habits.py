"""What is refused at submission, and what people type out of habit, against the real platform."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.e2e.conftest import Shiftwork

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(180)]
LONG = ("--gpus-per-node", "1", "--preempt", "kill", "--", "sleep", "600")


def test_labels_that_no_node_has_are_refused_and_forced_tasks_wait(shiftwork: Shiftwork) -> None:
    shiftwork.good("node", "label", "local-0", "disk=hdd")
    try:
        wanted = ("--node-selector", "disk=nvme")
        refused = shiftwork("submit", *wanted, "--", "true")
        assert (refused.code, refused.out) == (1, "")
        assert "--node-selector disk=nvme: no node of group default has disk=nvme" in refused.err
        assert "labels there are: disk=hdd" in refused.err
        assert "--force" in refused.err
        shiftwork.good("node", "cordon", "local-0")
        cordoned = shiftwork.submit("--node-selector", "disk=hdd", "--", "true")
        forced = shiftwork.submit("--force", *wanted, "--", "true")
        shiftwork.good("node", "uncordon", "local-0")
        assert shiftwork("wait", cordoned, "--timeout", "30").code == 0
        assert shiftwork.task(forced)["state"] == "queued"
        shiftwork.good("node", "label", "local-1", "disk=nvme")
        assert shiftwork("wait", forced, "--timeout", "30").code == 0
    finally:
        shiftwork.good("node", "label", "local-0", "disk", "--remove")
        shiftwork.good("node", "label", "local-1", "disk", "--remove")


def test_names_of_nobody_are_refused_unless_forced(shiftwork: Shiftwork) -> None:
    refused = shiftwork("quota", "set", "--user", "amdin", "--gpus", "1")
    assert refused.code == 1
    assert '--user amdin: there is no user "amdin"' in refused.err
    assert "did you mean admin?" in refused.err
    shiftwork.good("quota", "set", "--user", "amdin", "--gpus", "1", "--force")
    shiftwork.good("quota", "set", "--user", "amdin", "--unlimited")
    file = shiftwork.home / "policy.yaml"
    file.write_text(
        "groups: {lab: {policy: fifo, virtual_clusters: [{name: a, nodes: 0, users: [amdin]}]}}\n"
    )
    for command in ("set", "dry-run"):
        refused = shiftwork("policy", command, str(file))
        assert refused.code == 1
        assert str(file) in refused.err
        assert "groups.lab.virtual_clusters[0].users[0]" in refused.err
        assert "did you mean admin?" in refused.err
        assert 'there is no group "lab"' in refused.err
    shiftwork.good("policy", "set", str(file), "--force")
    shiftwork.good("policy", "unset", "lab")


def test_an_error_names_the_argument_that_was_typed(shiftwork: Shiftwork) -> None:
    done = shiftwork.submit("--name", "over", "--", "true")
    assert shiftwork("wait", done).code == 0
    assert shiftwork("stop", "over").err == (
        "error: over has already succeeded\n  where: TASK\n"
        "  fix:   run it again with: shiftwork retry over\n"
    )
    live = shiftwork.submit("--name", "live", *LONG)
    shiftwork.wait(live, "running")
    assert "error: live is still running\n" in shiftwork("retry", "live").err
    assert shiftwork.good("resume", "live").err == f"live ({live}) is already running\n"
    refused = shiftwork("submit", "--ack-deadline", "9h", "--", "true").err
    assert "error: --ack-deadline 9h: is not between 1s and 1h\n" in refused
    assert "SHIFTWORK_SUBMIT_ACK_DEADLINE_SECONDS_MAX" in refused
    assert "error: --gpus 9: " in shiftwork("submit", "--gpus", "9", "--", "true").err
    refused = shiftwork("node", "drain", "locl-0").err
    assert 'there is no node "locl-0"; did you mean local-0?' in refused
    assert "`shiftwork nodes`" in refused
    for line in (("user", "add", "tim", "--team", "x"), ("token", "create", "--user", "tim")):
        refused = shiftwork(*line).err
        assert line[-2] in refused
        assert "/v1" not in refused
    file = shiftwork.home / "task.yaml"
    file.write_text("command: python x\ngpus_per_nodes: 1\n")
    refused = shiftwork("submit", "--file", str(file)).err
    assert '["python", "x"]' in refused
    assert "did you mean gpus_per_node?" in refused
    error = shiftwork("submit", "--gpus", "9", "--json", "--", "true").problem["errors"][0]
    assert (error["field"], error["option"], error["value"]) == ("gpus_per_node", "--gpus", "9")


def test_a_dry_run_submits_nothing(shiftwork: Shiftwork) -> None:
    before = shiftwork.good("ls", "--all", "--json").json["items"]
    result = shiftwork.good("submit", "--dry-run", "--name", "maybe", "--nodes", "2", "--", "true")
    assert "2 of 2 nodes are free for it now" in result.out
    refused = shiftwork("submit", "--dry-run", "--nodes", "9", "--", "true")
    assert (refused.code, "--nodes 9: " in refused.err) == (1, True)
    assert shiftwork.good("ls", "--all", "--json").json["items"] == before


def test_a_retry_is_a_new_task_with_the_same_name(shiftwork: Shiftwork) -> None:
    first = shiftwork.submit("--name", "again", "--env", "A=1", "--", "sh", "-c", "exit $A")
    assert shiftwork("wait", first).code == 1
    second = shiftwork.good("retry", "again").out.strip()
    assert second != first
    assert shiftwork("wait", second).code == 1
    task = shiftwork.task("again")
    assert (task["id"], task["labels"]) == (second, {"retry-of": first})
    assert task["env"] == shiftwork.task(first)["env"]
    assert task["env"]["A"] == "1"
    shiftwork.good("user", "add", "rita")
    token = shiftwork.good("token", "create", "--user", "rita").out.strip()
    rita = replace(shiftwork, environ={"SHIFTWORK_TOKEN": token})
    assert rita("retry", first).code == 1


def test_everybody_stops_their_own_with_a_label(shiftwork: Shiftwork) -> None:
    shiftwork.good("user", "add", "sam")
    token = shiftwork.good("token", "create", "--user", "sam").out.strip()
    sam = replace(shiftwork, environ={"SHIFTWORK_TOKEN": token})
    theirs = sam.submit("--name", "a", "--label", "sweep=1", *LONG)
    mine = shiftwork.submit("--name", "a", "--label", "sweep=1", *LONG)
    other = shiftwork.submit("--name", "b", *LONG)
    listed = shiftwork.good("ls", "-l", "sweep=1", "--sort", "submitted_at", "--json").json
    assert [task["id"] for task in listed["items"]] == [theirs, mine]
    assert sam("stop", "--all", "-l", "sweep=1", "--all-users", "--yes").code == 1
    shiftwork("wait", theirs, "--timeout", "30")
    assert shiftwork.task(theirs)["state"] == "stopped"
    assert shiftwork.task(mine)["goal"] == "run"
    assert shiftwork("stop", "--all", "-l", "sweep=1").code == 2
    shiftwork.good("stop", "--all", "-l", "sweep=1", "--yes")
    assert (shiftwork.task(mine)["goal"], shiftwork.task(other)["goal"]) == ("stop", "run")


def test_a_drain_waits_until_the_node_is_empty(shiftwork: Shiftwork) -> None:
    task = shiftwork.submit("--name", "drained", *LONG)
    shiftwork.wait(task, "running")
    runs = shiftwork.good("nodes", "--json").json["items"]
    (node,) = [each["id"] for each in runs if each["tasks"]]
    done = shiftwork.good("node", "drain", node, "--wait", "--timeout", "30s")
    assert f"nothing runs on {node} any more" in done.err
    shown = {each["id"]: each for each in shiftwork.good("nodes", "--json").json["items"]}
    assert shown[node]["tasks"] == []
