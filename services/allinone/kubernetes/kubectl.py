"""A cluster through ``kubectl``: one call, its JSON, and its errors as *what, where, fix*.

Used by every part of ``shiftwork k8s`` and by ``doctor --kubernetes``. kubectl brings the user's
own way to log in (files, plug-ins, clouds), which no library of ours would know.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shiftwork.cli.failures import REFUSED, UNREACHABLE, Failure

from services.allinone.kubernetes import programs
from services.allinone.kubernetes.options import Target

Json = dict[str, Any]
# The server's time for an answer, and what a call may take on top of it.
REQUEST_SECONDS, CALL_SECONDS_MAX = 20, 60.0
TUNNEL_SECONDS_MAX = 20.0
_FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+)")


@dataclass(frozen=True, slots=True)
class Meaning:
    """What one kind of error is, for people. ``what`` may be empty: the program's own words."""

    words: re.Pattern[str]
    what: str
    fix: str
    code: int = REFUSED


def _means(words: str, what: str, fix: str, code: int = REFUSED) -> Meaning:
    return Meaning(re.compile(words, re.IGNORECASE), what, fix, code)


# The first one whose words are found.
MEANINGS: tuple[Meaning, ...] = (
    _means(
        r"must be logged in|unauthorized|asked for the client to provide credentials",
        "the cluster does not know who you are: the token or certificate has expired or is wrong",
        "log in to the cluster again, or name another file: --kubeconfig FILE",
    ),
    _means(
        r"x509:|certificate signed by unknown",
        "the certificate of the API server cannot be trusted",
        "correct certificate-authority-data in the kubeconfig, or take a newer file",
    ),
    _means(
        r"no configuration has been provided|current-context must exist|"
        r"context .* does not exist|context was not found|"
        r"(stat|open|loading config file) .*(no such file|cannot unmarshal|error)|"
        r"error loading config file",
        "there is no usable kubeconfig",
        "set KUBECONFIG, or name a file and a context: --kubeconfig FILE --kube-context NAME",
    ),
    _means(
        r"connection refused|was refused|no such host|i/o timeout|tls handshake timeout|"
        r"unable to connect to the server|no route to host|context deadline exceeded|"
        r"client\.timeout|connection reset|network is unreachable|unexpected EOF",
        "the cluster does not answer",
        "is it up, and is the address in the kubeconfig right?",
        UNREACHABLE,
    ),
    _means(
        r"namespaces? \"?[\w-]+\"? not found",
        "",
        "`shiftwork k8s up` makes the namespace, or name another: --namespace N",
    ),
    _means(
        r"forbidden",
        "",
        "ask the cluster's administrator for this right, or use another kubeconfig",
    ),
)


def failure(output: str, where: str, fix: str = "") -> Failure:
    """The standard error of a program, as a Failure."""
    lines = [line for line in output.splitlines() if line.strip()]
    # Warnings and the client's own log come before what matters.
    relevant = [
        line
        for line in lines
        if not re.match(r"([EWI]\d{4} |warning|level=(INFO|WARN))", line, re.IGNORECASE)
    ]
    text = "\n".join(relevant or lines).strip().removeprefix("Error: ").removeprefix("error: ")
    for known in MEANINGS:
        if known.words.search(output):
            detail = (relevant or lines)[-1]
            what = f"{known.what} ({detail.strip()})" if known.what else text
            return Failure(what, where=where, fix=known.fix, code=known.code)
    return Failure(text or "it failed without a message", where=where, fix=fix)


def call(
    command: Sequence[str], where: str, seconds_max: float, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the operator's own kubectl or helm. Failure if it takes too long."""
    try:
        return subprocess.run(  # noqa: S603 - no shell
            command, input=stdin, capture_output=True, text=True, check=False, timeout=seconds_max
        )
    except subprocess.TimeoutExpired:
        raise failure("context deadline exceeded", where) from None


class Kubectl:
    """kubectl, for one target. Each call is a process; Failure if it fails."""

    def __init__(self, to: Target) -> None:
        self.to = to
        self.program = programs.find("kubectl")

    def run(
        self,
        *arguments: str,
        stdin: str | None = None,
        codes: Sequence[int] = (0,),
        seconds_max: float = CALL_SECONDS_MAX,
    ) -> str:
        """What it prints. Exit codes other than ``codes`` are failures."""
        command = [*self._begin(), f"--request-timeout={REQUEST_SECONDS}s", *arguments]
        where = f"kubectl {' '.join(arguments[:3])} ({self.to.where})"
        done = call(command, where, seconds_max, stdin)
        if done.returncode not in codes:
            raise failure(done.stderr, where)
        return done.stdout

    def get(self, *arguments: str) -> Json:
        """One object, or a list."""
        return json.loads(self.run("get", *arguments, "-o", "json"))

    def maybe(self, *arguments: str) -> Json | None:
        """One object; None if it is not there."""
        output = self.run("get", *arguments, "--ignore-not-found", "-o", "json")
        return json.loads(output) if output.strip() else None

    def items(self, kinds: str, *arguments: str) -> list[Json]:
        """Objects of some kinds (separated by commas), in the target's namespace or ``-A``."""
        everywhere = "-A" in arguments
        namespace = () if everywhere else ("-n", self.to.namespace)
        return list(self.get(kinds, *namespace, *arguments)["items"])

    def create(self, objects: Sequence[Mapping[str, Any]]) -> list[Json]:
        """Create objects; as the server answers them."""
        return documents(self.run("create", "-f", "-", "-o", "json", stdin=as_list(objects)))

    @contextlib.contextmanager
    def tunnel(self, service: str, port: int) -> Generator[str]:
        """An address on this machine that leads to a service, while the context is open."""
        arguments = ("port-forward", "-n", self.to.namespace, f"service/{service}", f":{port}")
        where = f"kubectl port-forward service/{service} ({self.to.where})"
        process = subprocess.Popen(  # noqa: S603 - the operator's own kubectl, no shell
            [*self._begin(), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            # It writes one line once it listens, or none and an error, and then it ends.
            found = _FORWARDING.match(process.stdout.readline())
            if found is None:
                process.wait(TUNNEL_SECONDS_MAX)
                raise failure(process.stderr.read(), where, "are the gateway's pods ready?")
            yield f"http://127.0.0.1:{found[1]}"
        finally:
            process.terminate()
            process.wait(TUNNEL_SECONDS_MAX)
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()

    def options(self) -> list[str]:
        """Which cluster, as options that kubectl and helm do not share a name for."""
        found = [f"--kubeconfig={self.to.kubeconfig}"] if self.to.kubeconfig else []
        return found + ([f"--context={self.to.context}"] if self.to.context else [])

    def _begin(self) -> list[str]:
        return [self.program, *self.options()]


def documents(output: str) -> list[Json]:
    """Objects as kubectl prints several: one after the other, or as a list."""
    found: list[Json] = []
    decoder, rest = json.JSONDecoder(), output.lstrip()
    while rest:
        one, end = decoder.raw_decode(rest)
        found += one["items"] if one["kind"].endswith("List") else [one]
        rest = rest[end:].lstrip()
    return found


def as_list(objects: Sequence[Mapping[str, Any]]) -> str:
    """Several objects as one document."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
