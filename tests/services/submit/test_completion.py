"""Rules that are refused: no rules, roles that are not there, conditions that cannot be met."""

from __future__ import annotations

import pytest

from libs.contracts.messages import Completion, Refusal, Role, TaskSpec
from services.submit.domain.facts import Defaults, Facts, Limits
from services.submit.domain.fill import fill_in
from services.submit.domain.validate import validate
from tests.kit.specs import TASK_ID, asked

ROLES = (
    Role(name="chief", replicas=1, command=("a",)),
    Role(name="worker", replicas=3, command=("b",)),
)


def checked(own: Completion) -> TaskSpec | Refusal:
    """The answer to a task with these rules."""
    spec = asked(roles=ROLES, nodes=0).model_copy(update={"completion": own})
    filled = fill_in(spec, task_id=TASK_ID, defaults=Defaults())
    return validate(filled, owner="ann", team="", facts=Facts(), limits=Limits())


@pytest.mark.parametrize(
    ("rule", "message", "fix"),
    [
        ("chief[0]", "", ""),
        ("chief[all] and worker[3+]", "", ""),
        ("cheif[0]", "there is no role cheif", "did you mean chief? use one of chief, worker"),
        ("worker[3]", "can never be met: role worker has replicas 0 to 2", "use one of them"),
        ("worker[4+]", "can never be met: role worker has 3 replicas", "use 1+ to 3+"),
        ("worker[0+]", "is always met: role worker has 3 replicas", "use 1+ to 3+"),
        ("chief[2+]", "can never be met: role chief has 1 replica", "use 1+"),
        ("worker", "is no rule: 'worker' is no condition", "write ROLE[INDEX], ROLE[any]"),
        ("chief[0] or worker[all]", "is no rule", "write each as a rule of its own in the list"),
        ("chief[0], worker[all]", "is no rule", "write each as a rule of its own in the list"),
        ("chief[0] && worker[all]", "is no rule", "join conditions with 'and'"),
        ("chief[0] AND worker[all]", "is no rule", "join conditions with 'and'"),
        (" and ".join(["worker[any]"] * 60), "", ""),
        ("x" * 1025, "is too long for a rule", "use at most 1024 characters"),
    ],
)
@pytest.mark.parametrize("field", ["success", "failure"])
def test_rules_are_checked(field: str, rule: str, message: str, fix: str) -> None:
    found = checked(Completion.model_validate({field: (rule,)}))
    if not message:
        assert not isinstance(found, Refusal)
        return
    assert isinstance(found, Refusal)
    (error,) = found.errors
    assert error.field == f"completion.{field}[0]"
    assert message in error.message
    assert error.fix.startswith(fix)


def test_a_failure_that_success_meets_too_is_refused() -> None:
    assert not isinstance(checked(Completion(success=("worker[ended]",))), Refusal)
    found = checked(Completion(failure=("chief[ended] and worker[ended]",)))
    assert isinstance(found, Refusal)
    assert "is met by ranks that succeed, too" in found.detail


def test_never_is_a_rule_of_failure() -> None:
    assert not isinstance(checked(Completion(failure=("never",))), Refusal)
    found = checked(Completion(success=("never",)))
    assert isinstance(found, Refusal)
    assert [error.value for error in found.errors] == ["never"]


def test_all_conditions_together_are_limited() -> None:
    found = checked(Completion(success=(" and ".join(["worker[any]"] * 60),) * 5))
    assert isinstance(found, Refusal)
    assert [error.field for error in found.errors] == ["completion"]
