"""``shiftwork monitor-credentials``: users of the event bus that can read and do nothing else."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from shiftwork.cli import render
from shiftwork.cli.failures import USAGE, Failure

from libs.bus.connection import Credentials as BusCredentials
from libs.bus.port import BusDeniedError, BusUnavailableError
from libs.bus.provision import enter
from libs.bus.topology import MONITORING_PREFIX
from libs.service import observability
from services.allinone.data_folder import DataFolder
from services.allinone.monitoring_users import MonitoringUsers

APPLIED_SECONDS_MAX = 30.0


def list_users(data_folder: DataFolder) -> None:
    """Show each user with the file of its credentials."""
    users = MonitoringUsers(data_folder.data)
    found = [{"name": name, "file": str(users.file(name))} for name in users.names()]
    if render.wants_json():
        render.document(found)
        return
    render.table(
        ["NAME", "CREDENTIALS"],
        [[each["name"], each["file"]] for each in found],
        empty="it has no monitoring user; make one: shiftwork monitor-credentials NAME",
    )


def make_user(data_folder: DataFolder, name: str) -> None:
    """Make a user, wait until the server knows it, and show where its credentials are."""
    port = data_folder.data / "nats" / "port"
    if not port.exists():
        raise Failure(
            "this platform was never started, so its event bus has no address",
            where=str(data_folder.data),
            fix=data_folder.command("up"),
        )
    url = f"nats://127.0.0.1:{port.read_text().strip()}"
    try:
        file = MonitoringUsers(data_folder.data).add(name, url)
    except ValueError as problem:
        raise Failure(str(problem), where="NAME", code=USAGE) from None
    _wait_until_applied(data_folder, name, url, wanted=True)
    if render.wants_json():
        render.document({"name": name, "file": str(file)})
    else:
        render.line(str(file))


def remove_user(data_folder: DataFolder, name: str) -> None:
    """Remove a user, and wait until the server refuses it."""
    users = MonitoringUsers(data_folder.data)
    port = data_folder.data / "nats" / "port"
    password = _password(data_folder, name)
    if not users.remove(name):
        raise Failure(
            f"there is no monitoring user {name!r}",
            where="NAME",
            fix="shiftwork monitor-credentials",
        )
    if port.exists():
        url = f"nats://127.0.0.1:{port.read_text().strip()}"
        _wait_until_applied(data_folder, name, url, wanted=False, password=password)
    render.note(f"{name} can read events no longer")


def _password(data_folder: DataFolder, name: str) -> str:
    path = data_folder.credentials.nats_password_file(f"{MONITORING_PREFIX}{name}")
    return path.read_text().strip() if path.exists() else ""


def _wait_until_applied(
    data_folder: DataFolder, name: str, url: str, *, wanted: bool, password: str = ""
) -> None:
    """Wait until the server of a running platform has (or has no longer) this user."""
    if not data_folder.is_kept():
        render.note("the platform does not run; this takes effect when it starts")
        return
    # A server that reads its configuration again drops connections; a log line of that would stand
    # before the path.
    observability.set_up_logs("console", "error", sys.stderr)
    credentials = BusCredentials(
        f"{MONITORING_PREFIX}{name}", password or _password(data_folder, name)
    )
    ends_at = time.monotonic() + APPLIED_SECONDS_MAX
    while _enters(url, credentials, reads=wanted) is not wanted:
        if time.monotonic() > ends_at:
            raise Failure(
                "the event bus has not taken the change over yet",
                where=url,
                fix=f"look into {Path(data_folder.log)}, and repeat the command",
            )
        time.sleep(0.2)


def _enters(url: str, credentials: BusCredentials, *, reads: bool) -> bool:
    try:
        asyncio.run(enter([url], credentials, reads=reads, connect_timeout_s=5.0))
    except (BusDeniedError, BusUnavailableError):
        return False
    return True
