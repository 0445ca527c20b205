"""Checks of the rules by which a task succeeds or fails. Called by ``spec_fields.py``."""

from __future__ import annotations

from collections.abc import Iterator

from libs.contracts import completion
from libs.contracts.completion import Condition
from libs.contracts.messages import FieldError, TaskSpec
from libs.contracts.wording import field_error, meant
from services.submit.domain.facts import Limits

RULES_MAX = 64
CONDITIONS_MAX = 64
RULE_CHARACTERS_MAX = 1024

Errors = Iterator[FieldError]


def check_completion(spec: TaskSpec, _limits: Limits) -> Errors:
    """Every error in the rules of a task."""
    if spec.completion is None:
        return
    given = {"success": spec.completion.success, "failure": spec.completion.failure}
    for name, rules in given.items():
        at = f"completion.{name}"
        if len(rules) > RULES_MAX:
            fix = f"give at most {RULES_MAX}; any of them is enough"
            yield field_error(at, f"{len(rules)} rules", f"has more than {RULES_MAX} rules", fix)
        for index, text in enumerate(rules[:RULES_MAX]):
            yield from _rule(f"{at}[{index}]", text, spec)


def _rule(at: str, text: str, spec: TaskSpec) -> Errors:
    if len(text) > RULE_CHARACTERS_MAX:
        fix = f"use at most {RULE_CHARACTERS_MAX} characters"
        yield field_error(at, f"{len(text)} characters", "is too long for a rule", fix)
        return
    try:
        rule = completion.parse(text)
    except ValueError as error:
        fix = f"write {completion.FORM}, such as worker[all]"
        yield field_error(at, text, f"is no rule: {error}", fix)
        return
    if len(rule) > CONDITIONS_MAX:
        fix = f"join at most {CONDITIONS_MAX}"
        yield field_error(at, f"{len(rule)} conditions", "has too many conditions", fix)
    for condition in rule[:CONDITIONS_MAX]:
        yield from _condition(at, condition, spec)


def _condition(at: str, condition: Condition, spec: TaskSpec) -> Errors:
    name, which = condition
    text = completion.text_of((condition,))
    replicas = {role.name: role.replicas for role in spec.roles}
    if name not in replicas:
        fix = f"{meant(name, replicas)} use one of {', '.join(replicas)}".strip()
        yield field_error(at, text, f"there is no role {name}", fix)
        return
    count = replicas[name]
    if which.isdigit() and int(which) >= count:
        why = f"can never be met: role {name} has replicas 0 to {count - 1}"
        yield field_error(at, text, why, "use one of them, or any, all, ended")
    elif which.endswith("+") and not 1 <= int(which[:-1]) <= count:
        why = "can never be met" if int(which[:-1]) else "is always met"
        why += f": role {name} has {count} replica" + ("" if count == 1 else "s")
        yield field_error(at, text, why, f"use 1+ to {count}+" if count > 1 else "use 1+")
