"""Events as sentences: a table from an event's type to its text. Pure."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

from shiftwork.cli import modes, parse, render, retry_texts, role_facts

Data = Mapping[str, Any]


Naming = Callable[[str], str]


def sentence(kind: str, data: Data, naming: Naming | None = None) -> str:
    """What happened, in a few words; the type itself if it is not known here.

    ``naming`` puts names of tasks into texts that the platform wrote. It is never applied to texts
    of programs, such as the path of a checkpoint.
    """
    form = SENTENCES.get(kind)
    if form is None:
        return kind.replace(".", " ").replace("_", " ")
    reason = parse.fields(data.get("reason"))
    if naming and reason.get("text"):
        data = {**data, "reason": {**reason, "text": naming(str(reason["text"]))}}
    return form(data)


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


def _onward(data: Data) -> str:
    return f"; it goes on{_from(data)}" if data.get("resume_from") else ""


def _activity(data: Data) -> str:
    if data.get("quiet_since"):
        since = render.clock(data["quiet_since"])
        return f"nothing: no rank uses a processor or a GPU since {since}"
    idle, gpus = data.get("idle_gpus") or 0, data.get("gpus") or 0
    if not idle:
        return "uses what it holds again" if gpus else "is not measured any more"
    since = render.clock(data.get("idle_since"))
    return f"{idle} of {render.counted(gpus, 'GPU')} idle since {since}"


def _is_debug(data: Data) -> bool:
    return str(parse.fields(data.get("spec")).get("run_mode")).lower().endswith("debug")


def _again(data: Data) -> str:
    """A later attempt, and what it starts from. What a program saves at a signal is known only if
    the program reports it."""
    if _is_debug(data):
        return f"assigned to {_nodes(data)} in debug mode"
    if data.get("resume_from"):
        return f"resumed on {_nodes(data)}{_from(data)}"
    preemption = parse.fields(parse.fields(data.get("spec")).get("preemption"))
    if preemption.get("mode") == "signal":
        return (
            f"started again on {_nodes(data)}; {_NO_CHECKPOINT}, the program begins where it finds"
            " its own state"
        )
    return f"restarted on {_nodes(data)} from the beginning (no checkpoint)"


def _error_lines(data: Data) -> str:
    """``rank 1 wrote ValueError: bad (exception)``, and how many other ranks wrote errors."""
    ranks = parse.listed(data.get("ranks"))
    if not ranks:
        return "error lines found"
    first = parse.fields(ranks[0])
    lines = parse.listed(first.get("lines"))
    text = render.one_line(render.without_sequences(str(lines[-1] if lines else "")))
    others = f"; {render.counted(len(ranks) - 1, 'more rank')} with errors" if ranks[1:] else ""
    return f"rank {first.get('rank', 0)} wrote: {text} ({first.get('kind')}){others}"


def _yielded(data: Data) -> str:
    return "the program hands its nodes over on its own" + (
        f": {data['reason']}" if data.get("reason") else ""
    )


def _checkpoint(data: Data) -> str:
    saved = parse.fields(data.get("checkpoint"))
    return f"checkpoint saved: step {saved.get('step')}, {saved.get('uri')}"


def _preemption_requested(data: Data) -> str:
    """A sentence with the deadline of a run; a program that does not poll has an earlier one."""
    silent = render.clock(data.get("silent_deadline_at"))
    if silent:
        return (
            f"asked to leave{_reason(data)}; its program never asked whether to leave, and is ended"
            f" by force at {silent} unless it asks by then"
        )
    return f"asked to leave by {render.clock(data.get('deadline_at'))}{_reason(data)}"


_NO_CHECKPOINT = "no checkpoint is known"
# How a run ended, by the kind of its exit.
_ENDS = {
    "ok": "the program ended successfully",
    "killed": "the program was ended by force",
    "failed": "the program failed",
    "lost": "the run was lost",
}


# The same in debug mode.
_DEBUG_ENDS = {
    "ok": "debug mode ended by itself",
    "killed": "the debug programs were ended by force",
    "failed": "the debug programs did not start",
    "lost": "the run in debug mode was lost",
}


def _exited(data: Data) -> str:
    ended = parse.fields(data.get("exit"))
    kind = str(ended.get("kind"))
    if kind == "preempted":
        return _left(data, "left on its own" if ended.get("yielded") else "left when asked to")
    detail = f" ({ended['detail']})" if ended.get("detail") else ""
    if ended.get("debug"):
        return _DEBUG_ENDS.get(kind, f"debug mode ended: {kind}") + detail
    blamed = retry_texts.class_of(ended)
    blamed = f"; {blamed}" if blamed else ""
    return _ENDS.get(kind, f"the program ended: {kind}") + detail + blamed


def _left(data: Data, left: str) -> str:
    """A run that left, asked to or on its own: what it saved as far as the SDK reported it."""
    ended, saved = parse.fields(data.get("exit")), parse.fields(data.get("checkpoint"))
    own = bool(saved) and not saved.get("task_id")
    own = own and saved.get("attempt") == data.get("attempt")
    ranks = parse.listed(ended.get("ranks"))
    if "ranks" in ended and not (ranks or own):
        return "the run was withdrawn before its program had started"
    codes = {rank["code"] for rank in ranks if rank.get("code") is not None}
    numbers = {rank["signal"] for rank in ranks if rank.get("signal") is not None}
    how = [f"exit code {code}" for code in sorted(codes)]
    how += [f"signal {number}" for number in sorted(numbers)]
    left += f" ({', '.join(how)})" if how else ""
    if own:
        return f"the program saved a checkpoint of step {saved.get('step')} and {left}"
    if saved:
        whose = f"task {saved['task_id']}, " if saved.get("task_id") else ""
        known = f"the last checkpoint known is of {whose}attempt {saved.get('attempt')}"
        return f"the program {left}; {known}, step {saved.get('step')}"
    return f"the program {left}; {_NO_CHECKPOINT}"


# States whose usual reason only repeats the state.
_IMPLIED = frozenset({"queued", "placed", "started", "succeeded"})


def _state(data: Data) -> str:
    code = parse.fields(data.get("reason")).get("code")
    return str(data.get("state")) + ("" if code in _IMPLIED else _reason(data))


def _node(data: Data) -> str:
    if data.get("removed"):
        return f"node {data.get('node_id')} removed"
    return f"node {data.get('node_id')} {node_state(data.get('node') or {})}"


def node_state(node: Data, *, busy: bool = True) -> str:
    """``ready``, ``cordoned``, ``draining``, ``drained``, ``quarantined`` or ``lost``.

    ``busy``: something runs there, or it is not known whether anything does.
    """
    if not node.get("ready"):
        return "lost"
    if node.get("draining"):
        return "draining" if busy else "drained"
    if node.get("quarantined"):
        return "quarantined"
    return "ready" if node.get("schedulable") else "cordoned"


def scope(quota: Data) -> str:
    """The subject of a limit: ``team vision in group default at priority high``."""
    team = f"team {quota['team']}" if quota.get("team") else ""
    subject = " as a member of ".join(each for each in (quota.get("user"), team) if each)
    where = f"group {quota['group']}" if quota.get("group") else "every group"
    level = quota.get("priority")
    return f"{subject or 'every user'} in {where}" + (
        f" at priority {level}" if level not in _ANY else ""
    )


_ANY = (None, "", "unspecified")


def quota_text(quota: Data, *, removed: bool = False, expired: bool = False) -> str:
    """``quota of ann in every group: at most 4 GPUs``, ``grant of ann in group a: removed``."""
    grant = bool(quota.get("grant"))
    if expired:
        text = "expired"
    elif removed:
        text = "removed"
    else:
        text = _limit(quota)
    until = parse.at(quota.get("expires_at")) if not removed else None
    end = f" until {until:%Y-%m-%d %H:%M:%SZ}" if until is not None else ""
    site = grant and not any(quota.get(name) for name in ("user", "team", "group"))
    if site and quota.get("priority") in _ANY:
        return f"default of the site, for each user in each group: {text}{end}"
    every = grant and not (removed or expired) and quota.get("priority") in _ANY
    levels = " at every priority" if every else ""
    return f"{'grant' if grant else 'quota'} of {scope(quota)}{levels}: {text}{end}"


def _limit(quota: Data) -> str:
    """``at most 4 GPUs``."""
    most = quota.get("level_max")
    up_to = f" up to priority {most}" if most not in _ANY else ""
    if quota.get("unlimited"):
        return f"any amount{up_to}"
    unit = "node" if quota.get("unit") == "nodes" else "GPU"
    either = ", or nodes for runs without GPUs" if quota.get("unit") == "gpus_or_nodes" else ""
    plural = "" if quota.get("limit") == 1 else "s"
    return f"at most {quota.get('limit')} {unit}{plural}{either}{',' * bool(up_to)}{up_to}"


def _quota(data: Data) -> str:
    removed, expired = bool(data.get("removed")), bool(data.get("expired"))
    text = quota_text(parse.fields(data.get("quota")), removed=removed, expired=expired)
    return f"{text}, {'set ' if expired else ''}by {data.get('changed_by')}"


def _policy(data: Data) -> str:
    policy = parse.fields(data.get("policy"))
    wording = f"{policy.get('policy')} (version {data.get('version')}, {policy.get('source')})"
    return f"policy of group {data.get('group')}: {wording}, by {policy.get('changed_by')}"


def _usage(data: Data) -> str:
    gpus, nodes = data.get("gpu_seconds") or 0, data.get("node_seconds") or 0
    return f"used {gpus:.0f} GPU-seconds, {nodes:.0f} node-seconds, for {data.get('owner')}"


def _submitted(data: Data) -> str:
    found = [f"; warning: {each}" for each in role_facts.warnings(parse.fields(data))]
    continues = parse.fields(parse.fields(data.get("spec")).get("continues"))
    onward = f"; it goes on with {continues['task_id']}" if continues else ""
    return f"submitted by {data.get('owner')}{onward}" + "".join(found)


_GOALS = {"run": "resumed", "pause": "paused", "stop": "stopped"}


SENTENCES: Mapping[str, Callable[[Data], str]] = {
    "task.submitted": _submitted,
    "task.goal_changed": lambda d: (
        f"{_GOALS.get(str(d.get('goal')), d.get('goal'))}{' at once' if d.get('now') else ''}"
        f" by {d.get('changed_by')}"
    ),
    "task.mode_changed": lambda d: (
        f"debug mode turned {'on' if d.get('mode') == 'debug' else 'off'} by {d.get('changed_by')}"
    ),
    "task.priority_changed": lambda d: (
        f"priority changed to {d.get('priority')} by {d.get('changed_by')}"
    ),
    "task.state_changed": _state,
    "run.assigned": lambda d: _again(d) if _is_debug(d) else f"assigned to {_nodes(d)}{_onward(d)}",
    "run.resumed": _again,
    "run.delayed": lambda d: (
        f"not started yet: {d['detail']}" if d.get("detail") else "nothing delays the start"
    ),
    "run.activity_changed": _activity,
    "task.abnormal_changed": lambda d: (
        f"no longer abnormal by {d.get('rule')}"
        if d.get("ended_at")
        else f"abnormal by {d.get('rule')}: {d.get('detail')}"
    ),
    "task.abnormal_action_settled": lambda d: (
        f"{str(d.get('action')).replace('_', ' ')} for {d.get('rule')}:"
        f" {str(d.get('outcome')).replace('_', ' ')}; {d.get('detail')}"
    ),
    "run.started": lambda d: f"started on {_nodes(d)}",
    "run.rank_restarted": lambda d: (
        f"{d.get('detail')}; it is started again"
        f" ({d.get('restarts')} of {d.get('restarts_max')}, role {d.get('role')})"
    ),
    "run.rank_ended": lambda d: (
        f"{modes.rank_end(parse.fields(d.get('exit')))} in debug mode (role {d.get('role')});"
        " it is not started again"
    ),
    "run.listened": lambda _: "asks from now on whether to leave",
    "run.preemption_requested": _preemption_requested,
    "run.kill_requested": lambda d: f"the platform ends it by force{_reason(d)}",
    "run.checkpoint_saved": _checkpoint,
    "run.yielded": _yielded,
    "run.life_state_saved": lambda d: (
        f"life state {'saved' if d.get('attempt') else 'taken over'}:"
        f" {render.counted(d['size'], 'byte')}"
    ),
    "run.exited": _exited,
    "run.error_lines_found": _error_lines,
    "node.changed": _node,
    "quota.changed": _quota,
    "quota.usage": _usage,
    "policy.changed": _policy,
}


# The order of one attempt's events; those of one step keep the order of the server.
(
    _ASSIGNED,
    _STARTING,
    _WAITING,
    _STARTED,
    _KNOWN_STARTED,
    _RUNNING,
    _EXITED,
    _USED,
    _AFTER,
) = range(9)
_STEPS: Mapping[str, int] = {
    "run.assigned": _ASSIGNED,
    "run.resumed": _ASSIGNED,
    "run.delayed": _WAITING,
    "run.started": _STARTED,
    "run.rank_restarted": _RUNNING,
    "run.rank_ended": _RUNNING,
    "run.listened": _RUNNING,
    "run.preemption_requested": _RUNNING,
    "run.kill_requested": _RUNNING,
    "run.checkpoint_saved": _RUNNING,
    "run.yielded": _RUNNING,
    "run.activity_changed": _RUNNING,
    "run.life_state_saved": _RUNNING,
    "run.exited": _EXITED,
    "run.error_lines_found": _USED,
    "quota.usage": _USED,
}
_STATE_STEPS: Mapping[str, int] = {
    "starting": _STARTING,
    "running": _KNOWN_STARTED,
    "preempting": _RUNNING,
    "killing": _RUNNING,
}


class _Steps:
    """Finds the steps of one task's events. Each is given once, in the order of positions."""

    def __init__(self) -> None:
        self._states: set[tuple[object, object]] = set()

    def of(self, event: Data) -> int:
        kind, data = str(event.get("type")), parse.fields(event.get("data"))
        if kind == "task.state_changed":
            return self._of_state((event.get("attempt"), data.get("state")))
        if kind == "run.delayed" and data.get("running"):
            # Roles that start while the run runs.
            return _RUNNING
        return _STEPS.get(kind, _AFTER)

    def _of_state(self, state: tuple[object, object]) -> int:
        """A state that is published again, as another field of the task changed, happens while the
        attempt is in it."""
        step = _STATE_STEPS.get(str(state[1]), _AFTER)
        again = state in self._states
        self._states.add(state)
        return {_STARTING: _WAITING, _KNOWN_STARTED: _RUNNING}.get(step, step) if again else step


