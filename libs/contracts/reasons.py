"""Reasons as sentences. A reason is data everywhere else; only this module makes a text of it.

``render`` is total: every code has a sentence for a reason with all its numbers and names, and a
shorter one for a reason without them, so that an old record still has a true sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite

from libs.contracts.messages import Priority, Reason, ReasonCode
from libs.contracts.wording import counted, duration

Sentence = Callable[["Values"], str]

# From this number on, the fraction is left out.
_MANY = 1000.0
_GIB = float(1 << 30)


def figure(value: float) -> str:
    """A number as people write it: ``3``, ``2592000``, ``1.5``."""
    whole = value == round(value) if isfinite(value) else False
    return f"{value:.0f}" if whole or abs(value) >= _MANY else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class Values:
    """A reason's numbers and names; a missing one raises KeyError."""

    numbers: Mapping[str, float]
    names: Mapping[str, str]

    def count(self, key: str, noun: str) -> str:
        """A number with its noun: ``1 node``, ``3 nodes``."""
        value = self.numbers[key]
        return f"{figure(value)} {noun}{'' if value == 1 else 's'}"

    def number(self, key: str) -> str:
        """A number alone."""
        return figure(self.numbers[key])

    def span(self, key: str = "seconds") -> str:
        """A duration."""
        return duration(self.numbers[key])

    def time(self, key: str) -> str:
        """A time stored as ISO 8601, written as ``2026-01-01 00:00:00Z``."""
        text = self.names[key]
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            return text
        return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"

    def name(self, key: str) -> str:
        """A name."""
        return self.names[key]

    def by(self) -> str:
        """Who set a goal."""
        return self.names.get("by") or "its owner"

    def priority(self, key: str) -> str:
        """A level as people write it."""
        return self.names[key].removeprefix("PRIORITY_").lower()

    def cost(self) -> str:
        """What is lost when it goes, in a clause of its own; nothing where it was not computed."""
        if "cost_node_seconds" not in self.numbers:
            return ""
        lost = self.span("cost_node_seconds")
        return f"; stopping it and starting it again loses about {lost} of one node's time"

    def fault_class(self) -> str:
        """The class of failures that is counted, in brackets; empty if all count together."""
        return f" ({self.names['class']})" if self.names.get("class") else ""

    def goes_on(self) -> str:
        """A clause with the checkpoint that the next attempt continues from; empty if unknown."""
        if "from_beginning" in self.numbers:
            return "; it starts from the beginning (no checkpoint)"
        return f"; it goes on from step {self.number('step')}" if "step" in self.numbers else ""

    def size(self) -> str:
        """A gang: ``2 nodes with 4 GPUs each``, ``1 whole node``, ``5 replicas (7 GPUs)``. A gang
        of equal ranks has what each requests besides: ``1 node (CPU only) with 2 CPUs``."""
        if "replicas" in self.numbers:
            whole = self.numbers.get("whole_nodes")
            parts = [counted(whole, "whole node")] if whole else []
            parts += [self.count("gpus", "GPU")] if self.numbers.get("gpus") or not whole else []
            return f"{self.count('replicas', 'replica')} ({', '.join(parts)})"
        nodes, gpus = self.numbers["nodes"], self.numbers.get("gpus")
        what = counted(nodes, "whole node") if gpus is None else self.count("nodes", "node")
        if gpus == 0:
            what += " (CPU only)"
        parts = [self.count("gpus", "GPU")] if gpus else []
        parts += [self.count("cpus", "CPU")] if self.numbers.get("cpus") else []
        memory = self.numbers.get("memory_bytes")
        parts += [f"{figure(memory / _GIB)} GiB of memory"] if memory else []
        if not parts:
            return what
        listed = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
        return f"{what} with {listed}" + (" each" if nodes != 1 else "")

    def nodes_of(self) -> str:
        """The nodes that may hold it: ``those of group a with the labels gpu=a100``."""
        selector, taints = self.names.get("selector", ""), self.names.get("taints", "")
        of = f"of group {self.name('group')}"
        parts = [f"with the labels {selector}"] if selector else []
        parts += [f"without taints that it does not tolerate ({taints})"] if taints else []
        return " ".join([of, " and ".join(parts)]) if parts else of

    def subject(self) -> str:
        """The subject of a quota row: ``user ann in group train at level high``."""
        user, team = self.names.get("user", ""), self.names.get("team", "")
        parts = [f"user {user}" if user else "", f"team {team}" if team else ""]
        named = " of ".join(part for part in parts if part) or "each user"
        group, level = self.names.get("group", ""), self.names.get("priority", "")
        where = f" in group {group}" if group else ""
        return named + where + (f" at level {self.priority('priority')}" if level else "")


