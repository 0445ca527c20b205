"""Settings of one service, or of the provisioner, that must be at least those of another.

A service sees only its own settings, so ``checks.py`` checks them for one machine, and
``kubernetes/preflight.py`` for the values of a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from libs.contracts.services import SERVICES
from services.allinone.findings import Finding


@dataclass(frozen=True, slots=True)
class Relation:
    """``longer`` must not be less than ``shorter``; each is a service and its setting."""

    longer: tuple[str, str]
    shorter: tuple[str, str]
    why: str
    # False: the platform works without it, but worse.
    must_hold: bool = True


ENDED_KEEP = ("scheduler", "ended_keep_seconds")
EARLY_KEEP = ("scheduler", "early_keep_seconds")
DRY_RUN = ("scheduler", "dry_run_seconds_max")
EXPLAIN = ("scheduler", "explain_seconds_max")
ANSWER = ("gateway", "command_timeout_seconds")
# So long the bus keeps an event for a service that is away. What an event needs is kept longer.
EVENT_AGE = ("provision", "event_age_seconds")
_REPLAYED = "a submission that is replayed later would miss what came before it"
_UNANSWERED = "the gateway would no longer wait for the answer"
_TWICE = "an event that comes again as late as that would count twice"
_REMOVED = "an older event that comes as late as that would bring back what was removed"
RELATIONS = (
    *(Relation((service, "inbox_keep_seconds"), EVENT_AGE, _TWICE) for service in SERVICES),
    *(
        Relation((service, name), EVENT_AGE, _REMOVED)
        for service in ("submit", "scheduler", "gateway")
        for name in ("removed_node_keep_seconds", "removed_quota_keep_seconds")
    ),
    Relation(EARLY_KEEP, EVENT_AGE, "a submission as late as that would miss what came before it"),
    Relation(
        ("gateway", "tasks_keep_seconds"),
        EVENT_AGE,
        "an event that comes as late as that would list a task again, which then never ends",
        must_hold=False,
    ),
    Relation(
        ENDED_KEEP,
        ("submit", "tasks_keep_seconds"),
        "an ended task that submit publishes again would run again",
    ),
    Relation(
        ("scheduler", "kept_rows_max"),
        ("submit", "kept_rows_max"),
        "an ended task that submit publishes again would run again",
    ),
    Relation(EARLY_KEEP, ("scheduler", "dead_letters_keep_seconds"), _REPLAYED, must_hold=False),
    Relation(EARLY_KEEP, ("submit", "dead_letters_keep_seconds"), _REPLAYED, must_hold=False),
    Relation(ANSWER, DRY_RUN, _UNANSWERED, must_hold=False),
    Relation(ANSWER, EXPLAIN, _UNANSWERED, must_hold=False),
)


def default(service: str, name: str) -> float:
    """What a setting is that nobody gives."""
    from services.allinone.composition import WIRINGS  # noqa: PLC0415 - slow to import
    from services.allinone.provision import ProvisionSettings  # noqa: PLC0415 - slow to import

    settings = {wiring.name: wiring.settings for wiring in WIRINGS}
    return {**settings, "provision": ProvisionSettings}[service].model_fields[name].default


def broken_relations(given: Callable[[str, str], Any]) -> Iterator[Finding]:
    """The relations that do not hold. ``given`` returns a service's setting, None for its default.

    A value that is no number is not compared: the service's own check reports it.
    """
    for relation in RELATIONS:
        sides = (relation.longer, relation.shorter)
        if all(given(*side) is None for side in sides):
            continue
        try:
            longer, shorter = (float(given(*side) or default(*side)) for side in sides)
        except (TypeError, ValueError):
            continue
        if longer < shorter:
            (one, high), (other, low) = sides
            least, most = f"{shorter:.12g}", f"{longer:.12g}"
            yield Finding(
                "bad" if relation.must_hold else "warn",
                f"{one}'s {high} ({most}) is less than {other}'s {low} ({least}): {relation.why}",
                f"set {high} of {one} to {least} or more, or {low} of {other} to {most} or less",
            )