class InOrder:
    """Events of one task as they come, put into the order of ``ordered``.

    Where an event comes before one that it follows, it is held until that one is there: for at most
    ``HELD_SECONDS``, as a service may be down. Nothing is held of attempts whose start is not
    among the events.
    """

    HELD_SECONDS = 1.0

    def __init__(self) -> None:
        # Until when each is held, its step, and the event.
        self._held: list[tuple[float, int, Data]] = []
        self._steps = _Steps()
        self._shown_steps: set[tuple[object, int]] = set()

    @property
    def is_waiting(self) -> bool:
        """True while an event is held."""
        return bool(self._held)

    def add(self, event: Data, now: float) -> list[Data]:
        """What is to be shown now that this event is there."""
        self._held.append((now + self.HELD_SECONDS, self._steps.of(event), event))
        return self.due(now)

    def due(self, now: float) -> list[Data]:
        """What is to be shown by now, in its order."""
        shown: list[Data] = []
        while True:
            found = [held for held in self._held if held[0] <= now or self._may_follow(*held[1:])]
            if not found:
                return shown
            first = min(found, key=lambda held: _place(*held[1:]))
            self._held.remove(first)
            _, step, event = first
            self._shown_steps.add((event.get("attempt"), _shown_step(step, event)))
            shown.append(event)

    def _may_follow(self, step: int, event: Data) -> bool:
        """Whether all events that must come before it have been shown."""
        attempt = event.get("attempt")
        if not attempt:
            return True
        before = attempt - 1
        if (before, _STARTED) in self._shown_steps and (before, _AFTER) not in self._shown_steps:
            return False
        if (attempt, _STARTED) not in self._shown_steps:
            return True
        needed = [_KNOWN_STARTED] if step == _EXITED else []
        needed += [_EXITED] if step in (_USED, _AFTER) else []
        needed += [_USED] if step == _AFTER else []
        return all((attempt, each) in self._shown_steps for each in needed)


