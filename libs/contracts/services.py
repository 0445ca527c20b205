"""The names of the services."""

from __future__ import annotations

from typing import Literal, get_args

ServiceWord = Literal[
    "submit", "scheduler", "launcher", "log_collector", "quota", "monitor", "gateway"
]
SERVICES: tuple[ServiceWord, ...] = get_args(ServiceWord)
