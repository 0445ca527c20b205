"""Whether the end of a rank leads to a restart, by the rule of its role.

Submit validates the rules of a task with this module, and the launcher applies them: with the scope
gang a failure that its rule does not restart ends the task for good, and with the scope rank the
rule decides whether the rank is started again in its place. How often is not decided here.
"""

from __future__ import annotations

import re

from libs.contracts.messages import FaultClass, RestartRule, RestartScope, RestartWhen, Role

_CODES = re.compile(r"([0-9]{1,3})(?:-([0-9]{1,3}))?")
CODE_MAX = 255
FORM = f"a code such as 137 or a range such as 128-{CODE_MAX}, from 1 to {CODE_MAX}"
# How shells and container runtimes turn the number of a signal into an exit code.
SIGNAL_BASE = 128

DEFAULT_WHEN = RestartWhen.ON_FAILURE
DEFAULT_SCOPE = RestartScope.GANG
DEFAULT = RestartRule(when=DEFAULT_WHEN, scope=DEFAULT_SCOPE)


def rule_of(role: Role) -> RestartRule:
    """The rule of a role, with the defaults for what it leaves out."""
    rule = role.restart or DEFAULT
    return rule.model_copy(
        update={
            "when": DEFAULT_WHEN if rule.when is RestartWhen.UNSPECIFIED else rule.when,
            "scope": DEFAULT_SCOPE if rule.scope is RestartScope.UNSPECIFIED else rule.scope,
        }
    )


def parse_codes(text: str) -> range:
    """Read an exit code or a range of them. Raises ``ValueError`` if it has another form than
    ``FORM``."""
    match = _CODES.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is neither a code nor a range")
    first = int(match[1])
    last = int(match[2] or first)
    if not 1 <= first <= CODE_MAX or not 1 <= last <= CODE_MAX:
        raise ValueError(f"exit codes of failures are 1 to {CODE_MAX}")
    if first > last:
        raise ValueError("the range ends before it begins")
    return range(first, last + 1)


def exit_code(code: int | None, signal: int | None) -> int | None:
    """The code by which rules know an end: a signal counts as 128 and its number."""
    if code is None and signal is not None:
        return SIGNAL_BASE + signal
    return code


def wants_restart(
    rule: RestartRule, code: int | None, signal: int | None, fault_class: FaultClass
) -> bool:
    """Whether the end of a rank leads to a restart.

    ``rule`` is complete (``rule_of``). An end without code and signal is a failure too: nobody
    knows how the program ended, or it never began. What the platform did to the rank is not the
    program's failure: it is restarted under every rule.
    """
    ended = exit_code(code, signal)
    if ended == 0:
        return rule.when is RestartWhen.ALWAYS
    if fault_class is FaultClass.PLATFORM:
        return True
    match rule.when:
        case RestartWhen.NEVER:
            return False
        case RestartWhen.EXIT_CODE:
            return ended is not None and any(ended in parse_codes(c) for c in rule.exit_codes)
        case _:
            return True
