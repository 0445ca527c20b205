"""The output of ``explain``: first a sentence with the reason why the task waits, then what would
help, then the forecast, then the details. Called by ``tasks.py``. Pure except ``show_history``.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Mapping

from shiftwork.cli import ids, parse, render, retry_texts

Document = Mapping[str, Any]
# Holders that the first sentence names.
NAMED_MAX = 2


def facts(found: dict[str, Any], explained: dict[str, Any]) -> list[tuple[str, str]]:
    """The facts of an explanation, one line each; a server may leave any of them out."""
    tasks = {**parse.fields(explained.get("tasks")), found["id"]: found}
    place = explained.get("position") or 0
    forecast = parse.fields(explained.get("forecast"))
    chosen = [parse.fields(each) for each in parse.listed(explained.get("chosen"))]
    victims = [] if chosen else parse.listed(explained.get("victims"))
    holders = [parse.fields(each) for each in parse.listed(explained.get("holders"))]
    more = (explained.get("holders_count") or 0) - len(holders)
    lines = [
        *(("to start", remedy) for remedy in parse.listed(explained.get("remedies"))),
        ("forecast", _forecast(forecast)),
        *(
            ("assuming" if number == 0 else "", text)
            for number, text in enumerate(parse.listed(forecast.get("assumptions")))
        ),
        ("state", explained["state"]),
        ("reason", parse.fields(explained.get("reason")).get("text", "")),
        ("last failure", retry_texts.class_of(parse.fields(found.get("exit")))),
        ("retries used", retry_texts.used(found)),
        ("not started", parse.fields(explained.get("delayed")).get("detail", "")),
        ("preempted for", _called(explained.get("beneficiary") or "", tasks)),
        ("place", f"{place} of {explained.get('queue_length')} in the queue" if place else ""),
        *(("", text) for text in _order(parse.fields(explained.get("order")))),
        ("asked to leave", ", ".join(victims)),
        *(("asked to leave", _victim(each, tasks)) for each in chosen),
        *(("kept for it", _kept(parse.fields(e))) for e in parse.listed(explained.get("promised"))),
        *(("held by", _holder(each, tasks)) for each in holders),
        ("held by", f"and {_count(more, 'run')} more" if more > 0 else ""),
    ]
    task = ("task", f"{found['name']} ({found['id']})")
    return [task, *((name, ids.named(text, tasks)) for name, text in lines)]


# --- the first sentence ----------------------------------------------------------------------


def headline(found: Document, explained: Document) -> str:
    """Why the task does not run, or why it does, in one sentence."""
    tasks = {**parse.fields(explained.get("tasks")), str(found["id"]): found}
    form = HEADLINES.get(str(explained.get("state")), _plain)
    text = ids.named(form(found, explained, tasks), tasks)
    return f"{text}."


def _reason(explained: Document) -> str:
    return str(parse.fields(explained.get("reason")).get("text", ""))


def _plain(found: Document, explained: Document, tasks: Document) -> str:
    del tasks
    reason = _reason(explained)
    return f"{found['name']} is {explained.get('state')}" + (f": {reason}" if reason else "")


def _waits(found: Document, explained: Document, tasks: Document) -> str:
    """``train waits for ...: held by bob's big (abc234) until ...``."""
    reason = _reason(explained) or "waits"
    text = f"{found['name']} {reason}"
    if not reason.startswith(_VERBS):
        text = f"{found['name']} waits: {reason}"
    holders = [parse.fields(each) for each in parse.listed(explained.get("holders"))]
    if not holders:
        return text
    count = max(int(explained.get("holders_count") or 0), len(holders))
    named = [_whose(each, tasks) for each in holders[:NAMED_MAX]]
    rest = count - len(named)
    if rest > 0:
        named.append(f"{_count(rest, 'other run')}")
    listed = " and ".join([", ".join(named[:-1]), named[-1]]) if named[1:] else named[0]
    return f"{text}; held by {listed}"


# The first words of a reason that is a sentence about the task.
_VERBS = ("waits", "needs", "cannot", "is ", "has ")


def _runs(found: Document, explained: Document, tasks: Document) -> str:
    del tasks
    placed = _reason(explained)
    since = render.ago(found.get("started_at"))
    return (
        f"{found['name']} runs"
        + (f", started {since}" if since else "")
        + (f": {placed}" if placed and "runs" not in placed else "")
    )


def _leaves(found: Document, explained: Document, tasks: Document) -> str:
    del tasks
    return f"{found['name']} was asked to save and leave: {_reason(explained)}"


def _ended(found: Document, explained: Document, tasks: Document) -> str:
    del tasks
    when = render.ago(found.get("finished_at"))
    state = str(explained.get("state"))
    how = {"succeeded": "finished successfully"}.get(state, state)
    reason = "" if state == "succeeded" else _reason(explained)
    # The reason of a failure repeats that it is one.
    attempt = _ATTEMPT_FAILED.match(reason) if how == "failed" else None
    if attempt:
        how, reason = f"failed in attempt {attempt[1]}", reason[attempt.end() :]
    return (
        f"{found['name']} {how}" + (f" {when}" if when else "") + (f": {reason}" if reason else "")
    )


_ATTEMPT_FAILED = re.compile(r"attempt (\d+) failed: ")
Form = Callable[[Document, Document, Document], str]
HEADLINES: Mapping[str, Form] = {
    "queued": _waits,
    "running": _runs,
    "preempting": _leaves,
    "killing": _plain,
    "succeeded": _ended,
    "failed": _ended,
    "stopped": _ended,
    "rejected": _ended,
}


