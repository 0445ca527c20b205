"""What ``explain`` shows of an answer; called by ``tasks.py``."""

from __future__ import annotations

from typing import Any

from shiftwork.cli import parse, render


def facts(found: dict[str, Any], told: dict[str, Any]) -> list[tuple[str, str]]:
    """The facts of an explanation, one line each; a server may leave any of them out."""
    place = told.get("position") or 0
    forecast = parse.fields(told.get("forecast"))
    starts = render.moment(forecast.get("starts_at"))
    unknown = forecast.get("unknown") or ""
    chosen = [parse.fields(each) for each in parse.listed(told.get("chosen"))]
    victims = [] if chosen else parse.listed(told.get("victims"))
    return [
        ("task", f"{found['name']} ({found['id']})"),
        ("state", told["state"]),
        ("reason", parse.fields(told.get("reason")).get("text", "")),
        ("not started", parse.fields(told.get("delayed")).get("detail", "")),
        ("makes room for", told.get("beneficiary") or ""),
        ("place", f"{place} of {told.get('queue_length')} in the queue" if place else ""),
        *(("", text) for text in _order(parse.fields(told.get("order")))),
        ("asked to leave", ", ".join(victims)),
        *(("asked to leave", _victim(each)) for each in chosen),
        *(("kept for it", _kept(parse.fields(e))) for e in parse.listed(told.get("promised"))),
        *(("to start", remedy) for remedy in parse.listed(told.get("remedies"))),
        ("forecast", f"starts at {starts}" if starts else unknown),
        *(("if", text) for text in parse.listed(forecast.get("assumptions"))),
    ]


def _order(order: dict[str, Any]) -> list[str]:
    """What put a task at its place."""
    if not order:
        return []
    where = f"{order['before']} before it at level {order['level']} ({order['policy']})"
    lines = [f"{order['above']} before it by a higher level or a guarantee, {where}"]
    if order.get("granted"):
        lines.append("it is next: it went without service for long")
    elif order.get("submitted_at"):
        lines.append(
            f"its key: submitted {render.moment(order['submitted_at'])},"
            f" + {order['tag_seconds']:.0f} s for what its owner submitted before,"
            f" + {order['delay_seconds']:.0f} s for its size and how long it may run"
            f" (load x{order['load_scale']:g})"
        )
    if order.get("virtual_cluster"):
        covered = "within" if order.get("covered") else "beyond"
        lines.append(
            f"virtual cluster {order['virtual_cluster']}: {covered} its guarantee of"
            f" {order['guaranteed_nodes']:g} nodes, of which it holds {order['held_nodes']:g}"
        )
    return lines


def _victim(chosen: dict[str, Any]) -> str:
    deadline = render.moment(chosen.get("deadline_at"))
    until = f", until {deadline}" if deadline else ""
    nodes = "1 node" if chosen["nodes"] == 1 else f"{chosen['nodes']:g} nodes"
    return (
        f"{chosen['task']} ({chosen['level']}, {nodes}, costs"
        f" {chosen['cost_node_seconds']:.0f} node-seconds{until}): {chosen['why']}"
    )


def _kept(promised: dict[str, Any]) -> str:
    held = ", ".join(parse.listed(promised.get("held_by")))
    return f"{promised['node']}, " + (f"still held by {held}" if held else "free")


def show_history(decisions: list[dict[str, Any]]) -> None:
    """A line for each decision about a task."""
    rows = [
        [
            render.moment(each.get("decided_at")),
            str(each.get("attempt") or ""),
            each.get("kind") or "",
            parse.fields(each.get("reason")).get("text", ""),
        ]
        for each in decisions
    ]
    render.table(["DECIDED", "ATTEMPT", "DECISION", "REASON"], rows, "nothing was decided about it")
