"""Who asks for pods, and for what kind of task: the facts that a policy's rules look at.

Built from a task's specification by submit and by the launcher; read by ``policy.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from libs.contracts.messages import Priority, TaskSpec


@dataclass(frozen=True, slots=True)
class Asker:
    """A task as rules see it. ``gpus_per_node`` is None for whole nodes."""

    owner: str
    team: str = ""
    group: str = "default"
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    # As people write it: ``very_high``; empty while nothing is said.
    priority: str = ""
    nodes: int = 1
    gpus_per_node: int | None = 0

    @staticmethod
    def of(spec: TaskSpec, owner: str, team: str) -> Asker:
        """The facts of a complete specification."""
        said = spec.priority is not Priority.UNSPECIFIED
        return Asker(
            owner=owner,
            team=team,
            group=spec.group,
            name=spec.name,
            labels=spec.labels,
            priority=spec.priority.removeprefix("PRIORITY_").lower() if said else "",
            nodes=spec.nodes,
            gpus_per_node=spec.gpus_per_node,
        )

    def filled(self, template: str) -> str | None:
        """``{owner}``, ``{team}`` and ``{group}`` replaced; None if one of them is empty here."""
        for name in ("owner", "team", "group"):
            sign = "{" + name + "}"
            if sign in template:
                value: str = getattr(self, name)
                if not value:
                    return None
                template = template.replace(sign, value)
        return template

    def filled_all(self, templates: Iterable[str]) -> tuple[str, ...]:
        """The templates filled in, without those that do not hold for this task."""
        return tuple(text for text in map(self.filled, templates) if text is not None)
