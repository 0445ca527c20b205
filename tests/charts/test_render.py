"""What the charts give: every installation of the matrix keeps the same rules."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from pydantic_settings import BaseSettings

from libs.pods.pod_policy import PodPolicy
from services.allinone.composition import WIRINGS
from services.allinone.provision import PREFIX as PROVISION
from services.allinone.provision import ProvisionSettings
from services.log_collector.agent.settings import AgentSettings
from services.monitor.abnormal.rules_file import parse_rules, read_rules
from tests.charts.charts import (
    NAMESPACE,
    SERVICES,
    TASKS,
    UMBRELLA,
    Helm,
    HelmError,
    Json,
    containers,
    named,
    of_kind,
    pod_specs,
)
from tests.charts.matrix import EXTERNAL, MATRIX, MONITORED
from tools.cluster.access import ensure_certificates

pytestmark = pytest.mark.kubernetes

LEADING = ("submit", "scheduler", "launcher", "quota", "monitor", "gateway")
# The only ones that talk to the Kubernetes API.
TOKENS = {"launcher", "log-collector", "sweep"}


@pytest.fixture(scope="module")
def rendered(helm: Helm) -> dict[str, list[Json]]:
    return {case: helm.template(UMBRELLA, values) for case, values in MATRIX.items()}


@pytest.fixture(params=MATRIX)
def objects(rendered: dict[str, list[Json]], request: pytest.FixtureRequest) -> list[Json]:
    return rendered[request.param]


def variables(container: Json) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container.get("env", ()) if "value" in each}


def test_every_image_has_a_tag_or_a_digest(objects: list[Json]) -> None:
    images = {each["image"] for _, each in containers(objects)}
    bare = {
        image for image in images if not re.search(r"[^/]+(:[\w.-]+|@sha256:[0-9a-f]{64})$", image)
    }
    assert images
    assert bare == set()
    assert not any(image.endswith(":latest") for image in images)


def test_everything_has_its_labels_and_its_place(objects: list[Json]) -> None:
    names = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects]
    assert len(set(names)) == len(names)
    spaces = {space for _, space, _ in names}
    for each in objects:
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "shiftwork", each["metadata"]["name"]
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
    assert spaces <= {NAMESPACE, TASKS, "training", None}


def test_every_pod_has_the_least_privileges(objects: list[Json]) -> None:
    """The API server's own validation (test_server.py) does not check read-only roots."""
    for whose, spec in pod_specs(objects):
        if "log-agent" not in whose:
            assert spec["securityContext"]["runAsNonRoot"] is True, whose
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, whose
        assert spec["enableServiceLinks"] is False, whose
    for whose, each in containers(objects):
        security = each["securityContext"]
        assert security["readOnlyRootFilesystem"] is True, whose
        assert security["allowPrivilegeEscalation"] is False, whose
        assert security["capabilities"] == {"drop": ["ALL"]}, whose
        assert set(each["resources"]["requests"]) == {"cpu", "memory"}, whose
        assert "memory" in each["resources"]["limits"], whose


