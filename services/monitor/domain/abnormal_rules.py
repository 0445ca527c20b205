"""The rules that find tasks abnormal: one table, and how each reads the facts of a task. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from libs.contracts.messages import AbnormalAction
from libs.contracts.wording import counted, duration
from services.monitor.domain.abnormal_facts import RUNS, FactsRow
from services.monitor.domain.stalls import Stall

HOUR, DAY = 3600.0, 86_400.0


@dataclass(frozen=True, slots=True)
class Usage:
    """What the last samples of the present attempt show: for how long each GPU that is idle has
    been so, and for how long all of its ranks have been quiet. Seconds by the clock of the samples.
    """

    idle_s: tuple[float, ...] = ()
    quiet_s: float | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything that rules read of one task at one moment."""

    facts: FactsRow
    usage: Usage
    now_s: float
    idle_percent: float
    # How the steps stand that its program reports; None: it reports none, or it is not known now.
    stall: Stall | None = None

    def lasted(self, since_s: float | None) -> float:
        """For how long a fact has held; 0 if it does not."""
        return 0.0 if since_s is None else max(0.0, self.now_s - since_s)


def works(facts: FactsRow) -> bool:
    """True while its program runs. In debug mode people work instead, with pauses."""
    return facts.state in RUNS and not facts.debugs


