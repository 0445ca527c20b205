"""Validates a spec as a person wrote it: returns the spec, or a refusal that names all errors.

Called by ``handlers.py`` for CreateTask.
"""

from __future__ import annotations

from collections.abc import Sequence

from libs.contracts.messages import CreateTask, FieldError, Refusal, RefusalCode, TaskSpec
from libs.contracts.wording import field_error
from services.submit.domain.facts import Facts, Limits, sentence
from services.submit.domain.fit import check_commands, check_inventory, check_quota
from services.submit.domain.spec_fields import SETTING, check_fields, check_person

ERRORS_SHOWN_MAX = 50
CLIENT_KEY_LENGTH_MAX = 255


def validate(
    spec: TaskSpec,
    *,
    owner: str,
    team: str,
    facts: Facts,
    limits: Limits,
    pod_errors: Sequence[FieldError] = (),
) -> TaskSpec | Refusal:
    """The spec if it may run one day, else why not. ``spec`` has its defaults already;
    ``pod_errors`` are the errors under the site's pod policy.
    """
    errors = [*check_fields(spec, limits), *check_commands(spec, facts), *pod_errors]
    if not errors:  # sizes are compared only once they are numbers that make sense
        errors = [*check_inventory(spec, facts), *check_quota(spec, owner, team, facts)]
    clash = _clash(spec.name, facts.name_taken_by)
    if not errors and not clash:
        return spec
    code = RefusalCode.INVALID if errors else RefusalCode.CONFLICT
    return refusal(code, *errors, *clash)


def check_requester(command: CreateTask) -> Refusal | None:
    """Check the form of the owner, the team and the client key; None if all are valid."""
    errors = [*check_person("owner", command.owner)]
    if command.team:
        errors += check_person("team", command.team)
    key = command.client_key
    if len(key) > CLIENT_KEY_LENGTH_MAX or not key.isprintable():
        errors.append(
            field_error(
                "client_key",
                key,
                "is not a key",
                f"use at most {CLIENT_KEY_LENGTH_MAX} printable characters",
            )
        )
    return refusal(RefusalCode.INVALID, *errors) if errors else None


def too_many_live(owner: str, most: int) -> Refusal:
    """The owner has as many tasks as one user may have."""
    fault = field_error(
        "owner",
        owner,
        f"has {most} tasks that have not ended, the most of one user",
        f"stop some, wait until some end, or have {SETTING}LIVE_TASKS_PER_USER_MAX raised",
    )
    return refusal(RefusalCode.FORBIDDEN, fault)


def check_same(asked: TaskSpec, before: TaskSpec) -> Refusal | None:
    """None if a repeated client key asks for the same task; else which fields differ."""
    differing = [
        name for name in TaskSpec.model_fields if getattr(asked, name) != getattr(before, name)
    ]
    if not differing:
        return None
    return refusal(
        RefusalCode.CONFLICT,
        *(
            field_error(
                name,
                "(not shown)",
                "differs from the task that was made with this client key",
                "repeat the same task, or use a new key",
            )
            for name in differing
        ),
    )


def refusal(code: RefusalCode, *errors: FieldError) -> Refusal:
    """A refusal for these errors; at most ``ERRORS_SHOWN_MAX`` are listed, the sentence counts
    all."""
    return Refusal(code=code, detail=sentence(errors), errors=errors[:ERRORS_SHOWN_MAX])


def _clash(name: str, taken_by: str) -> list[FieldError]:
    if not taken_by:
        return []
    fix = f"end it first with PUT /v1/tasks/{taken_by}/goal, or choose another name"
    return [field_error("name", name, f"your task {taken_by} has this name and has not ended", fix)]
