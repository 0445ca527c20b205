"""When an attempt has succeeded or failed: rules over the ends of its ranks.

Submit validates the rules of a task with this module, and the launcher applies them. A rule is one
condition, or several joined by ``and``:

- ``chief[0]``: this replica of the role ended so,
- ``worker[any]``, ``worker[all]``, ``worker[3+]``: one, every one or at least three of them did,
- ``worker[ended]``: every one of them has ended, in whatever way.

In a rule for success "so" means with code 0, in a rule for failure in any other way. The attempt is
decided by the rule that is met first, in the order in which ranks ended; of rules that one end
meets, failure comes first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from libs.contracts.messages import Role, TaskSpec
from libs.contracts.task_contracts import contract_of

_CONDITION = re.compile(r"\s*([^\[\]\s]+)\s*\[\s*(any|all|ended|\d{1,6}\+?)\s*\]\s*")
FORM = "ROLE[INDEX], ROLE[any], ROLE[all], ROLE[N+] or ROLE[ended], joined by ' and '"


class Condition(NamedTuple):
    """A part of a rule."""

    role: str
    # ``any``, ``all``, ``ended``, an index, or a number and ``+``.
    which: str


# All of its conditions hold together.
Rule = tuple[Condition, ...]


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
    """A verdict, the rule that was met, and the end that met it."""

    verdict: Verdict
    rule: Rule
    end: RankEnd


def parse(text: str) -> Rule:
    """Read a rule. Raises ``ValueError`` if it has another form than ``FORM``."""
    found: list[Condition] = []
    for part in re.split(r"\band\b", text):
        match = _CONDITION.fullmatch(part)
        if match is None:
            raise ValueError(f"{part.strip()!r} is no condition")
        found.append(Condition(match.group(1), match.group(2)))
    return tuple(found)


def text_of(rule: Rule) -> str:
    """The rule as it is written."""
    return " and ".join(f"{role}[{which}]" for role, which in rule)


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
    """Apply the rules to the ends of ranks, in the order in which they ended; None: undecided."""
    replicas = {role.name: role.replicas for role in roles}
    succeeded, failed = _Count(replicas), _Count(replicas)
    for end in ends:
        (succeeded if end.ok else failed).add(end)
        ended = succeeded.counts + failed.counts
        for verdict, count, own in (
            (Verdict.FAILED, failed, rules.failure),
            (Verdict.SUCCEEDED, succeeded, rules.success),
        ):
            for rule in own:
                if all(count.meets(condition, ended) for condition in rule):
                    return Decided(verdict, rule, end)
    return None


class _Count:
    """Ranks that ended in one way."""

    def __init__(self, replicas: Mapping[str, int]) -> None:
        self._replicas = replicas
        self._ranks: set[tuple[str, int]] = set()
        self.counts: Counter[str] = Counter()

    def add(self, end: RankEnd) -> None:
        self._ranks.add((end.role, end.number))
        self.counts[end.role] += 1

    def meets(self, condition: Condition, ended: Mapping[str, int]) -> bool:
        role, which = condition
        everyone = self._replicas.get(role, 0)
        if which == "ended":
            return ended.get(role, 0) >= everyone
        if which.isdigit():
            return (role, int(which)) in self._ranks
        least = {"any": 1, "all": everyone}.get(which) or int(which.rstrip("+"))
        return self.counts[role] >= least
