"""Access to a cluster of ours: keys, the first users' tokens, kubeconfigs.

The API server's first users come from a token file; everybody else is a ServiceAccount with a
bound token, as on any cluster. Files with secrets are written with mode 0600.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

ADMIN = "admin"
ADMIN_GROUP = "system:masters"
DNS_USER = "shiftwork:coredns"
NODE_GROUP = "system:nodes"
KEY_DAYS = "3650"
NEW_KEY = ("-newkey", "rsa:2048", "-nodes")
# openssl's own defaults add the first of these to what is self-signed.
AUTHORITY = ("keyUsage=critical,keyCertSign,cRLSign",)
LEAF = (
    "basicConstraints=critical,CA:FALSE",
    "keyUsage=critical,digitalSignature,keyEncipherment",
    "subjectKeyIdentifier=hash",
    "authorityKeyIdentifier=keyid",
)
# The API server as it is reached, and as it shows itself to kubelets (logs, exec).
CERTIFICATES = {
    "server": ("/CN=kube-apiserver", "serverAuth"),
    "kubelet-client": (f"/O={ADMIN_GROUP}/CN=kube-apiserver-kubelet-client", "clientAuth"),
}


class AccessError(RuntimeError):
    """A key cannot be made here."""


@dataclass(frozen=True, slots=True)
class User:
    """One line of the token file."""

    name: str
    groups: tuple[str, ...] = ()


CONTROL_PLANE_USERS = {
    ADMIN: User("shiftwork:admin", (ADMIN_GROUP,)),
    "controller-manager": User("system:kube-controller-manager"),
    "scheduler": User("system:kube-scheduler"),
    "kwok": User("shiftwork:kwok", (ADMIN_GROUP,)),
}


def node_users(nodes: tuple[str, ...]) -> dict[str, User]:
    """What real nodes need: a kubelet's user for each, and kube-proxy's and CoreDNS's."""
    users = {f"kubelet-{node}": User(f"system:node:{node}", (NODE_GROUP,)) for node in nodes}
    return {
        **users,
        "kube-proxy": User("system:kube-proxy"),
        # CoreDNS runs beside the nodes, as a process: it reads Services and EndpointSlices.
        "coredns": User(DNS_USER),
    }


def write_secret(path: Path, text: str) -> None:
    """Write a file that only its owner reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def ensure_tokens(folder: Path, users: dict[str, User]) -> dict[str, str]:
    """The tokens of these users, made when first asked for, and the API server's token file."""
    kept = folder / "tokens.json"
    tokens: dict[str, str] = json.loads(kept.read_text("utf-8")) if kept.exists() else {}
    for key in users:
        tokens.setdefault(key, secrets.token_hex(20))
    write_secret(kept, json.dumps(tokens, indent=2))
    write_secret(folder / "tokens.csv", token_file(tokens, users))
    return tokens


def token_file(tokens: dict[str, str], users: dict[str, User]) -> str:
    """The API server's ``--token-auth-file``."""
    return "".join(
        f'{tokens[key]},{user.name},{key},"{",".join(user.groups)}"\n'
        for key, user in users.items()
    )


def kubeconfig(*, url: str, authority: Path, token: str, namespace: str = "default") -> str:
    """A kubeconfig (JSON is YAML) for the holder of a token; the authority is embedded."""
    cluster: dict[str, Any] = {
        "server": url,
        "certificate-authority-data": b64encode(authority.read_bytes()).decode("ascii"),
    }
    context = {"cluster": "shiftwork", "user": "shiftwork", "namespace": namespace}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "shiftwork", "cluster": cluster}],
            "users": [{"name": "shiftwork", "user": {"token": token}}],
            "contexts": [{"name": "shiftwork", "context": context}],
            "current-context": "shiftwork",
        },
        indent=2,
    )


def ensure_signing_key(path: Path) -> Path:
    """The key that signs the tokens of ServiceAccounts."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _openssl("genrsa", "-out", str(path), "2048")
        path.chmod(0o600)
    return path


def ensure_certificates(folder: Path, names: Sequence[str]) -> None:
    """An authority of our own in ``folder``, and what it signed: see ``CERTIFICATES``.

    Args:
        folder: Gets NAME.crt and NAME.key (0600) for ``ca`` and each of ``CERTIFICATES``.
        names: The DNS names and addresses by which the API server is reached.
    """
    if (folder / "complete").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    authority = ("-subj", "/CN=shiftwork-cluster", *_extensions(AUTHORITY))
    made = ("-keyout", str(folder / "ca.key"), "-out", str(folder / "ca.crt"))
    _openssl("req", "-x509", *NEW_KEY, *made, "-days", KEY_DAYS, *authority)
    alternatives = ",".join(f"{'IP' if _is_address(name) else 'DNS'}:{name}" for name in names)
    for name, (subject, usage) in CERTIFICATES.items():
        request, extensions = folder / f"{name}.csr", folder / f"{name}.extensions"
        lines = [*LEAF, f"extendedKeyUsage=critical,{usage}", f"subjectAltName={alternatives}"]
        extensions.write_text("\n".join(lines) + "\n", "utf-8")
        key = ("-keyout", str(folder / f"{name}.key"), "-out", str(request))
        _openssl("req", *NEW_KEY, *key, "-subj", subject)
        signer = ("-CA", str(folder / "ca.crt"), "-CAkey", str(folder / "ca.key"))
        signed = ("-in", str(request), "-out", str(folder / f"{name}.crt"), "-days", KEY_DAYS)
        serial = ("-set_serial", str(1 + secrets.randbits(120)))
        _openssl("x509", "-req", *signed, *signer, *serial, "-extfile", str(extensions))
        request.unlink()
        extensions.unlink()
    for key_file in folder.glob("*.key"):
        key_file.chmod(0o600)
    (folder / "complete").touch()


def _extensions(lines: Sequence[str]) -> list[str]:
    return [argument for line in lines for argument in ("-addext", line)]


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _openssl(*arguments: str) -> None:
    program = shutil.which("openssl")
    if program is None:
        raise AccessError(
            "openssl is needed to make keys; on Debian and Ubuntu: apt-get install openssl"
        )
    done = subprocess.run(  # noqa: S603 - our own arguments
        [program, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise AccessError(f"openssl {arguments[0]} failed: {done.stderr.strip()[-1_000:]}")
