"""Fill in what a person left out. Called before a spec is checked; filling twice changes nothing.

Only what is missing is filled; what is wrong stays as it is, for ``spec_fields.py`` to name.
"""

from __future__ import annotations

import re

from libs.contracts.ids import name_ending
from libs.contracts.messages import (
    Contract,
    PreemptionPolicy,
    PreemptMode,
    Priority,
    Role,
    RunMode,
    StartCondition,
    StartsAfter,
    TaskSpec,
)
from libs.contracts.restart_rules import rule_of
from libs.contracts.start_order import ready_probe
from services.submit.domain.facts import Defaults, bound

NAME_LENGTH_MAX = 63
DEFAULT_ROLE = "worker"
DEFAULT_PRIORITY = Priority[bound("TaskSpec", "priority").initial.upper()]
DEFAULT_CONTRACT = Contract[bound("TaskSpec", "contract").initial.upper()]
DEFAULT_RUN_MODE = RunMode[bound("TaskSpec", "run_mode").initial.upper()]
DEFAULT_CONDITION = StartCondition[bound("StartsAfter", "condition").initial.upper()]
DEFAULT_MODE = PreemptMode[bound("PreemptionPolicy", "mode").initial.upper()]
DEFAULT_SIGNAL = bound("PreemptionPolicy", "signal").initial
_SCRIPT = re.compile(r"\.(py|sh|bash|R|jl|pl|rb|lua|js|ts)$")
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")


def fill_in(
    spec: TaskSpec,
    *,
    task_id: str,
    defaults: Defaults,
    group: str = "",
    priority: Priority = Priority.UNSPECIFIED,
) -> TaskSpec:
    """The spec with its defaults: the same spec again if it was complete. ``group`` and
    ``priority`` are the owner's, and come before those of all."""
    roles = _roles(spec)
    return spec.model_copy(
        update={
            "name": spec.name or derived_name(roles, task_id),
            "group": spec.group or group or defaults.default_group,
            "priority": next(
                each
                for each in (spec.priority, priority, DEFAULT_PRIORITY)
                if each is not Priority.UNSPECIFIED
            ),
            "roles": roles,
            "nodes": spec.nodes or sum(role.replicas for role in roles),
            "preemption": _preemption(spec.preemption, defaults),
            "contract": (
                DEFAULT_CONTRACT if spec.contract is Contract.UNSPECIFIED else spec.contract
            ),
            "run_mode": (
                DEFAULT_RUN_MODE if spec.run_mode is RunMode.UNSPECIFIED else spec.run_mode
            ),
        }
    )


def derived_name(roles: tuple[Role, ...], task_id: str) -> str:
    """A name from the first command (its script, else its program) and the end of the id."""
    command = roles[0].command if roles else ()
    script = next((word for word in command if _SCRIPT.search(word)), "")
    program = (script or (command[0] if command else "")).rsplit("/", 1)[-1]
    stem = _UNFIT.sub("-", _SCRIPT.sub("", program)).strip("-._")
    ending = name_ending(task_id)
    kept = stem[: NAME_LENGTH_MAX - len(ending)].rstrip("-._")
    return f"{kept or 'task'}{ending}"


def _roles(spec: TaskSpec) -> tuple[Role, ...]:
    roles = tuple(
        _start(role.model_copy(update={"restart": rule_of(role)}) if role.restart else role)
        for role in spec.roles
    )
    if len(roles) != 1:
        return tuple(
            role if role.replicas else role.model_copy(update={"replicas": 1}) for role in roles
        )
    role = roles[0]
    replicas = role.replicas or spec.nodes or 1
    name = role.name or DEFAULT_ROLE
    return (role.model_copy(update={"name": name, "replicas": replicas}),)


def _start(role: Role) -> Role:
    """The role with what its order of start leaves out."""
    update: dict[str, object] = {}
    if any(each.condition is StartCondition.UNSPECIFIED for each in role.starts_after):
        update["starts_after"] = tuple(
            StartsAfter(
                role=each.role,
                condition=DEFAULT_CONDITION
                if each.condition is StartCondition.UNSPECIFIED
                else each.condition,
            )
            for each in role.starts_after
        )
    if role.ready is not None:
        update["ready"] = ready_probe(role)
    return role.model_copy(update=update) if update else role


def _preemption(policy: PreemptionPolicy, defaults: Defaults) -> PreemptionPolicy:
    mode = DEFAULT_MODE if policy.mode is PreemptMode.UNSPECIFIED else policy.mode
    signal = policy.signal.upper().removeprefix("SIG")
    if mode is PreemptMode.SIGNAL and not signal:
        signal = DEFAULT_SIGNAL
    seconds = policy.ack_deadline_seconds or defaults.default_ack_deadline_seconds
    return PreemptionPolicy(mode=mode, signal=signal, ack_deadline_seconds=seconds)
