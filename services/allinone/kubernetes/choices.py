"""The common choices of an installation: as options of a command, as values of the charts.

``shiftwork k8s values`` prints them as a commented file; ``up`` and ``dryrun`` take the same
options. One table, so that a choice means the same everywhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from shiftwork.cli.failures import usage

from libs.pods.kubernetes_names import TASKS_NAMESPACE

Path_ = tuple[str, ...]
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9._/-]*")
_WORDS = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")


@dataclass(frozen=True, slots=True)
class Entry:
    """One value that the file shows. ``example`` stands in a comment while it is not chosen."""

    path: Path_
    comment: str
    example: Any


def _entry(path: str, example: Any, comment: str = "") -> Entry:  # noqa: ANN401 - any value
    return Entry(tuple(path.split("/")), comment, example)


# In the order of the file. Comments stand above their entry.
ENTRIES: tuple[Entry, ...] = (
    _entry(
        "global/image/registry",
        "registry.example.org/team",
        "Where the nodes pull the platform's images from; left out: what they know them by.",
    ),
    _entry("global/image/tag", "0.1.0", "Left out: the version of the charts."),
    _entry(
        "global/image/pullSecrets",
        ["registry"],
        "Names of Secrets in the platform's namespace, if the registry wants a login.",
    ),
    _entry("global/tasks/namespace", TASKS_NAMESPACE, "Where pods of tasks run."),
    _entry(
        "global/podPolicy/gpu_resource",
        "nvidia.com/gpu",
        "What the nodes' device plugin calls a GPU.",
    ),
    _entry(
        "global/podPolicy/storage",
        [{"name": "data", "mount_path": "/data", "source": {"claim": {"name": "training-data"}}}],
        "What tasks may mount, and what else pods of tasks may be: docs/pods.md.",
    ),
    _entry(
        "global/database/host",
        "postgres.example.org",
        "A PostgreSQL of your own (then postgres.enabled: false, and its Secret below).",
    ),
    _entry("global/database/port", 5432),
    _entry("global/database/name", "shiftwork"),
    _entry("global/database/sslmode", "verify-full", "require, verify-ca or verify-full."),
    _entry(
        "global/nats/url",
        "tls://nats.example.org:4222",
        "A NATS of your own (then nats.enabled: false, and its Secret below); its configuration:\n"
        "python -m services.allinone.provision nats-config",
    ),
    _entry("global/nats/caConfigMap", "nats-ca", "With ca.crt, for tls:// servers."),
    _entry(
        "global/secrets/postgres",
        "shiftwork-postgres",
        "Secrets of your own instead of ones that are made once with random content: `admin`,\n"
        "a key for each service (submit, scheduler, launcher, log_collector, quota, monitor, gateway)",
    ),
    _entry("global/secrets/nats", "shiftwork-nats", "The same keys."),
    _entry("global/secrets/keys", "shiftwork-keys"),
    _entry(
        "global/monitoring/enabled",
        True,
        "ServiceMonitors and alerts, for a cluster with the Prometheus operator.",
    ),
    _entry(
        "launcher/settings/kube_node_selector",
        "shiftwork.dev/pool=training",
        "Which nodes are the platform's, as for `kubectl -l`; left out: all but the control plane.",
    ),
    _entry(
        "gateway/ingress/enabled",
        True,
        "The API under a name of its own; left out: by `kubectl port-forward`.",
    ),
    _entry("gateway/ingress/host", "shiftwork.example.org"),
    _entry("gateway/ingress/className", "nginx"),
    _entry("gateway/ingress/tlsSecret", "shiftwork-tls", "A Secret of type kubernetes.io/tls."),
    _entry("nats/enabled", False, "The bundled server, for trials and small sites."),
    _entry("nats/replicas", 3, "3 servers keep every stream three times."),
    _entry("nats/persistence/size", "20Gi"),
    _entry("nats/persistence/storageClass", "fast", "Left out: the cluster's default class."),
    _entry("postgres/enabled", False, "The bundled server, for trials and small sites."),
    _entry("postgres/persistence/size", "20Gi"),
    _entry("postgres/persistence/storageClass", "fast"),
    _entry("log-collector/archive/size", "100Gi", "Kept output of tasks."),
    _entry("log-collector/archive/storageClass", "fast"),
)
# Charts that keep data on a volume, and the section with its settings.
VOLUMES = (("nats", "persistence"), ("postgres", "persistence"), ("log-collector", "archive"))
HEAD = """\
# Values for the charts of Shiftwork: `shiftwork k8s up -f FILE`. What is commented out is an
# example, not the default; the chart's own values.yaml has every setting.
"""


@dataclass(frozen=True, slots=True)
class Choices:
    """What the options of ``values``, ``dryrun`` and ``up`` set; an empty one is not set.

    Each field is an option of these commands, by ``options.taking``.
    """

    registry: Annotated[
        str, typer.Option(help="Where nodes pull images from, HOST:PORT/FOLDER.")
    ] = ""
    tag: Annotated[
        str, typer.Option(help="Of the images; left out: the version of the charts.")
    ] = ""
    pull_secret: Annotated[
        list[str] | None, typer.Option(help="A Secret for the registry; several times.")
    ] = None
    tasks_namespace: Annotated[str, typer.Option(help="Where pods of tasks run.")] = ""
    gpu_resource: Annotated[
        str, typer.Option(help="What nodes call a GPU, such as nvidia.com/gpu.")
    ] = ""
    node_selector: Annotated[
        str, typer.Option(help="Only nodes with these labels, K=V, as for kubectl -l.")
    ] = ""
    storage_class: Annotated[str, typer.Option(help="Of all volumes.")] = ""
    no_persistence: Annotated[
        bool, typer.Option("--no-persistence", help="No volumes: a trial, gone with its pods.")
    ] = False
    external_postgres: Annotated[
        str, typer.Option(help="A server of your own, HOST:PORT/DATABASE (port, database: or not).")
    ] = ""
    postgres_secret: Annotated[
        str, typer.Option(help="A Secret with the passwords of its roles.")
    ] = ""
    external_nats: Annotated[
        str, typer.Option(help="Servers of your own, nats://HOST:PORT or tls://HOST:PORT.")
    ] = ""
    nats_secret: Annotated[str, typer.Option(help="A Secret with their users' passwords.")] = ""
    nats_replicas: Annotated[
        int, typer.Option(min=0, max=5, help="Of the bundled server: 1, 3 or 5.")
    ] = 0
    ingress: Annotated[str, typer.Option(help="A host name for the API, by an Ingress.")] = ""
    monitoring: Annotated[
        bool, typer.Option("--monitoring", help="ServiceMonitors, alerts (Prometheus operator).")
    ] = False

    def values(self) -> dict[Path_, Any]:
        """The values that they mean, by path. Failure (usage) for what cannot be."""
        found: dict[Path_, Any] = {}

        def put(path: str, value: Any) -> None:  # noqa: ANN401 - any value
            if value not in ("", (), 0, False):
                found[tuple(path.split("/"))] = value

        put("global/image/registry", self.registry.rstrip("/"))
        put("global/image/tag", self.tag)
        put("global/image/pullSecrets", list(self.pull_secret or ()) or "")
        put("global/tasks/namespace", self.tasks_namespace)
        put("global/podPolicy/gpu_resource", _resource(self.gpu_resource))
        put("launcher/settings/kube_node_selector", self.node_selector)
        put("global/monitoring/enabled", self.monitoring)
        put("nats/replicas", self.nats_replicas)
        put("gateway/ingress/enabled", bool(self.ingress))
        put("gateway/ingress/host", self.ingress)
        found |= self._servers()
        for chart, section in VOLUMES:
            used = (chart, "enabled") not in found
            if used and self.storage_class:
                found[chart, section, "storageClass"] = self.storage_class
            if used and self.no_persistence:
                found[chart, section, "enabled"] = False
        return found

    def _servers(self) -> dict[Path_, Any]:
        """Servers of one's own instead of the bundled ones."""
        found: dict[Path_, Any] = {}
        if self.external_postgres:
            found |= {("global", "database", key): v for key, v in _host(self.external_postgres)}
            found["postgres", "enabled"] = False
            found["global", "secrets", "postgres"] = _needed(
                self.postgres_secret, "--postgres-secret", "--external-postgres"
            )
        elif self.postgres_secret:
            found["global", "secrets", "postgres"] = self.postgres_secret
        if self.external_nats:
            found["global", "nats", "url"] = _nats(self.external_nats)
            found["nats", "enabled"] = False
            found["global", "secrets", "nats"] = _needed(
                self.nats_secret, "--nats-secret", "--external-nats"
            )
        elif self.nats_secret:
            found["global", "secrets", "nats"] = self.nats_secret
        return found


