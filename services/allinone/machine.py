"""Where everything of one machine's platform is, as the composition root needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.allinone.place import Options, Place


@dataclass(frozen=True, slots=True)
class Machine:
    """Where everything is, once the servers run."""

    place: Place
    options: Options
    nats_url: str
    # Role -> URL of the database.
    database_urls: Mapping[str, str]
    # Where tasks find the gateway.
    url: str
