"""Events as sentences: one table from an event's type to what it says. Pure."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from shiftwork.cli import parse, render

Data = Mapping[str, Any]


def sentence(kind: str, data: Data) -> str:
    """What happened, in a few words; the type itself if it is not known here."""
    told = SENTENCES.get(kind)
    return told(data) if told else kind.replace(".", " ").replace("_", " ")


def _reason(data: Data) -> str:
    reason = parse.fields(data.get("reason"))
    text = reason.get("text") or str(reason.get("code", "")).replace("_", " ")
    return f": {text}" if text else ""


def _nodes(data: Data) -> str:
    placements = parse.listed(data.get("placements"))
    names = {str(placed.get("node_id") or placed.get("node")) for placed in placements}
    return ", ".join(sorted(names))


def _from(data: Data) -> str:
    saved = parse.fields(data.get("resume_from"))
    return f" from step {saved['step']}" if saved else ""


def _again(data: Data) -> str:
    """A later attempt, and what it starts from, where that is the platform's to know."""
    preemption = parse.fields(parse.fields(data.get("spec")).get("preemption"))
    if data.get("resume_from") or preemption.get("mode") == "signal":
        return f"resumed on {_nodes(data)}{_from(data)}"
    return f"restarted on {_nodes(data)} from the beginning (no checkpoint)"


def _checkpoint(data: Data) -> str:
    saved = parse.fields(data.get("checkpoint"))
    return f"checkpoint saved: step {saved.get('step')}, {saved.get('uri')}"


def _exited(data: Data) -> str:
    ended = parse.fields(data.get("exit"))
    detail = f": {ended['detail']}" if ended.get("detail") else ""
    return f"exited, {ended.get('kind')}{detail}"


def _state(data: Data) -> str:
    return f"{data.get('state')}{_reason(data)}"


def _node(data: Data) -> str:
    if data.get("removed"):
        return f"node {data.get('node_id')} removed"
    return f"node {data.get('node_id')} {node_state(data.get('node') or {})}"


def node_state(node: Data) -> str:
    """``ready``, ``cordoned``, ``draining``, ``quarantined`` or ``lost``."""
    if not node.get("ready"):
        return "lost"
    if node.get("draining"):
        return "draining"
    if node.get("quarantined"):
        return "quarantined"
    return "ready" if node.get("schedulable") else "cordoned"


def scope(quota: Data) -> str:
    """Whom and what a limit is about: ``team vision in group default at priority high``."""
    whose = quota.get("user") or (f"team {quota['team']}" if quota.get("team") else "every user")
    where = f"group {quota['group']}" if quota.get("group") else "every group"
    level = quota.get("priority")
    return f"{whose} in {where}" + (f" at priority {level}" if level not in _ANY else "")


_ANY = (None, "", "unspecified")


def limit(quota: Data) -> str:
    """``at most 4 GPUs``."""
    unit = "GPU" if quota.get("unit") == "gpus" else "node"
    return f"at most {quota.get('limit')} {unit}" + ("" if quota.get("limit") == 1 else "s")


def _quota(data: Data) -> str:
    quota = parse.fields(data.get("quota"))
    said = "no limit" if data.get("removed") else limit(quota)
    return f"quota of {scope(quota)}: {said}, by {data.get('changed_by')}"


def _policy(data: Data) -> str:
    policy = parse.fields(data.get("policy"))
    said = f"{policy.get('policy')} (version {data.get('version')}, {policy.get('source')})"
    return f"policy of group {data.get('group')}: {said}, by {policy.get('changed_by')}"


def _usage(data: Data) -> str:
    gpus, nodes = data.get("gpu_seconds") or 0, data.get("node_seconds") or 0
    return f"used {gpus:.0f} GPU-seconds, {nodes:.0f} node-seconds, for {data.get('owner')}"


SENTENCES: Mapping[str, Callable[[Data], str]] = {
    "task.submitted": lambda d: f"submitted by {d.get('owner')}",
    "task.goal_changed": lambda d: (
        f"goal {d.get('goal')}{' now' if d.get('now') else ''}, by {d.get('changed_by')}"
    ),
    "task.priority_changed": lambda d: f"priority {d.get('priority')}, by {d.get('changed_by')}",
    "task.state_changed": _state,
    "run.assigned": lambda d: f"assigned to {_nodes(d)}",
    "run.resumed": _again,
    "run.delayed": lambda d: (
        f"not started yet: {d['detail']}" if d.get("detail") else "nothing delays the start"
    ),
    "run.started": lambda d: f"started on {_nodes(d)}",
    "run.listened": lambda _: "asks from now on whether to leave",
    "run.preemption_requested": lambda d: (
        f"asked to leave by {render.clock(d.get('deadline_at'))}{_reason(d)}"
    ),
    "run.kill_requested": lambda d: f"to be killed{_reason(d)}",
    "run.checkpoint_saved": _checkpoint,
    "run.exited": _exited,
    "node.changed": _node,
    "quota.changed": _quota,
    "quota.usage": _usage,
    "policy.changed": _policy,
}


def line(event: Data, *, of_task: bool) -> str:
    """``10:00:00.123  taskid.2  checkpoint saved: …``; without the id where it is understood."""
    attempt = event.get("attempt")
    if of_task:
        subject = f"attempt {attempt}" if attempt else ""
    else:
        task = event.get("task")
        subject = "" if not task else f"{task}.{attempt}" if attempt else str(task)
    words = sentence(str(event.get("type", "")), parse.fields(event.get("data")))
    return "  ".join(text for text in (render.clock(event.get("at")), subject, words) if text)
