"""Which commands this environment has: the platform's come with its own package.

People's own environments have the SDK and its commands; what runs and examines a platform is in
the platform's environment.
"""

from __future__ import annotations

import functools
from importlib import metadata
from typing import Any, Sequence

PLUGINS = "shiftwork.commands"
# What the platform's package adds.
PLATFORM = frozenset({"up", "down", "doctor", "k8s", "simulate"})
ELSEWHERE = "in the platform's environment"


def entry_points() -> Sequence[metadata.EntryPoint]:
    """The packages that add commands."""
    found: Any = metadata.entry_points()
    if hasattr(found, "select"):
        return list(found.select(group=PLUGINS))
    return list(found.get(PLUGINS, ()))


@functools.lru_cache(maxsize=1)
def has_platform() -> bool:
    """True if the platform's commands are in this environment."""
    return any(entry.name == "up" for entry in entry_points())


def platform(*commands: str) -> str:
    """Commands of the platform, as somebody in this environment can use them."""
    named = " and ".join(f"`shiftwork {command}`" for command in commands)
    return named if has_platform() else f"{named} {ELSEWHERE}"