def _place(step: int, event: Data) -> tuple[int, int, int]:
    """The order of events: attempt, step and position. Events without an attempt come first."""
    attempt, position = event.get("attempt"), _position(event)
    return (attempt, step, position) if attempt else (0, 0, position)


def _position(event: Data) -> int:
    return int(event.get("position") or 0)


def _shown_step(step: int, event: Data) -> int:
    """The step that is reached: a state behind ``running`` shows that it was running."""
    is_state = event.get("type") == "task.state_changed" and step == _RUNNING
    return _KNOWN_STARTED if is_state else step


def ordered(events: Sequence[Data]) -> list[Data]:
    """One task's events in the order in which they happened.

    The server has them in the order of their arrival, which is their position, and services receive
    each other's events later: a short program has exited before the scheduler knows that it runs.
    Events of attempts are sorted by attempt, then by step, then by position, as clocks differ. Any
    other event, such as a change of priority, stands behind all that the server had before it, and
    no later; a submission is first.
    """
    steps = _Steps()
    known = [(steps.of(event), event) for event in sorted(events, key=_position)]
    of_attempts = sorted(
        (each for each in known if each[1].get("attempt")), key=lambda e: _place(*e)
    )
    placed: list[tuple[float, Data]] = []
    earliest = float("inf")
    for _, event in reversed(of_attempts):
        earliest = min(earliest, _position(event))
        placed.append((earliest, event))
    placed.reverse()
    for _, event in known:
        if not event.get("attempt"):
            is_first = event.get("type") == "task.submitted"
            placed.append((float("-inf") if is_first else _position(event), event))
    placed.sort(key=lambda pair: pair[0])
    return [event for _, event in placed]


