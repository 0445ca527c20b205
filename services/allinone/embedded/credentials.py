"""The secrets of one data folder: made once, kept in private files, read by whoever needs them.

``shiftwork up`` and the test fixtures call ``ensure_credentials`` before they start a server. Every
service has a password of its own for NATS and one for PostgreSQL; services are given the *files*,
so that no environment, command line or log holds a password.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from libs.contracts.services import SERVICES

POSTGRES_SUPERUSER = "postgres"
NATS_ADMIN = "admin"

_PRIVATE_FILE = 0o600
_PRIVATE_FOLDER = 0o700
_SECRET_BYTES = 32


def sync_folder(folder: Path) -> None:
    """Make renames inside ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_private(path: Path, text: str, *, owner: tuple[int, int] | None = None) -> None:
    """Write a 0600 file at once or not at all, durably; ``owner`` (uid, gid): give it away."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(file.fileno(), _PRIVATE_FILE)
            if owner:
                os.fchown(file.fileno(), *owner)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def private_folder(path: Path) -> Path:
    """Create a 0700 folder if it is not there; one that is there keeps its rights."""
    path.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
    return path


@dataclass(frozen=True, slots=True)
class Credentials:
    """The paths of the secrets of one data folder. A secret is read when it is needed."""

    data: Path

    @property
    def admin_token_file(self) -> Path:
        """The first administrator's bearer token for the HTTP API, alone in its file."""
        return self.data / "admin-token"

    @property
    def run_key_file(self) -> Path:
        """The key that signs the tokens of runs; launcher and gateway only."""
        return self.data / "secrets" / "run-key"

    def nats_password_file(self, user: str) -> Path:
        """The password of a service, or of ``NATS_ADMIN``, at NATS."""
        return self.data / "secrets" / f"nats-{user}"

    def postgres_password_file(self, role: str) -> Path:
        """The password of a service, or of ``POSTGRES_SUPERUSER``, at PostgreSQL."""
        return self.data / "secrets" / f"postgres-{role}"

    def nats_password(self, user: str) -> str:
        """Read it now."""
        return _read(self.nats_password_file(user))

    def postgres_password(self, role: str) -> str:
        """Read it now."""
        return _read(self.postgres_password_file(role))


def _read(path: Path) -> str:
    return path.read_text().strip()


def ensure_credentials(data: Path, services: Sequence[str] = SERVICES) -> Credentials:
    """Make the secrets that are missing; never changes one that is there. Safe to repeat.

    Raises PermissionError, naming the file, if a secret belongs to somebody else.
    """
    private_folder(data)
    private_folder(data / "secrets")
    credentials = Credentials(data)
    wanted = [
        credentials.run_key_file,
        credentials.nats_password_file(NATS_ADMIN),
        credentials.postgres_password_file(POSTGRES_SUPERUSER),
        *(credentials.nats_password_file(service) for service in services),
        *(credentials.postgres_password_file(service) for service in services),
    ]
    for path in wanted:
        _ensure(path, secrets.token_urlsafe(_SECRET_BYTES))
    _ensure(credentials.admin_token_file, f"sat_{secrets.token_urlsafe(_SECRET_BYTES)}")
    return credentials


def _ensure(path: Path, secret: str) -> None:
    try:
        status = path.stat()
    except FileNotFoundError:
        write_private(path, f"{secret}\n")
        return
    if status.st_uid != os.geteuid() and os.geteuid() != 0:
        raise PermissionError(
            f"{path} belongs to user {status.st_uid}, not to you: "
            "use the data folder's owner or another folder (--data)"
        )
    if status.st_mode & 0o077:
        path.chmod(_PRIVATE_FILE)