def _called(task_id: str, tasks: Document) -> str:
    """``bob's train (abc234)``, as far as it is known."""
    if not task_id:
        return ""
    owner = parse.fields(tasks.get(task_id)).get("owner")
    return (f"{owner}'s " if owner else "") + ids.called(task_id, tasks)


def _whose(holder: Document, tasks: Document) -> str:
    """``bob's train (abc234, its time slice ends in 10m)``."""
    called = _called(str(holder["task"]), tasks)
    until = _until(holder)
    return f"{called[:-1]}, {until})" if called.endswith(")") else f"{called} ({until})"


def _until(holder: Document) -> str:
    """The time until which a run holds its nodes."""
    ends = render.ago(holder.get("ends_at"))
    slice_ends = render.ago(holder.get("slice_ends_at"))
    if holder.get("leaving"):
        return f"asked to leave, ended by force {ends}" if ends else "being ended"
    parts = [f"its --max-run-time ends {ends}"] if ends else []
    parts += [f"its time slice ends {slice_ends}"] if slice_ends else []
    return ", ".join(parts) or "nobody knows for how long: it has no --max-run-time"


def _holder(holder: Document, tasks: Document) -> str:
    size = _count(float(holder.get("nodes") or 0.0), "node")
    return f"{_called(str(holder['task']), tasks)}, {size}: {_until(holder)}"


# --- the rest --------------------------------------------------------------------------------


def _forecast(forecast: Document) -> str:
    """``starts in 2h, between 1h and 3h from now``, with the times."""
    starts = forecast.get("starts_at")
    if not starts:
        return str(forecast.get("unknown") or "")
    earliest, latest = forecast.get("earliest_at"), forecast.get("latest_at")
    if not (earliest and latest):
        return f"starts about {render.timestamp(starts)}"
    return (
        f"starts between {render.timestamp(earliest)} and {render.timestamp(latest)},"
        f" most likely about {render.timestamp(starts)}"
    )


def _figure(number: float) -> str:
    """A number of nodes, of which tasks may hold parts: ``3``, ``1.27``."""
    return f"{round(number, 2):g}"


def _count(number: float, noun: str) -> str:
    return f"{_figure(number)} {noun}" + ("" if number == 1 else "s")


def _order(order: dict[str, Any]) -> list[str]:
    """What a task's position is computed from."""
    if not order:
        return []
    level, policy = order["level"], order["policy"]
    first = _tasks(order["above"], "comes", "come")
    place = f"{first} before it by a higher level or a guarantee, {order['before']} by the order of"
    lines = [f"{place} level {level} (policy {policy})"]
    if order.get("granted"):
        lines.append("it is next: it waited for long without running")
    elif order.get("submitted_at"):
        lines.append(_key(order))
    if order.get("virtual_cluster"):
        covered = "within" if order.get("covered") else "beyond"
        lines.append(
            f"virtual cluster {order['virtual_cluster']}: {covered} its guarantee of"
            f" {_count(order['guaranteed_nodes'], 'node')}, of which it holds"
            f" {_figure(order['held_nodes'])}"
        )
    return lines


def _key(order: Document) -> str:
    """What its position within its level is computed from."""
    since = render.timestamp(order["submitted_at"])
    text = f"within its level the earliest comes first: submitted {since}"
    parts = [
        (order["tag_seconds"], "what its owner submitted before"),
        (order["delay_seconds"], "its size and how long it may run"),
    ]
    later = [f"{render.span(each)} later for {why}" for each, why in parts if each >= 1]
    if later:
        text += f", and counts as {' and '.join(later)}"
    times = order["load_scale"]
    usual = "" if times == 1 else f" ({times:g} times as much as usual, as tasks wait for long)"
    return text + (usual if order["delay_seconds"] >= 1 else "")


def _tasks(count: int, one: str, many: str) -> str:
    return f"{_count(count, 'task')} {one if count == 1 else many}"


def _victim(chosen: dict[str, Any], tasks: Document) -> str:
    deadline = render.timestamp(chosen.get("deadline_at"))
    until = f", until {deadline}" if deadline else ""
    return (
        f"{_called(chosen['task'], tasks)} ({chosen['level']}, {_count(chosen['nodes'], 'node')},"
        f" loses about {render.span(chosen['cost_node_seconds'])} of one node's time{until}):"
        f" {chosen['why']}"
    )


def _kept(promised: dict[str, Any]) -> str:
    held = ", ".join(parse.listed(promised.get("held_by")))
    return f"{promised['node']}, " + (f"still held by {held}" if held else "free")


def show_history(decisions: list[dict[str, Any]], names: ids.Names) -> None:
    """A line for each decision about a task."""
    rows: list[list[str | render.Cell]] = []
    for each in decisions:
        text = parse.fields(each.get("reason")).get("text", "")
        rows.append(
            [
                render.when(each.get("decided_at"), exact=True),
                str(each.get("attempt") or ""),
                each.get("kind") or "",
                render.Cell(names.put_into(text), text) if render.is_narrow() else text,
            ]
        )
    columns = (
        render.Column("DECIDED"),
        render.Column("ATTEMPT", drop=1),
        render.Column("DECISION"),
        render.Column("REASON", least=20),
    )
    render.table(columns, rows, "nothing was decided about it")
