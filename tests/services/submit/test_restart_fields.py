"""Rules of restart that are refused, and what their empty fields become."""

from __future__ import annotations

import pytest

from libs.contracts.messages import Refusal, RestartRule, RestartScope, RestartWhen, Role
from services.submit.domain.facts import Defaults, Facts, Limits
from services.submit.domain.fill import fill_in
from services.submit.domain.validate import validate
from tests.kit.specs import TASK_ID, asked

W, S = RestartWhen, RestartScope


@pytest.mark.parametrize(
    ("rule", "field", "message", "fix"),
    [
        (RestartRule(), "", "", ""),
        (RestartRule(when=W.NEVER), "", "", ""),
        (RestartRule(when=W.EXIT_CODE, exit_codes=("3", "128-255")), "", "", ""),
        (RestartRule(when=W.ALWAYS, scope=S.RANK, max_restarts=1000), "", "", ""),
        (
            RestartRule(exit_codes=("3",)),
            "exit_codes",
            "is only used with when: exit_code",
            "leave it out, or choose when: exit_code",
        ),
        (RestartRule(when=W.EXIT_CODE), "exit_codes", "is missing", "give at least one: a code"),
        (
            RestartRule(when=W.ALWAYS),
            "when",
            "would start the whole task again although the replica exited with 0",
            "choose on_failure, or scope: rank",
        ),
        (
            RestartRule(max_restarts=3),
            "max_restarts",
            "is only used with scope: rank",
            "leave it out, or choose scope: rank",
        ),
        (
            RestartRule(scope=S.RANK, max_restarts=1001),
            "max_restarts",
            "is not between 0 and 1000",
            "leave it out, or choose a value",
        ),
        (
            RestartRule(when=W.EXIT_CODE, exit_codes=("9-3",)),
            "exit_codes[0]",
            "is no exit code: the range ends before it begins",
            "write a code such as 137 or a range such as 128-255",
        ),
        (
            RestartRule(when=W.EXIT_CODE, exit_codes=("3", "300")),
            "exit_codes[1]",
            "is no exit code: exit codes of failures are 1 to 255",
            "write a code",
        ),
        (
            RestartRule(when=W.EXIT_CODE, exit_codes=tuple(map(str, range(1, 66)))),
            "exit_codes",
            "has more than 64",
            "give at most 64",
        ),
    ],
)
def test_rules_are_checked(rule: RestartRule, field: str, message: str, fix: str) -> None:
    roles = (Role(name="worker", command=("a",), restart=rule),)
    filled = fill_in(asked(roles=roles, nodes=1), task_id=TASK_ID, defaults=Defaults())
    found = validate(filled, owner="ann", team="", facts=Facts(), limits=Limits())
    if not message:
        assert not isinstance(found, Refusal)
        return
    assert isinstance(found, Refusal)
    (error,) = found.errors
    assert error.field == f"roles[0].restart.{field}"
    assert message in error.message
    assert error.fix.startswith(fix)


def test_empty_fields_of_a_rule_are_filled_in_and_no_rule_stays_none() -> None:
    roles = (
        Role(name="a", command=("a",), restart=RestartRule(max_restarts=1)),
        Role(name="b", command=("b",)),
    )
    filled = fill_in(asked(roles=roles, nodes=0), task_id=TASK_ID, defaults=Defaults())
    assert filled.roles[0].restart == RestartRule(when=W.ON_FAILURE, scope=S.GANG, max_restarts=1)
    assert filled.roles[1].restart is None
    assert fill_in(filled, task_id=TASK_ID, defaults=Defaults()) == filled