@dataclass(frozen=True, slots=True)
class Found:
    """What a rule found: a sentence with numbers, a command to type next, and the nodes concerned.

    ``{task}`` stands for the task's id."""

    detail: str
    suggestion: str
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. ``read`` returns what it finds, given the threshold; None: it does not hold."""

    name: str
    # Completes "A task ...".
    fact: str
    threshold: float
    # Of the threshold: s, or empty for a count.
    unit: str
    read: Callable[[Seen, float], Found | None]
    # It is read from samples, and holds no longer once it has not held for a while: a few lost
    # samples do not end a finding.
    sampled: bool = False
    # Which nodes it names, and `cordon` cordons; empty: no node is at fault.
    at_fault: str = ""


def _long_run(seen: Seen, threshold: float) -> Found | None:
    ran = seen.facts.ran_for(seen.now_s)
    if seen.facts.ended or ran < threshold:
        return None
    return Found(
        f"it has run for {duration(ran)} in all, without its time in the queue;"
        f" the limit is {duration(threshold)}",
        "shiftwork show {task}",
    )


def _idle_gpus(seen: Seen, threshold: float) -> Found | None:
    """The samples say for how long each GPU is idle; the steady clock confirms that so much time
    has passed at all."""
    idle = [each for each in seen.usage.idle_s if each >= threshold]
    if not works(seen.facts) or not idle:
        return None
    if seen.lasted(seen.facts.idle_since_s) < threshold:
        return None
    of = f" of {seen.facts.gpus}" if seen.facts.gpus >= len(idle) else ""
    return Found(
        f"{len(idle)}{of} GPUs have been below {seen.idle_percent:g} % for"
        f" {duration(max(idle))}; the limit is {duration(threshold)}",
        "shiftwork metrics {task}",
    )


def _no_progress(seen: Seen, threshold: float) -> Found | None:
    """By its steps, or by what its ranks use unless it has just reported a new step."""
    if not works(seen.facts):
        return None
    signals = [text for text in (_by_use(seen, threshold), _by_steps(seen, threshold)) if text]
    if not signals:
        return None
    return Found(
        f"{', and '.join(signals)}; the limit is {duration(threshold)}",
        "shiftwork logs {task} --tail 20",
    )


def _by_use(seen: Seen, threshold: float) -> str:
    quiet = seen.usage.quiet_s
    if quiet is None or min(quiet, seen.lasted(seen.facts.quiet_since_s)) < threshold:
        return ""
    advanced_s = seen.stall.advanced_s if seen.stall else None
    if advanced_s is not None and advanced_s < threshold:
        return ""
    return f"none of its ranks has used a processor or a GPU for {duration(quiet)}"


def _by_steps(seen: Seen, threshold: float) -> str:
    """While nobody knows the step, what was found goes on, and nothing new is found."""
    facts = seen.facts
    lasted, step = seen.lasted(facts.stalled_since_s), facts.stalled_step
    unknown = seen.stall is None and "no_progress" not in facts.open
    if step is None or lasted < threshold or unknown:
        return ""
    return f"its program has reported no new step since step {step:g}, {duration(lasted)} ago"


def _ranks_missing(seen: Seen, threshold: float) -> Found | None:
    facts, lasted = seen.facts, seen.lasted(seen.facts.missing_since_s)
    if facts.missing_since_s is None or lasted < threshold:
        return None
    why = facts.delay_detail
    return Found(
        f"{counted(facts.missing_ranks, 'rank')} of its run {_is(facts.missing_ranks)} missing for"
        f" {duration(lasted)}; the limit is {duration(threshold)}" + (f" ({why})" if why else ""),
        "shiftwork events {task}",
        facts.delay_nodes,
    )


def _restarts(seen: Seen, threshold: float) -> Found | None:
    facts = seen.facts
    in_place, attempts = facts.restarts_since_checkpoint, facts.attempts_without_progress
    if facts.ended or max(in_place, attempts) < threshold:
        return None
    if attempts >= in_place:
        what = f"{counted(attempts, 'attempt')} in a row ended without a newer checkpoint"
    else:
        what = f"its ranks were restarted {counted(in_place, 'time')} since the last checkpoint"
    nodes: Counter[str] = Counter()
    for _, count, node in facts.restarts:
        nodes[node] += count if node else 0
    return Found(
        f"{what}; the limit is {threshold:g}",
        "shiftwork logs {task} --tail 50",
        (max(sorted(nodes), key=lambda node: nodes[node]),) if nodes.total() else (),
    )


RULES: Mapping[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("long_run", "has run for longer than the threshold", 5 * DAY, "s", _long_run),
        Rule(
            "idle_gpus",
            "has GPUs that have been idle for as long as the threshold",
            HOUR,
            "s",
            _idle_gpus,
            sampled=True,
        ),
        Rule(
            "no_progress",
            "has used neither processors nor GPUs, or has reported no new step although it reported"
            " some, for as long as the threshold",
            HOUR,
            "s",
            _no_progress,
            sampled=True,
        ),
        Rule(
            "ranks_missing",
            "has had ranks without a process for as long as the threshold",
            900.0,
            "s",
            _ranks_missing,
            at_fault="the nodes on which its ranks cannot start",
        ),
        Rule(
            "restarts_without_progress",
            "was started again as often as the threshold without a newer checkpoint",
            3.0,
            "",
            _restarts,
            at_fault="the node on which its ranks were restarted most often",
        ),
    )
}
# By these a finding shows; the others change a task or a node.
HARMLESS = (AbnormalAction.NOTIFY, AbnormalAction.TAG)


@dataclass(frozen=True, slots=True)
class Setting:
    """How a rule is set for one task."""

    rule: Rule
    threshold: float
    actions: tuple[AbnormalAction, ...] = HARMLESS
    enabled: bool = True
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """What a group of nodes or a team has otherwise; None: as everybody."""

    threshold: float | None = None
    actions: tuple[AbnormalAction, ...] | None = None
    enabled: bool | None = None
    dry_run: bool | None = None

    def applied(self, to: Setting) -> Setting:
        """The setting with this change."""
        return Setting(
            to.rule,
            to.threshold if self.threshold is None else self.threshold,
            to.actions if self.actions is None else self.actions,
            to.enabled if self.enabled is None else self.enabled,
            to.dry_run if self.dry_run is None else self.dry_run,
        )


# By rule.
Changes = Mapping[str, Change]


@dataclass(frozen=True, slots=True)
class RuleBook:
    """All rules as the site has set them."""

    settings: Mapping[str, Setting]
    groups: Mapping[str, Changes] = field(default_factory=dict[str, Changes])
    teams: Mapping[str, Changes] = field(default_factory=dict[str, Changes])

    def of(self, group: str, team: str) -> Mapping[str, Setting]:
        """The rules for tasks of a team in a group of nodes. The team decides what both set."""
        changes = [self.groups.get(group, {}), self.teams.get(team, {})]
        if not any(changes):
            return self.settings
        settings = dict(self.settings)
        for changed in changes:
            for name, change in changed.items():
                settings[name] = change.applied(settings[name])
        return settings


def default_book() -> RuleBook:
    """Every rule with its default threshold, which notifies and tags."""
    return RuleBook({name: Setting(rule, rule.threshold) for name, rule in RULES.items()})


def evaluate(seen: Seen, settings: Mapping[str, Setting]) -> dict[str, Found]:
    """Return what each rule finds that is enabled."""
    found: dict[str, Found] = {}
    for name, setting in settings.items():
        if setting.enabled and (result := setting.rule.read(seen, setting.threshold)) is not None:
            suggestion = result.suggestion.replace("{task}", seen.facts.task_id)
            found[name] = replace(result, suggestion=suggestion)
    return found


def with_usage(
    row: FactsRow, usage: Usage, now_s: float, counts_after: tuple[float, float]
) -> FactsRow:
    """The facts with the times since when samples show idle GPUs and a quiet run. An idle time
    counts only once it has lasted for ``counts_after`` (idle, quiet), so it began so long ago."""
    idle_after, quiet_after = counts_after
    idles = any(each >= idle_after for each in usage.idle_s)
    quiets = usage.quiet_s is not None and usage.quiet_s >= quiet_after
    return replace(
        row,
        idle_since_s=_since(row.idle_since_s, now_s - idle_after, holds=idles),
        quiet_since_s=_since(row.quiet_since_s, now_s - quiet_after, holds=quiets),
    )


def _since(before: float | None, begins_s: float, *, holds: bool) -> float | None:
    if not holds:
        return None
    return begins_s if before is None else before


def _is(count: int) -> str:
    return "has been" if count == 1 else "have been"
