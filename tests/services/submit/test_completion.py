"""Rules that are refused: no rules, roles that are not there, conditions that cannot be met."""

from __future__ import annotations

import pytest

from libs.contracts.messages import Completion, Refusal, Role
from services.submit.domain.facts import Defaults, Facts, Limits
from services.submit.domain.fill import fill_in
from services.submit.domain.validate import validate
from tests.kit.specs import TASK_ID, asked

ROLES = (
    Role(name="chief", replicas=1, command=("a",)),
    Role(name="worker", replicas=3, command=("b",)),
)


@pytest.mark.parametrize(
    ("rule", "message", "fix"),
    [
        ("chief[0]", "", ""),
        ("chief[all] and worker[3+]", "", ""),
        ("worker[ended]", "", ""),
        ("cheif[0]", "there is no role cheif", "did you mean chief? use one of chief, worker"),
        ("worker[3]", "can never be met: role worker has replicas 0 to 2", "use one of them"),
        ("worker[4+]", "can never be met: role worker has 3 replicas", "use 1+ to 3+"),
        ("worker[0+]", "is always met: role worker has 3 replicas", "use 1+ to 3+"),
        ("chief[2+]", "can never be met: role chief has 1 replica", "use 1+"),
        ("worker", "is no rule: 'worker' is no condition", "write ROLE[INDEX], ROLE[any]"),
        ("x" * 1025, "is too long for a rule", "use at most 1024 characters"),
    ],
)
@pytest.mark.parametrize("field", ["success", "failure"])
def test_rules_are_checked(field: str, rule: str, message: str, fix: str) -> None:
    own = Completion.model_validate({field: (rule,)})
    spec = asked(roles=ROLES, nodes=0).model_copy(update={"completion": own})
    filled = fill_in(spec, task_id=TASK_ID, defaults=Defaults())
    found = validate(filled, owner="ann", team="", facts=Facts(), limits=Limits())
    if not message:
        assert not isinstance(found, Refusal)
        return
    assert isinstance(found, Refusal)
    (error,) = found.errors
    assert error.field == f"completion.{field}[0]"
    assert message in error.message
    assert error.fix.startswith(fix)