def _needed(secret: str, option: str, because: str) -> str:
    if not secret:
        raise usage(
            f"{because} needs {option}",
            where=option,
            fix="name the Secret with the services' passwords (a key for each service, and admin)",
        )
    return secret


def _resource(name: str) -> str:
    if name and not re.fullmatch(r"[a-z0-9.-]+/[A-Za-z0-9._-]+", name):
        raise usage(
            f"{name!r} is no extended resource",
            where="--gpu-resource",
            fix="write DOMAIN/NAME as the device plugin names it, such as nvidia.com/gpu",
        )
    return name


def _host(text: str) -> Iterator[tuple[str, Any]]:
    found = re.fullmatch(r"(?P<host>[\w.-]+)(:(?P<port>\d+))?(/(?P<name>[a-z_][a-z0-9_]*))?", text)
    if found is None:
        raise usage(
            f"{text!r} is no server",
            where="--external-postgres",
            fix="write HOST[:PORT][/DATABASE]",
        )
    yield "host", found["host"]
    if found["port"]:
        yield "port", int(found["port"])
    if found["name"]:
        yield "name", found["name"]


def _nats(text: str) -> str:
    for url in text.split(","):
        if not re.fullmatch(r"(nats|tls)://[\w.-]+(:\d+)?", url):
            raise usage(
                f"{url!r} is no server",
                where="--external-nats",
                fix="write nats://HOST:PORT or tls://HOST:PORT, several separated by commas, "
                "without a password",
            )
    return text


