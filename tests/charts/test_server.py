"""The API server validates the charts: every field, every pod's security, every right."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.charts.charts import NAMESPACE, SERVICES, TASKS, UMBRELLA, Helm, Json, of_kind
from tests.charts.matrix import MATRIX

if TYPE_CHECKING:
    from tests.charts.conftest import Kubectl
    from tools.cluster.control_plane import ControlPlane

pytestmark = pytest.mark.kubernetes

RESTRICTED, PRIVILEGED = "pods-restricted", "pods-privileged"
LEVEL = "pod-security.kubernetes.io/enforce"
# The Prometheus operator's kinds are not in a bare cluster.
FOREIGN = ("ServiceMonitor", "PrometheusRule")


@pytest.fixture(scope="module")
def namespaces(plane: ControlPlane) -> None:
    for name in (f"dry-{NAMESPACE}", f"dry-{TASKS}"):
        plane.ensure_namespace(name)
    plane.ensure_namespace(RESTRICTED, {LEVEL: "restricted"})
    plane.ensure_namespace(PRIVILEGED, {LEVEL: "privileged"})


def dry_run(kubectl: Kubectl, objects: Sequence[Json], *more: str) -> tuple[int, str]:
    return kubectl(
        *("apply", "--dry-run=server", "--validate=strict", "-f", "-", *more),
        given=yaml.safe_dump_all(objects),
    )


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize("case", MATRIX)
def test_the_api_server_would_take_all_of_it(helm: Helm, kubectl: Kubectl, case: str) -> None:
    values = MATRIX[case]
    objects = [each for each in helm.template(UMBRELLA, values) if each["kind"] not in FOREIGN]
    for each in objects:
        meta = each["metadata"]
        if "namespace" in meta:
            # Namespaces of this test's own: those of the release may be there or not.
            meta["namespace"] = f"dry-{NAMESPACE if meta['namespace'] == NAMESPACE else TASKS}"
        if each["kind"] == "Namespace":
            meta["name"] = f"dry-{TASKS}"
    code, output = dry_run(kubectl, objects)
    assert code == 0, output
    assert output.count("(server dry run)") == len(objects)


def pods(objects: list[Json], namespace: str) -> dict[str, Json]:
    """What the controllers would make, as pods."""
    found: dict[str, Json] = {}
    for each in of_kind(objects, "Deployment", "StatefulSet", "DaemonSet", "Job"):
        spec: dict[str, Any] = {
            **each["spec"]["template"]["spec"],
            "serviceAccountName": "default",
            "priorityClassName": "",
        }
        name = each["metadata"]["name"].lower()
        claims = each["spec"].get("volumeClaimTemplates", ())
        spec["volumes"] = [
            *spec["volumes"],
            *(
                {
                    "name": claim["metadata"]["name"],
                    "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]},
                }
                for claim in claims
            ),
        ]
        found[name] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
        }
    return found


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize("case", ["default", "high-availability", "external", "every-setting"])
def test_every_pod_but_the_log_agent_passes_restricted(
    helm: Helm, kubectl: Kubectl, case: str
) -> None:
    made = pods(helm.template(UMBRELLA, MATRIX[case]), RESTRICTED)
    agent = made.pop("shiftwork-log-agent")
    code, output = dry_run(kubectl, list(made.values()))
    assert code == 0, output
    assert output.count("(server dry run)") == len(made) >= 7
    code, output = dry_run(kubectl, [agent])
    assert code != 0
    assert "hostPath" in output
    agent["metadata"]["namespace"] = PRIVILEGED
    code, output = dry_run(kubectl, [agent])
    assert code == 0, output


@pytest.fixture(scope="module")
def live(helm: Helm, plane: ControlPlane) -> Helm:
    """helm with the cluster."""
    return Helm(helm.program, helm.packed, helm.home, plane.kubeconfig)


def settled(helm: Helm, *command: str, values: dict[str, Any] | None = None) -> str:
    return helm.run(*command, "--namespace", NAMESPACE, "--timeout", "60s", values=values)


def secrets_of(plane: ControlPlane) -> dict[str, dict[str, str]]:
    items = plane.api.items(f"/api/v1/namespaces/{NAMESPACE}/secrets")
    return {
        each["metadata"]["name"]: each["data"]
        for each in items
        if each["metadata"]["labels"].get("app.kubernetes.io/part-of") == "shiftwork"
    }


def names_of(kubectl: Kubectl, kinds: str, namespace: str) -> set[str]:
    code, output = kubectl("get", kinds, "--namespace", namespace, "--output", "name")
    assert code == 0, output
    return set(output.split()) if "No resources" not in output else set()


ALLOWED = (
    ("launcher", TASKS, "create pods"),
    ("launcher", TASKS, "create pods/exec"),
    ("launcher", TASKS, "delete configmaps"),
    ("launcher", TASKS, "create secrets"),
    ("launcher", "default", "list pods"),
    ("launcher", "default", "watch nodes"),
    ("log-collector", TASKS, "get pods/log"),
    ("log-collector", NAMESPACE, "list pods"),
)
REFUSED = (
    ("launcher", TASKS, "get secrets"),
    ("launcher", TASKS, "list secrets"),
    ("launcher", NAMESPACE, "get secrets"),
    ("launcher", NAMESPACE, "create pods"),
    ("launcher", "default", "create pods"),
    ("launcher", "default", "delete pods"),
    ("launcher", "default", "get pods/log"),
    ("launcher", "default", "patch nodes"),
    ("launcher", TASKS, "create rolebindings.rbac.authorization.k8s.io"),
    ("launcher", TASKS, "create serviceaccounts/token"),
    ("launcher", "default", "get namespaces"),
    ("launcher", TASKS, "patch pods"),
    ("log-collector", TASKS, "create pods"),
    ("log-collector", TASKS, "list pods"),
    ("log-collector", TASKS, "get secrets"),
    ("log-collector", "default", "list pods"),
    ("gateway", NAMESPACE, "get secrets"),
    ("gateway", TASKS, "list pods"),
    ("scheduler", TASKS, "list pods"),
    ("log-agent", TASKS, "list pods"),
)


@pytest.mark.usefixtures("live")
class TestLife:
    """One release, from its installation to its removal, on a cluster whose pods are simulated.

    In the order of the file.
    """

    kept: dict[str, dict[str, str]]

    def test_an_installation_waits_for_its_pods_and_ends(
        self, live: Helm, plane: ControlPlane
    ) -> None:
        """With --wait: nothing that it waits for waits for something that comes after."""
        output = settled(
            live,
            *("install", UMBRELLA, live.chart(UMBRELLA), "--create-namespace", "--wait"),
            values=MATRIX["trial"],
        )
        assert "kubectl -n shiftwork get secret shiftwork-keys" in output
        assert "has no volume" in output
        type(self).kept = secrets_of(plane)
        assert set(self.kept) == {"shiftwork-nats", "shiftwork-postgres", "shiftwork-keys"}
        values = [value for each in self.kept.values() for value in each.values()]
        # Each service has a password at NATS and one at PostgreSQL; six belong to the platform.
        assert len(set(values)) == len(values) == 6 + 2 * len(SERVICES)
        assert min(map(len, values)) >= 40

    @pytest.mark.parametrize(("component", "where", "what"), ALLOWED)
    def test_a_service_may_do_its_work(
        self, kubectl: Kubectl, component: str, where: str, what: str
    ) -> None:
        assert self._may(kubectl, component, where, what)

    @pytest.mark.parametrize(("component", "where", "what"), REFUSED)
    def test_a_service_may_do_nothing_else(
        self, kubectl: Kubectl, component: str, where: str, what: str
    ) -> None:
        assert not self._may(kubectl, component, where, what)

    def _may(self, kubectl: Kubectl, component: str, where: str, what: str) -> bool:
        user = f"--as=system:serviceaccount:{NAMESPACE}:shiftwork-{component}"
        verb, _, whole = what.partition(" ")
        resource, _, part = whole.partition("/")
        query = ("auth", "can-i", verb, resource, f"--subresource={part}")
        _, output = kubectl(*query, user, f"--namespace={where}")
        (answer,) = {"yes", "no"} & set(output.split("\n"))
        return answer == "yes"

    def test_an_upgrade_keeps_secrets_and_provisions_again(
        self, live: Helm, plane: ControlPlane, kubectl: Kubectl
    ) -> None:
        before = names_of(kubectl, "jobs", NAMESPACE)
        values = {**MATRIX["trial"], "scheduler": {"settings": {"protected_seconds": 5}}}
        settled(live, "upgrade", UMBRELLA, live.chart(UMBRELLA), "--wait", values=values)
        assert secrets_of(plane) == self.kept
        after = names_of(kubectl, "jobs", NAMESPACE)
        assert len(after) == 1
        assert not after & before
        code, output = kubectl(
            *("get", "deployment", "shiftwork-scheduler", "-n", NAMESPACE, "-o", "yaml")
        )
        assert code == 0
        env = yaml.safe_load(output)["spec"]["template"]["spec"]["containers"][0]["env"]
        assert {"name": "SHIFTWORK_SCHEDULER_PROTECTED_SECONDS", "value": "5"} in env

    def test_a_key_that_is_missing_is_added_to_those_that_are_there(
        self, live: Helm, plane: ControlPlane
    ) -> None:
        """As when a version brings another service."""
        path = f"/api/v1/namespaces/{NAMESPACE}/secrets/shiftwork-nats"
        plane.api.patch(path, {"data": {"quota": None}})
        assert "quota" not in secrets_of(plane)["shiftwork-nats"]
        settled(live, "upgrade", UMBRELLA, live.chart(UMBRELLA), values=MATRIX["trial"])
        found = secrets_of(plane)
        assert found["shiftwork-nats"].pop("quota")
        self.kept["shiftwork-nats"].pop("quota")
        assert found == self.kept
        type(self).kept = secrets_of(plane)

    def test_a_rollback_brings_back_what_was(
        self, live: Helm, plane: ControlPlane, kubectl: Kubectl
    ) -> None:
        settled(live, "rollback", UMBRELLA, "1", "--wait")
        _, output = kubectl(
            "get", "deployment", "shiftwork-scheduler", "-n", NAMESPACE, "-o", "yaml"
        )
        env = yaml.safe_load(output)["spec"]["template"]["spec"]["containers"][0]["env"]
        assert not any(each["name"].endswith("PROTECTED_SECONDS") for each in env)
        kept = {name: set(data) for name, data in secrets_of(plane).items()}
        assert kept == {name: set(data) for name, data in self.kept.items()}

    def test_a_removal_leaves_what_policy_keeps_and_nothing_else(
        self, live: Helm, plane: ControlPlane, kubectl: Kubectl
    ) -> None:
        kept = secrets_of(plane)
        settled(live, "uninstall", UMBRELLA, "--wait")
        kinds = (
            "deployments,statefulsets,daemonsets,jobs,services,configmaps,secrets,serviceaccounts,"
            "roles,rolebindings,networkpolicies,poddisruptionbudgets,persistentvolumeclaims,"
            "resourcequotas,limitranges"
        )
        always = {"configmap/kube-root-ca.crt", "serviceaccount/default"}
        secrets = {f"secret/{name}" for name in kept}
        assert names_of(kubectl, kinds, NAMESPACE) == always | secrets
        assert names_of(kubectl, kinds, TASKS) == always
        roles = names_of(kubectl, "clusterroles,clusterrolebindings", NAMESPACE)
        assert not any("shiftwork" in name for name in roles)
        assert secrets_of(plane) == kept

    def test_what_was_kept_is_taken_up_again(self, live: Helm, plane: ControlPlane) -> None:
        kept = secrets_of(plane)
        values = {**MATRIX["trial"], "tasks": {"keepOnUninstall": False}}
        settled(live, "install", UMBRELLA, live.chart(UMBRELLA), "--wait", values=values)
        assert secrets_of(plane) == kept
        settled(live, "uninstall", UMBRELLA, "--wait")
        spaces = {each["metadata"]["name"] for each in plane.api.items("/api/v1/namespaces")}
        assert TASKS not in spaces


def test_secrets_of_ones_own_are_not_made(helm: Helm) -> None:
    assert not of_kind(helm.template(UMBRELLA, MATRIX["own-secrets"]), "Secret")


def test_the_package_needs_no_network(helm: Helm) -> None:
    """Nothing in a packed chart names a place to fetch something from."""
    for path in sorted(helm.packed.glob("*.tgz")):
        text = subprocess.run(
            ["tar", "-xzOf", path, "--wildcards", "*Chart.yaml"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert "https://" not in text
        assert "oci://" not in text
