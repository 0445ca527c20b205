"""Rights: all of them stand here, so that one more cannot come in unseen."""

from __future__ import annotations

import pytest

from services.launcher.runtimes.kubernetes.cluster_check import RIGHTS as LAUNCHER_RIGHTS
from tests.charts.charts import NAMESPACE, TASKS, UMBRELLA, Helm, Json, named, of_kind
from tests.charts.matrix import MATRIX

pytestmark = pytest.mark.kubernetes

Rules = list[tuple[tuple[str, ...], tuple[str, ...]]]

LAUNCHER_IN_TASKS: Rules = [
    (("pods",), ("get", "list", "watch", "create", "delete")),
    (("pods/exec",), ("get", "create")),
    (("configmaps",), ("get", "list", "watch", "create", "patch", "delete")),
    (("secrets", "services"), ("create",)),
    (("events",), ("list",)),
    (("namespaces",), ("get",)),
]
LAUNCHER_IN_CLUSTER: Rules = [
    (("nodes",), ("list", "watch")),
    (("pods",), ("list", "watch")),
]
COLLECTOR_IN_TASKS: Rules = [(("pods/log",), ("get",))]
COLLECTOR_AMONG_AGENTS: Rules = [(("pods",), ("list",))]
SWEEP: Rules = [(("pods", "configmaps"), ("list", "delete"))]
RIGHTS: dict[tuple[str, str | None, str], Rules] = {
    ("Role", TASKS, "shiftwork-launcher"): LAUNCHER_IN_TASKS,
    ("ClusterRole", None, "shiftwork-shiftwork-launcher"): LAUNCHER_IN_CLUSTER,
    ("Role", TASKS, "shiftwork-log-collector"): COLLECTOR_IN_TASKS,
    ("Role", NAMESPACE, "shiftwork-log-collector-agents"): COLLECTOR_AMONG_AGENTS,
    ("Role", TASKS, "shiftwork-sweep"): SWEEP,
}


def rules_of(role: Json) -> Rules:
    for rule in role["rules"]:
        assert rule["apiGroups"] == [""], "nothing beyond the core group"
        assert set(rule) == {"apiGroups", "resources", "verbs"}
    return [(tuple(rule["resources"]), tuple(rule["verbs"])) for rule in role["rules"]]


def test_the_launcher_requests_exactly_its_rights() -> None:
    """Its own check, at its start, is about the very same rights."""
    asked = {
        (right.within, right.resource, verb) for right in LAUNCHER_RIGHTS for verb in right.verbs
    }
    given = {
        (rules is LAUNCHER_IN_TASKS, resource, verb)
        for rules in (LAUNCHER_IN_TASKS, LAUNCHER_IN_CLUSTER)
        for resources, verbs in rules
        for resource in resources
        for verb in verbs
    }
    assert given - asked == {(True, "namespaces", "get")}
    assert asked <= given


def test_rights_are_exactly_these(helm: Helm) -> None:
    objects = helm.template(UMBRELLA, {})
    found = {
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]): rules_of(each)
        for each in of_kind(objects, "Role", "ClusterRole")
    }
    assert found == RIGHTS


@pytest.mark.parametrize("case", MATRIX)
def test_no_installation_requests_all_rights(helm: Helm, case: str) -> None:
    objects = helm.template(UMBRELLA, MATRIX[case])
    for role in of_kind(objects, "Role", "ClusterRole"):
        for resources, verbs in rules_of(role):
            assert not {"*", "escalate", "bind", "impersonate"} & {*resources, *verbs}
    roles = {
        (r["kind"], r["metadata"].get("namespace"), r["metadata"]["name"])
        for r in of_kind(objects, "Role", "ClusterRole")
    }
    bindings = of_kind(objects, "RoleBinding", "ClusterRoleBinding")
    assert len(bindings) == len(roles)
    for binding in bindings:
        to = binding["roleRef"]
        assert (to["kind"], binding["metadata"].get("namespace"), to["name"]) in roles
        (subject,) = binding["subjects"]
        assert subject["namespace"] == NAMESPACE
        assert named(objects, "ServiceAccount", subject["name"])


def test_the_tasks_namespace_may_be_another_one(helm: Helm) -> None:
    objects = helm.template(UMBRELLA, {"global": {"tasks": {"namespace": "training"}}})
    spaces = {r["metadata"]["namespace"] for r in of_kind(objects, "Role")}
    assert spaces == {"training", NAMESPACE}
