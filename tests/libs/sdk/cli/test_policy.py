"""Policies on the command line."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from shiftwork.cli.policy import yaml_lines

from services.scheduler.domain.model.group_policy import GroupPolicy
from services.scheduler.policy_documents import document_of, parse
from tests.libs.sdk.cli.server import NOW, CliServer, problem

if TYPE_CHECKING:
    from pathlib import Path

    from tests.libs.sdk.cli.conftest import Shiftwork

pytestmark = pytest.mark.server

FILE = "groups:\n  training: {policy: fifo}\n"
DOCUMENT = {
    "policy": "timeshare",
    "timeshare": {"pass": "1m", "use_limits": True},
    "demotions": [],
    "shares": {"users": {}, "teams": {"vision": 2}},
    "virtual_clusters": [{"name": "lab", "nodes": 4, "teams": ["vision", "speech"]}],
    "protected": None,
    "topology": ["zone", "rack"],
}
POLICY = {
    "group": "training",
    "policy": "timeshare",
    "document": DOCUMENT,
    "version": 3,
    "source": "command",
    "changed_by": "ada",
    "changed_at": NOW,
}


def a_file(tmp_path: Path, text: str = FILE) -> str:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    return str(path)


def test_show_lists_the_groups(shiftwork: Shiftwork, server: CliServer) -> None:
    other = {**POLICY, "group": "dev", "source": "default", "version": 0, "changed_by": None}
    answer = (200, {"items": [POLICY, {**other, "changed_at": None}], "next_cursor": None})
    server.first["GET", "/v1/policies"] = [answer, answer]
    lines = [line.split() for line in shiftwork("policy", "show").out.splitlines()]
    assert lines[1][:6] == ["training", "timeshare", "command", "3", "1", "ada"]
    assert lines[2] == ["dev", "timeshare", "default", "0", "1"]
    assert len(shiftwork("policy", "show", "--json").json["items"]) == 2


def test_show_of_one_group_is_a_policy_file(shiftwork: Shiftwork, server: CliServer) -> None:
    server.first["GET", "/v1/policies/training"] = [(200, POLICY), (200, POLICY)]
    done = shiftwork("policy", "show", "training")
    assert yaml.safe_load(done.out) == {"groups": {"training": DOCUMENT}}
    assert "version 3 (command), set by ada" in done.err
    assert shiftwork("policy", "show", "training", "--json").json == POLICY


def test_the_shown_policy_can_be_set_again() -> None:
    policy = parse("virtual_clusters: [{name: a, nodes: 1, users: [u]}]", group="no").policies[0]
    for one in (policy, GroupPolicy("no")):
        text = "\n".join(yaml_lines({"groups": {"no": document_of(one)}}))
        found = parse(text)
        assert found.errors == ()
        assert found.policies == (one,)


@pytest.mark.parametrize(
    "value",
    [
        {"a": []},
        {"a": {}},
        {"a": [{"b": 1, "c": [{"d": "x"}]}, {"e": None}]},
        {"a": ["true", "1", "1:30", "- x", "", "é", "a: b", "4h", "null", "2026-01-01"]},
        {"on": "off", "1": 1.5, "x y": "#"},
    ],
)
def test_yaml_is_read_as_what_it_was(value: Any) -> None:
    assert yaml.safe_load("\n".join(yaml_lines(value))) == value


def test_set_sends_the_file_as_it_is(
    shiftwork: Shiftwork, server: CliServer, tmp_path: Path
) -> None:
    answer = {"versions": {"training": 4, "dev": 1}, "changed": ["training"], "warnings": []}
    server.first["PUT", "/v1/policies"] = [(200, answer), (200, answer)]
    done = shiftwork("policy", "set", a_file(tmp_path))
    assert (done.code, done.out) == (0, "")
    assert done.err.splitlines() == ["dev: version 1, unchanged", "training: version 4"]
    asked = server.asked("PUT", "/v1/policies")
    assert (asked.body, asked.headers["content-type"]) == (FILE.encode(), "application/yaml")
    assert shiftwork("policy", "set", a_file(tmp_path), "--json").json == answer


def test_set_reads_standard_input(
    shiftwork: Shiftwork, server: CliServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    strange = {"field": "groups.x", "value": "x", "message": "has no nodes", "fix": "add some"}
    answer = {"versions": {"x": 1}, "changed": ["x"], "warnings": [strange]}
    server.first["PUT", "/v1/policies"] = [(200, answer)]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"groups: {x: {}}")))
    done = shiftwork("policy", "set", "-")
    assert "warning: groups.x: has no nodes; add some" in done.err
    assert server.asked("PUT", "/v1/policies").body == b"groups: {x: {}}"


def test_every_error_of_a_file_is_printed(
    shiftwork: Shiftwork, server: CliServer, tmp_path: Path
) -> None:
    errors = [
        {"field": f"groups.g{n}.policy", "value": "x", "message": "is not known", "fix": "fifo?"}
        for n in range(2)
    ]
    refused = problem(422, "invalid", "groups.g0.policy: is not known (and 1 more)", *errors)
    for verb, key in (
        ("set", ("PUT", "/v1/policies")),
        ("dry-run", ("POST", "/v1/policies:dry-run")),
    ):
        server.first[key] = [refused, refused]
        done = shiftwork("policy", verb, a_file(tmp_path))
        assert done.code == 1
        assert "groups.g0.policy 'x': is not known; fifo?" in done.err
        assert "groups.g1.policy 'x': is not known; fifo?" in done.err
        found = json.loads(shiftwork("policy", verb, a_file(tmp_path), "--json").err)
        assert found["errors"] == [{**each, "option": ""} for each in errors]


def test_files_that_cannot_be_sent(shiftwork: Shiftwork, tmp_path: Path) -> None:
    assert shiftwork("policy", "set", str(tmp_path / "nothing")).code == 2
    done = shiftwork("policy", "set", a_file(tmp_path, "x" * 300_000))
    assert (done.code, "larger than" in done.err) == (2, True)
    assert shiftwork("policy", "set").code == 2


def test_unset(shiftwork: Shiftwork, server: CliServer) -> None:
    answer = {"versions": {"training": 5}, "changed": ["training"], "warnings": []}
    server.first["DELETE", "/v1/policies/training"] = [(200, answer)]
    assert shiftwork("policy", "unset", "training").err == "training: version 5\n"


def a_round(**fields: float) -> dict[str, float]:
    names = ("starts", "promised", "preemptions", "waiting", "gpus_held", "gpus_handed_over")
    return {**dict.fromkeys(names, 0), "gpu_seconds_at_risk": 0.0, **fields}


def test_dry_run(shiftwork: Shiftwork, server: CliServer, tmp_path: Path) -> None:
    effect = {
        "task": "taaa",
        "name": "train",
        "owner": "ann",
        "group": "training",
        "state": "running",
        "nodes": 2,
        "now": None,
        "then": {
            "decision": "preempt",
            "reason": {"code": "preempted_by", "text": "makes room for new"},
            "beneficiary": "new",
        },
    }
    outlooks = [
        {
            "group": "training",
            "now": a_round(waiting=1),
            "then": a_round(waiting=1, preemptions=1, gpu_seconds_at_risk=7200.0),
        },
        {"group": "dev", "now": a_round(), "then": a_round()},
    ]
    answer = {"effects": [effect], "more": 3, "outlooks": outlooks, "warnings": []}
    path = "/v1/policies:dry-run"
    server.first["POST", path] = [(200, answer), (200, answer)]
    done = shiftwork("policy", "dry-run", a_file(tmp_path), "--limit", "1")
    lines = done.out.splitlines()
    assert lines[1].split("  ")[0] == "taaa"
    assert "as it is" in lines[1]
    assert "preempt: makes room for new" in lines[1]
    assert "and 3 tasks more" in done.err
    assert lines[-1].split() == [
        "training", "0", "0", "0", "->", "1", "1", "0", "0", "0s", "->", "2h",
    ]  # fmt: skip
    asked = server.asked("POST", path)
    assert (asked.body, asked.query) == (FILE.encode(), {"limit": "1"})
    assert shiftwork("policy", "dry-run", a_file(tmp_path), "--json").json == answer


def test_a_dry_run_without_effect_reports_so(
    shiftwork: Shiftwork, server: CliServer, tmp_path: Path
) -> None:
    answer: dict[str, Any] = {"effects": [], "more": 0, "outlooks": [], "warnings": []}
    server.first["POST", "/v1/policies:dry-run"] = [(200, answer)]
    done = shiftwork("policy", "dry-run", a_file(tmp_path))
    assert (done.code, done.out) == (0, "")
    assert "no decision would be different" in done.err
