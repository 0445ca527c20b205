"""values.schema.json of every chart, from its values.yaml and from the services' own settings.

Types and descriptions are read from the values and the comments above them, so that a chart is
described in one place. The fields of ``settings`` come from the service's settings class, those of
``podPolicy`` from the policy's. Helm rejects values that are in no schema.
``make gen`` writes the files, ``make check`` compares them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from pydantic_settings import BaseSettings

from libs.bus.topology import MONITORING_NAME_FORM, MONITORING_USERS_MAX
from libs.contracts.ids import DNS_LABEL_FORM
from libs.pods.pod_policy import PodPolicy
from services.allinone.composition import WIRINGS
from services.allinone.provision import ProvisionSettings
from services.log_collector.agent.settings import AgentSettings
from services.monitor.abnormal.rules_file import rules_schema
from tools.settings_tables import all_comments_of

Schema = dict[str, Any]

ROOT = Path(__file__).resolve().parent.parent
CHARTS = ROOT / "deploy" / "k8s" / "charts"
SERVICES = {wiring.name.replace("_", "-"): wiring.settings for wiring in WIRINGS}
SERVERS = ("nats", "postgres")
UMBRELLA = "shiftwork"
LINE = 400

TEXT: Schema = {"type": "string"}
# Kubernetes' own objects: the API server checks them.
ANYTHING: Schema = {"type": "object"}
LIST: Schema = {"type": "array", "items": {"type": "object"}}
TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
NAMES: Schema = {"type": "array", "items": {"type": "string"}}
SIZE: Schema = {"type": "string", "pattern": "^[1-9][0-9]*(Mi|Gi|Ti)$"}
PORTS: Schema = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "integer", "minimum": 1, "maximum": 65_535},
}
PULL: Schema = {"enum": ["Always", "IfNotPresent", "Never"]}
NAMESPACE: Schema = {"type": "string", "pattern": f"^{DNS_LABEL_FORM}$"}
IMAGE: Schema = {
    "type": "object",
    "additionalProperties": False,
    "required": ["repository"],
    "properties": {
        "registry": TEXT | {"description": "Goes before global.image.registry."},
        "repository": TEXT | {"minLength": 1},
        "tag": TEXT | {"description": "Goes before global.image.tag."},
        "digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
        "pullPolicy": PULL,
    },
}
# By the last keys of a path; the longest that fits goes first. What stands nowhere here is as its
# default is.
RULES: dict[str, Schema] = {
    "image": IMAGE,
    "global.image": {},
    "global.image.pullPolicy": PULL,
    "global.image.pullSecrets": NAMES,
    "global.name": {"type": "string", "pattern": "^([a-z]([-a-z0-9]{0,38}[a-z0-9])?)?$"},
    "global.database.port": {"type": "integer", "minimum": 1, "maximum": 65_535},
    "global.database.sslmode": {"enum": ["", "require", "verify-ca", "verify-full"]},
    "global.nats.url": {
        "type": "string",
        "pattern": "^((nats|tls)://[^,@ ]+(,(nats|tls)://[^,@ ]+)*)?$",
    },
    "monitoringUsers": {
        "type": "array",
        "maxItems": MONITORING_USERS_MAX,
        "uniqueItems": True,
        "items": {"type": "string", "pattern": f"^{MONITORING_NAME_FORM}$"},
    },
    "monitoringFrom": LIST,
    "global.gateway.url": {"type": "string", "pattern": "^(https?://[^ /]+(/[^ ]*)?)?$"},
    "global.tasks.namespace": NAMESPACE,
    "global.networkPolicies.apiServerPorts": PORTS,
    "global.networkPolicies.dns.ports": PORTS,
    "bucket.ports": PORTS,
    "webhooks.ports": PORTS,
    "global.monitoring.labels": TEXTS,
    "alerts.runbooks": {"type": "string", "pattern": "^(https?://[^ ]+)?$"},
    "global.monitoring.interval": {"type": "string", "pattern": "^[1-9][0-9]*(s|m)$"},
    "global.traces.endpoint": {"type": "string", "pattern": "^(https?://[^ /]+(/[^ ]*)?)?$"},
    "global.traces.ratio": {"type": "number", "minimum": 0, "maximum": 1},
    "global.logFormat": {"enum": ["json", "console"]},
    "global.logLevel": {"enum": ["debug", "info", "warning", "error"]},
    "replicas": {"type": "integer", "minimum": 0, "maximum": 10},
    "nats.replicas": {"enum": [1, 3, 5]},
    "nats.syncInterval": {"type": "string", "pattern": "^[1-9][0-9]*(ms|s|m)$"},
    "postgres.user": {"type": "integer", "minimum": 1},
    "persistence.size": SIZE,
    "archive.size": SIZE,
    "archive.accessMode": {"enum": ["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"]},
    "samples.kubeletFolder": {"type": "string", "pattern": "^/.*[^/]$"},
    "resources": ANYTHING,
    "affinity": ANYTHING,
    "nodeSelector": TEXTS,
    "annotations": TEXTS,
    "labels": TEXTS,
    "tolerations": LIST,
    "reachableFrom": LIST,
    "oidc.ports": PORTS,
    "networkPolicy.egress": LIST,
    "networkPolicy.ingress": LIST,
    "tasks.podSecurity": {"enum": ["restricted", "baseline", "privileged"]},
    "tasks.resourceQuota": ANYTHING,
    "tasks.limitRange": LIST,
    "provision.streamReplicas": {"enum": [0, 1, 3, 5]},
    "provision.waitSeconds": {"type": "integer", "minimum": 1},
    "sweep.deadlineSeconds": {"type": "integer", "minimum": 120},
}
# Settings that every chart of a service sets itself, beside those in its template's `env`.
CONNECTIONS = frozenset({
    *("database_url", "database_password_file", "nats_url", "nats_user", "nats_password_file"),
    *("schema_wait_seconds", "migrate", "http_host", "http_port", "log_format", "log_level"),
    *("otlp_endpoint", "otlp_headers_file", "trace_ratio"),
})  # fmt: skip
GIVEN: dict[str, frozenset[str]] = {
    "submit": frozenset({"pod_policy_file"}),
    "scheduler": frozenset({"dumps", "policy_file"}),
    "launcher": frozenset(
        {
            *("runtime", "kube_namespace", "kube_config", "pod_policy_file"),
            *("kube_agent_namespace", "kube_agent_label", "kube_agent_port"),
            "kube_agent_token_file",
            *("task_url", "run_token_key_file"),
            # Of the process runtime.
            *("data_folder", "virtual_nodes", "slots_per_node", "nodes_file", "task_user"),
            *("task_users", "tasks_as_root"),
            *("task_path", "master_addr", "supervisor_call_seconds", "supervisor_idle_seconds"),
            *("output_keep_seconds", "secret_env_patterns"),
        }
    ),
    "log-collector": frozenset(
        {
            *("source", "runs_dir", "logs_dir", "kube_namespace"),
            *("agent_namespace", "agent_label", "agent_port", "agent_token_file"),
            # A Secret of the chart's `bucket` has them.
            *("bucket_key_id_file", "bucket_secret_file"),
            # A ConfigMap of the chart's `errorPatterns`.
            "error_patterns_file",
        }
    ),
    "quota": frozenset(),
    # A ConfigMap of the chart's `rules`.
    "monitor": frozenset({"rules_file"}),
    "gateway": frozenset(
        {
            *("admin_token_file", "run_token_key_file"),
            # A Secret of the chart's `oidc` has it.
            *("oidc_client_secret", "oidc_client_secret_file"),
        }
    ),
}
AGENT_GIVEN = frozenset({
    *("namespace", "host", "port", "token_file", "pods_dir", "spool_dir"),
    *("sample", "cgroup_dir", "net_dev_file", "pod_resources_socket"),
    *("log_format", "log_level"),
})  # fmt: skip
PROVISION_GIVEN = frozenset({
    *("database_url", "database_password_file", "database", "database_passwords", "roles"),
    *("nats_url", "nats_user", "nats_password_file", "nats_passwords"),
    *("stream_replicas", "wait_seconds"),
})  # fmt: skip


def settings_schema(settings: type[BaseSettings], given: frozenset[str]) -> Schema:
    """What ``settings`` of a chart may hold: the fields of the class that the chart leaves open."""
    made = settings.model_json_schema()
    definitions = made.get("$defs", {})
    comments = all_comments_of(settings)
    properties = {
        name: _clean(schema, definitions)
        | ({"description": comments[name]} if comments[name] else {})
        for name, schema in made["properties"].items()
        if name not in given
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _clean(schema: Schema, definitions: Schema) -> Schema:
    """A field's schema without what is of no use to helm: titles, defaults, references."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    kept = {key: value for key, value in schema.items() if key not in ("title", "default")}
    return {key: _deeply(value, definitions) for key, value in kept.items()}


