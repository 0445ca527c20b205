"""Names of environment variables: their form, and those that the platform itself sets.

Asked by submit for a task's own variables and by ``libs.pods`` for those of a pod template.
"""

from __future__ import annotations

import re

RESERVED_PREFIXES = ("SHIFTWORK_", "PET_")
RESERVED_NAMES = frozenset(
    {
        "MASTER_ADDR",
        "MASTER_PORT",
        "WORLD_SIZE",
        "RANK",
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
    }
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")


def is_variable(name: str) -> bool:
    """True if ``name`` can be a variable's: letters, digits and _, no digit first, at most 255."""
    return _NAME.fullmatch(name) is not None


def is_reserved(name: str) -> bool:
    """True if the platform sets it."""
    return name in RESERVED_NAMES or name.startswith(RESERVED_PREFIXES)
