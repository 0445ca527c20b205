"""What would let a waiting task start: changes, each tried on a copy of the group.

Called by ``explanation.py``. A remedy is named only if ``decide``, called right after the change,
gives the task its nodes or requests other runs to leave them for it. So each is true by itself;
where no single change is enough, none is named.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from libs.contracts.grants import amount, set_command
from libs.contracts.ids import NodeId
from libs.contracts.messages import ExitKind, Priority, PriorityChanged, ReasonCode, Unit
from libs.contracts.reasons import level_name
from libs.contracts.wording import counted as number
from libs.contracts.wording import duration
from services.scheduler.domain.explain.group_simulation import (
    Bounds,
    GroupSimulation,
    IndexCopies,
    expected_left,
)
from services.scheduler.domain.explain.text import named, time_text
from services.scheduler.domain.facts.index import Index
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.limits.quota_usage import Need, account_of, exceeds, held_need
from services.scheduler.domain.model import observations
from services.scheduler.domain.model.changes import Change as Changed
from services.scheduler.domain.model.decisions import Kill, Preempt
from services.scheduler.domain.model.lifecycle import PREEMPTING
from services.scheduler.domain.model.rows import Inventory, Limit, Node, Task
from services.scheduler.domain.model.values import LEVELS, WEIGHTS
from services.scheduler.domain.placement.slots import slots_of
from services.scheduler.domain.queue.entry import Entry
from services.scheduler.domain.round import Round
from services.scheduler.domain.slices.budgets import account_now, slice_budget

# The part of a query's time that the search for remedies may take.
REMEDIES_PART = 0.45
# Bounds of one query. Beyond them the answer has less, and nothing in it is wrong.
RUNS_TRIED_MAX = 64
NEEDED_TRIED_MAX = 8
LIMITS_RAISED_MAX = 5
# How far ahead, and for how many rounds, the passing of time alone is simulated.
TIME_SECONDS = 30 * 86_400.0
TIME_ROUNDS_MAX = 300

_TOO_SMALL = (
    ReasonCode.CLUSTER_TOO_SMALL_NOW,
    ReasonCode.NEVER_FITS,
    ReasonCode.WAITS_FOR_INVENTORY,
)
# Only time, or its owner, lets it start.
_FOR_A_TIME = (ReasonCode.WAITS_FOR_RETRY, ReasonCode.YIELDED)
_LIMITS = (
    ReasonCode.WAITS_FOR_QUOTA,
    ReasonCode.QUOTA_NEVER_FITS,
    ReasonCode.WAITS_FOR_VIRTUAL_CLUSTER,
)


@dataclass(frozen=True, slots=True)
class Change:
    """A change that a person makes, or an event."""

    # The changed rows, the runs that end, and the waiting tasks that leave the queue.
    put: tuple[object, ...] = ()
    ends: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    # How long only time passes; None: no time passes.
    within_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that lets the task start, and its text after "to start:"."""

    text: str
    change: Change


@dataclass(frozen=True, slots=True)
class Outcome:
    """The effect of a change."""

    served: bool
    # When it takes effect, and the runs that were requested to leave for the task.
    at: datetime
    chosen: dict[str, Preempt | Kill]


def attempt(simulation: GroupSimulation, change: Change) -> Outcome:
    """Apply the change to a simulation; returns whether the task gets nodes or a promise of
    them."""
    simulation.put(*change.put)
    for task_id in change.ends:
        simulation.exit(task_id, ExitKind.OK)
    for task_id in change.gone:
        simulation.leave_queue(task_id)
    simulation.settle()
    if change.within_seconds is not None:
        until = simulation.now + timedelta(seconds=change.within_seconds)
        simulation.run(until=until, rounds_max=TIME_ROUNDS_MAX, ends=False)
        # If runs of other tasks leave meanwhile, time alone is not the cause.
        return Outcome(
            simulation.served and not simulation.disturbed, simulation.now, simulation.chosen
        )
    return Outcome(simulation.served, simulation.now, simulation.chosen)


