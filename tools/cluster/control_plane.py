"""A control plane: etcd, kube-apiserver, and (as asked) controllers, scheduler, simulated nodes.

All of it runs as child processes on this machine, with its data, keys, ports and logs in one
folder, so several stand beside one another and one that was stopped comes back with what it knew.
RBAC is on, Pod Security admission and quotas work as everywhere. Used by the tests' fixtures and,
with real nodes added, by ``make cluster``.
"""

from __future__ import annotations

import json
import signal
import socket
import ssl
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Self
from urllib.request import Request, urlopen

from tools.cluster import access, plane_arguments, rights
from tools.cluster.api import Api, ApiError, wait_until
from tools.cluster.plane_arguments import (
    API_NAMES,
    API_SERVER,
    AUDIT_POLICY,
    CONTROLLERS,
    ETCD,
    ETCD_PEER,
    KWOK,
    LOCAL,
    SCHEDULER,
    Options,
    Place,
)
from tools.cluster.processes import Processes
from tools.cluster.programs import program
from tools.cluster.stages import write_stages

__all__ = ["API_SERVER", "CONTROLLERS", "ETCD", "KWOK", "SCHEDULER", "ControlPlane", "Options"]

START_SECONDS = 120.0
RESTART_SECONDS = 2.0
GUARD = "guard"
# Outside of what the API server keeps; etcd's JSON wants base64.
ETCD_KEY = b64encode(b"shiftwork").decode("ascii")
USERS = {CONTROLLERS: "controller-manager", SCHEDULER: "scheduler", KWOK: "kwok"}


