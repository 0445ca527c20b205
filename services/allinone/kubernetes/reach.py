"""The API of an installed platform: the way there, and the first administrator's token.

Used by ``up``, ``status`` and ``down``. Everything goes through the front door, as everybody's.
"""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from shiftwork.cli import contexts, homes
from shiftwork.cli.failures import Failure
from shiftwork.cli.parse import fields

from libs.contracts.tcp_ports import GATEWAY_PORT
from libs.pods.kubernetes_names import TASKS_NAMESPACE
from services.allinone.kubernetes.helm import Helm, prefix
from services.allinone.kubernetes.kubectl import Json, Kubectl, Target


@dataclass(frozen=True, slots=True)
class Installed:
    """What of an installation one must know to talk to it."""

    to: Target
    prefix: str
    keys_secret: str
    tasks_namespace: str
    # Where people reach it; empty: by port-forward only.
    url: str

    @property
    def gateway(self) -> str:
        """Its Service."""
        return f"{self.prefix}-gateway"

    @property
    def forward(self) -> str:
        """The command that makes it reachable from here."""
        ports = f"{GATEWAY_PORT}:{GATEWAY_PORT}"
        return f"kubectl port-forward -n {self.to.namespace} service/{self.gateway} {ports}"

    @property
    def context(self) -> str:
        """Under which name the command line knows it."""
        named = (self.to.release, self.to.namespace) != ("shiftwork", "shiftwork")
        return f"kubernetes-{self.to.namespace}-{self.to.release}" if named else "kubernetes"


def installed(to: Target, helm: Helm) -> Installed:
    """Read it from the release's values."""
    values = helm.values()
    shared = fields(values.get("global"))
    begins = prefix(to, values)
    return Installed(
        to=to,
        prefix=begins,
        keys_secret=fields(shared.get("secrets")).get("keys") or f"{begins}-keys",
        tasks_namespace=fields(shared.get("tasks")).get("namespace") or TASKS_NAMESPACE,
        url=_public(values),
    )


def removed(to: Target) -> Installed:
    """What is known of one that is not there (any more): the names that charts give by default."""
    return Installed(to, to.release, f"{to.release}-keys", TASKS_NAMESPACE, "")


def _public(values: Json) -> str:
    """The name that its Ingress gives it; empty without one."""
    ingress = fields(fields(values.get("gateway")).get("ingress"))
    if not ingress.get("enabled"):
        return ""
    return f"{'https' if ingress.get('tlsSecret') else 'http'}://{ingress['host']}"


def admin_token(kubectl: Kubectl, it: Installed) -> str:
    """The first administrator's token, read from its Secret."""
    found = kubectl.maybe("secret", it.keys_secret, "-n", it.to.namespace)
    held = fields((found or {}).get("data")).get("admin-token")
    if not held:
        raise Failure(
            "the administrator's token is not there",
            where=f"Secret {it.keys_secret}, key admin-token ({it.to.where})",
            fix="`shiftwork k8s up` makes it, unless global.secrets.keys names one of your own",
        )
    return base64.b64decode(held).decode().strip()


@contextlib.contextmanager
def front_door(kubectl: Kubectl, it: Installed) -> Generator[tuple[str, str]]:
    """URL and token of the API, through a tunnel, while the context is open."""
    token = admin_token(kubectl, it)
    with kubectl.tunnel(it.gateway, GATEWAY_PORT) as url:
        yield url, token


def keep_context(it: Installed, token: str) -> Path:
    """Make it the command line's current platform; the file that holds the token (0600)."""
    folder = homes.config().make(contexts.FOLDER)
    file = folder / f"{it.context}-admin"
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
        stream.write(token + "\n")
    fresh.replace(file)
    url = it.url or f"http://127.0.0.1:{GATEWAY_PORT}"
    named = contexts.Named(url, str(file), remote=True)
    contexts.save(contexts.default_path(), lambda _: it.context, named)
    return file
