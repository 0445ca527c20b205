"""Entry of ``make demo-kubernetes``; see ``story.py`` for what it shows.

    python -m tools.kubernetes_demo [--keep]

Without options it uses the two real nodes of ``make cluster``; it starts them, and ends them again
if they did not run. On a cluster of one's own (``--kubeconfig`` or KUBECONFIG) the images must be
where it pulls from (``--registry``), and checkpoints need storage that all nodes share: a folder
that is the same on each (``--host-path``), or a storage class whose volumes many nodes may write
(``--storage-class``).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import httpx
import yaml

from services.allinone.client import TIMEOUT_SECONDS, items
from tools.cluster.cluster import Cluster
from tools.cluster.images import ImageError
from tools.cluster.layout import Layout
from tools.cluster.prerequisites import CannotRunError
from tools.cluster.programs import BuildError, program
from tools.kubernetes_demo import story
from tools.kubernetes_demo.kube import Kube, KubeError
from tools.kubernetes_demo.platform import DemoError, Platform, print_line

NAMESPACE, TASKS_NAMESPACE = "shiftwork", "shiftwork-tasks"
GRANT, MOUNT, VOLUME = "demo", "/data", "shiftwork-demo"
NODES_SECONDS_MAX = 120.0
IMAGES = ("platform", "task", "task-torch", "nats", "postgres")
REPOSITORY = Path(__file__).resolve().parents[2]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kubeconfig", help="a cluster of yours; left out: $KUBECONFIG")
    parser.add_argument("--kubectl", default=os.environ.get("KUBECTL"))
    parser.add_argument("--registry", default="localhost", help="where the images are")
    parser.add_argument("--tag", default="dev", help="of the images")
    parser.add_argument("--host-path", help="a folder that all nodes share (one machine)")
    parser.add_argument("--storage-class", help="of volumes that many nodes may write")
    parser.add_argument("--keep", action="store_true", help="leave the platform installed")
    given = parser.parse_args()
    named = given.kubeconfig or os.environ.get("KUBECONFIG")
    given.kubeconfig = None if named == str(Layout().kubeconfig) else named
    if given.kubeconfig and bool(given.host_path) == bool(given.storage_class):
        parser.error("give --host-path or --storage-class, where checkpoints go")
    return given


def values(registry: str, tag: str) -> dict[str, object]:
    """The values of the umbrella chart for the demo."""
    return {
        "global": {
            "podPolicy": {
                "default_image": f"{registry}/shiftwork/task:{tag}",
                "storage": [
                    {"name": GRANT, "mount_path": MOUNT, "source": {"claim": {"name": GRANT}}}
                ],
            },
        },
    }


def storage(host_path: str | None, storage_class: str | None) -> list[dict[str, object]]:
    """The claim that the grant names; with a folder of the nodes also its volume, bound to it."""
    size, many = {"storage": "1Gi"}, ["ReadWriteMany"]
    claim: dict[str, object] = {"accessModes": many, "resources": {"requests": size}}
    objects: list[dict[str, object]] = []
    if host_path:
        claim |= {"storageClassName": "", "volumeName": VOLUME}
        volume = {
            "capacity": size,
            "accessModes": many,
            "persistentVolumeReclaimPolicy": "Delete",
            "hostPath": {"path": host_path, "type": "Directory"},
            "claimRef": {"namespace": TASKS_NAMESPACE, "name": GRANT},
        }
        objects.append(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": VOLUME},
                "spec": volume,
            }
        )
    else:
        claim["storageClassName"] = storage_class
    objects.append(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": GRANT, "namespace": TASKS_NAMESPACE},
            "spec": claim,
        }
    )
    return objects


def shiftwork(given: argparse.Namespace, *command: str) -> None:
    """A ``shiftwork k8s`` command, as an operator would give it; DemoError if it fails."""
    program = Path(sys.executable).with_name("shiftwork")
    done = subprocess.run(  # noqa: S603 - our own program
        [str(program), "k8s", *command],
        env={**os.environ, "KUBECONFIG": given.kubeconfig},
        check=False,
        cwd=REPOSITORY,
    )
    if done.returncode != 0:
        raise DemoError(f"shiftwork k8s {' '.join(command)} ended with {done.returncode}")


@contextlib.contextmanager
def nodes_of_this_machine(given: argparse.Namespace) -> Generator[None]:
    """Use two real nodes of this machine; end them afterwards unless they ran before."""
    cluster = Cluster()
    ran_before = cluster.is_up()
    if not ran_before:
        print_line("Starting two real nodes on this machine")
        cluster.up()
    try:
        print_line("Giving the nodes the images")
        cluster.load([f"{given.registry}/shiftwork/{name}:{given.tag}" for name in IMAGES])
        given.kubeconfig = str(cluster.layout.kubeconfig)
        given.kubectl = given.kubectl or str(program("kubectl"))
        given.host_path = str(cluster.layout.shared)
        cluster.close()
        yield
    finally:
        if not ran_before and not given.keep:
            Cluster().down()


def run() -> int:
    """The whole command: its exit status."""
    given = arguments()
    if given.kubeconfig:
        return asyncio.run(main(given))
    try:
        with nodes_of_this_machine(given):
            return asyncio.run(main(given))
    except (BuildError, CannotRunError, ImageError) as problem:
        print_line(f"There can be no nodes here: {problem}")
        print_line(
            "On a cluster of yours: KUBECONFIG=FILE, and see python -m tools.kubernetes_demo -h"
        )
        return 1


async def main(given: argparse.Namespace) -> int:
    """Install, run the story, remove; 0 if everything was as promised."""
    kube = Kube(given.kubectl or "kubectl", given.kubeconfig)
    began = time.monotonic()
    try:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump(values(given.registry, given.tag), file)
            file.flush()
            print_line("Installing the platform with its charts")
            images = ("--registry", given.registry, "--tag", given.tag)
            shiftwork(given, "up", "--values", file.name, "--no-persistence", *images)
        for wanted in storage(given.host_path, given.storage_class):
            await kube.apply(wanted)
        print_line(f"Installed after {time.monotonic() - began:.0f} s")
        await play(given, kube)
    except (DemoError, KubeError, httpx.HTTPError, TimeoutError) as problem:
        print_line(f"The demo failed: {problem or type(problem).__name__}")
        print_line(await _state_of(kube))
        return 1
    finally:
        if not given.keep:
            shiftwork(given, "down", "--now", "--purge")
            await kube.run("delete", "pv", VOLUME, "--ignore-not-found")
    print_line(f"All of it took {time.monotonic() - began:.0f} s.")
    return 0


async def play(given: argparse.Namespace, kube: Kube) -> None:
    """All steps, on the installed platform."""
    token = await kube.run(
        *("get", "secret", "shiftwork-keys", "-n", NAMESPACE),
        *("-o", 'go-template={{index .data "admin-token" | base64decode}}'),
    )
    headers = {"authorization": f"Bearer {token.strip()}"}
    async with (
        kube.tunnel(NAMESPACE, "shiftwork-gateway", 8642) as url,
        httpx.AsyncClient(
            base_url=url, headers=headers, timeout=TIMEOUT_SECONDS, trust_env=False
        ) as client,
    ):
        platform = Platform(
            kube=kube,
            client=client,
            namespace=NAMESPACE,
            tasks_namespace=TASKS_NAMESPACE,
            image=f"{given.registry}/shiftwork/task:{given.tag}",
            storage=GRANT,
            mount=MOUNT,
            run=secrets.token_hex(3),
        )
        nodes = await _nodes(platform)
        writing = asyncio.ensure_future(platform.keep_diary())
        try:
            reference = story.Reference(tuple(nodes), await story.alone(platform))
            await story.preempted(platform, reference, "digits")
            await story.preempted(platform, reference, "again", kill=("launcher", "scheduler"))
            torch = f"{given.registry}/shiftwork/task-torch:{given.tag}"
            await story.torch_gang(platform, reference, torch)
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)


async def _nodes(platform: Platform) -> list[str]:
    """The nodes, once the launcher has published them."""
    until = time.monotonic() + NODES_SECONDS_MAX
    while time.monotonic() < until:
        nodes = [node for node in await items(platform.client, "/v1/nodes") if node["ready"]]
        if len(nodes) > 1:
            print_line(
                "Nodes: " + ", ".join(f"{node['id']} ({node['gpus']} GPUs)" for node in nodes)
            )
            return [str(node["id"]) for node in nodes]
        await asyncio.sleep(0.5)
    raise DemoError("the demo needs two nodes that are ready")


async def _state_of(kube: Kube) -> str:
    """Pods and events of the cluster, to find the cause of a failure."""
    found = [
        await kube.run("get", "pods", "-A", "-o", "wide"),
        await kube.run("get", "events", "-A", "--sort-by=.lastTimestamp"),
    ]
    return "\n".join(text[-6000:] for text in found)


if __name__ == "__main__":
    raise SystemExit(run())