def _deeply(value: Any, definitions: Schema) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        return _clean(value, definitions)  # pyright: ignore[reportUnknownArgumentType] - JSON
    if isinstance(value, list):
        return [_deeply(each, definitions) for each in value]  # pyright: ignore[reportUnknownVariableType] - JSON
    return value


def _inlined(made: Schema) -> Schema:
    definitions = made.pop("$defs", {})
    return _clean(made, definitions)


def values_schema(chart: str) -> Schema:
    """The whole schema of one chart."""
    rules = dict(RULES)
    rules["settings"] = _settings_of(chart)
    rules["agent.settings"] = settings_schema(AgentSettings, AGENT_GIVEN)
    rules["provision.settings"] = settings_schema(ProvisionSettings, PROVISION_GIVEN)
    rules["monitor.rules"] = _inlined(rules_schema())
    needs_policy = chart in ("submit", "launcher", UMBRELLA)
    rules["global.podPolicy"] = (
        _inlined(PodPolicy.model_json_schema()) if needs_policy else ANYTHING
    )
    shared = _described(CHARTS / UMBRELLA / "values.yaml", rules)["properties"]["global"]
    rules[f"{chart}.global"] = {} if chart == UMBRELLA else shared
    schema = _described(CHARTS / chart / "values.yaml", rules, chart)
    schema["properties"] |= {"global": shared, "common": ANYTHING}
    if chart == UMBRELLA:
        for part in (*SERVICES, *SERVERS):
            schema["properties"][part] = {
                "type": "object",
                "description": f"Values of the chart {part}.",
            }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": f"Values of the chart {chart}",
        **schema,
    }