# States that begin with an event of the run, which has the same content and more.
_EVENTS_OF_STATE: Mapping[str, Sequence[str]] = {
    "starting": ("run.assigned", "run.resumed"),
    "preempting": ("run.preemption_requested",),
    "killing": ("run.kill_requested",),
}


class Repeats:
    """Finds events that repeat an earlier event."""

    def __init__(self) -> None:
        # The reason in the last event of each kind about each run.
        self._reasons: dict[tuple[object, object, str], str] = {}
        # The last state of each task: attempt, state and reason.
        self._state: dict[object, tuple[object, ...]] = {}

    def is_repeat(self, event: Data) -> bool:
        """True if the event can be left out. Called once for each, in their order."""
        kind, data = str(event.get("type")), parse.fields(event.get("data"))
        task, attempt = event.get("task"), event.get("attempt")
        if kind != "task.state_changed":
            self._reasons[task, attempt, kind] = _reason(data)
            return False
        code = parse.fields(data.get("reason")).get("code")
        reason = "" if code in _IMPLIED else _reason(data)
        state = (attempt, data.get("state"), reason)
        before = self._state.get(task)
        self._state[task] = state
        if state == before:
            # Another field of the task changed, which has an event of its own.
            return True
        reasons = [
            self._reasons.get((task, attempt, each))
            for each in _EVENTS_OF_STATE.get(str(data.get("state")), ())
        ]
        return any(each is not None and reason in ("", each) for each in reasons)


def line(event: Data, *, of_task: bool, naming: Naming | None = None) -> str:
    """``10:00:00.123  taskid.2  checkpoint saved: …``; without the id where it is understood."""
    attempt = event.get("attempt")
    if of_task:
        subject = f"attempt {attempt}" if attempt else ""
    else:
        task = event.get("task")
        subject = "" if not task else f"{task}.{attempt}" if attempt else str(task)
    text = sentence(str(event.get("type", "")), parse.fields(event.get("data")), naming)
    return "  ".join(part for part in (render.clock(event.get("at")), subject, text) if part)
