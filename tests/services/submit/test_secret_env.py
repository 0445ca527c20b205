"""Variables that a task declares as secrets are there, and can be masked."""

from __future__ import annotations

from typing import Any

import pytest

from libs.contracts.limits import SECRET_ENV_MAX
from libs.contracts.messages import FieldError, Override, Role
from services.submit.domain.facts import Defaults, Limits
from services.submit.domain.fill import fill_in
from services.submit.domain.spec_fields import check_fields
from tests.kit.specs import TASK_ID, asked

ROLE = Role(
    name="worker",
    replicas=1,
    command=("train",),
    env={"OF_ROLE": "secret-of-role"},
    resume=Override(env={"OF_RESUME": "secret-later"}),
)


def errors(*names: str, **env: str) -> list[FieldError]:
    changes: dict[str, Any] = {"roles": (ROLE,), "env": env, "secret_env": names}
    spec = fill_in(asked(**changes), task_id=TASK_ID, defaults=Defaults())
    return list(check_fields(spec, Limits()))


def test_variables_of_the_task_of_a_role_and_of_its_resume_can_be_secrets() -> None:
    assert errors("DSN", "OF_ROLE", "OF_RESUME", "EMPTY", DSN="postgres://x", EMPTY="") == []


@pytest.mark.parametrize(
    ("value", "message", "fix"),
    [
        (None, "is no variable of the task", "set it with env (A=VALUE), or remove it here"),
        ("12345", "fewer than 6 characters", "use a longer value"),
        ("12345 \n", "fewer than 6 characters", "use a longer value"),
    ],
)
def test_a_secret_that_cannot_be_masked_is_refused_and_not_shown(
    value: str | None, message: str, fix: str
) -> None:
    env = {} if value is None else {"A": value}
    (error,) = errors("OF_ROLE", "A", **env)
    assert (error.field, error.value) == ("secret_env[1]", "A")
    assert message in error.message
    assert fix in error.fix
    assert "12345" not in str(error)


def test_there_are_not_too_many() -> None:
    names = [f"SECRET_{number}" for number in range(SECRET_ENV_MAX + 1)]
    (error,) = errors(*names, **dict.fromkeys(names, "secret-of-task"))
    assert error.field == "secret_env"
    assert error.value == f"{SECRET_ENV_MAX + 1} variables"