def _settings_of(chart: str) -> Schema:
    if chart not in SERVICES:
        return ANYTHING
    return settings_schema(SERVICES[chart], CONNECTIONS | GIVEN[chart])


def _described(file: Path, rules: dict[str, Schema], *above: str) -> Schema:
    text = file.read_text()
    node = yaml.compose(text)
    assert isinstance(node, yaml.MappingNode), f"{file} is a mapping"
    return _mapping(node, yaml.safe_load(text), text.splitlines(), above, rules)


def _mapping(
    node: yaml.MappingNode,
    values: dict[str, Any],
    lines: list[str],
    above: tuple[str, ...],
    rules: dict[str, Schema],
) -> Schema:
    properties: Schema = {}
    for key_node, value_node in node.value:
        key = key_node.value
        path = (*above, key)
        rule = _rule(path, rules)
        if not rule and isinstance(value_node, yaml.MappingNode) and values[key]:
            rule = _mapping(value_node, values[key], lines, path, rules)
        elif not rule:
            rule = _as_default(values[key])
        comment = _comment(lines, key_node.start_mark.line)
        properties[key] = ({"description": comment} if comment else {}) | rule
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _rule(path: tuple[str, ...], rules: dict[str, Schema]) -> Schema:
    for start in range(len(path)):
        found = rules.get(".".join(path[start:]))
        if found is not None:
            return found
    return {}


def _as_default(value: Any) -> Schema:  # noqa: ANN401 - YAML
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, int):
        return {"type": "integer", "minimum": 1}
    if isinstance(value, str):
        return TEXT
    raise TypeError(f"a value like {value!r} needs a rule")


def _comment(lines: list[str], line: int) -> str:
    """What stands right above a key."""
    found: list[str] = []
    while line > 0 and lines[line - 1].strip().startswith("#"):
        line -= 1
        found.insert(0, lines[line].strip().lstrip("# "))
    return " ".join(found)


def _text(value: Any, begin: str = "\n") -> str:  # noqa: ANN401 - JSON
    """JSON with an object on one line where it fits: a property is a line of a diff."""
    text = json.dumps(value)
    if not isinstance(value, dict) or len(text) <= LINE:
        return text
    parts = (
        f"{begin} {json.dumps(key)}: {_text(part, f'{begin} ')}" for key, part in value.items()
    )
    return f"{{{','.join(parts)}{begin}}}"


def schemas() -> dict[Path, str]:
    """Every chart's schema, as the text of its file."""
    return {
        CHARTS / chart / "values.schema.json": _text(values_schema(chart)) + "\n"
        for chart in (*SERVICES, *SERVERS, UMBRELLA)
    }
