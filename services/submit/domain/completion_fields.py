"""Checks of the rules by which a task succeeds or fails. Called by ``spec_fields.py``."""

from __future__ import annotations

import re
from collections.abc import Iterator

from libs.contracts import completion
from libs.contracts.completion import Condition, Rule
from libs.contracts.messages import FieldError, TaskSpec
from libs.contracts.wording import Suggestions, field_error
from services.submit.domain.facts import Limits

RULES_MAX = 64
# Of all rules of a task together.
CONDITIONS_MAX = 256
RULE_CHARACTERS_MAX = 1024
# What other languages write, and what to write here.
HABITS = (
    (r"(?i)\bor\b|,|;|\|", "write each as a rule of its own in the list: any of them is enough"),
    (r"&|\bAND\b", "join conditions with 'and'"),
)

Errors = Iterator[FieldError]


def check_completion(spec: TaskSpec, _limits: Limits) -> Errors:
    """Every error in the rules of a task."""
    if spec.completion is None:
        return
    given = {"success": spec.completion.success, "failure": spec.completion.failure}
    conditions = 0
    suggestions = Suggestions()
    for name, rules in given.items():
        at = f"completion.{name}"
        if len(rules) > RULES_MAX:
            fix = f"give at most {RULES_MAX}; any of them is enough"
            yield field_error(at, f"{len(rules)} rules", f"has more than {RULES_MAX} rules", fix)
        for index, text in enumerate(rules[:RULES_MAX]):
            if len(text) > RULE_CHARACTERS_MAX:
                fix = f"use at most {RULE_CHARACTERS_MAX} characters"
                value = f"{len(text)} characters"
                yield field_error(f"{at}[{index}]", value, "is too long for a rule", fix)
                continue
            try:
                rule = completion.parse(text)
            except ValueError as error:
                yield field_error(f"{at}[{index}]", text, f"is no rule: {error}", _fix(text))
                continue
            conditions += len(rule)
            if conditions > CONDITIONS_MAX:
                value = f"more than {CONDITIONS_MAX} conditions"
                fix = f"use at most {CONDITIONS_MAX} in all rules together"
                yield field_error("completion", value, "are too many", fix)
                return
            yield from _rule(
                f"{at}[{index}]", rule, spec, suggestions, of_failure=name == "failure"
            )


def _fix(text: str) -> str:
    for pattern, fix in HABITS:
        if re.search(pattern, text):
            return fix
    return f"write {completion.FORM}, such as worker[all]"


def _rule(
    at: str, rule: Rule, spec: TaskSpec, suggestions: Suggestions, *, of_failure: bool
) -> Errors:
    if rule == completion.NEVER:
        if not of_failure:
            fix = "leave it out, or write a condition such as worker[all]"
            yield field_error(at, "never", "an attempt that cannot succeed is of no use", fix)
        return
    if of_failure and all(condition.which == "ended" for condition in rule):
        why = "is met by ranks that succeed, too"
        fix = "add which ones failed, such as worker[any], or leave it out: an attempt fails anyway"
        fix += " when all ranks have ended and no rule for success is met"
        yield field_error(at, completion.text_of(rule), why, fix)
    for condition in rule:
        yield from _condition(at, condition, spec, suggestions)


def _condition(at: str, condition: Condition, spec: TaskSpec, suggestions: Suggestions) -> Errors:
    name, which = condition
    text = completion.text_of((condition,))
    replicas = {role.name: role.replicas for role in spec.roles}
    if name not in replicas:
        fix = f"{suggestions.meant(name, replicas)} use one of {', '.join(replicas)}".strip()
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
