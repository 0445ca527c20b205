"""When an attempt has succeeded or failed: rules over the ends of its ranks.

Submit validates the rules of a task with this module, and the launcher applies them. A rule is one
condition, or several joined by ``and``:

- ``chief[0]``: this replica of the role ended so,
- ``worker[any]``, ``worker[all]``, ``worker[3+]``: one, every one or at least three of them did,
- ``worker[ended]``: every one of them has ended, in whatever way.

In a rule for success "so" means with code 0, in a rule for failure in any other way. The attempt is
decided by the rule that is met first, in the order in which ranks ended; of rules that one end
meets, failure comes first. It has failed, too, as soon as no rule for success can be met any more.
The rule ``never`` for failure is never met.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from libs.contracts.messages import Role, TaskSpec
from libs.contracts.task_contracts import contract_of

_CONDITION = re.compile(r"\s*([^\[\]\s]+)\s*\[\s*(any|all|ended|[0-9]{1,6}\+?)\s*\]\s*")
# A role may be called "and", or "r-and-d".
_AND = re.compile(r"(?<=\])\s*and(?=\s)")
FORM = "ROLE[INDEX], ROLE[any], ROLE[all], ROLE[N+] or ROLE[ended], joined by ' and '"


class Condition(NamedTuple):
    """A part of a rule."""

    role: str
    # ``any``, ``all``, ``ended``, an index, or a number and ``+``.
    which: str


# All of its conditions hold together.
Rule = tuple[Condition, ...]
# The rule that is never met.
NEVER: Rule = (Condition("", "never"),)


class Rules(NamedTuple):
    """Any of each is enough."""

    success: tuple[Rule, ...]
    failure: tuple[Rule, ...]


class Verdict(Enum):
    """How an attempt is decided."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"


class RankEnd(NamedTuple):
    """The end of one rank."""

    role: str
    # In its role.
    number: int
    ok: bool


class Decided(NamedTuple):
    """A verdict, the rule that was met, and the end that met it. The rule is empty if the end made
    every rule for success impossible."""

    verdict: Verdict
    rule: Rule
    end: RankEnd


@lru_cache(maxsize=4096)
def parse(text: str) -> Rule:
    """Read a rule. Raises ``ValueError`` if it has another form than ``FORM``."""
    if text.strip() == "never":
        return NEVER
    found: list[Condition] = []
    for part in _AND.split(text):
        match = _CONDITION.fullmatch(part)
        if match is None:
            raise ValueError(f"{part.strip()!r} is no condition")
        found.append(Condition(match.group(1), match.group(2)))
    return tuple(found)


def text_of(rule: Rule) -> str:
    """The rule as it is written."""
    return "never" if rule == NEVER else " and ".join(f"{role}[{which}]" for role, which in rule)


def rules_of(spec: TaskSpec) -> Rules:
    """The rules of a task, with the default for what it leaves out: all of those that decide
    succeed, or any rank fails."""
    given = spec.completion
    return Rules(
        tuple(map(parse, given.success if given else ()))
        or (tuple(Condition(name, "all") for name in _deciding(spec)),),
        tuple(map(parse, given.failure if given else ()))
        or tuple((Condition(role.name, "any"),) for role in spec.roles),
    )


def _deciding(spec: TaskSpec) -> list[str]:
    """The roles that have to succeed by default: that which decides under the task's contract, else
    all but auxiliary ones."""
    decides = contract_of(spec.contract).decides
    if any(role.name == decides for role in spec.roles):
        return [decides]
    names = [role.name for role in spec.roles if not role.auxiliary]
    return names or [role.name for role in spec.roles]


def has_own(spec: TaskSpec) -> bool:
    """True unless the task succeeds when all of its ranks do."""
    given = spec.completion
    own = given is not None and bool(given.success or given.failure)
    return own or len(_deciding(spec)) < len(spec.roles)


def decide(rules: Rules, roles: Sequence[Role], ends: Iterable[RankEnd]) -> Decided | None:
    """Apply the rules to the ends of ranks, in the order in which they ended; None: undecided.

    Costs as much as there are conditions and ends: a condition, once met, stays met, so each one is
    found by the count or the replica that meets it.
    """
    progress = _Progress(rules, roles)
    for end in ends:
        found = progress.add(end)
        if found is not None:
            return found
    return None


class _Progress:
    """How much of each rule is met."""

    def __init__(self, rules: Rules, roles: Sequence[Role]) -> None:
        self._replicas = {role.name: role.replicas for role in roles}
        # Failure comes first.
        self._rules = [(Verdict.FAILED, rule) for rule in rules.failure]
        self._rules += [(Verdict.SUCCEEDED, rule) for rule in rules.success]
        self._unmet = [len(rule) for _, rule in self._rules]
        # Success rules that can still be met.
        self._possible = {
            at for at, (verdict, _) in enumerate(self._rules) if verdict is Verdict.SUCCEEDED
        }
        # The rules with a condition that this event meets, or makes impossible.
        self._meets: defaultdict[Hashable, list[int]] = defaultdict(list)
        self._breaks: defaultdict[Hashable, list[int]] = defaultdict(list)
        for at, (verdict, rule) in enumerate(self._rules):
            for condition in rule:
                self._index(at, verdict, condition)
        self._counts: Counter[tuple[Verdict | None, str]] = Counter()

    def _index(self, at: int, verdict: Verdict, condition: Condition) -> None:
        role, which = condition
        everyone = self._replicas.get(role, 0)
        if (role, which) == NEVER[0]:
            return
        if which == "ended":
            self._meets[None, role, "count", everyone].append(at)
        elif which.isdigit():
            self._meets[verdict, role, "index", int(which)].append(at)
            self._breaks[Verdict.FAILED, role, "index", int(which)].append(at)
        else:
            least = {"any": 1, "all": everyone}.get(which) or int(which.rstrip("+"))
            self._meets[verdict, role, "count", least].append(at)
            self._breaks[Verdict.FAILED, role, "count", everyone - least + 1].append(at)

    def add(self, end: RankEnd) -> Decided | None:
        """Count one more end. Returns what it decides."""
        verdict = Verdict.SUCCEEDED if end.ok else Verdict.FAILED
        self._counts.update(((verdict, end.role), (None, end.role)))
        own = ("count", self._counts[verdict, end.role])
        events: tuple[Hashable, ...] = (
            (verdict, end.role, "index", end.number),
            (verdict, end.role, *own),
            (None, end.role, "count", self._counts[None, end.role]),
        )
        met: list[int] = []
        for event in events:
            for at in self._meets.get(event, ()):
                self._unmet[at] -= 1
                if self._unmet[at] == 0:
                    met.append(at)
        if met:
            return Decided(*self._rules[min(met)], end)
        for event in events:
            self._possible.difference_update(self._breaks.get(event, ()))
        return None if self._possible else Decided(Verdict.FAILED, (), end)