class Remedies:
    """The remedies of one waiting task, from a simulation in which nothing is left to decide."""

    def __init__(
        self,
        base: GroupSimulation,
        copies: IndexCopies,
        *,
        entry: Entry,
        ahead: Sequence[str],
        bounds: Bounds,
    ) -> None:
        task = base.task
        assert task is not None, "asked only for a task that waits"
        self._base = base
        self._worlds = copies
        self._index = base.index
        self._task = task
        self._now = base.now
        self._pool = base.index.pools[task.group]
        # Its position in the order, and the waiting tasks before it.
        self._entry = entry
        self._ahead = ahead
        self._trials_max = bounds.trials_max
        self._expired = bounds.over(REMEDIES_PART)
        self._trials = 0

    def find(self) -> Iterator[Remedy]:
        """Yields the remedies that help, those that are cheap to try first."""
        if self._task.promised:
            yield from self._victims()
            return
        code = self._base.why.code if self._base.why else ReasonCode.UNSPECIFIED
        if code in _TOO_SMALL:
            yield from self._nodes(added=True)
            yield from self._fewer()
            return
        if code in _FOR_A_TIME:
            yield from self._time()
            yield from self._again()
            return
        if code in _LIMITS:
            yield from self._limits()
        yield from self._higher()
        yield from self._fewer()
        yield from self._nodes(added=False)
        if code not in _LIMITS:
            yield from self._runs(self._runs_by_end())
            yield from self._first()
        # The most expensive one to try, so it comes last.
        yield from self._time()

    # Trials.

    def _try(self, change: Change) -> Outcome | None:
        """The effect of a change; None: the bounds of the query are reached."""
        if self._trials >= self._trials_max or self._expired():
            return None
        self._trials += 1
        task_id, now, expired = self._task.id, self._now, self._expired

        def simulation(index: Index) -> Outcome:
            return attempt(GroupSimulation(index, task_id, now, expired=expired), change)

        found: Outcome | None = self._worlds.with_copy(self._index, simulation)
        return found

    def _helps(self, change: Change) -> Outcome | None:
        found = self._try(change)
        return found if found is not None and found.served else None

    def _least(self, most: int, change: Callable[[int], Change]) -> int | None:
        """The smallest number from 1 for which a change helps; None: not even ``most``."""
        if most < 1 or self._helps(change(most)) is None:
            return None
        low, high = 1, most
        while low < high:
            middle = (low + high) // 2
            if self._helps(change(middle)) is None:
                low = middle + 1
            else:
                high = middle
        return high

    # Changes by time alone.

    def _time(self) -> Iterator[Remedy]:
        change = Change(within_seconds=TIME_SECONDS)
        found = self._helps(change)
        if found is None:
            return
        at = found.at
        code = self._base.why.code if self._base.why else None
        if code in _FOR_A_TIME and at == self._task.not_before_at:
            seconds = (at - self._now).total_seconds()
            yield Remedy(f"the retry time comes in {duration(seconds)}", change)
            return
        victims = [each for each in found.chosen.values() if each.reason.code is ReasonCode.TURN_OF]
        if victims:
            yield Remedy(self._turn(at, victims), change)
        elif found.chosen:
            lower = number(len(found.chosen), "lower run")
            if any(e.reason.code is ReasonCode.RECLAIMED_BY for e in found.chosen.values()):
                lower = number(len(found.chosen), "run") + " beyond the guarantees"
            yield Remedy(f"{lower} may be preempted from {time_text(at)}", change)
        else:
            yield Remedy(f"time alone: it starts at {time_text(at)}", change)

    def _turn(self, at: datetime, victims: Sequence[Preempt | Kill]) -> str:
        """Which runs the task's slice preempts, and what that costs."""
        pool, round_ = self._pool, Round(Snapshot.view(self._index), self._now)
        cost = sum(each.reason.numbers.get("cost_node_seconds", 0.0) for each in victims)
        runs = named(each.task_id for each in victims)
        text = (
            f"its turn comes at {time_text(at)}: {number(len(victims), 'run')} of level"
            f" {level_name(self._entry.level)} after it in the order ({runs}) would be asked to go,"
            f" which loses about {duration(cost)} of one node's time"
        )
        if pool.discipline.pays:
            ledger = pool.ledger
            tokens = account_now(slice_budget(pool), ledger.tokens, ledger.tokens_at, round_).tokens
            has = f"holds {duration(tokens)}" if tokens >= 0 else f"owes {duration(-tokens)}"
            text += f"; the budget for such losses {has} of one node's time now" + (
                ", and enough by then" if tokens < cost else ""
            )
        return text

    def _again(self) -> Iterator[Remedy]:
        """The owner pauses and resumes the task."""
        changed = replace(
            self._task, not_before_at=None, start_attempts=0, unserved_since=self._now
        )
        change = Change(put=(changed,))
        if self._helps(change) is not None:
            again = f"`shiftwork pause {self._task.id}`, then `shiftwork resume {self._task.id}`"
            yield Remedy(f"pause and resume it to try at once ({again})", change)

    # Changes of what other tasks hold.

    def _victims(self) -> Iterator[Remedy]:
        """The runs that hold its promised nodes leave."""
        holders, tasks = self._index.holders, self._index.tasks
        owners = sorted(
            {
                owner
                for node_id, mask, _ in slots_of(self._task)
                for owner, bits in holders.get(node_id, {}).items()
                if bits & (mask or bits)
            }
        )
        one = len(owners) == 1
        text = (
            "the run that still holds what it is promised ends"
            if one
            else f"the {len(owners)} runs that still hold what it is promised end"
        )
        change = Change(ends=tuple(owners))
        if owners and self._helps(change) is not None:
            yield Remedy(text, change)
        silent_seconds = self._index.settings.silent_ack_seconds_max
        ends = [
            tasks[owner].forced_at(silent_seconds)
            for owner in owners
            if tasks[owner].state is PREEMPTING
        ]
        last = max((at for at in ends if at is not None), default=None)
        if last is not None:
            seconds = max(0.0, (last - self._now).total_seconds())
            forced = f"at the latest in {duration(seconds)} {'it is' if one else 'they are'}"
            yield Remedy(f"{forced} ended by force", change)

    def _runs_by_end(self) -> list[Task]:
        """Runs of the group, the one that is expected to end first in front."""

        def end(task: Task) -> tuple[float, str]:
            left = expected_left(self._pool, task, self._now)
            return float("inf") if left is None else left, task.id

        group = self._task.group
        held = (task for task in self._index.held.values() if task.group == group)
        return heapq.nsmallest(RUNS_TRIED_MAX, held, key=end)

    def _runs(
        self,
        runs: Sequence[Task],
        *,
        instead: str = "",
        put: tuple[object, ...] = (),
        beside: str = "",
    ) -> Iterator[Remedy]:
        """The fewest of these runs, of those that end first, whose end lets it start.

        ``instead``: a text to use instead of the names of the runs. ``put`` and ``beside``: what
                else is changed, and its text.
        """
        ids = [task.id for task in runs]
        # Few are enough for most: the whole list is tried only where they are not.
        few = min(len(ids), max(4, 2 * self._task.spec.nodes))
        count = self._least(few, lambda k: Change(put, tuple(ids[:k])))
        if count is None and len(ids) > few:
            count = self._least(len(ids), lambda k: Change(put, tuple(ids[:k])))
        if count is None:
            return
        needed = ids[:count]
        for task_id in ids[: count - 1][:NEEDED_TRIED_MAX]:
            without = [each for each in needed if each != task_id]
            if self._helps(Change(put, tuple(without))) is not None:
                needed = without
        verb = "ends" if len(needed) == 1 else "end"
        text = instead or f"{number(len(needed), 'run')} {verb}: {named(needed)}"
        yield Remedy(beside + text, Change(put, tuple(needed)))

    def _first(self) -> Iterator[Remedy]:
        """The tasks before it leave the queue."""
        if not self._ahead:
            return
        change = Change(gone=tuple(self._ahead))
        if self._helps(change) is not None:
            which = "task before it leaves" if len(self._ahead) == 1 else "tasks before it leave"
            yield Remedy(f"the {len(self._ahead)} {which} the queue", change)

    # Changes that its owner or an operator can make.

    def _higher(self) -> Iterator[Remedy]:
        """The lowest higher level that helps."""
        own = WEIGHTS[self._task.priority]
        for level in reversed([each for each in LEVELS if WEIGHTS[each] > own]):
            event = PriorityChanged(
                task_id=self._task.id,
                priority=level,
                revision=self._task.priority_revision + 1,
                changed_at=self._now,
            )
            raised = observations.on_priority_changed(self._task, event, self._now)
            assert isinstance(raised, Changed), "a newer revision is applied"
            change = Change(put=(raised.task,))
            found = self._helps(change)
            if found is None:
                continue
            name = level_name(level)
            text = f"raise its priority to {name} (`shiftwork priority {self._task.id} {name}`)"
            if found.chosen:
                text += f": {number(len(found.chosen), 'run')} would be asked to go"
                text += f" ({named(found.chosen)})"
            yield Remedy(text, change)
            return

    def _fewer(self) -> Iterator[Remedy]:
        """The most nodes below its own with which it would start."""
        spec = self._task.spec
        if spec.nodes < 2 or len(spec.roles) != 1 or spec.roles[0].replicas != spec.nodes:  # noqa: PLR2004
            return

        def change(missing: int) -> Change:
            nodes = spec.nodes - missing
            role = spec.roles[0].model_copy(update={"replicas": nodes})
            smaller = spec.model_copy(update={"nodes": nodes, "roles": (role,)})
            return Change(put=(replace(self._task, spec=smaller),))

        missing = self._least(spec.nodes - 1, change)
        if missing is not None:
            with_ = number(spec.nodes - missing, "node")
            yield Remedy(f"submit it with {with_} instead of {spec.nodes}", change(missing))

    def _limits(self) -> Iterator[Remedy]:
        """Runs under the limit that binds end, or it is raised."""
        why = self._base.why
        assert why is not None, "a limit is why it waits"
        if why.code is ReasonCode.WAITS_FOR_VIRTUAL_CLUSTER:
            yield from self._cluster()
            return
        round_ = Round(Snapshot.view(self._index), self._now)
        task, level = self._task, self._entry.level
        need = round_.totals.need(task.shape)
        excess = round_.quota_usage.excess(task, level, need)
        if excess is None:
            # An AUTO task counts at the level that its limits leave it.
            return
        limit, wanted = excess.limit, need.of(excess.limit.unit)
        missing = excess.held + wanted - limit.limit
        if wanted <= limit.limit and not limit.forbids:
            under = [each for each in self._runs_by_end() if self._counts(limit, each)]
            held = amount(excess.held, limit.unit)
            text = f"{missing} of the {held} held under this quota come free"
            yield from self._runs(under, instead=text)
        raised: dict[object, object] = {}
        texts: list[str] = []
        quota_usage = round_.quota_usage
        for row in quota_usage.rows(task, level)[:LIMITS_RAISED_MAX]:
            held = quota_usage.held(row, task)
            if not exceeds(row, held, need.of(row.unit)):
                continue
            if row.grant and not row.user:
                own = self._own_grant(row, level, need)
                raised[own.key] = own
                to = f"{amount(own.limit, own.unit)} at {level_name(own.priority)}"
                texts.append(
                    f"give {own.user} a grant of {to} in group {own.group} (`{_quota_set(own)}`)"
                )
                continue
            # A grant of nothing also stops a task that takes nothing of its unit.
            more = replace(row, limit=max(1, held + need.of(row.unit)))
            raised[row.key] = more
            to = amount(more.limit, row.unit)
            texts.append(f"raise the quota from {row.limit} to {to} (`{_quota_set(more)}`)")
        change, text = Change(put=tuple(raised.values())), " and ".join(texts)
        if texts and self._helps(change) is not None:
            yield Remedy(text, change)
        elif texts and (wanted > limit.limit or limit.forbids):
            # Without the change the task never starts, whatever else it waits for.
            yield from self._runs(self._runs_by_end(), put=change.put, beside=f"{text}; and ")

    def _own_grant(self, row: Limit, level: Priority, need: Need) -> Limit:
        """A grant for the task's owner alone that admits the task where ``row`` does not."""
        task = self._task
        unit = Unit.GPUS if need.gpus else Unit.NODES
        # No level has quota left for a task at AUTO; this is the highest that is open to everybody.
        level = self._index.settings.auto_level_max if task.is_auto else level
        held = sum(
            held_need(each).of(unit)
            for each in self._index.tasks.values()
            if (each.owner, each.group, each.level) == (task.owner, task.group, level)
        )
        return replace(
            row,
            user=task.owner,
            team="",
            group=task.group,
            priority=level,
            unit=unit,
            limit=held + need.of(unit),
            level_max=Priority.UNSPECIFIED,
            expires_at=None,
        )

    def _counts(self, limit: Limit, run: Task) -> bool:
        """True if a run is counted by a limit, for the subject that the task is of."""
        account = account_of(limit, self._task)
        rows = self._index.quota_usage.rows(run, run.level)
        return any(account_of(row, run) == account for row in rows)

    def _cluster(self) -> Iterator[Remedy]:
        """A virtual cluster holds less, or may hold more."""
        pool = self._pool
        round_ = Round(Snapshot.view(self._index), self._now)
        clusters, size = round_.clusters(pool), pool.size(self._task)
        full = clusters.full(pool.clusters.of(self._task), size)
        if full is None or full.nodes_max is None:
            return
        held = clusters.held(full.name)
        if size <= full.nodes_max:
            text = f"{number(held + size - full.nodes_max, 'node')} of the {round(held, 2):g}"
            text += f" held by virtual cluster {full.name} come free"
            yield from self._runs(self._runs_by_end(), instead=text)
        row = pool.policy
        changed = tuple(
            replace(each, nodes_max=held + size) if each.name == full.name else each
            for each in row.virtual_clusters
        )
        change = Change(put=(replace(row, virtual_clusters=changed),))
        if self._helps(change) is not None:
            most = f"the most that virtual cluster {full.name} may hold"
            text = (
                f"raise {most} from {round(full.nodes_max, 2):g} to {number(held + size, 'node')}"
            )
            yield Remedy(text, change)

    # Nodes.

    def _nodes(self, *, added: bool) -> Iterator[Remedy]:
        """Nodes come back, are repaired, relabelled or added."""
        shape = self._task.shape
        nodes = [
            node
            for node in self._index.nodes.values()
            if node.group == shape.group and not node.removed
        ]
        away = [node for node in nodes if not node.offered]
        back = Change(put=tuple(_offered(node) for node in away))
        names = named(node.id for node in away)
        text = f"nodes that are cordoned or not ready come back: {names}"
        cordoned = [node.id for node in away if node.ready]
        if cordoned:
            text += f" (`shiftwork node uncordon {cordoned[0]}`)"
        found = bool(away) and self._helps(back) is not None
        if found:
            yield Remedy(text, back)
        elif away and added:
            # They may be in use.
            runs = self._runs(self._runs_by_end(), put=back.put, beside=f"{text}; and ")
            for remedy in runs:
                found = True
                yield remedy
        sick = [node for node in nodes if node.offered and node.unusable_gpus]
        mended = Change(put=tuple(replace(node, unusable_gpus=()) for node in sick))
        if sick and self._helps(mended) is not None:
            found = True
            names = named(node.id for node in sick)
            yield Remedy(f"GPUs that must not be used become usable: on {names}", mended)
        if not added:
            return
        other = [node for node in nodes if node.offered]
        labels = dict(shape.selector)
        fitted = Change(
            put=tuple(
                replace(
                    node, taints=(), labels=tuple(sorted({**dict(node.labels), **labels}.items()))
                )
                for node in other
            )
        )
        narrow = labels or any(node.taints for node in other)
        if other and narrow and self._helps(fitted) is not None:
            found = True
            text = "nodes get the labels that it selects, or lose taints that it does not tolerate"
            yield Remedy(text, fitted)
        if not found:
            yield from self._added(nodes)

    def _added(self, nodes: Iterable[Node]) -> Iterator[Remedy]:
        """Nodes are added: like the largest there are, else as large as it needs."""
        shape = self._task.shape
        wanted = Node(
            id=NodeId(""),
            version=1,
            group=shape.group,
            gpus=shape.gpus or 0,
            cpus=shape.cpus,
            memory_bytes=shape.memory_bytes,
            labels=shape.selector,
        )
        largest = max(nodes, key=lambda node: (node.gpus, node.cpus, node.id), default=wanted)
        like = replace(
            _offered(largest),
            gpus=max(largest.gpus, wanted.gpus) or (8 if shape.gpus is None else 0),
            cpus=max(largest.cpus, wanted.cpus),
            memory_bytes=max(largest.memory_bytes, wanted.memory_bytes),
            unusable_gpus=(),
            taints=(),
            labels=tuple(sorted({**dict(largest.labels), **dict(shape.selector)}.items())),
        )

        def change(count: int) -> Change:
            ids = [NodeId(f"added-{place:06d}") for place in range(count)]
            listed = Inventory("added", tuple(ids), self._now)
            return Change(put=(*(replace(like, id=node_id) for node_id in ids), listed))

        count = self._least(shape.nodes, change)
        if count is None:
            return
        more = "a node is" if count == 1 else f"{count} nodes are"
        text = f"{more} added to group {shape.group}"
        if self._base.why is not None and self._base.why.code is ReasonCode.WAITS_FOR_INVENTORY:
            text = "the launcher lists its nodes"
        yield Remedy(text, change(count))


def _quota_set(row: Limit) -> str:
    """The command with which an operator sets a limit."""
    unit = "nodes" if row.unit is Unit.NODES else "gpus"
    return f"{set_command(row)} --{unit} {row.limit}"


def _offered(node: Node) -> Node:
    return replace(node, schedulable=True, ready=True, draining=False, removed=False)
