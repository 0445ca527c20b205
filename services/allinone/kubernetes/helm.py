"""The release through ``helm``: rendered, installed, asked about, removed.

Used by the commands of ``shiftwork k8s``. Errors are *what, where, fix*, as kubectl's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from shiftwork.cli.failures import Failure
from shiftwork.cli.parse import fields

from services.allinone.kubernetes import programs
from services.allinone.kubernetes.kubectl import Json, Target, call, failure

# An installation makes about a hundred objects; a removal waits for pods and for its sweep.
CALL_SECONDS_MAX = 900.0
BUSY = ("pending-install", "pending-upgrade", "pending-rollback", "uninstalling")


@dataclass(frozen=True, slots=True)
class Values:
    """The values of an installation: files, later ones before earlier ones, then single values."""

    files: tuple[Path, ...] = ()
    sets: tuple[str, ...] = ()
    # Added to the values that the release has, instead of replacing them.
    added: bool = False

    def arguments(self) -> list[str]:
        """The values as arguments of helm."""
        files = [word for file in self.files for word in ("--values", str(file))]
        sets = [word for one in self.sets for word in ("--set", one)]
        return files + sets + (["--reset-then-reuse-values"] if self.added else [])


class Helm:
    """helm, for one target. Each call is a process; Failure if it fails."""

    def __init__(self, to: Target) -> None:
        self.to = to
        self.program = programs.find("helm")

    def run(self, *arguments: str) -> str:
        """What it prints."""
        where = f"helm {arguments[0]} {self.to.release} ({self.to.where})"
        command = [self.program, *arguments, "--namespace", self.to.namespace, *self._options()]
        done = call(command, where, CALL_SECONDS_MAX)
        if done.returncode != 0:
            raise _failure(done.stderr, where, self.to)
        return done.stdout

    def release(self) -> Json | None:
        """The release as it is now; None if there is none."""
        try:
            return json.loads(self.run("status", self.to.release, "--output", "json"))
        except Failure as problem:
            if "release: not found" in problem.what:
                return None
            raise

    def manifest(self) -> str:
        """The objects of the release, as they were installed."""
        return self.run("get", "manifest", self.to.release)

    def values(self) -> Json:
        """Every value of the release, its own and the charts'."""
        return json.loads(self.run("get", "values", self.to.release, "--all", "--output", "json"))

    def rendered(self, chart: Path, values: Values) -> Json:
        """What ``upgrade`` would make, as the cluster's own ``lookup`` sees it; nothing is made."""
        output = self.run(*self._upgrade(chart, values), "--dry-run=server", "--output", "json")
        return json.loads(output)

    def upgrade(self, chart: Path, values: Values) -> None:
        """Install, or change to this."""
        self.run(*self._upgrade(chart, values), "--create-namespace")

    def uninstall(self) -> None:
        """Remove the release; what its charts keep stays.

        Without the hook that clears away tasks' pods: it is a pod itself, and would be waited for
        where none can run (an image that is not there, a full quota). ``removing.sweep`` does it.
        """
        # In the foreground: gone means that the pods are gone, too.
        how = ("--no-hooks", "--cascade", "foreground", "--wait", "--timeout", "5m")
        self.run("uninstall", self.to.release, *how)

    def _upgrade(self, chart: Path, values: Values) -> list[str]:
        return ["upgrade", "--install", self.to.release, str(chart), *values.arguments()]

    def _options(self) -> list[str]:
        found = ["--kubeconfig", self.to.kubeconfig] if self.to.kubeconfig else []
        return found + (["--kube-context", self.to.context] if self.to.context else [])


def prefix(to: Target, values: Json) -> str:
    """What the names of all objects of the release begin with."""
    return str(fields(values.get("global")).get("name") or to.release)


def _failure(output: str, where: str, to: Target) -> Failure:
    if "another operation" in output and "in progress" in output:
        return Failure(
            "an earlier helm call of this release did not end",
            where=where,
            fix=f"wait for it, or take it back: helm rollback {to.release} -n {to.namespace} "
            "(if nothing was ever installed: `shiftwork k8s down --now`)",
        )
    if "kubeVersion" in output:
        return Failure(output.strip(), where=where, fix="upgrade the cluster")
    fix = "correct the values (`shiftwork k8s values` shows the common ones)"
    return failure(output, where, fix if "values" in output or "execution error" in output else "")
