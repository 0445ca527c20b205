"""Closed sets of words that options take and that no generated module has: ``task_options.py`` has
those of a task's fields, ``server_choices.py`` those that the server takes elsewhere."""

from __future__ import annotations

SHELLS = ("bash", "zsh", "fish", "powershell")

TASK_ORDERS = ("submitted", "name", "priority", "state", "owner", "team", "group")
