"""The sets of words of the server that options of the command line take: for completion, and to
refuse a mistyped one before anything is sent. ``make gen`` writes them, ``make check`` compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from libs.contracts import messages as m
from libs.contracts.services import SERVICES
from services.gateway import audit, usage
from services.gateway.permissions import Role, Scope
from services.monitor.domain.abnormal_rules import RULES
from tools.task_forms import formatted, words_of

HEAD = '''"""What the server takes for these options. Generated from the gateway by `make gen`."""

from __future__ import annotations

'''
CHOICES: Mapping[str, Sequence[str]] = {
    "ROLES": tuple(Role),
    "SCOPES": tuple(Scope),
    "USAGE_DIMENSIONS": usage.DIMENSIONS,
    "USAGE_OUTCOMES": tuple(usage.Outcome),
    "AUDIT_ACTIONS": audit.ACTIONS,
    "AUDIT_OUTCOMES": audit.OUTCOMES,
    "ABNORMAL_RULES": tuple(RULES),
    "SERVICES": SERVICES,
    "PREEMPTIONS": words_of(m.PreemptMode),
    "OCCASIONS": words_of(m.Occasion),
    "NOTIFIED_TASKS": words_of(m.NotifiedTasks),
}


def files(root: Path) -> dict[Path, str]:
    """The generated file with its text."""
    lines = [f"{name} = {tuple(map(str, words))!r}" for name, words in CHOICES.items()]
    path = root / "libs" / "sdk" / "shiftwork" / "cli" / "server_choices.py"
    return {path: formatted(HEAD + "\n".join(lines) + "\n")}
