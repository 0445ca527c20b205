"""Checks of the rules by which roles are restarted. Called by ``spec_fields.py``, which checks the
bounds of their numbers."""

from __future__ import annotations

from collections.abc import Iterator

from libs.contracts import restart_rules
from libs.contracts.messages import (
    FieldError,
    RestartRule,
    RestartScope,
    RestartWhen,
    TaskSpec,
)
from libs.contracts.wording import field_error
from services.submit.domain.facts import Limits

EXIT_CODES_MAX = 64

Errors = Iterator[FieldError]


def check_restart(spec: TaskSpec, _limits: Limits) -> Errors:
    """Every error in the rules of the roles."""
    for index, role in enumerate(spec.roles):
        if role.restart is not None:
            at, rule = f"roles[{index}].restart", restart_rules.rule_of(role)
            yield from _together(at, rule)
            yield from _exit_codes(f"{at}.exit_codes", rule.exit_codes)


def _together(at: str, rule: RestartRule) -> Errors:
    """Fields that make no sense beside the others."""
    when = rule.when
    if rule.exit_codes and when is not RestartWhen.EXIT_CODE:
        yield field_error(
            f"{at}.exit_codes",
            ", ".join(rule.exit_codes),
            "is only used with when: exit_code",
            "leave it out, or choose when: exit_code",
        )
    if not rule.exit_codes and when is RestartWhen.EXIT_CODE:
        yield field_error(
            f"{at}.exit_codes",
            "",
            "is missing: with when: exit_code only these lead to a restart",
            f"give at least one: {restart_rules.FORM}",
        )
    if when is RestartWhen.ALWAYS and rule.scope is RestartScope.GANG:
        yield field_error(
            f"{at}.when",
            "always",
            "would start the whole task again although the replica exited with 0",
            "choose on_failure, or scope: rank",
        )
    if rule.max_restarts is not None and rule.scope is not RestartScope.RANK:
        yield field_error(
            f"{at}.max_restarts",
            rule.max_restarts,
            "is only used with scope: rank",
            "leave it out, or choose scope: rank; retry.max_retries limits how often the whole "
            "task is tried again",
        )


def _exit_codes(at: str, codes: tuple[str, ...]) -> Errors:
    if len(codes) > EXIT_CODES_MAX:
        fix = f"give at most {EXIT_CODES_MAX}, such as ranges"
        yield field_error(at, f"{len(codes)} entries", f"has more than {EXIT_CODES_MAX}", fix)
    for index, text in enumerate(codes[:EXIT_CODES_MAX]):
        try:
            restart_rules.parse_codes(text)
        except ValueError as error:
            fix = f"write {restart_rules.FORM}"
            yield field_error(f"{at}[{index}]", text, f"is no exit code: {error}", fix)
