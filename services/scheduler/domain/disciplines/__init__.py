"""The disciplines by the names that policy files use. Read by ``pool.py``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from services.scheduler.domain.disciplines.arrival import BACKFILL, EASY, FIFO
from services.scheduler.domain.disciplines.interface import Discipline
from services.scheduler.domain.disciplines.las import LAS
from services.scheduler.domain.disciplines.rotation import ROTATION
from services.scheduler.domain.disciplines.roundrobin import ROUNDROBIN
from services.scheduler.domain.disciplines.srpt import SRPT
from services.scheduler.domain.disciplines.timeshare.discipline import TIMESHARE

# ``roundrobin`` and ``srpt`` are there for the lab to compare with: policy files do not name them.
DISCIPLINES: Mapping[str, Discipline] = MappingProxyType(
    {each.name: each for each in (FIFO, BACKFILL, EASY, TIMESHARE, ROTATION, LAS, SRPT, ROUNDROBIN)}
)