def test_only_services_that_need_the_api_server_have_a_token_for_it(objects: list[Json]) -> None:
    with_token = {
        spec["containers"][0]["name"]
        for _, spec in pod_specs(objects)
        if spec["automountServiceAccountToken"]
    }
    assert with_token <= TOKENS
    assert {"launcher", "log-collector"} <= with_token
    for account in of_kind(objects, "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False


def test_every_server_is_probed(objects: list[Json]) -> None:
    for each in of_kind(objects, "Deployment", "StatefulSet", "DaemonSet"):
        (container,) = each["spec"]["template"]["spec"]["containers"]
        assert {"startupProbe", "livenessProbe", "readinessProbe"} <= set(container)


def test_secrets_are_files_or_references_and_nothing_else(objects: list[Json]) -> None:
    """No password in a ConfigMap, an argument or a variable's own text."""
    secret = re.compile(r"password|token|secret|key", re.IGNORECASE)
    for whose, each in containers(objects):
        for name, value in variables(each).items():
            if secret.search(name) and not name.endswith("_URL"):
                is_file = value.startswith("/etc/shiftwork/")
                # NATS's configuration names variables: each is a reference in quotes.
                is_reference = re.fullmatch(r'"\$\(SECRET_[A-Z0-9_]+\)"', value)
                assert is_file or is_reference, (whose, name)
            assert not re.search(r"://[^/@$]+:[^/@$]+@", value), (whose, name)
        assert not secret.search(" ".join(each.get("args", ()))), whose
    generated = {
        value
        for each in of_kind(objects, "Secret")
        for value in (*each.get("data", {}).values(), *each.get("stringData", {}).values())
    }
    others = yaml.safe_dump([each for each in objects if each["kind"] != "Secret"])
    assert not any(value in others for value in generated)


def test_generated_secrets_have_what_pods_read(objects: list[Json]) -> None:
    there = {each["metadata"]["name"]: set(each["data"]) for each in of_kind(objects, "Secret")}
    for whose, spec in pod_specs(objects):
        for name, keys in _read_of(spec):
            if not name.startswith("our-"):
                assert keys <= there[name], (whose, name)


def _read_of(spec: Json) -> Iterator[tuple[str, set[str]]]:
    """The Secrets that a pod reads, with their keys."""
    for volume in spec["volumes"]:
        for source in volume.get("projected", {}).get("sources", ()):
            yield source["secret"]["name"], {i["key"] for i in source["secret"]["items"]}
        if "secret" in volume:
            yield (
                volume["secret"]["secretName"],
                {item["key"] for item in volume["secret"].get("items", ())},
            )
    for container in spec["containers"]:
        for each in container.get("env", ()):
            of = each.get("valueFrom", {}).get("secretKeyRef")
            if of:
                yield of["name"], {of["key"]}


def test_mounts_and_volumes_belong_together(objects: list[Json]) -> None:
    claims = {
        each["metadata"]["name"]: [
            c["metadata"]["name"] for c in each["spec"].get("volumeClaimTemplates", ())
        ]
        for each in of_kind(objects, "StatefulSet")
    }
    for whose, spec in pod_specs(objects):
        given = {each["name"] for each in spec["volumes"]} | set(claims.get(whose.split()[-1], ()))
        used = {each["name"] for c in spec["containers"] for each in c["volumeMounts"]}
        assert used == given, whose


def test_replicas_that_can_lead_are_two(rendered: dict[str, list[Json]]) -> None:
    for name in LEADING:
        deployment = named(rendered["default"], "Deployment", f"shiftwork-{name}")
        assert deployment["spec"]["replicas"] == 2
        assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
        assert named(rendered["default"], "PodDisruptionBudget", f"shiftwork-{name}")


def test_the_archive_has_one_writer_unless_it_is_shared(rendered: dict[str, list[Json]]) -> None:
    alone = named(rendered["default"], "Deployment", "shiftwork-log-collector")["spec"]
    assert (alone["replicas"], alone["strategy"]["type"]) == (1, "Recreate")
    shared = named(rendered["high-availability"], "Deployment", "shiftwork-log-collector")["spec"]
    assert (shared["replicas"], shared["strategy"]["type"]) == (2, "RollingUpdate")


def _load(
    settings: type[BaseSettings], prefix: str, given: dict[str, str], root: Path
) -> BaseSettings:
    """The settings as the process in the container would have them. Its files stand below root."""
    kept = {key: os.environ.pop(key) for key in list(os.environ) if key.startswith(prefix)}
    try:
        for name, value in given.items():
            path = root / value.lstrip("/")
            is_read = name.endswith(("POLICY_FILE", "_FILE")) and path.exists()
            os.environ[name] = str(path) if is_read else value
        return settings()
    finally:
        for name in given:
            os.environ.pop(name, None)
        os.environ.update(kept)


@pytest.mark.parametrize("wiring", WIRINGS, ids=lambda wiring: wiring.name)
def test_every_variable_is_a_setting_and_every_needed_setting_is_given(
    objects: list[Json], wiring: Any, tmp_path: Path
) -> None:
    """The service's own class reads the chart's settings, policy files included."""
    prefix = str(wiring.settings.model_config["env_prefix"])
    name = wiring.name.replace("_", "-")
    deployment = next(
        each
        for each in of_kind(objects, "Deployment")
        if each["metadata"]["labels"]["app.kubernetes.io/name"] == name
    )
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-m", f"services.{wiring.name}"]
    given = variables(container)
    unknown = {
        key for key in given if key.removeprefix(prefix).lower() not in wiring.settings.model_fields
    }
    assert unknown == set()
    _place_files(objects, deployment, tmp_path)
    settings = _load(wiring.settings, prefix, given, tmp_path)
    assert settings.model_fields_set >= {"database_url", "nats_url", "http_port"}
    port = container["ports"][0]["containerPort"]
    assert getattr(settings, "http_port") == port  # noqa: B009 - the class is not known here


@cache
def an_authority() -> str:
    with TemporaryDirectory() as folder:
        ensure_certificates(Path(folder), ["localhost"])
        return (Path(folder) / "ca.crt").read_text()


def _place_files(objects: list[Json], deployment: Json, root: Path) -> None:
    """The ConfigMaps of a pod as files, as they would be mounted."""
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    where = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    for volume in spec["volumes"]:
        for source in volume.get("projected", {}).get("sources", ()):
            # The operator's own; the settings read no other file of a Secret at the start.
            if source["secret"]["name"] == "our-collector":
                folder = root / where[volume["name"]].lstrip("/")
                folder.mkdir(parents=True)
                (folder / source["secret"]["items"][0]["path"]).write_text("a: b")
        if "configMap" in volume:
            # Those of the authorities are the operator's.
            theirs = volume["name"] in ("database-ca", "nats-ca")
            data = (
                {"ca.crt": an_authority()}
                if theirs
                else named(objects, "ConfigMap", volume["configMap"]["name"])["data"]
            )
            folder = root / where[volume["name"]].lstrip("/")
            folder.mkdir(parents=True)
            for name, text in data.items():
                (folder / name).write_text(text)


def test_the_log_agents_match_the_settings_of_the_collector(helm: Helm, tmp_path: Path) -> None:
    objects = helm.template(
        UMBRELLA, {"log-collector": {"agent": {"settings": {"poll_seconds": 1}}}}
    )
    agent = named(objects, "DaemonSet", "shiftwork-log-agent")["spec"]["template"]
    (container,) = agent["spec"]["containers"]
    prefix = str(AgentSettings.model_config["env_prefix"])
    given = {key: value for key, value in variables(container).items() if key.startswith(prefix)}
    assert {key.removeprefix(prefix).lower() for key in given} <= set(AgentSettings.model_fields)
    settings = _load(AgentSettings, prefix, given, tmp_path)
    assert isinstance(settings, AgentSettings)
    collector = named(objects, "Deployment", "shiftwork-log-collector")["spec"]["template"]["spec"]
    asked = variables(collector["containers"][0])
    start = "SHIFTWORK_LOG_COLLECTOR_"
    labels = dict(each.split("=") for each in asked[start + "AGENT_LABEL"].split(","))
    assert labels.items() <= agent["metadata"]["labels"].items()
    assert asked[start + "AGENT_NAMESPACE"] == NAMESPACE
    assert asked[start + "KUBE_NAMESPACE"] == settings.namespace
    assert settings.port == container["ports"][0]["containerPort"]
    # Links are made from the log files' folder to the spool's: one mount.
    (logs,) = (each for each in container["volumeMounts"] if each["name"] == "logs")
    assert settings.pods_dir.is_relative_to(logs["mountPath"])
    assert settings.spool_dir.is_relative_to(logs["mountPath"])


def test_the_launcher_finds_the_agents_and_may_reach_them(rendered: dict[str, list[Json]]) -> None:
    objects = rendered["default"]
    launcher = named(objects, "Deployment", "shiftwork-launcher")["spec"]["template"]
    asked = variables(launcher["spec"]["containers"][0])
    agent = named(objects, "DaemonSet", "shiftwork-log-agent")["spec"]["template"]
    start = "SHIFTWORK_LAUNCHER_KUBE_AGENT_"
    labels = dict(each.split("=") for each in asked[start + "LABEL"].split(","))
    assert labels.items() <= agent["metadata"]["labels"].items()
    assert asked[start + "NAMESPACE"] == NAMESPACE
    egress = named(objects, "NetworkPolicy", "shiftwork-launcher")["spec"]["egress"]
    to = [each for each in egress if {"port": 8650, "protocol": "TCP"} in each["ports"]]
    assert [each["to"][0]["podSelector"]["matchLabels"] for each in to] == [labels]
    ingress = named(objects, "NetworkPolicy", "shiftwork-log-agent")["spec"]["ingress"]
    peers = [
        peer["podSelector"]["matchLabels"] for peer in ingress[0]["from"] if "podSelector" in peer
    ]
    mine = launcher["metadata"]["labels"].items()
    assert [peer for peer in peers if peer.items() <= mine]


LOGS = ("/var/log", False)
SAMPLES = {("/sys/fs/cgroup", True), ("/proc/1/net/dev", True)}
DEVICES = ("/data/kubelet/pod-resources", True)


@pytest.mark.parametrize(
    ("samples", "mounted", "sees_gpus"),
    [
        ({"kubeletFolder": "/data/kubelet"}, {LOGS, *SAMPLES, DEVICES}, True),
        ({"gpus": False}, {LOGS, *SAMPLES}, False),
        ({"enabled": False}, {LOGS}, False),
    ],
)
def test_the_agent_has_of_its_node_what_it_reads_and_no_more(
    helm: Helm, samples: Json, mounted: set[tuple[str, bool]], sees_gpus: bool
) -> None:
    objects = helm.template(UMBRELLA, {"log-collector": {"agent": {"samples": samples}}})
    spec = named(objects, "DaemonSet", "shiftwork-log-agent")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    paths = {
        each["name"]: each["hostPath"]["path"] for each in spec["volumes"] if "hostPath" in each
    }
    found = {
        (paths[each["name"]], each.get("readOnly", False))
        for each in container["volumeMounts"]
        if each["name"] in paths
    }
    assert found == mounted
    assert not {"hostPID", "hostNetwork", "hostIPC"} & set(spec)
    assert ("NVIDIA_VISIBLE_DEVICES" in variables(container)) is sees_gpus
    sample = variables(container)["SHIFTWORK_LOG_AGENT_SAMPLE"]
    assert sample == str(samples.get("enabled", True)).lower()


def test_the_provisioner_gets_its_settings(objects: list[Json], tmp_path: Path) -> None:
    (job,) = (
        each
        for each in of_kind(objects, "Job")
        if each["metadata"]["labels"]["app.kubernetes.io/name"] == "provision"
    )
    (container,) = job["spec"]["template"]["spec"]["containers"]
    given = variables(container)
    unknown = {
        key
        for key in given
        if key.removeprefix(PROVISION).lower() not in ProvisionSettings.model_fields
    }
    assert unknown == set()
    _place_files(objects, job, tmp_path)
    assert _load(ProvisionSettings, PROVISION, given, tmp_path)
    # A Job cannot be changed: another revision must be another Job. And it is no hook, for which
    # `helm install --wait` would wait while the services wait for it.
    assert re.fullmatch(r"[a-z]+-provision-1-[0-9a-f]{8}", job["metadata"]["name"])
    assert "annotations" not in job["metadata"]


def test_the_pod_policy_is_one_and_valid(objects: list[Json]) -> None:
    texts = {
        each["data"]["policy.yaml"]
        for each in of_kind(objects, "ConfigMap")
        if each["metadata"]["name"].endswith("-pod-policy")
    }
    (text,) = texts
    policy = PodPolicy.model_validate(yaml.safe_load(text))
    assert re.search(r"shiftwork/platform:\S+$", policy.sdk_image)
    assert re.search(r"shiftwork/task:\S+$", policy.default_image)


def test_servers_of_ones_own_take_the_place_of_the_bundled_ones(
    rendered: dict[str, list[Json]],
) -> None:
    objects = rendered["external"]
    assert not of_kind(objects, "StatefulSet", "Secret")
    for name in SERVICES:
        deployment = named(objects, "Deployment", f"shiftwork-{name}")
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        environment = variables(container)
        role = name.replace("-", "_")
        prefix = f"SHIFTWORK_{role.upper()}_"
        assert environment[prefix + "DATABASE_URL"] == (
            f"postgresql://{role}@db.example.org:6432/training"
            "?sslmode=verify-full&sslrootcert=/etc/shiftwork/database-ca/ca.crt"
        )
        assert environment[prefix + "NATS_URL"] == EXTERNAL["global"]["nats"]["url"]
        assert environment[prefix + "NATS_CA_FILE"] == "/etc/shiftwork/nats-ca/ca.crt"
        policy = named(objects, "NetworkPolicy", f"shiftwork-{name}")["spec"]
        anywhere = {
            p["port"] for rule in policy["egress"] if "to" not in rule for p in rule["ports"]
        }
        assert {4222, 6432} <= anywhere


def test_a_collector_of_traces_is_named_to_every_service_and_may_be_reached(
    rendered: dict[str, list[Json]],
) -> None:
    for name, port in (("default", None), ("monitored", 4318)):
        objects = rendered[name]
        for service in (*LEADING, "log-collector"):
            spec = named(objects, "Deployment", f"shiftwork-{service}")["spec"]["template"]["spec"]
            (given,) = (variables(each) for each in spec["containers"])
            endpoint = given.get(f"SHIFTWORK_{service.upper().replace('-', '_')}_OTLP_ENDPOINT")
            assert endpoint == (port and f"http://collector.monitoring:{port}")
            policy = named(objects, "NetworkPolicy", f"shiftwork-{service}")["spec"]
            anywhere = {
                each["port"]
                for rule in policy["egress"]
                if "to" not in rule
                for each in rule["ports"]
            }
            assert (4318 in anywhere) == (port is not None)


def test_a_service_restarts_when_the_policy_it_reads_changes(helm: Helm) -> None:
    def marks(values: dict[str, Any]) -> list[Json]:
        objects = helm.template(UMBRELLA, values)
        return [
            named(objects, "Deployment", f"shiftwork-{name}")["spec"]["template"]["metadata"]
            for name in ("submit", "launcher", "quota")
        ]

    before = marks({})
    after = marks({"global": {"podPolicy": {"gpu_resource": "amd.com/gpu"}}})
    assert [one == other for one, other in zip(before, after, strict=True)] == [False, False, True]


def test_patterns_of_error_lines_are_a_file_and_a_change_restarts_the_service(helm: Helm) -> None:
    def collector(text: str) -> tuple[list[Json], Json]:
        objects = helm.template(UMBRELLA, {"log-collector": {"errorPatterns": text}})
        return objects, named(objects, "Deployment", "shiftwork-log-collector")["spec"]["template"]

    texts = ("", "fatal: ''\n", "data-loader: 'shard .* is missing'\n")
    (_, without), (objects, pod), (_, other) = map(collector, texts)
    (container,) = pod["spec"]["containers"]
    path = Path(variables(container)["SHIFTWORK_LOG_COLLECTOR_ERROR_PATTERNS_FILE"])
    (mount,) = (m for m in container["volumeMounts"] if m["mountPath"] == str(path.parent))
    (volume,) = (v for v in pod["spec"]["volumes"] if v["name"] == mount["name"])
    data = named(objects, "ConfigMap", volume["configMap"]["name"])["data"]
    assert data == {path.name: texts[1]}
    marks = [each["metadata"]["annotations"] for each in (without, pod, other)]
    assert marks[0] != marks[1] != marks[2]
    assert "ERROR_PATTERNS" not in str(without)


def test_rules_about_abnormal_tasks_are_a_file_that_the_monitor_reads(
    helm: Helm, tmp_path: Path
) -> None:
    def monitor(rules: Json) -> tuple[list[Json], Json]:
        mail = {"settings": {"mail_host": "mail.example.org"}, "mail": {"secret": "mail"}}
        objects = helm.template(UMBRELLA, {"monitor": {"rules": rules, **mail}})
        return objects, named(objects, "Deployment", "shiftwork-monitor")["spec"]["template"]

    rules: Json = {
        "ranks_missing": {"threshold": 1_000_000_000, "actions": ["cordon"], "dry_run": True},
        "groups": {"debug": {"idle_gpus": {"enabled": False}}},
        "teams": {"vision": {"long_run": {"threshold": 0.5}}},
    }
    (_, without), (objects, pod), (_, other) = map(monitor, ({}, rules, rules["teams"]["vision"]))
    (container,) = pod["spec"]["containers"]
    path = Path(variables(container)["SHIFTWORK_MONITOR_RULES_FILE"])
    (mount,) = (m for m in container["volumeMounts"] if m["mountPath"] == str(path.parent))
    (volume,) = (v for v in pod["spec"]["volumes"] if v["name"] == mount["name"])
    assert "MAIL_PASSWORD_FILE" in str(container)
    data = named(objects, "ConfigMap", volume["configMap"]["name"])["data"]
    assert set(data) == {path.name}
    (tmp_path / path.name).write_text(data[path.name])
    book = read_rules(tmp_path / path.name, idle_seconds=600, quiet_seconds=600)
    assert book == parse_rules(rules, idle_seconds=600, quiet_seconds=600)
    marks = [each["metadata"]["annotations"] for each in (without, pod, other)]
    assert marks[0] != marks[1] != marks[2]
    assert "RULES_FILE" not in str(without)


@pytest.mark.parametrize(
    ("rules", "named_in_the_error"),
    [
        ({"idle": {}}, "idle"),
        ({"idle_gpus": {"limit": 5}}, "limit"),
        ({"idle_gpus": {"threshold": 0}}, "threshold"),
        ({"idle_gpus": {"actions": ["cordon"]}}, "actions"),
        ({"teams": {"vision": {"long_run": {"enabled": "off"}}}}, "enabled"),
        ({"teams": ["vision"]}, "teams"),
    ],
)
def test_rules_with_an_error_are_refused_before_anything_is_installed(
    helm: Helm, rules: Json, named_in_the_error: str
) -> None:
    with pytest.raises(HelmError, match=named_in_the_error):
        helm.template(UMBRELLA, {"monitor": {"rules": rules}})


def test_tasks_reach_the_gateway_and_one_another_and_nothing_else(
    rendered: dict[str, list[Json]],
) -> None:
    spec = named(rendered["default"], "NetworkPolicy", "shiftwork-tasks")["spec"]
    assert spec["podSelector"] == {}
    assert spec["ingress"] == [{"from": [{"podSelector": {}}]}]
    dns, gateway, one_another = spec["egress"]
    assert {each["port"] for each in dns["ports"]} == {53}
    (peer,) = gateway["to"]
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": NAMESPACE}
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/name"] == "gateway"
    assert one_another == {"to": [{"podSelector": {}}]}


def test_dns_is_reached_where_the_cluster_has_it(rendered: dict[str, list[Json]]) -> None:
    rules = [
        policy["spec"]["egress"][0]
        for policy in of_kind(rendered["every-setting"], "NetworkPolicy")
        if policy["spec"].get("egress")
    ]
    for rule in rules:
        assert {each["port"] for each in rule["ports"]} == {53, 5353}
        assert {each["protocol"] for each in rule["ports"]} == {"TCP", "UDP"}
        assert "to" not in rule
    assert len(rules) > len(SERVICES)


def test_network_policies_name_pods_that_exist(objects: list[Json]) -> None:
    """A selector with a mistake silently blocks all traffic."""
    pods = [
        each["spec"]["template"]["metadata"]["labels"]
        for each in of_kind(objects, "Deployment", "StatefulSet", "DaemonSet", "Job")
    ]
    for policy in of_kind(objects, "NetworkPolicy"):
        spec = policy["spec"]
        peers = [
            peer
            for rule in (*spec.get("ingress", ()), *spec.get("egress", ()))
            for peer in (*rule.get("from", ()), *rule.get("to", ()))
        ]
        selectors = [spec["podSelector"], *(p["podSelector"] for p in peers if "podSelector" in p)]
        for selector in selectors:
            wanted = selector.get("matchLabels", {}).items()
            assert any(wanted <= labels.items() for labels in pods), policy["metadata"]["name"]


def test_services_and_monitors_name_pods_and_ports_that_exist(helm: Helm) -> None:
    objects = helm.template(UMBRELLA, MONITORED)
    pods = [
        each["spec"]["template"]
        for each in of_kind(objects, "Deployment", "StatefulSet", "DaemonSet")
    ]
    services = of_kind(objects, "Service")
    for service in services:
        selector = service["spec"]["selector"].items()
        (pod,) = (each for each in pods if selector <= each["metadata"]["labels"].items())
        ports = {p["name"] for c in pod["spec"]["containers"] for p in c["ports"]}
        assert {each["targetPort"] for each in service["spec"]["ports"]} <= ports
    monitors = of_kind(objects, "ServiceMonitor")
    # And the log agents.
    assert len(monitors) == len(SERVICES) + 1
    for monitor in monitors:
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        (service,) = (each for each in services if wanted <= each["metadata"]["labels"].items())
        ports = {each["name"] for each in service["spec"]["ports"]}
        assert {each["port"] for each in monitor["spec"]["endpoints"]} <= ports


@pytest.mark.parametrize("chart", SERVICES)
def test_a_service_by_itself_is_the_one_of_the_umbrella(helm: Helm, chart: str) -> None:
    """One release for each service gives the same Deployment under global.name."""
    whole = helm.template(UMBRELLA, {})
    alone = helm.template(chart, {"global": {"name": "shiftwork"}})
    name = f"shiftwork-{chart}"
    assert named(alone, "Deployment", name) == named(whole, "Deployment", name)


def test_the_login_providers_secret_is_a_file_and_its_port_is_open(helm: Helm) -> None:
    login = {
        "settings": {
            "oidc_issuer": "https://login.example.org",
            "oidc_client_id": "shiftwork",
            "public_url": "https://shiftwork.example.org",
            "oidc_roles": {"ops": "operator"},
        },
        "oidc": {"secret": "our-oidc", "ports": [8443]},
    }
    objects = helm.template(UMBRELLA, {"gateway": login})
    name = "shiftwork-gateway"
    pod = named(objects, "Deployment", name)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    found = variables(container)
    folder = "/etc/shiftwork/oidc"
    assert found["SHIFTWORK_GATEWAY_OIDC_CLIENT_SECRET_FILE"] == f"{folder}/client-secret"
    assert found["SHIFTWORK_GATEWAY_OIDC_ROLES"] == '{"ops":"operator"}'
    assert folder in [mount["mountPath"] for mount in container["volumeMounts"]]
    secrets = [each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each]
    assert secrets == ["our-oidc"]
    egress = named(objects, "NetworkPolicy", name)["spec"]["egress"]
    assert {"ports": [{"port": 8443, "protocol": "TCP"}]} in egress
    plain = named(helm.template(UMBRELLA, {}), "NetworkPolicy", name)["spec"]["egress"]
    assert len(plain) == len(egress) - 1


def test_authorities_of_receivers_and_of_the_mail_server_are_files(helm: Helm) -> None:
    values = {
        "settings": {"mail_host": "mail.example.org", "mail_from": "shiftwork@example.org"},
        "mail": {"caConfigMap": "mail-authority"},
        "webhooks": {"caConfigMap": "site-authority"},
    }
    objects = helm.template(UMBRELLA, {"monitor": values})
    pod = named(objects, "Deployment", "shiftwork-monitor")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    maps = {
        each["name"]: each["configMap"]["name"] for each in pod["volumes"] if "configMap" in each
    }
    folders = {each["mountPath"]: maps.get(each["name"]) for each in container["volumeMounts"]}
    given = variables(container)
    for setting, name in (("WEBHOOK", "site-authority"), ("MAIL", "mail-authority")):
        path = Path(given[f"SHIFTWORK_MONITOR_{setting}_CA_FILE"])
        assert (folders[str(path.parent)], path.name) == (name, "ca.crt")


def test_the_mail_servers_password_is_a_file_and_receivers_can_be_reached(helm: Helm) -> None:
    values = {
        "settings": {
            "mail_host": "mail.example.org",
            "mail_port": 465,
            "mail_from": "shiftwork@example.org",
            "mail_user": "shiftwork",
        },
        "mail": {"secret": "mail-login"},
        "webhooks": {"ports": [443, 8443]},
    }
    objects = helm.template(UMBRELLA, {"monitor": values})
    name = "shiftwork-monitor"
    pod = named(objects, "Deployment", name)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    folder = "/etc/shiftwork/mail"
    assert variables(container)["SHIFTWORK_MONITOR_MAIL_PASSWORD_FILE"] == f"{folder}/password"
    assert folder in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert "mail-login" in [
        each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each
    ]
    egress = named(objects, "NetworkPolicy", name)["spec"]["egress"]
    ports = [{"port": port, "protocol": "TCP"} for port in (443, 8443, 465)]
    assert {"ports": ports} in egress
    plain = named(helm.template(UMBRELLA, {}), "NetworkPolicy", name)["spec"]["egress"]
    assert {"ports": [{"port": 443, "protocol": "TCP"}]} in plain
