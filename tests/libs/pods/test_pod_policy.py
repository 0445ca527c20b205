"""The policy file: valid contents, and the errors for invalid ones."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from libs.pods.pod_policy import Permission, PodPolicy, PolicyError, Rule, read_policy
from libs.pods.requester import Requester
from libs.pods.storage_grants import Scope, When
from tests.libs.pods.makers import ADA, a_task

ROOT = Path(__file__).resolve().parents[3]


def written(tmp_path: Path, document: Any) -> Path:
    path = tmp_path / "pods.yaml"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return path


def test_an_empty_file_grants_nothing(tmp_path: Path) -> None:
    policy = read_policy(written(tmp_path, ""))
    assert policy == PodPolicy()
    assert not any(policy.allows(each, ADA) for each in Permission)
    assert policy.storage == policy.capabilities == policy.resources == ()


def test_json_is_yaml(tmp_path: Path) -> None:
    assert read_policy(written(tmp_path, '{"default_image": "x:1"}')).default_image == "x:1"


GRANT = {"name": "a", "mount_path": "/a", "source": {"claim": {"name": "a"}}}
WRONG: list[tuple[Any, str]] = [
    ({"defaultimage": "x"}, "defaultimage: is not known"),
    ({"gpu_resource": "no good"}, "gpu_resource: 'no good' is no resource's name"),
    ({"allow": {"fly": [{}]}}, "allow.fly"),
    ({"allow": {"privileged": [{"user": ["ada"]}]}}, "allow.privileged.0.user: is not known"),
    ({"allow": ["privileged"]}, "allow"),
    ({"image_pull_policy": "Maybe"}, "(it is 'Maybe')"),
    ({"shm_bytes": -1}, "shm_bytes"),
    ({"shm_bytes": 5, "shm_bytes_max": 4}, "shm_bytes 5 is above shm_bytes_max"),
    ({"env": {"SHIFTWORK_X": "1"}}, "env: 'SHIFTWORK_X' is no variable, or one of the platform's"),
    ({"env": {"1": "1"}}, "env: '1'"),
    ({"labels": {"shiftwork.dev/task": "x"}}, "is set by the platform itself"),
    ({"labels": {"a": "no good"}}, "'no good' is no label's value"),
    ({"capabilities": [{"names": ["*"]}]}, "capabilities: '*' is none"),
    ({"images": [{"names": []}]}, "images.0.names"),
    ({"tolerate": ["a="]}, "tolerate.0"),
    ({"identities": {"ada": {"user": 0, "group": 5}}}, "identities.ada.user"),
    ({"host_path_roots": ["/"]}, "host_path_roots: '/' is no folder below /"),
    ({"host_path_roots": ["/a/../etc"]}, "host_path_roots: '/a/../etc'"),
    ({"storage": [GRANT, GRANT]}, "storage: a stands there twice"),
    ({"storage": [{**GRANT, "name": "A"}]}, "'A' is no grant's name"),
    ({"storage": [{**GRANT, "mount_path": "/shiftwork/x"}]}, "is taken"),
    ({"storage": [{**GRANT, "mount_path": "a"}]}, "is no plain path below /"),
    ({"storage": [{**GRANT, "sub_path": "../x"}]}, "sub_path"),
    ({"storage": [{**GRANT, "source": {}}]}, "give exactly one of host_path, claim"),
    (
        {"storage": [{**GRANT, "source": {"claim": {"name": "a"}, "empty_dir": {}}}]},
        "give exactly one of",
    ),
    (
        {"storage": [{**GRANT, "source": {"host_path": {"path": "/data/x"}}}]},
        "host path '/data/x' is below none of host_path_roots (none); list its folder there",
    ),
    (
        {"storage": [{**GRANT, "source": {"nfs": {"server": "s", "path": "/"}}}]},
        "server 's' fits none of nfs_servers (none); list it",
    ),
    (
        {
            "nfs_servers": ["s:/sets"],
            "storage": [{**GRANT, "source": {"nfs": {"server": "s", "path": "/home"}}}],
        },
        "nfs path '/home' is below no folder that nfs_servers lists for s; list it there",
    ),
    ({"nfs_servers": ["s:sets"]}, "nfs_servers: 's:sets' is neither SERVER nor SERVER:/PATH"),
    ({"metadata_keys": ["*/*"]}, "metadata_keys: '*/*' names no domain; write example.com/*"),
    ({"annotations": {"app.kubernetes.io/managed-by": "x"}}, "is set by the platform itself"),
    ({"storage": [{**GRANT, "source": {"claim": {"name": "A b"}}}]}, "is no object's name"),
    ({"storage": [{**GRANT, "when": {"priorities": ["huge"]}}]}, "storage.0.when.priorities.0"),
    ("a: [", "is neither YAML nor JSON"),
    ("[]", "the file"),
]


@pytest.mark.parametrize(("document", "problem"), WRONG, ids=str)
def test_an_error_in_the_file_names_its_place(tmp_path: Path, document: Any, problem: str) -> None:
    path = written(tmp_path, document)
    with pytest.raises(PolicyError) as caught:
        read_policy(path)
    assert str(path) in str(caught.value)
    assert problem in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="cannot be read: No such file"):
        read_policy(tmp_path / "none.yaml")
    large = written(tmp_path, "# " + "x" * 1_100_000)
    with pytest.raises(PolicyError, match="is larger than"):
        read_policy(large)


EVERYBODY = Scope()
SCOPES: list[tuple[Scope, Requester, bool]] = [
    (EVERYBODY, ADA, True),
    (Scope(users=("ada",)), ADA, True),
    (Scope(users=("bob",)), ADA, False),
    (Scope(teams=("vision",)), ADA, True),
    (Scope(teams=("speech",)), ADA, False),
    (Scope(teams=("",)), replace(ADA, team=""), False),
    (Scope(users=("bob",), teams=("vision",)), ADA, True),
    (Scope(groups=("default",)), ADA, True),
    (Scope(groups=("dev",)), ADA, False),
    (Scope(users=("ada",), groups=("dev",)), ADA, False),
    (Scope(when=When(task_names=("tr*",))), ADA, True),
    (Scope(when=When(task_names=("x*",))), ADA, False),
    (Scope(when=When(task_labels={"a": "b*"})), replace(ADA, labels={"a": "bc"}), True),
    (Scope(when=When(task_labels={"a": "b*"})), ADA, False),
    (Scope(when=When(priorities=("normal",))), ADA, True),
    (Scope(when=When(priorities=("high",))), ADA, False),
    (Scope(when=When(nodes_min=2)), ADA, False),
    (Scope(when=When(gpus_per_node_min=4)), replace(ADA, gpus_per_node=4), True),
    (Scope(when=When(gpus_per_node_min=4)), replace(ADA, gpus_per_node=2), False),
    (Scope(when=When(gpus_per_node_min=4)), replace(ADA, gpus_per_node=None), True),
]


@pytest.mark.parametrize(("scope", "requester", "holds"), SCOPES, ids=str)
def test_a_rule_applies_to_the_tasks_in_its_scope(
    scope: Scope, requester: Requester, holds: bool
) -> None:
    assert scope.holds(requester) is holds


def test_patterns_are_filled_in_with_the_requester() -> None:
    rule = Rule(names=("user.{owner}.*", "team.{team}.*"))
    assert rule.matches("user.ada.x", ADA)
    assert rule.matches("team.vision.x", ADA)
    # ``ada`` is the beginning of other names, but not of other people's objects.
    assert not rule.matches("user.ada-b.x", ADA)
    assert not rule.matches("team..x", replace(ADA, team=""))


def test_allow_accepts_everyone_instead_of_a_list(tmp_path: Path) -> None:
    policy = read_policy(written(tmp_path, "allow: {host_network: everyone}"))
    assert policy.allows(Permission.HOST_NETWORK, ADA)
    assert not policy.allows(Permission.HOST_PID, ADA)


def test_the_facts_of_a_task() -> None:
    assert Requester.of(a_task(gpus_per_node=0), "ada", "vision") == ADA


def test_a_policy_does_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        PodPolicy().default_image = "x"  # pyright: ignore[reportAttributeAccessIssue]


def test_the_reference_names_every_field_and_its_example_is_a_policy(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "pods.md").read_text()
    example = next(
        block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "images:" in block
    )
    policy = read_policy(written(tmp_path, example))
    assert [grant.name for grant in policy.storage] == ["home", "datasets", "scratch"]
    fields = text[text.index("### Fields") :]
    assert [name for name in PodPolicy.model_fields if f"`{name}`" not in fields] == []
    assert [each for each in Permission if f"`{each}`" not in fields] == []
