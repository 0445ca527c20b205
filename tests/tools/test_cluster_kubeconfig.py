"""Every kind of authentication in kubeconfigs of other clusters, against a real TLS server."""

from __future__ import annotations

import json
import ssl
import stat
import threading
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tools.cluster import access
from tools.cluster.api import Api, ApiError, KubeconfigError

NAME = "kube-apiserver-kubelet-client"


class _Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        peer: Any = self.connection.getpeercert()  # type: ignore[attr-defined]
        names = dict(pair for part in (peer or {}).get("subject", ()) for pair in part)
        body = json.dumps(
            {"name": names.get("commonName"), "authorization": self.headers.get("Authorization")}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    access.ensure_certificates(folder, ["127.0.0.1", "localhost"])
    return folder


@pytest.fixture(scope="module")
def url(keys: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Echo)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=keys / "ca.crt")
    tls.load_cert_chain(keys / "server.crt", keys / "server.key")
    tls.verify_mode = ssl.CERT_OPTIONAL
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"https://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def kubeconfig(folder: Path, url: str, cluster: dict[str, Any], user: dict[str, Any]) -> Path:
    path = folder / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "other", "cluster": {"server": url, **cluster}}],
                "users": [{"name": "me", "user": user}],
                "contexts": [{"name": "now", "context": {"cluster": "other", "user": "me"}}],
                "current-context": "now",
            }
        )
    )
    return path


def embedded(path: Path) -> str:
    return b64encode(path.read_bytes()).decode("ascii")


def ask(path: Path) -> dict[str, Any]:
    with Api(path) as api:
        return api.get("/identity")


def test_an_embedded_certificate_as_kind_writes_it(tmp_path: Path, url: str, keys: Path) -> None:
    path = kubeconfig(
        tmp_path,
        url,
        {"certificate-authority-data": embedded(keys / "ca.crt")},
        {
            "client-certificate-data": embedded(keys / "kubelet-client.crt"),
            "client-key-data": embedded(keys / "kubelet-client.key"),
        },
    )
    assert ask(path) == {"name": NAME, "authorization": None}


def test_certificates_in_files_beside_it(tmp_path: Path, url: str, keys: Path) -> None:
    for name in ("ca.crt", "kubelet-client.crt", "kubelet-client.key"):
        (tmp_path / name).write_bytes((keys / name).read_bytes())
    user = {"client-certificate": "kubelet-client.crt", "client-key": "kubelet-client.key"}
    path = kubeconfig(tmp_path, url, {"certificate-authority": "ca.crt"}, user)
    assert ask(path) == {"name": NAME, "authorization": None}


def test_a_token(tmp_path: Path, url: str, keys: Path) -> None:
    cluster = {"certificate-authority-data": embedded(keys / "ca.crt")}
    path = kubeconfig(tmp_path, url, cluster, {"token": "abc"})
    assert ask(path) == {"name": None, "authorization": "Bearer abc"}


def test_an_exec_plugin_as_clouds_have_it(tmp_path: Path, url: str, keys: Path) -> None:
    version = "client.authentication.k8s.io/v1"
    found = {"apiVersion": version, "kind": "ExecCredential", "status": {"token": "from-plugin"}}
    plugin = tmp_path / "plugin"
    plugin.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(found)}\nEND\n")
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    how = {"apiVersion": version, "command": str(plugin), "interactiveMode": "Never"}
    cluster = {"certificate-authority-data": embedded(keys / "ca.crt")}
    assert ask(kubeconfig(tmp_path, url, cluster, {"exec": how})) == {
        "name": None,
        "authorization": "Bearer from-plugin",
    }


def test_an_untrusted_server_gets_no_requests(tmp_path: Path, url: str) -> None:
    with pytest.raises(ApiError, match="CERTIFICATE_VERIFY_FAILED"):
        ask(kubeconfig(tmp_path, url, {}, {"token": "abc"}))
    path = kubeconfig(tmp_path, url, {"insecure-skip-tls-verify": True}, {"token": "abc"})
    assert ask(path)["authorization"] == "Bearer abc"


@pytest.mark.parametrize("text", ["", "nonsense: [", "{}", '{"current-context": "x"}'])
def test_an_invalid_kubeconfig_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(KubeconfigError, match=f"kubeconfig {path} cannot be used"):
        Api(path)
    with pytest.raises(KubeconfigError, match="cannot be used"):
        Api(tmp_path / "missing")
