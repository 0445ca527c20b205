"""The monitoring users of one data folder: made, listed and removed by ``monitor-credentials``.

The file with a user's password is the list: the process that keeps the folder reads it again and
gives the server its users. The document for the user's program is a copy beside it.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from libs.bus.topology import (
    HISTORY,
    HISTORY_DOMAIN,
    MONITORING_NAME_FORM,
    MONITORING_PREFIX,
    MONITORING_USERS_MAX,
    Permissions,
    monitoring_permissions,
)
from services.allinone.embedded.credentials import Credentials, private_folder, write_private

_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class MonitoringUsers:
    """The users of the data folder ``data``."""

    data: Path

    @property
    def _secrets(self) -> Path:
        return self.data / "secrets"

    def file(self, name: str) -> Path:
        """The document for the user's program."""
        return self.data / "monitoring" / f"{name}.json"

    def names(self) -> list[str]:
        """The users that exist, by the name that they were given."""
        found = self._secrets.glob(f"nats-{MONITORING_PREFIX}*")
        return sorted(each.name.removeprefix(f"nats-{MONITORING_PREFIX}") for each in found)

    def permissions(self) -> dict[str, Permissions]:
        """The users as the server knows them."""
        users = [f"{MONITORING_PREFIX}{name}" for name in self.names()]
        return {user: monitoring_permissions(user) for user in users}

    def version(self) -> tuple[tuple[str, int], ...]:
        """A value that differs after each change of a user or a password."""
        found: list[tuple[str, int]] = []
        for path in self._secrets.glob(f"nats-{MONITORING_PREFIX}*"):
            try:
                found.append((path.name, path.stat().st_mtime_ns))
            except FileNotFoundError:
                continue
        return tuple(sorted(found))

    def add(self, name: str, url: str) -> Path:
        """Make a user, or write the document of one that exists again; returns its path.
        ValueError if there is no such name, or too many users."""
        if not re.fullmatch(MONITORING_NAME_FORM, name):
            raise ValueError(
                f"{name!r} is no name of a monitoring user; write {MONITORING_NAME_FORM}"
            )
        user = f"{MONITORING_PREFIX}{name}"
        kept = Credentials(self.data).nats_password_file(user)
        if not kept.exists():
            if len(self.names()) >= MONITORING_USERS_MAX:
                raise ValueError(
                    f"there are {MONITORING_USERS_MAX} monitoring users already; remove one"
                )
            write_private(kept, f"{secrets.token_urlsafe(_SECRET_BYTES)}\n")
        document = {
            "url": url,
            "user": user,
            "password": kept.read_text().strip(),
            "live": "evt.>",
            "domain": HISTORY_DOMAIN,
            "stream": HISTORY,
            "durable": user,
        }
        private_folder(self.file(name).parent)
        write_private(self.file(name), json.dumps(document, indent=1) + "\n")
        return self.file(name)

    def remove(self, name: str) -> bool:
        """Remove a user and its document; False if there was none."""
        kept = Credentials(self.data).nats_password_file(f"{MONITORING_PREFIX}{name}")
        self.file(name).unlink(missing_ok=True)
        try:
            kept.unlink()
        except FileNotFoundError:
            return False
        return True
