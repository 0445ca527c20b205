"""The programs of a cluster, built from the Go modules in ``programs/`` into a cache folder.

Every module folder has its own go.mod and go.sum (other people's programs by ``tool`` directives),
so a build is the same everywhere. What is built lies under ``CACHE/MODULE-DIGEST/bin``: the digest
covers go.mod, go.sum, our own sources and how we build, so a changed version never meets an old
program. Only what is asked for is built.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.cluster.toolchain import ToolchainError, find_go

MODULES = Path(__file__).parent / "programs"
CACHE_VARIABLE = "SHIFTWORK_CLUSTER_CACHE"
# The convention of controller-runtime's envtest: a folder with kube-apiserver and etcd.
ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
BUILD_FLAGS = ("-mod=readonly", "-trimpath", "-buildvcs=false")


@dataclass(frozen=True, slots=True)
class Program:
    """Where one program comes from."""

    module: str
    package: str
    # Build tags: what is left out because nobody here needs it.
    tags: str = ""


PROGRAMS = {
    "etcd": Program("etcd", "go.etcd.io/etcd/server/v3"),
    "kube-apiserver": Program("kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"),
    "kube-controller-manager": Program(
        "kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager"
    ),
    "kube-scheduler": Program("kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler"),
    "kubelet": Program("kubernetes", "k8s.io/kubernetes/cmd/kubelet"),
    "kube-proxy": Program("kubernetes", "k8s.io/kubernetes/cmd/kube-proxy"),
    "kubectl": Program("kubernetes", "k8s.io/kubernetes/cmd/kubectl"),
    "minio": Program("minio", "github.com/minio/minio"),
    "kwok": Program("kwok", "sigs.k8s.io/kwok/cmd/kwok"),
    "containerd": Program("containerd", "github.com/containerd/containerd/v2/cmd/containerd"),
    "containerd-shim-runc-v2": Program(
        "containerd", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
    ),
    "ctr": Program("containerd", "github.com/containerd/containerd/v2/cmd/ctr"),
    # Small ones of our own.
    "pause": Program("node", "./pause"),
    "gpus": Program("node", "./gpus"),
    "probe": Program("node", "./probe"),
    "coredns": Program("coredns", "."),
    "helm": Program("helm", "helm.sh/helm/v4/cmd/helm"),
    "helm3": Program("helm3", "helm.sh/helm/v3/cmd/helm"),
    "dashboards": Program("dashboards", "."),
    "kubeconform": Program("kubeconform", "github.com/yannh/kubeconform/cmd/kubeconform"),
    "prometheus": Program(
        "promtool", "github.com/prometheus/prometheus/cmd/prometheus", tags="remove_all_sd"
    ),
    "promtool": Program(
        "promtool", "github.com/prometheus/prometheus/cmd/promtool", tags="remove_all_sd"
    ),
}
# Data files that a program needs beside it, kept from its module: (module path, folder in it).
DATA = {"kwok": ("sigs.k8s.io/kwok", "kustomize/stage")}


class BuildError(RuntimeError):
    """A program cannot be built here; the message has the remedy."""


def cache_folder() -> Path:
    """Where built programs are kept."""
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "shiftwork" / "cluster"


def module_folder(module: str) -> Path:
    """Where this module's programs are kept, for exactly these versions and flags."""
    digest = hashlib.sha256()
    sources = MODULES / module
    for path in (sources / "go.mod", sources / "go.sum", *sorted(sources.rglob("*.go"))):
        digest.update(path.read_bytes())
    tags = sorted({one.tags for one in PROGRAMS.values() if one.module == module and one.tags})
    digest.update(repr((BUILD_FLAGS, _linker_flags(module), *tags)).encode())
    return cache_folder() / f"{module}-{digest.hexdigest()[:12]}"


def kubernetes_version() -> str:
    """The version of Kubernetes that is built, as ``v1.36.3``."""
    text = (MODULES / "kubernetes" / "go.mod").read_text("utf-8")
    found = re.search(r"^\s*k8s\.io/kubernetes (v\S+)", text, re.MULTILINE)
    if found is None:
        raise BuildError("programs/kubernetes/go.mod does not name a version of Kubernetes")
    return found[1]


def _linker_flags(module: str) -> str:
    """Versions that a release's build writes in."""
    values: dict[str, str] = {}
    if module == "kubernetes":
        # Its programs query each other's version.
        packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        values = {f"{package}.gitVersion": kubernetes_version() for package in packages}
    elif module == "helm3":
        # It takes its own version for the cluster's where it does not query one.
        numbers = dict(zip(("Major", "Minor"), kubernetes_version()[1:].split("."), strict=False))
        values = {
            f"helm.sh/helm/v3/pkg/{package}.k8sVersion{part}": number
            for package in ("chartutil", "lint/rules")
            for part, number in numbers.items()
        }
    return " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in values.items())])


def program(name: str) -> Path:
    """The path of a program, built first if it is not there.

    Raises:
        BuildError: Unknown name, no Go, or Go failed.
    """
    known = PROGRAMS.get(name)
    if known is None:
        raise BuildError(f"unknown program {name!r}; known are {', '.join(sorted(PROGRAMS))}")
    assets = os.environ.get(ASSETS_VARIABLE)
    if assets and (Path(assets) / name).exists():
        return Path(assets) / name
    folder = module_folder(known.module)
    path = folder / "bin" / name
    if path.exists():
        return path
    with _alone(folder):
        if not path.exists():
            _build(name, known, path)
    return path


def programs(names: Iterable[str]) -> dict[str, Path]:
    """The paths of these programs, each built first if it is not there."""
    return {name: program(name) for name in names}


def data_folder(name: str) -> Path:
    """The folder of data files that belongs to this program, copied from its module once."""
    module_path, inside = DATA[name]
    folder = module_folder(PROGRAMS[name].module)
    kept = folder / "data"
    if kept.exists():
        return kept
    with _alone(folder):
        if not kept.exists():
            where = MODULES / PROGRAMS[name].module
            command = ("list", "-mod=readonly", "-m", "-f", "{{.Dir}}", module_path)
            _go("mod", "download", module_path, folder=where)
            source = Path(_go(*command, folder=where).strip()) / inside
            unfinished = folder / f"data.{os.getpid()}.new"
            shutil.copytree(source, unfinished, copy_function=shutil.copyfile)
            unfinished.rename(kept)
    return kept


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One builder at a time for each module; others wait and find it done."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(name: str, known: Program, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    print(f"building {name} (once; minutes when Go's cache is cold)", file=sys.stderr, flush=True)
    started = time.monotonic()
    unfinished = path.with_name(f".{name}.{os.getpid()}.new")
    arguments = ("build", *BUILD_FLAGS, "-ldflags", _linker_flags(known.module))
    arguments = (*arguments, "-tags", known.tags) if known.tags else arguments
    try:
        _go(*arguments, "-o", str(unfinished), known.package, folder=MODULES / known.module)
        unfinished.rename(path)
    finally:
        unfinished.unlink(missing_ok=True)
    print(f"built {name} in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def _go(*arguments: str, folder: Path) -> str:
    try:
        go = find_go(cache_folder())
    except ToolchainError as problem:
        raise BuildError(str(problem)) from problem
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}
    done = subprocess.run(  # noqa: S603 - our own arguments
        [go, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        output = done.stderr.strip() or done.stdout.strip()
        raise BuildError(f"go {arguments[0]} in {folder} failed:\n{output[-4_000:]}")
    return done.stdout
