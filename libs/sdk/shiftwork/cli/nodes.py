"""``shiftwork nodes``, ``node ls|metrics|cordon|uncordon|drain|label|taint`` and ``group ls``."""

import sys
import time
from typing import Any, Dict, List, Optional

import typer

from shiftwork.cli import charts, complete, follow, ids, metrics, parse, render, session, timeline
from shiftwork.cli.client import Api
from shiftwork.cli.failures import Failure, usage
from shiftwork.cli.task_options import HOLDING
from shiftwork.client.paths import part


def register(app: session.App) -> None:
    """Add the commands."""
    app.command("nodes", cls=session.Watched)(nodes)
    one = session.App(name="node", help="One node.", no_args_is_help=True)
    one.command("ls", cls=session.Watched)(nodes)
    one.command("metrics", cls=session.Watched)(metrics.node_metrics)
    one.command("cordon")(cordon)
    one.command("uncordon")(uncordon)
    one.command("drain")(drain)
    one.command("label")(label)
    one.command("taint")(taint)
    app.add_typer(one)
    group = session.App(name="group", help="Groups of nodes.", no_args_is_help=True)
    group.command("ls")(groups)
    app.add_typer(group)


def nodes(
    group: str = typer.Option("", "--group", help="Of one group.", autocompletion=complete.groups),
) -> None:
    """List the nodes, and what runs where."""
    now = session.current()
    api = now.api()
    found = api.items("/v1/nodes", {"group": group})
    if now.json:
        render.document(found)
        return
    used = metrics.utilization(api, [node["id"] for node in found["items"]], ())
    holders: Dict[str, Any] = {}
    if any(node.get("tasks") for node in found["items"]):
        holders = {task["id"]: task for task in api.items("/v1/tasks", IN_HOLDING_STATES)["items"]}
    render.table(
        (
            render.Column("NODE", least=12),
            render.Column("GROUP", drop=4),
            render.Column("STATE"),
            render.Column("FREE/GPUS"),
            render.Column("MODEL", drop=2, least=8),
            render.Column("CPUS", drop=5),
            render.Column("MEMORY", drop=6),
            render.Column("CPU", drop=3),
            render.Column("GPU", drop=3),
            render.Column("TASKS", drop=1, least=20),
            render.Column("LABELS", drop=8, least=12),
            render.Column("TAINTS", drop=7, least=12),
        ),
        [_row(node, holders, used.get(node["id"], {})) for node in found["items"]],
        "no nodes yet",
    )


# The tasks that hold nodes.
IN_HOLDING_STATES = {"state": ",".join(HOLDING)}


def _row(node: Dict[str, Any], holders: Dict[str, Any], used: Dict[str, Any]) -> List[str]:
    return [
        node["id"],
        node["group"],
        timeline.node_state(node, busy=bool(node.get("tasks") or node.get("hidden_tasks"))),
        f"{node['free_gpus']}/{node['gpus']}",
        node.get("gpu_model") or "",
        f"{node['cpus']:g}" if node.get("cpus") else "",
        charts.size_text(node["memory_bytes"]) if node.get("memory_bytes") else "",
        metrics.percent(used.get("cpu_percent")),
        metrics.percent(metrics.mean_gpu(used)),
        _tasks(node, holders),
        render.labels(parse.fields(node.get("labels"))),
        " ".join(parse.listed(node.get("taints"))),
    ]


def _tasks(node: Dict[str, Any], holders: Dict[str, Any]) -> str:
    """What runs on a node; of tasks that the caller may not see, how many."""
    shown = [ids.called(task, holders) for task in parse.listed(node.get("tasks"))]
    hidden = int(node.get("hidden_tasks") or 0)
    return ", ".join([*shown, *([f"{hidden} of others"] if hidden else [])])


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


_NODE = typer.Argument(..., metavar="NODE", autocompletion=complete.nodes)
POLL_SECONDS = 1.0
TASKS_SHOWN_MAX = 5


def cordon(node: str = _NODE) -> None:
    """Place nothing more on a node; what runs there goes on."""
    _schedulable(node, {"schedulable": False}, f"{node} is cordoned")


def uncordon(node: str = _NODE) -> None:
    """Place runs on a node again."""
    _schedulable(node, {"schedulable": True}, f"{node} is schedulable again")


