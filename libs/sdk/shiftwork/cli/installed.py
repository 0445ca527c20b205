"""Which commands this environment has: the platform's come with its own package.

People's own environments have the SDK and its commands; what runs and examines a platform is in
the platform's environment.
"""

from __future__ import annotations

import functools
import shlex
from importlib import metadata
from typing import Any, Sequence

PLUGINS = "shiftwork.commands"
# What the platform's package adds.
PLATFORM = frozenset({"up", "down", "doctor", "k8s", "simulate", "backup", "restore"})
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


def command(name: str, data: str = "") -> str:
    """A command of the platform as it is typed for the platform of a data folder; empty: the
    default one, which needs no option."""
    from shiftwork.cli import failures, homes  # noqa: PLC0415 - the failures need this module

    try:
        is_default = not data or data == str(homes.default_data())
    except failures.Failure:
        is_default = False
    return f"shiftwork {name}" + ("" if is_default else f" --data {shlex.quote(data)}")


def platform(*commands: str, data: str = "") -> str:
    """Commands of the platform, as somebody in this environment can use them; ``data`` as for
    ``command``."""
    named = " and ".join(f"`{command(each, data)}`" for each in commands)
    return named if has_platform() else f"{named} {ELSEWHERE}"
