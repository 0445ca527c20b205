"""``shiftwork nodes``, ``node cordon|uncordon|drain`` and ``group ls``."""

from typing import Any, Dict, List

import typer

from shiftwork.cli import render, session, timeline
from shiftwork.cli.client import part


def register(app: session.App) -> None:
    """Add the commands."""
    app.command("nodes")(nodes)
    one = session.App(name="node", help="One node.", no_args_is_help=True)
    one.command("cordon")(cordon)
    one.command("uncordon")(uncordon)
    one.command("drain")(drain)
    app.add_typer(one)
    group = session.App(name="group", help="Groups of nodes.", no_args_is_help=True)
    group.command("ls")(groups)
    app.add_typer(group)


def nodes() -> None:
    """List the nodes, and what runs where."""
    now = session.current()
    found = now.api().items("/v1/nodes")
    if now.json:
        render.document(found)
        return
    render.table(
        ("NODE", "GROUP", "STATE", "FREE/GPUS", "MODEL", "CPUS", "MEMORY", "TASKS"),
        [_row(node) for node in found["items"]],
        "no nodes yet",
    )


def _row(node: Dict[str, Any]) -> List[str]:
    return [
        node["id"],
        node["group"],
        timeline.node_state(node),
        f"{node['free_gpus']}/{node['gpus']}",
        node.get("gpu_model") or "",
        f"{node['cpus']:g}" if node.get("cpus") else "",
        _gib(node.get("memory_bytes") or 0),
        " ".join(node.get("tasks") or []),
    ]


def _gib(size: int) -> str:
    return f"{size / 2**30:.0f} GiB" if size else ""


def groups() -> None:
    """List the groups of nodes, with what they have and what is free of it."""
    now = session.current()
    found = now.api().get("/v1/groups")
    if now.json:
        render.document(found)
        return
    render.table(
        ("GROUP", "READY/NODES", "FREE/GPUS"),
        [
            [
                one["name"],
                f"{one['ready_nodes']}/{one['nodes']}",
                f"{one['free_gpus']}/{one['gpus']}",
            ]
            for one in found["items"]
        ],
        "no groups yet",
    )


_NODE = typer.Argument(..., metavar="NODE")


def cordon(node: str = _NODE) -> None:
    """Place nothing more on a node; what runs there goes on."""
    _schedulable(node, {"schedulable": False}, f"{node} is cordoned")


def uncordon(node: str = _NODE) -> None:
    """Place runs on a node again."""
    _schedulable(node, {"schedulable": True}, f"{node} is schedulable again")


def drain(node: str = _NODE) -> None:
    """Place nothing more on a node; what runs there saves a checkpoint and leaves."""
    _schedulable(
        node,
        {"schedulable": False, "drain": True},
        f"{node} is being drained; `shiftwork nodes` shows what is still there",
    )


def _schedulable(node: str, body: Dict[str, bool], text: str) -> None:
    now = session.current()
    told = now.api().put(f"/v1/nodes/{part(node)}/schedulable", body)
    if now.json:
        render.document(told)
    else:
        render.note(text)
