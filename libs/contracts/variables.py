"""Names of environment variables: their form, and those that the platform itself sets.

Asked by submit for a task's own variables and by ``libs.pods`` for those of a pod template.
"""

from __future__ import annotations

import re

from libs.contracts.messages import Contract
from libs.contracts.task_contracts import contract_of

# The platform's own in every task; the task's contract reserves others.
RESERVED_PREFIX = "SHIFTWORK_"
# The platform's own secret in every task.
RUN_TOKEN = f"{RESERVED_PREFIX}RUN_TOKEN"
RESERVED_NAMES = frozenset({"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")


def is_variable(name: str) -> bool:
    """True if ``name`` can be a variable's: letters, digits and _, no digit first, at most 255."""
    return _NAME.fullmatch(name) is not None


def is_reserved(name: str, contract: Contract = Contract.TORCH) -> bool:
    """True if the platform sets it in tasks that have this contract."""
    return is_platforms(name) or contract_of(contract).sets(name)


def is_platforms(name: str) -> bool:
    """True if the platform sets it in every task."""
    return name in RESERVED_NAMES or name.startswith(RESERVED_PREFIX)


def reserved_prefixes(contract: Contract) -> tuple[str, ...]:
    """Variables that begin with one of these are reserved in tasks that have this contract."""
    return (RESERVED_PREFIX, *contract_of(contract).prefixes)
