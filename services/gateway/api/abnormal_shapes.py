"""What the routes of abnormal tasks answer."""

from __future__ import annotations

from typing_extensions import TypedDict


class AbnormalAction(TypedDict):
    """An action that follows a finding, and how far it is."""

    action: str
    # Of a node that is cordoned.
    node: str | None
    # waiting, done, refused, dry_run or withdrawn.
    outcome: str
    detail: str


class AbnormalTask(TypedDict):
    """What a rule found about a task."""

    task_id: str
    name: str
    owner: str
    team: str
    group: str
    attempt: int
    rule: str
    began_at: str
    # null: it lasts.
    ended_at: str | None
    # One sentence with the numbers, as it began.
    detail: str
    # A command to type next.
    suggestion: str
    # Beyond notify and tag.
    actions: list[AbnormalAction]


class AbnormalPage(TypedDict):
    """In the order of the tasks' submission."""

    items: list[AbnormalTask]
    next_cursor: str | None


class AbnormalRule(TypedDict):
    """A rule as the site has set it."""

    name: str
    detail: str
    threshold: float
    # Of the threshold: s, or empty for a number.
    unit: str
    enabled: bool
    actions: list[str]
    # Actions beyond notify and tag are listed and not carried out.
    dry_run: bool
    # Groups of nodes for which it is set otherwise.
    groups: list[str]
    # Teams for which it is set otherwise.
    teams: list[str]


class AbnormalRules(TypedDict):
    """All rules, by name."""

    items: list[AbnormalRule]
