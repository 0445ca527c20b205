"""``python -m tools.cluster``: the cluster of this machine from the command line."""

from __future__ import annotations

import argparse
import os
import select
import shutil
import sys
from pathlib import Path

from tools.cluster import network
from tools.cluster.access import AccessError
from tools.cluster.api import Api, ApiError, KubeconfigError
from tools.cluster.cluster import Cluster
from tools.cluster.control_plane import GUARD, ControlPlane, Options
from tools.cluster.images import ImageError
from tools.cluster.layout import Layout, default_folder
from tools.cluster.prerequisites import CannotRunError
from tools.cluster.processes import ProcessError
from tools.cluster.programs import PROGRAMS, BuildError, programs
from tools.cluster.system import SystemFailure

GIVEN = "KUBECONFIG"


def up(arguments: argparse.Namespace) -> int:
    """Start the cluster, or print that the given one is used."""
    given = os.environ.get(GIVEN)
    if given and Path(given) != Cluster().layout.kubeconfig:
        with Api(given) as api:
            names = [node["metadata"]["name"] for node in api.items("/api/v1/nodes")]
        print(f"{GIVEN}={given} is used as it is: {len(names)} nodes ({', '.join(names[:5])})")
        return 0
    new = Layout(folder=default_folder(), node_count=arguments.nodes, gpus=arguments.gpus)
    with Cluster() if Cluster().exists else Cluster(new) as cluster:
        if not cluster.is_up():
            print("starting a cluster on this machine", file=sys.stderr, flush=True)
            cluster.up()
        print(f"export {GIVEN}={cluster.layout.kubeconfig}")
    return 0


def down(_: argparse.Namespace) -> int:
    """End the cluster of this machine."""
    left = Cluster().down()
    for what in left:
        print(f"left: {what}", file=sys.stderr)
    return 1 if left else 0


def status(_: argparse.Namespace) -> int:
    """What runs."""
    with Cluster() as cluster:
        print("\n".join(cluster.status()))
        return 0 if cluster.is_up() else 1


def load(arguments: argparse.Namespace) -> int:
    """Bring images to the nodes."""
    Cluster().load(arguments.images)
    return 0


def kubelet(arguments: argparse.Namespace) -> int:
    """Stop or start one node's kubelet."""
    with Cluster() as cluster:
        if arguments.what == "stop":
            cluster.stop_kubelet(arguments.node, kill=arguments.kill)
        else:
            cluster.start_kubelet(arguments.node)
    return 0


def cable(arguments: argparse.Namespace) -> int:
    """Cut a node off, or connect it again."""
    network.cut(Cluster().node(arguments.node).plan, off=arguments.what == "cut")
    return 0


def shell(arguments: argparse.Namespace) -> int:
    """Run a command inside a node."""
    print(Cluster().node(arguments.node).run(*arguments.command), end="")
    return 0


def plane(arguments: argparse.Namespace) -> int:
    """A control plane with simulated nodes, in a folder."""
    one = ControlPlane(arguments.folder.resolve(), Options(audit=arguments.audit))
    if arguments.what == "up":
        one.start()
        one.close()
        print(f"export {GIVEN}={one.kubeconfig}")
    else:
        one.stop()
    return 0


def guard(arguments: argparse.Namespace) -> int:
    """Wait until a process is gone, then end the control plane of a folder."""
    try:
        descriptor = os.pidfd_open(arguments.pid)
        select.select([descriptor], [], [])
    except ProcessLookupError:
        pass
    one = ControlPlane(arguments.folder, Options())
    one.stop(but=GUARD)
    if arguments.remove:
        shutil.rmtree(arguments.folder, ignore_errors=True)
    return 0


def policies(_: argparse.Namespace) -> int:
    """Have the nodes enforce NetworkPolicies, until ended."""
    Cluster().enforce()
    return 0


def build(arguments: argparse.Namespace) -> int:
    """Build programs and print where they are."""
    for path in programs(arguments.names or PROGRAMS).values():
        print(path)
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m tools.cluster", description=__doc__)
    commands = top.add_subparsers(required=True)
    one = commands.add_parser("up", help="start real nodes (or use KUBECONFIG)")
    one.add_argument("--nodes", type=int, default=2, help="how many (default 2)")
    one.add_argument("--gpus", type=int, default=2, help="that each offers (default 2)")
    one.set_defaults(do=up)
    commands.add_parser("down", help="end them, leave nothing").set_defaults(do=down)
    commands.add_parser("status", help="what runs").set_defaults(do=status)
    one = commands.add_parser("load", help="bring images from podman to the nodes")
    one.add_argument("images", nargs="+", metavar="IMAGE")
    one.set_defaults(do=load)
    one = commands.add_parser("kubelet", help="stop or start one node's kubelet")
    one.add_argument("what", choices=["stop", "start"])
    one.add_argument("node")
    one.add_argument("--kill", action="store_true", help="SIGKILL instead of SIGTERM")
    one.set_defaults(do=kubelet)
    one = commands.add_parser("cable", help="cut a node's network, or mend it")
    one.add_argument("what", choices=["cut", "mend"])
    one.add_argument("node")
    one.set_defaults(do=cable)
    one = commands.add_parser("run", help="run a command inside a node")
    one.add_argument("node")
    one.add_argument("command", nargs=argparse.REMAINDER)
    one.set_defaults(do=shell)
    one = commands.add_parser("plane", help="a control plane with simulated nodes")
    one.add_argument("what", choices=["up", "down"])
    one.add_argument("folder", type=Path)
    one.add_argument("--audit", action="store_true", help="write down every change")
    one.set_defaults(do=plane)
    one = commands.add_parser("guard", help="end a control plane when a process is gone")
    one.add_argument("folder", type=Path)
    one.add_argument("pid", type=int)
    one.add_argument("--remove", action="store_true", help="the folder too")
    one.set_defaults(do=guard)
    commands.add_parser("policies", help="enforce NetworkPolicies, until ended").set_defaults(
        do=policies
    )
    one = commands.add_parser("programs", help="build programs and print their paths")
    one.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PROGRAMS))
    one.set_defaults(do=build)
    return top


def main() -> int:
    """Run the command; expected failures are one message."""
    arguments = parser().parse_args()
    expected = (
        *(AccessError, ApiError, BuildError, CannotRunError, ImageError, KubeconfigError),
        ProcessError,
        *(SystemFailure, TimeoutError, KeyError, LookupError),
    )
    try:
        return arguments.do(arguments)
    except expected as problem:
        print(problem.args[0] if problem.args else problem, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
