"""Checks that a task can have the contract that it names: its roles, its size, its variables.

Called by ``spec_fields.py``. The values of variables may be secrets, and are not shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from libs.contracts.messages import FieldError, TaskSpec
from libs.contracts.task_contracts import TaskContract, contract_of
from libs.contracts.variables import is_platforms, is_reserved
from libs.contracts.wording import Suggestions, field_error
from services.submit.domain.facts import Limits

Errors = Iterator[FieldError]
OTHER_CONTRACT = "choose another contract"


def check_contract(spec: TaskSpec, _limits: Limits) -> Errors:
    """Every error that depends on the task's contract."""
    contract = contract_of(spec.contract)
    yield from _roles_there(spec, contract)
    yield from _roles_known(spec, contract)
    yield from _single(spec, contract)
    yield from _size(spec, contract)
    yield from _variables(spec)


def _roles_there(spec: TaskSpec, contract: TaskContract) -> Errors:
    names = [role.name for role in spec.roles]
    for needed in contract.needs:
        if needed not in names:
            yield field_error(
                "contract",
                contract.word,
                f"needs a role {needed}, which the task does not have",
                f"name a role {needed}, or {OTHER_CONTRACT}",
            )
    if contract.members and not set(contract.members) & set(names):
        yield field_error(
            "contract",
            contract.word,
            f"needs one of the roles {', '.join(contract.members)}",
            f"name the roles so, or {OTHER_CONTRACT}",
        )


def _roles_known(spec: TaskSpec, contract: TaskContract) -> Errors:
    suggestions = Suggestions()
    for index, role in enumerate(spec.roles if contract.roles else ()):
        if role.name not in contract.roles:
            near = suggestions.meant(role.name, contract.roles)
            fix = f"use one of {', '.join(contract.roles)}, or {OTHER_CONTRACT}"
            yield field_error(
                f"roles[{index}].name",
                role.name,
                f"is no role of the contract {contract.word}",
                f"{near} {fix}".strip(),
            )


def _single(spec: TaskSpec, contract: TaskContract) -> Errors:
    count = 0
    for index, role in enumerate(spec.roles):
        if role.name in contract.single:
            count += role.replicas
            if count > 1:
                names = " and ".join(contract.single)
                yield field_error(
                    f"roles[{index}].replicas",
                    role.replicas,
                    f"the contract {contract.word} has one replica of {names} at most",
                    f"give one replica, or {OTHER_CONTRACT}",
                )


def _size(spec: TaskSpec, contract: TaskContract) -> Errors:
    count = sum(role.replicas for role in spec.roles)
    if contract.ranks_max is not None and count > contract.ranks_max:
        yield field_error(
            "contract",
            contract.word,
            f"lists at most {contract.ranks_max} replicas, and the task has {count}",
            f"use fewer replicas, or {OTHER_CONTRACT}",
        )


def _variables(spec: TaskSpec) -> Errors:
    given: list[tuple[str, Mapping[str, str]]] = [("env", spec.env)]
    for index, role in enumerate(spec.roles):
        given.append((f"roles[{index}].env", role.env))
        if role.resume is not None:
            given.append((f"roles[{index}].resume.env", role.resume.env))
    for at, env in given:
        for name in env:
            if is_reserved(name, spec.contract):
                fix = "remove it, or use another name"
                if not is_platforms(name):
                    fix += "; with the contract none it is yours to set"
                yield field_error(f"{at}.{name}", "(not shown)", "is set by the platform", fix)