class ControlPlane:
    """One control plane. Blocking; not for concurrent use."""

    def __init__(self, folder: Path, options: Options | None = None) -> None:
        self.folder = folder
        self.options = options or Options()
        self.processes = Processes(folder)
        users = {**access.CONTROL_PLANE_USERS, **access.node_users(self.options.nodes)}
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        self._tokens = access.ensure_tokens(folder, users)
        ports = _ensure_ports(folder / "ports.json", self.options.port)
        self.place = Place(folder, ports)
        self._api: Api | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Where the API server answers."""
        return f"https://{self.options.listen}:{self.place.ports[API_SERVER]}"

    @property
    def authority(self) -> Path:
        """The certificate of the authority that signed the API server's."""
        return self.place.certificates / "ca.crt"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.folder / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        """With ``audit``: one JSON line for each request that wrote."""
        return self.place.audit_log

    @property
    def api(self) -> Api:
        """The administrator's client."""
        if self._api is None:
            self._api = Api(self.kubeconfig)
        return self._api

    def start(self) -> None:
        """Start what does not run, and wait until it works.

        Raises:
            ProcessError: A program does not start.
            TimeoutError: It started and does not answer; the text holds the end of its log.
        """
        for name in self.wanted():
            self.start_program(name)
        if self.options.controllers:
            # A pod needs the namespace's ServiceAccount, which a controller makes.
            path = "/api/v1/namespaces/default/serviceaccounts/default"
            self._wait(lambda: self._exists(path), CONTROLLERS)

    def start_program(self, name: str) -> None:
        """Start one program with the ports and the data that it had, and wait until it answers."""
        arguments = self._arguments(name)
        self.processes.start(name, [program(name), *arguments])
        if name == API_SERVER and not self.kubeconfig.exists():
            access.write_secret(self.kubeconfig, self.kubeconfig_text(access.ADMIN))
        self._wait(lambda: self._healthy(name), name)

    def close(self) -> None:
        """Close our own connections; the programs run on."""
        if self._api is not None:
            self._api.close()
            self._api = None

    def stop(self, *, but: str | None = None) -> None:
        """End everything that was started here, in the opposite order; data and keys stay."""
        self.close()
        for name in (GUARD, KWOK, SCHEDULER, CONTROLLERS, API_SERVER, ETCD):
            if name != but:
                self.processes.stop(name)

    def end_with(self, pid: int, *, remove: bool = False) -> None:
        """Have everything ended when the process ``pid`` is gone, however it goes.

        With ``remove`` the folder goes too.
        """
        options = ["--remove"] if remove else []
        self.processes.start_command(GUARD, "guard", str(self.folder), str(pid), *options)

    def restart(self, name: str = API_SERVER, *, kill: bool = False) -> None:
        """Stop and start one program in place: the same address, the same data.

        An API server that is asked to stop waits for its watchers to leave; after two seconds
        (at once with ``kill``) it is killed, as a rolling update would after its grace.
        """
        self.processes.stop(name, kill=kill, grace_seconds=RESTART_SECONDS)
        self.start_program(name)

    @contextmanager
    def paused(self, name: str) -> Iterator[None]:
        """The program is there but does nothing: connections stay open, nothing is answered."""
        self.processes.signal(name, signal.SIGSTOP)
        try:
            yield
        finally:
            self.processes.signal(name, signal.SIGCONT)

    def compact(self) -> int:
        """Forget etcd's history up to now; the revision that is the oldest known."""
        newest = int(self._etcd("range", {"key": ETCD_KEY, "limit": "1"})["header"]["revision"])
        self._etcd("compaction", {"revision": str(newest), "physical": True})
        return newest

    def expire(self) -> None:
        """Restart the API server so that no watch can go on: all known versions are too old.

        A watch from an earlier resource version gets 410, and its client has to list again.
        """
        self.processes.stop(API_SERVER, kill=True)
        # A change that no client can have seen: without one, a client that saw the last change
        # of all may still watch from there.
        self._etcd("put", {"key": ETCD_KEY, "value": ETCD_KEY})
        self.compact()
        self.start_program(API_SERVER)

    def _etcd(self, what: str, body: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
        return _post(f"http://{LOCAL}:{self.place.ports[ETCD]}/v3/kv/{what}", body)

    def kubeconfig_text(self, user: str) -> str:
        """The kubeconfig of a user of the token file."""
        return self.kubeconfig_of_token(self._tokens[user])

    def kubeconfig_of_token(self, token: str, namespace: str = "default") -> str:
        """A kubeconfig with this token."""
        return access.kubeconfig(
            url=self.url, authority=self.authority, token=token, namespace=namespace
        )

    def ensure_namespace(self, name: str, labels: dict[str, str] | None = None) -> None:
        """Make the namespace, and wait until pods can be created in it."""
        rights.ensure_namespace(self.api, name, labels)

    def service_account(
        self,
        namespace: str,
        name: str,
        rules: Sequence[dict[str, Any]] = (),
        *,
        cluster_rules: Sequence[dict[str, Any]] = (),
        seconds: int = 86_400,
    ) -> Path:
        """A ServiceAccount with exactly these rights; the kubeconfig of a new token of it.

        Args:
            namespace: Where it lives, and where ``rules`` hold.
            name: Of the account, its roles and their bindings.
            rules: RBAC rules in the namespace.
            cluster_rules: RBAC rules for the whole cluster.
            seconds: How long the token is valid (the API server's minimum is 600).
        """
        token = rights.grant(
            self.api, namespace, name, rules, cluster_rules=cluster_rules, seconds=seconds
        )
        path = self.place.kubeconfig(f"{namespace}-{name}")
        access.write_secret(path, self.kubeconfig_of_token(token, namespace))
        return path

    def wanted(self) -> Iterator[str]:
        """The programs of this control plane, in the order of their start."""
        yield ETCD
        yield API_SERVER
        if self.options.controllers:
            yield CONTROLLERS
        if self.options.scheduler:
            yield SCHEDULER
        if self.options.simulated_nodes:
            yield KWOK

    def _exists(self, path: str) -> bool:
        try:
            self.api.get(path)
        except ApiError:
            return False
        return True

    def _healthy(self, name: str) -> bool:
        if not self.processes.is_running(name):
            raise TimeoutError(f"{name} ended.\n{self.processes.tail(name)}")
        port = self.place.ports[name]
        if name == API_SERVER:
            return self.api.ready()
        scheme, path = {ETCD: ("http", "/health"), KWOK: ("http", "/healthz")}.get(
            name, ("https", "/healthz")
        )
        return _answers(f"{scheme}://{LOCAL}:{port}{path}")

    def _wait(self, true: Any, name: str) -> None:  # noqa: ANN401 - a condition
        try:
            wait_until(true, name, seconds=START_SECONDS, every=0.1)
        except TimeoutError as problem:
            log = self.processes.log(name)
            raise TimeoutError(f"{problem}\n{log}:\n{self.processes.tail(name)}") from problem

    def _arguments(self, name: str) -> list[str]:
        """Write the files that the program reads; how it is called."""
        options, place = self.options, self.place
        if name == ETCD:
            return plane_arguments.etcd(options, place)
        if name == API_SERVER:
            first = next(ip_network(options.service_subnet).hosts())
            names = [*API_NAMES, options.listen, str(first)]
            access.ensure_certificates(place.certificates, names)
            access.ensure_signing_key(place.signing_key)
            place.audit_policy.write_text(json.dumps(AUDIT_POLICY), "utf-8")
            return plane_arguments.api_server(options, place)
        user = USERS[name]
        access.write_secret(place.kubeconfig(user), self.kubeconfig_text(user))
        if name == CONTROLLERS:
            return plane_arguments.controllers(options, place)
        if name == SCHEDULER:
            text = json.dumps(plane_arguments.scheduler_configuration(place), indent=2)
            place.scheduler.write_text(text, "utf-8")
            return plane_arguments.scheduler(options, place)
        return plane_arguments.kwok(options, place, write_stages(self.folder / "stages"))


def _ensure_ports(path: Path, api_server: int) -> dict[str, int]:
    if path.exists():
        return json.loads(path.read_text("utf-8"))
    names = (ETCD, ETCD_PEER, API_SERVER, CONTROLLERS, SCHEDULER, KWOK)
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    if api_server:
        ports[API_SERVER] = api_server
    path.write_text(json.dumps(ports), "utf-8")
    return ports


def free_ports(count: int) -> list[int]:
    """Free ports on loopback."""
    sockets = [socket.create_server((LOCAL, 0)) for _ in range(count)]
    try:
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def is_free(address: str, port: int) -> bool:
    """Whether this port is free on all our addresses, and we may bind it."""
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        with socket.socket(socket.AF_INET, kind) as probe:
            try:
                probe.bind((address, port))
            except OSError:
                return False
    return True


def _answers(url: str) -> bool:
    # The server is a process of our own on loopback with a self-signed certificate.
    context = ssl._create_unverified_context() if url.startswith("https") else None  # noqa: S323, SLF001
    try:
        with urlopen(url, timeout=5, context=context) as answer:  # noqa: S310 - loopback
            return answer.status == 200  # noqa: PLR2004
    except OSError:
        return False


def _post(url: str, body: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})  # noqa: S310
    with urlopen(request, timeout=30) as answer:  # noqa: S310 - loopback
        return json.loads(answer.read())
