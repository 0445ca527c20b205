"""Name spaces and limited users of a cluster, made by its administrator's client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tools.cluster.api import Api, wait_until


def ensure_namespace(api: Api, name: str, labels: dict[str, str] | None = None) -> None:
    """Make the namespace, and wait until pods can be created in it."""
    body = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": labels or {}},
    }
    api.apply(f"/api/v1/namespaces/{name}", body)
    accounts = f"/api/v1/namespaces/{name}/serviceaccounts"
    wait_until(
        lambda: any(one["metadata"]["name"] == "default" for one in api.items(accounts)),
        f"the ServiceAccount of namespace {name}",
    )


def grant(
    api: Api,
    namespace: str,
    name: str,
    rules: Sequence[dict[str, Any]],
    *,
    cluster_rules: Sequence[dict[str, Any]] = (),
    seconds: int = 86_400,
) -> str:
    """A ServiceAccount with exactly these rights, and a new token of it."""
    core, rbac = "/api/v1", "/apis/rbac.authorization.k8s.io/v1"
    accounts = f"{core}/namespaces/{namespace}/serviceaccounts"
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name, "namespace": namespace},
    }
    api.apply(f"{accounts}/{name}", account)
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    for kind, where, what, given in (
        ("", f"{rbac}/namespaces/{namespace}/", rules, name),
        ("Cluster", f"{rbac}/", cluster_rules, f"{namespace}-{name}"),
    ):
        role = {"kind": f"{kind}Role", "metadata": {"name": given}, "rules": list(what)}
        binding = {
            "kind": f"{kind}RoleBinding",
            "metadata": {"name": given},
            "subjects": [subject],
            "roleRef": {
                "kind": f"{kind}Role",
                "name": given,
                "apiGroup": "rbac.authorization.k8s.io",
            },
        }
        for plural, body in (("roles", role), ("rolebindings", binding)):
            path = f"{where}{kind.lower()}{plural}/{given}"
            api.apply(path, {"apiVersion": "rbac.authorization.k8s.io/v1", **body})
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": seconds},
    }
    return api.create(f"{accounts}/{name}/token", request)["status"]["token"]
