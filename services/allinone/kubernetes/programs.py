"""Finds helm and kubectl: named by a variable, on the PATH, or built for ``make cluster``."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from shiftwork.cli import homes
from shiftwork.cli.failures import Failure

# Name -> how to get it.
FIXES = {
    "helm": "install helm 3.14 or newer (https://helm.sh/docs/intro/install), or name it: HELM=…",
    "kubectl": "install kubectl (https://kubernetes.io/docs/tasks/tools), or name it: KUBECTL=…",
}


def find(name: str) -> str:
    """The program's path; Failure if it is nowhere."""
    given = os.environ.get(name.upper(), "")
    if given:
        found = shutil.which(given)
        if found is None:
            raise Failure(f"{given} is no program", where=name.upper(), fix=FIXES[name])
        return found
    found = shutil.which(name)
    if found is None and (built := sorted(_cache().glob(f"*/bin/{name}"), key=_age)):
        found = str(built[-1])
    if found is None:
        raise Failure(f"{name} is not on the PATH", where=name, fix=FIXES[name])
    return found


def _cache() -> Path:
    """The folder in which ``make cluster`` keeps its programs."""
    given = os.environ.get("SHIFTWORK_CLUSTER_CACHE")
    if given:
        return Path(given)
    instead = "set SHIFTWORK_CLUSTER_CACHE"
    return homes.base("XDG_CACHE_HOME", ".cache", instead).path / "shiftwork" / "cluster"


def _age(program: Path) -> float:
    return program.stat().st_mtime