def _quota(given: Values) -> str:
    if "grant" in given.names:
        return _grant(given)
    unit = "node" if given.names["unit"] == "UNIT_NODES" else "GPU"
    need, limit = given.count("need", unit), given.count("limit", unit)
    if given.numbers["need"] > given.numbers["limit"]:
        return f"needs {need}, more than the quota of {given.subject()} ever allows ({limit})"
    return f"waits for the quota of {given.subject()}: {limit} at once, it needs {need}"


def _grant(given: Values) -> str:
    """A task that the grant that decides does not admit, now or ever."""
    grant, need, limit = given.name("grant"), given.name("need"), given.numbers["limit"]
    if not limit:
        return f"is not permitted at {given.priority('level')} in group {given.name('in')}: {grant}"
    if given.numbers["need"] > limit:
        return f"needs {need}, more than {grant} ever permits"
    return f"waits for {grant}: it needs {need}"


def _never(given: Values) -> str:
    if "grant" in given.names:
        return _grant(given)
    return (
        f"needs {given.number('need')}, more than the {given.number('limit')} that"
        f" {given.name('whose')} ever allows"
    )


def _failed(given: Values) -> str:
    return f"attempt {given.number('attempt')} failed: {given.name('detail')}"


def _retry(given: Values) -> str:
    """Which retry comes: ``retry 2 of 3 (transient)``."""
    return f"retry {given.number('retry')} of {given.number('retries_max')}{given.fault_class()}"


def _no_retry(given: Values) -> str:
    if not given.numbers["retries"]:
        return "no retry is allowed"
    return f"no retry is left after {given.number('retries')}"


def _next_retry(given: Values) -> str:
    """The same as a clause of its own; empty if the end of the run used no retry."""
    return f"; {_retry(given)} comes next" if "retry" in given.numbers else ""


def _started(given: Values) -> str:
    runs = f"attempt {given.number('attempt')} runs"
    if "debug" in given.numbers:
        return f"attempt {given.number('attempt')} waits for people in debug mode"
    if "from_beginning" in given.numbers:
        return f"{runs}, restarted from the beginning (no checkpoint)"
    return f"{runs}, resumed from step {given.number('step')}" if "step" in given.numbers else runs


def _never_asked(given: Values) -> str:
    if "attempt" not in given.numbers:
        return (
            "its program never asked whether to leave, and is ended by force after"
            f" {given.number('seconds')} s"
        )
    return (
        f"attempt {given.number('attempt')} never asked whether to leave, so nothing was saved when"
        f" it was ended{given.goes_on()}"
    )


def _waits_for_retry(given: Values) -> str:
    if "attempts" in given.numbers:
        return (
            f"waits until {given.time('at')} to start again, after"
            f" {given.count('attempts', 'failed start')}: {given.name('detail')}"
        )
    if "changes" in given.numbers:
        attempts = given.count("changes", "short attempt")
        return (
            f"waits until {given.time('at')} to start again, after {attempts} that a change of the"
            " mode or a pause ended"
        )
    return f"waits until {given.time('at')} for {_retry(given)}"


def _debug_ended(given: Values) -> str:
    if "attempt" in given.numbers:
        ended = f"attempt {given.number('attempt')}, in debug mode, has ended"
        ended += f" ({given.name('detail')})" if given.names.get("detail") else ""
    else:
        ended = f"has been in debug mode for its maximum of {given.span()}"
    return f"{ended}; resume it to debug again, or turn debug mode off before that to run it"


def _did_not_start(given: Values) -> str:
    tries = given.count("attempts", "try").replace("trys", "tries")
    detail = given.names.get("detail", "")
    return f"did not start in {tries}" + (f": {detail}" if detail else "")


