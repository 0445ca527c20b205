"""The requester of pods: the facts of a task that the rules of a pod policy depend on.

Submit and the launcher build it from a task's specification; ``pod_policy.py`` reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from libs.contracts.messages import Contract, Priority, TaskSpec
from libs.contracts.rank_sizes import sizes_of


@dataclass(frozen=True, slots=True)
class Requester:
    """A task as rules see it. ``gpus_per_node`` None: whole nodes."""

    owner: str
    team: str = ""
    group: str = "default"
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    # As people write it: ``very_high``; empty if unspecified.
    priority: str = ""
    nodes: int = 1
    gpus_per_node: int | None = 0
    # Reserves the names of some variables.
    contract: Contract = Contract.UNSPECIFIED

    @staticmethod
    def of(spec: TaskSpec, owner: str, team: str) -> Requester:
        """Build it from a complete specification."""
        sizes = [size for size in sizes_of(spec).values() if not size.auxiliary]
        gpus = [size.gpus for size in sizes if size.gpus is not None]
        has_priority = spec.priority is not Priority.UNSPECIFIED
        return Requester(
            owner=owner,
            team=team,
            group=spec.group,
            name=spec.name,
            labels=spec.labels,
            priority=spec.priority.removeprefix("PRIORITY_").lower() if has_priority else "",
            nodes=sum(role.replicas for role in spec.roles if not role.auxiliary),
            gpus_per_node=min(gpus, default=None),
            contract=spec.contract,
        )

    def filled(self, template: str) -> str | None:
        """Replace ``{owner}``, ``{team}`` and ``{group}``; None if one of them is empty here."""
        for name in ("owner", "team", "group"):
            sign = "{" + name + "}"
            if sign in template:
                value: str = getattr(self, name)
                if not value:
                    return None
                template = template.replace(sign, value)
        return template

    def filled_all(self, templates: Iterable[str]) -> tuple[str, ...]:
        """Fill in the templates, without those that do not apply to this task."""
        return tuple(text for text in map(self.filled, templates) if text is not None)
