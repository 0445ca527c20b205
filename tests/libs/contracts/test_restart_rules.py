"""Which ends of a rank lead to a restart."""

from __future__ import annotations

import itertools

import pytest

from libs.contracts.messages import FaultClass, RestartRule, RestartScope, RestartWhen, Role
from libs.contracts.restart_rules import CODE_MAX, DEFAULT, parse_codes, rule_of, wants_restart

C, W = FaultClass, RestartWhen
# Code and signal of an end.
ENDS: dict[str, tuple[int | None, int | None]] = {
    "0": (0, None),
    "1": (1, None),
    "137": (137, None),
    "killed": (None, 9),
    "unknown": (None, None),
}
RULES = {
    W.NEVER: RestartRule(when=W.NEVER),
    W.ON_FAILURE: RestartRule(when=W.ON_FAILURE),
    W.ALWAYS: RestartRule(when=W.ALWAYS),
    W.EXIT_CODE: RestartRule(when=W.EXIT_CODE, exit_codes=("3", "128-255")),
}
# The ends that each rule restarts, by whether the platform is at fault.
RESTARTED: dict[tuple[RestartWhen, bool], set[str]] = {
    (W.NEVER, False): set(),
    (W.NEVER, True): {"1", "137", "killed", "unknown"},
    (W.ON_FAILURE, False): {"1", "137", "killed", "unknown"},
    (W.ON_FAILURE, True): {"1", "137", "killed", "unknown"},
    (W.ALWAYS, False): set(ENDS),
    (W.ALWAYS, True): set(ENDS),
    (W.EXIT_CODE, False): {"137", "killed"},
    (W.EXIT_CODE, True): {"1", "137", "killed", "unknown"},
}


def test_the_table_has_every_rule() -> None:
    given = set(RestartWhen) - {W.UNSPECIFIED}
    assert set(RULES) == given
    assert set(RESTARTED) == set(itertools.product(given, (False, True)))


@pytest.mark.parametrize("fault_class", list(FaultClass))
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("when", RULES)
def test_which_ends_are_restarted(when: RestartWhen, end: str, fault_class: FaultClass) -> None:
    expected = end in RESTARTED[when, fault_class is C.PLATFORM]
    assert wants_restart(RULES[when], *ENDS[end], fault_class) is expected


@pytest.mark.parametrize(
    ("text", "first", "last"), [("1", 1, 1), ("137", 137, 137), ("128-255", 128, 255)]
)
def test_codes_are_read(text: str, first: int, last: int) -> None:
    found = parse_codes(text)
    assert (found[0], found[-1]) == (first, last)


@pytest.mark.parametrize(
    "text", ["", "0", "0-3", "256", "1-256", "5-3", "a", "-1", "1-", "1 - 2", "1,2", "1-2-3", "٣"]
)
def test_other_texts_are_no_codes(text: str) -> None:
    with pytest.raises(ValueError, match=r"code|range"):
        parse_codes(text)


def test_every_single_code_is_read() -> None:
    assert [parse_codes(str(code)) for code in range(1, CODE_MAX + 1)]


def test_what_a_rule_leaves_out_is_as_without_a_rule() -> None:
    role = Role(name="worker", command=("a",))
    assert rule_of(role) == DEFAULT
    empty = role.model_copy(update={"restart": RestartRule()})
    assert rule_of(empty) == DEFAULT
    given = RestartRule(when=W.NEVER, scope=RestartScope.RANK, max_restarts=3)
    assert rule_of(role.model_copy(update={"restart": given})) == given