# For each code: the sentence with everything, and the one without anything.
SENTENCES: dict[ReasonCode, tuple[Sentence, str]] = {
    ReasonCode.UNSPECIFIED: (lambda _: "no reason was given", "no reason was given"),
    ReasonCode.WAITS_FOR_CAPACITY: (
        lambda given: f"waits for {given.size()} to come free in group {given.name('group')}",
        "waits for free capacity",
    ),
    ReasonCode.WAITS_FOR_QUOTA: (_quota, "waits for quota"),
    ReasonCode.WAITS_BEHIND_OTHERS: (
        lambda given: (
            f"waits for {given.size()} in group {given.name('group')}, behind tasks that came first"
        ),
        "waits behind tasks that came first",
    ),
    ReasonCode.WAITS_FOR_VICTIMS: (
        lambda given: (
            f"waits until the runs preempted for it in group {given.name('group')} have left"
        ),
        "waits until the runs preempted for it have left",
    ),
    ReasonCode.WAITS_FOR_RETRY: (
        _waits_for_retry,
        "waits for its next try",
    ),
    ReasonCode.WAITS_FOR_INVENTORY: (
        lambda given: (
            f"waits for a full list of the nodes: none known so far {given.nodes_of()}"
            f" can hold {given.size()}"
        ),
        "waits for a full list of the nodes",
    ),
    ReasonCode.CLUSTER_TOO_SMALL_NOW: (
        lambda given: (
            f"waits for nodes to be added or to come back: those {given.nodes_of()}"
            f" cannot hold {given.size()} now"
        ),
        "waits for nodes to be added or to come back",
    ),
    ReasonCode.PLACED: (
        lambda given: f"starts on {given.size()} in group {given.name('group')}",
        "starts on its nodes",
    ),
    ReasonCode.STARTED: (_started, "runs"),
    ReasonCode.PREEMPTED_BY: (
        lambda given: (
            f"preempted for task {given.name('task')} at level {given.priority('priority')}"
            f"{given.cost()}"
        ),
        "preempted for a task of a higher level",
    ),
    ReasonCode.ACK_EXPIRED: (
        lambda _: "did not save and leave before its deadline, so it is ended by force",
        "did not save and leave before its deadline, so it is ended by force",
    ),
    ReasonCode.START_EXPIRED: (
        lambda given: (
            f"did not start within {given.span()}"
            f" (try {given.number('attempts')}), so it is ended by force"
        ),
        "did not start in time, so it is ended by force",
    ),
    ReasonCode.GOAL_PAUSE: (lambda given: f"{given.by()} paused it", "its owner paused it"),
    ReasonCode.GOAL_STOP: (lambda given: f"{given.by()} stopped it", "its owner stopped it"),
    ReasonCode.GOAL_RUN: (lambda given: f"{given.by()} resumed it", "its owner resumed it"),
    ReasonCode.MODE_CHANGED: (
        lambda given: f"ends, to start again in {given.name('mode')} mode",
        "ends, to start again in another mode",
    ),
    ReasonCode.DEBUG_ENDED: (
        _debug_ended,
        "its attempt in debug mode has ended",
    ),
    ReasonCode.MAX_RUN_TIME: (
        lambda given: f"has run for its maximum of {given.span()} (--max-run-time)",
        "has run for its maximum time (--max-run-time)",
    ),
    ReasonCode.SUCCEEDED: (lambda _: "finished successfully", "finished successfully"),
    ReasonCode.FAILED: (lambda given: f"{_failed(given)}{_next_retry(given)}", "failed"),
    ReasonCode.RESTART_NOT_ALLOWED: (
        lambda given: (
            f"{_failed(given)}; the restart rule of role {given.name('role')} allows no restart"
        ),
        "failed, and the restart rule of its role allows no restart",
    ),
    ReasonCode.RETRIES_USED_UP: (
        lambda given: f"{_failed(given)}; {_no_retry(given)}{given.fault_class()}",
        "failed, and no retry is left",
    ),
    ReasonCode.START_ATTEMPTS_USED_UP: (
        _did_not_start,
        "did not start in as many tries as are allowed",
    ),
    ReasonCode.RUN_LOST: (
        lambda given: (
            f"attempt {given.number('attempt')} was lost: {given.name('detail')}{given.goes_on()}"
            f"{_next_retry(given)}"
        ),
        "its run was lost with its node",
    ),
    ReasonCode.RUN_KILLED: (
        lambda given: f"attempt {given.number('attempt')} was ended by force{given.goes_on()}",
        "its run was ended by force",
    ),
    ReasonCode.NEVER_ASKED: (
        _never_asked,
        "its program never asked whether to leave, and is ended by force",
    ),
    ReasonCode.RUN_PREEMPTED: (
        # The event has the checkpoint, if there is one; in signal mode there is only an exit.
        lambda given: f"attempt {given.number('attempt')} left when it was asked to",
        "its run left when it was asked to",
    ),
    ReasonCode.YIELDED: (
        lambda given: (
            f"attempt {given.number('attempt')} {given.name('detail')}{given.goes_on()};"
            f" it may start again from {given.time('at')}"
        ),
        "its program handed the nodes over on its own",
    ),
    ReasonCode.NODE_DRAINED: (
        lambda given: f"leaves node {given.name('node')}, which is being drained",
        "leaves a node that is being drained",
    ),
    ReasonCode.WAITS_FOR_VIRTUAL_CLUSTER: (
        lambda given: (
            f"waits for virtual cluster {given.name('cluster')}: it may hold"
            f" {given.count('limit', 'node')} at once, this needs {given.number('need')}"
        ),
        "waits for its virtual cluster, which holds the most that it may",
    ),
    ReasonCode.RECLAIMED_BY: (
        lambda given: (
            f"ran on nodes borrowed from virtual cluster {given.name('cluster')}, which takes them"
            f" back for task {given.name('task')}{given.cost()}"
        ),
        "ran on borrowed nodes, which their virtual cluster takes back",
    ),
    ReasonCode.MOVED_FOR: (
        lambda given: (
            f"preempted for task {given.name('task')}, which the guarantee of virtual cluster"
            f" {given.name('cluster')} covers; there is a place for it elsewhere{given.cost()}"
        ),
        "preempted for a task that a guarantee covers; there is a place for it elsewhere",
    ),
    ReasonCode.TURN_OF: (
        lambda given: (
            f"it is the turn of task {given.name('task')} of the same level"
            f" ({given.priority('priority')}){given.cost()}"
        ),
        "it is another task's turn",
    ),
    ReasonCode.SLICE_OVER: (
        lambda given: f"its time slice ended after {given.span()}; it runs on",
        "its time slice ended; it runs on",
    ),
    ReasonCode.LEVEL_SANK: (
        lambda given: (
            f"ran {given.span()} at level {given.priority('priority')} and counts as"
            f" {given.priority('to')} from here on"
        ),
        "counts at a lower level from here on",
    ),
    ReasonCode.LEVEL_CHANGED: (
        lambda given: (
            f"counts as {given.priority('to')} from here on, instead of"
            f" {given.priority('priority')}, by its priority"
        ),
        "counts at another level from here on",
    ),
    ReasonCode.QUOTA_NEVER_FITS: (
        _never,
        "needs more than its quota ever allows",
    ),
    ReasonCode.WAITS_FOR_SHARE: (
        lambda given: (
            f"waits while others do: its owner's backlog is {given.number('hours')} h of all nodes,"
            f" and may hold {given.number('limit')} of them"
        ),
        "waits while others do: its owner's backlog is longer than a day of all nodes",
    ),
    ReasonCode.PLAN_REFUSED: (
        lambda given: (
            f"waits because nothing is given out in group {given.name('group')} since"
            f" {given.time('since')}: what was decided there was wrong, or deciding failed,"
            f" {given.number('refusals')} times in a row ({given.name('faults')});"
            " this is a defect, an administrator should report it"
        ),
        "waits because deciding about its node group fails, or is wrong; this is a defect",
    ),
    ReasonCode.EVENT_TOO_LARGE: (
        lambda given: (
            f"cannot start: the event that assigns it has {given.number('bytes')} bytes, and one"
            f" may have {given.number('limit')}; use fewer nodes or a smaller environment; it is"
            " tried again later"
        ),
        "cannot start: the event that assigns it is larger than one may be",
    ),
    ReasonCode.ROW_SET_APART: (
        lambda given: (
            f"nothing is decided about it: the scheduler cannot load the row {given.name('row')}"
            f" ({given.name('problem')}); this is a defect, an administrator should report it"
        ),
        "nothing is decided about it: the scheduler cannot load a row; this is a defect",
    ),
    ReasonCode.GRANTED: (
        lambda given: f"has waited for {given.span()} without running and is next",
        "has waited for long without running and is next",
    ),
    ReasonCode.NEVER_FITS: (
        lambda given: f"no nodes {given.nodes_of()} could ever hold {given.size()}",
        "no known nodes could ever hold it",
    ),
    ReasonCode.QUEUED: (
        lambda _: "is new in the queue; nothing is decided about it yet",
        "is new in the queue; nothing is decided about it yet",
    ),
}


def render(reason: Reason) -> str:
    """The sentence of a reason, without a full stop; what is missing in it makes it shorter."""
    full, short = SENTENCES[reason.code]
    try:
        return full(Values(reason.numbers, reason.names))
    except KeyError:
        return short


def level_name(priority: Priority) -> str:
    """A level as people write it: ``very_high``."""
    return priority.value.removeprefix("PRIORITY_").lower()
