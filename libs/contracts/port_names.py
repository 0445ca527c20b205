"""Names of the ports that roles declare. Pure; used by submit and the launcher."""

from __future__ import annotations

import re

from libs.contracts.task_contracts import CONTRACTS

PORT_NAME_RULE = "1 to 15 of a-z, 0-9 and -, with a letter, and - neither doubled nor at an end"
# What Kubernetes allows as the name of a container's port, which is stricter than a DNS label.
_NAME = re.compile(r"(?=.*[a-z])(?!.*--)[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?")
# The names of the contracts' own ports.
RESERVED_PORT_NAMES = frozenset(
    {"master", *(contract.word.replace("_", "-") for contract in CONTRACTS.values())}
)


def is_port_name(name: str) -> bool:
    """True if a port can have the name."""
    return _NAME.fullmatch(name) is not None


def port_variable(name: str) -> str:
    """The variable in which a program finds a port."""
    return f"SHIFTWORK_PORT_{name.upper().replace('-', '_')}"
