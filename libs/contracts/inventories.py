"""Which of two lists of nodes is newer: submit and the scheduler keep the newest one."""

from __future__ import annotations

from datetime import datetime

from libs.contracts.messages import InventoryListed


def is_old(event: InventoryListed, *, kept_version: int, kept_at: datetime) -> bool:
    """True if the list that is kept is as new as this one. Versions decide: the launcher's clock
    may have been set back. A launcher from before there were versions sends 0, and its clock has
    to do."""
    if event.version:
        return kept_version >= event.version
    return kept_at >= event.listed_at