def nested(values: Mapping[Path_, Any]) -> dict[str, Any]:
    """Values by path as one document."""
    found: dict[str, Any] = {}
    for path, value in values.items():
        at = found
        for name in path[:-1]:
            at = at.setdefault(name, {})
        at[path[-1]] = value
    return found


def commented(values: Mapping[Path_, Any]) -> str:
    """A file for ``-f``: what is chosen, and the other common choices in comments."""
    known = {entry.path for entry in ENTRIES}
    more = tuple(Entry(path, "", value) for path, value in values.items() if path not in known)
    return HEAD + "\n" + "\n".join(_lines((*ENTRIES, *more), values, 0))


def _lines(entries: Sequence[Entry], values: Mapping[Path_, Any], depth: int) -> Iterator[str]:
    """The entries of one mapping; what holds nothing chosen stands in comments as a whole."""
    for name in dict.fromkeys(entry.path[depth] for entry in entries):
        below = [entry for entry in entries if entry.path[depth] == name]
        chosen = any(entry.path in values for entry in below)
        if below[0].path[depth + 1 :]:
            lines = [f"{name}:", *(f"  {line}" for line in _lines(below, values, depth + 1))]
        else:
            (entry,) = below
            comment_lines = entry.comment.splitlines() if entry.comment else []
            shown = values.get(entry.path, entry.example)
            lines = [*(f"# {line}" for line in comment_lines), f"{name}: {_yaml(shown)}"]
        yield from lines if chosen else (_comment(line) for line in lines)


def _comment(line: str) -> str:
    stripped = line.lstrip()
    blanks = line[: len(line) - len(stripped)]
    return line if stripped.startswith("#") else f"{blanks}# {stripped}"


def _yaml(value: Any) -> str:  # noqa: ANN401 - any value
    """On one line: JSON is YAML, but plain words need no quotes."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value)
