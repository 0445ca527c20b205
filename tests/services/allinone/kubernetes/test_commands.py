"""``shiftwork k8s`` and ``doctor --kubernetes`` as people use them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.services.allinone.kubernetes.conftest import Operator

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(240)]
SERVICES = ["gateway", "launcher", "log-collector", "quota", "scheduler", "submit"]


def test_a_release_comes_up_changes_and_goes(operator: Operator) -> None:
    first = operator.dryrun()
    assert set(first) == {"create"}
    kinds = {each["kind"] for each in first["create"]}
    assert {"Deployment", "StatefulSet", "DaemonSet", "Job", "Secret", "Role"} <= kinds
    assert not operator.exists(f"/api/v1/namespaces/{operator.namespace}/services")

    up = operator.up()
    assert "ready" in up.stdout
    assert "kubectl port-forward" in up.stdout
    for service in SERVICES:
        assert f"\n{service} " in up.stderr
    _the_context_is_kept(operator)

    # The objects equal those of the charts: a new revision only has a new job.
    again = operator.dryrun()
    assert {each["kind"] for each in again["create"]} == {"Job"}
    assert "change" not in again
    # The options of the last `up` are remembered, including that volumes are not wanted.
    output = operator.run("k8s", "dryrun", "--json", "--nats-replicas", "3").stdout
    found = {
        each["name"]: each for each in json.loads(output)["changes"] if each["change"] != "same"
    }
    assert "spec.replicas" in found["shiftwork-nats"]["detail"]
    assert "shiftwork-log-collector" not in found
    changed = operator.dryrun("--gpu-resource", "amd.com/gpu")["change"]
    assert ("ConfigMap", "data.policy.yaml") in {(each["kind"], each["detail"]) for each in changed}

    status = json.loads(operator.run("k8s", "status", "--json").stdout)
    assert status["ready"]
    assert status["release"]["revision"] == 1
    assert {each["name"] for each in status["services"]} >= {*SERVICES, "nats", "postgres"}
    # Nothing runs in simulated pods: the status reports that the API does not answer.
    assert status["nodes"] is None
    assert "the API cannot be asked" in status["problem"]

    _asking_tasks_fails_before_anything_is_removed(operator)
    kept = json.loads(operator.run("k8s", "down", "--now", "--json").stdout)["kept"]
    secrets = {each["name"] for each in kept if each["kind"] == "Secret"}
    assert secrets == {f"shiftwork-{of}" for of in ("keys", "nats", "postgres")}
    # The next `up` would find them as they are.
    assert "Secret" not in {each["kind"] for each in operator.dryrun()["create"]}
    gone = operator.run("k8s", "down", "--now", "--purge")
    assert "nothing is left" in gone.stderr
    assert not operator.exists(f"/api/v1/namespaces/{operator.namespace}/persistentvolumeclaims")
    assert operator.run("k8s", "status", code=1).stderr.count("there is no release") == 1


def _the_context_is_kept(operator: Operator) -> None:
    folder = operator.home / ".config" / "shiftwork"
    kept = json.loads((folder / "contexts.json").read_text())
    named = kept["contexts"][kept["current"]]
    assert named["url"] == "http://127.0.0.1:8642"
    file = Path(named["token_file"])
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_text().strip() == _secret(operator)


def _secret(operator: Operator) -> str:
    import base64

    found = operator.plane.api.get(
        f"/api/v1/namespaces/{operator.namespace}/secrets/shiftwork-keys"
    )
    return base64.b64decode(found["data"]["admin-token"]).decode()


def _asking_tasks_fails_before_anything_is_removed(operator: Operator) -> None:
    done = operator.run("k8s", "down", code=1)
    assert "running tasks cannot be asked to save" in done.stderr
    assert "shiftwork k8s down --now" in done.stderr
    assert json.loads(operator.run("k8s", "status", "--json").stdout)["ready"]


def test_what_is_not_ready_is_reported_while_waiting(operator: Operator) -> None:
    for space, hard in ((operator.namespace, {"count/deployments.apps": "9", "pods": "40"}),):
        operator.plane.ensure_namespace(space)
        quota = {"metadata": {"name": "few"}, "spec": {"hard": hard}}
        operator.plane.api.create(f"/api/v1/namespaces/{space}/resourcequotas", quota)
    nowhere = ("--set", "gateway.pod.nodeSelector.disk=gold")
    # This name is what a simulated kubelet cannot pull.
    missing = ("--set", "quota.image.repository=simulated/missing")
    done = operator.up(*nowhere, *missing, "--timeout", "12s", code=1)
    assert "gateway 0/2: shiftwork-gateway-" in done.stderr
    assert "image simulated/missing:0.1.0 cannot be pulled" in done.stderr
    assert "has no node: 0/" in done.stderr
    assert "error: not ready after 12 s: gateway 0/2" in done.stderr
    status = json.loads(operator.run("k8s", "status", "--json", code=1).stdout)
    (gateway,) = (each for each in status["services"] if each["name"] == "gateway")
    assert "didn't match Pod's node affinity/selector" in gateway["problems"][0]
    found = operator.doctor(code=1)
    assert any("not ready: gateway 0/2" in each["what"] for each in found)
    # The corrected command repairs it: earlier options hold unless they are given again.
    right = ("--set", "gateway.pod.nodeSelector=null", "--set", "quota.image.repository=a/b")
    assert "ready" in operator.run("k8s", "up", *right).stdout


def test_pods_that_a_quota_refuses_are_explained(operator: Operator) -> None:
    operator.plane.ensure_namespace(operator.namespace)
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "0"}}}
    path = f"/api/v1/namespaces/{operator.namespace}/resourcequotas"
    operator.plane.api.create(path, quota)
    done = operator.up("--timeout", "8s", code=1)
    assert "pods are refused" in done.stderr
    assert "exceeded quota: few" in done.stderr


@pytest.mark.parametrize(
    ("words", "error", "code"),
    [
        (("--set", "gateway.replicas=two"), "replicas", 1),
        (("--set", "gatway.replicas=2"), "gatway", 1),
        (("--set", "nats.enabled=false"), "set global.nats.url to nats://HOST:PORT", 1),
        (("--external-nats", "nats://n:4222"), "--external-nats needs --nats-secret", 2),
        (("--charts", "/nowhere"), "the charts are not in /nowhere", 2),
        (("--timeout", "soon"), "--timeout", 2),
    ],
)
def test_wrong_values_are_refused_before_anything_is_made(
    operator: Operator, words: tuple[str, ...], error: str, code: int
) -> None:
    done = operator.up(*words, code=code)
    assert error in done.stderr
    assert "fix:" in done.stderr
    assert not operator.exists(f"/api/v1/namespaces/{operator.namespace}/services")


def test_a_cluster_without_the_resource_or_a_class_of_volumes_is_reported(
    operator: Operator,
) -> None:
    done = operator.run("k8s", "up", "--tasks-namespace", operator.tasks, code=1)
    assert "no StorageClass is the default" in done.stderr
    assert "--no-persistence" in done.stderr
    done = operator.run("k8s", "up", "--storage-class", "gold", code=1)
    assert "there is no StorageClass gold" in done.stderr
    assert not operator.exists(f"/api/v1/namespaces/{operator.namespace}/services")
    found = operator.doctor("--gpu-resource", "amd.com/gpu", code=1)
    (gpus,) = (each for each in found if "amd.com/gpu" in each["what"])
    assert gpus["level"] == "warn"
    assert "nvidia.com/gpu" in gpus["fix"]


def test_missing_permissions_are_named(operator: Operator) -> None:
    operator.plane.ensure_namespace(operator.namespace)
    rules = [
        {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["pods", "events", "services"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list"]},
    ]
    nodes = [{"apiGroups": [""], "resources": ["nodes", "namespaces"], "verbs": ["list", "get"]}]
    operator.kubeconfig = operator.plane.service_account(
        operator.namespace, "little", rules, cluster_rules=nodes
    )
    found = [each for each in operator.doctor(code=1) if each["what"].startswith("you may not")]
    findings = {each["what"] for each in found}
    assert (
        f"you may not create, patch, delete secrets in namespace {operator.namespace}" in findings
    )
    assert "you may not create, patch clusterroles.rbac.authorization.k8s.io " in "".join(
        sorted(each.partition("in the")[0] for each in findings if "clusterroles." in each)
    )
    assert not [each for each in findings if "deployments" in each or " pods in" in each]
    done = operator.up(code=1)
    assert "you may not" in done.stderr
    assert "shiftwork doctor --kubernetes" in done.stderr


def test_an_expired_token_and_an_unreachable_cluster_are_distinguished(
    operator: Operator, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text(operator.plane.kubeconfig_of_token("nonsense"))
    right, operator.kubeconfig = operator.kubeconfig, wrong
    (last,) = _bad(operator.doctor(code=1))
    assert "has expired or is wrong" in last["what"]
    assert "log in to the cluster again" in last["fix"]
    assert operator.up(code=1).stderr.count("has expired or is wrong") == 1

    away = tmp_path / "away"
    away.write_text(right.read_text().replace(operator.plane.url, "https://127.0.0.1:1"))
    operator.kubeconfig = away
    (last,) = _bad(operator.doctor(code=1))
    assert "the cluster does not answer" in last["what"]
    assert "does not answer" in operator.up(code=3).stderr
    problem = json.loads(operator.run("k8s", "status", "--json", code=3).stderr)
    assert problem["type"] == "unreachable"

    operator.kubeconfig = tmp_path / "none"
    assert any("is not there" in each["what"] for each in _bad(operator.doctor(code=1)))
    operator.kubeconfig = right


def _bad(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in findings if each["level"] == "bad"]
