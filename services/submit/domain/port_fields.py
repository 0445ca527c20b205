"""Checks of the ports that roles declare. Called by ``spec_fields.py``, which checks the bounds of
their numbers."""

from __future__ import annotations

from collections.abc import Iterator

from libs.contracts.messages import FieldError, Port, Role, TaskSpec
from libs.contracts.port_names import PORT_NAME_RULE, RESERVED_PORT_NAMES, is_port_name
from libs.contracts.task_contracts import contract_of
from libs.contracts.wording import field_error
from services.submit.domain.facts import Limits

Errors = Iterator[FieldError]
PORTS_PER_ROLE_MAX = 16
# One event lists them all.
ENDPOINTS_MAX = 1024


def check_ports(spec: TaskSpec, _limits: Limits) -> Errors:
    """Every error in the declared ports."""
    contract_port = contract_of(spec.contract).pod_port
    for index, role in enumerate(spec.roles):
        yield from _role(f"roles[{index}].ports", role, contract_port)
    count = sum(role.replicas * len(role.ports) for role in spec.roles)
    if count > ENDPOINTS_MAX:
        yield field_error(
            "roles",
            f"{count} ports",
            f"declare more than {ENDPOINTS_MAX} ports in all their replicas",
            "declare fewer, such as in a role of one replica",
        )


def _role(at: str, role: Role, contract_port: int | None) -> Errors:
    if len(role.ports) > PORTS_PER_ROLE_MAX:
        yield field_error(
            at,
            f"{len(role.ports)} ports",
            f"a role has at most {PORTS_PER_ROLE_MAX} ports",
            "remove some",
        )
    names, numbers = set[str](), set[int]()
    for index, port in enumerate(role.ports[:PORTS_PER_ROLE_MAX]):
        yield from _name(f"{at}[{index}].name", port, names)
        yield from _number(f"{at}[{index}].port", port, numbers, contract_port)
        names.add(port.name)
        if port.port is not None:
            numbers.add(port.port)


def _name(at: str, port: Port, names: set[str]) -> Errors:
    if not is_port_name(port.name):
        yield field_error(at, port.name, "is not a port's name", f"use {PORT_NAME_RULE}")
    elif port.name in RESERVED_PORT_NAMES:
        yield field_error(at, port.name, "is a port of the platform", "use another name")
    elif port.name in names:
        yield field_error(
            at, port.name, "is the name of two ports", "give each port a name of its own"
        )


def _number(at: str, port: Port, numbers: set[int], contract_port: int | None) -> Errors:
    if port.port is None:
        return
    if port.port == contract_port:
        yield field_error(
            at, port.port, "is the port of the task's contract", "leave it out, or choose another"
        )
    elif port.port in numbers:
        yield field_error(
            at, port.port, "is the number of two ports", "leave it out, or choose another"
        )