def drain(
    node: str = _NODE,
    wait: bool = typer.Option(False, "--wait", help="Until nothing runs there any more."),
    timeout: str = typer.Option(
        "", "--timeout", help="With --wait: give up after so long (exit code 1)."
    ),
) -> None:
    """Place nothing more on a node; what runs there saves a checkpoint and leaves."""
    seconds = parse.duration(timeout, "--timeout") if timeout else None
    if timeout and not wait:
        raise usage("--timeout goes with --wait", where="--timeout", fix="add --wait")
    text = f"{node} is being drained"
    if not wait:
        hint = ": it is `drained` in `shiftwork nodes` once nothing runs there"
        _schedulable(node, {"schedulable": False, "drain": True}, text + hint)
        return
    now = session.current()
    api = now.api()
    api.put(f"/v1/nodes/{part(node)}/schedulable", {"schedulable": False, "drain": True})
    render.note(text)
    shown = _until_empty(api, node, seconds)
    if now.json:
        render.document(shown)
    else:
        render.note(f"nothing runs on {node} any more")


def _until_empty(api: Api, node: str, seconds: Optional[float]) -> Dict[str, Any]:
    """The node, once nothing runs there. Raises Failure when that has not happened in time."""
    until = None if seconds is None else time.monotonic() + seconds
    reachability = follow.Reachability()
    reported = -1
    with render.Progress() as progress:
        while True:
            pause = POLL_SECONDS
            try:
                shown: Dict[str, Any] = api.get(f"/v1/nodes/{part(node)}")
                reachability.found()
            except Failure as failure:
                pause = reachability.lost(failure)
            else:
                tasks: List[str] = shown.get("tasks") or []
                if not tasks:
                    return shown
                left = f"{node}: {len(tasks)} still there: {' '.join(tasks[:TASKS_SHOWN_MAX])}"
                progress.show(left)
                if len(tasks) != reported and not render.is_terminal(sys.stderr):
                    render.note(left)
                reported = len(tasks)
                if until is not None and time.monotonic() >= until:
                    count = render.counted(len(tasks), "task")
                    verb = "is" if len(tasks) == 1 else "are"
                    raise Failure(
                        f"{count} {verb} still on {node}: {' '.join(tasks)}",
                        where="--timeout",
                        fix="wait longer, or stop them: the node stays cordoned",
                    )
            time.sleep(pause)


def _schedulable(node: str, body: Dict[str, bool], text: str) -> None:
    now = session.current()
    reply = now.api().put(f"/v1/nodes/{part(node)}/schedulable", body)
    if now.json:
        render.document(reply)
    else:
        render.note(text)


def label(
    node: str = _NODE,
    labels: List[str] = typer.Argument(
        ..., metavar="KEY=VALUE ...", help="Labels to set; with --remove, their keys."
    ),
    remove: bool = typer.Option(False, "--remove", help="Take these labels away."),
) -> None:
    """Label a node: tasks select labels, and zone, spine and leaf are its place in the network."""
    body: Dict[str, Any] = (
        {"remove": [text.partition("=")[0] for text in labels]}
        if remove
        else {"set": parse.pairs(labels, "KEY=VALUE")}
    )
    _put_labels_or_taints(node, "labels", body)


def taint(
    node: str = _NODE,
    taints: List[str] = typer.Argument(
        ..., metavar="KEY[=VALUE] ...", help="Taints to set, one for each key."
    ),
    remove: bool = typer.Option(False, "--remove", help="Take these taints away."),
) -> None:
    """Taint a node: new runs come from tasks only that tolerate it; what runs there goes on."""
    keyed = parse.taints(taints, "KEY[=VALUE]")
    if not remove:
        _put_labels_or_taints(node, "taints", {"set": keyed})
        return
    keys = [text.partition("=")[0] for text in keyed]
    before = session.current().api().get(f"/v1/nodes/{part(node)}")
    there = {text.partition("=")[0] for text in parse.listed(before.get("taints"))}
    _put_labels_or_taints(node, "taints", {"remove": keys})
    if missing := [key for key in keys if key not in there]:
        render.warning(f"{node} had no taint {', '.join(missing)}")


def _put_labels_or_taints(node: str, kind: str, body: Dict[str, Any]) -> None:
    now = session.current()
    reply = now.api().put(f"/v1/nodes/{part(node)}/{kind}", body)
    if now.json:
        render.document(reply)
        return
    labels = render.labels(parse.fields(reply.get("labels"))) or "none"
    taints = " ".join(parse.listed(reply.get("taints"))) or "none"
    render.note(f"{node} has labels {labels}, taints {taints}")
