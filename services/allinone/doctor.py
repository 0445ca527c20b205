"""``shiftwork doctor``: what is right, doubtful or wrong on this machine, and the fix.

Reads only: nothing is started or changed. Each check is one row of ``CHECKS``.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from urllib.error import URLError
from urllib.request import urlopen

from shiftwork.cli.failures import Failure

from services.allinone.embedded import nats, postgres
from services.allinone.embedded.accounts import Account, can_run, service_account
from services.allinone.findings import Finding
from services.allinone.place import Options, Place
from services.allinone.task_user import check_task_user
from services.launcher.gpus import find_gpus
from services.launcher.runtimes.node import cgroups

FREE_BYTES_MIN = 2 * 2**30
CLOCK_YEAR_MIN = 2026
PROBE_SECONDS = 5


def examine(place: Place) -> list[Finding]:
    """Every finding, in the order of the checks. Never raises for what it is there to find."""
    findings: list[Finding] = []
    for check in CHECKS:
        try:
            findings += check(place)
        except Exception as problem:  # noqa: BLE001 - one check that cannot look must not hide the others
            findings.append(Finding("warn", f"{check.__name__.strip('_')}: {problem}"))
    return findings


def _python(place: Place) -> Iterator[Finding]:
    del place
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < (3, 11):  # noqa: UP036 - somebody may run it with another interpreter
        yield Finding("bad", f"Python {version}", "use Python 3.11 or newer")
    else:
        yield Finding("ok", f"Python {version}")


def _programs(place: Place) -> Iterator[Finding]:
    del place
    for name, find in (("nats-server", nats.program), ("PostgreSQL", postgres.programs_folder)):
        try:
            yield Finding("ok", f"{name}: {find()}")
        except LookupError as problem:
            yield Finding("bad", f"{name}: {problem}", "make setup")


def _clock(place: Place) -> Iterator[Finding]:
    del place
    year = time.gmtime().tm_year
    if year < CLOCK_YEAR_MIN:
        yield Finding("bad", f"the clock says {year}", "set the clock (UTC), then start again")


def _folder(place: Place) -> Iterator[Finding]:
    data = place.data
    existing = next(path for path in (data, *data.parents) if path.exists())
    if not os.access(existing, os.W_OK):
        yield Finding("bad", f"{existing} cannot be written", "use another folder: --data DIR")
        return
    free = shutil.disk_usage(existing).free
    level = "ok" if free >= FREE_BYTES_MIN else "warn"
    fix = "" if level == "ok" else "make room, or use another folder: --data DIR"
    yield Finding(level, f"data folder {data}: {free / 2**30:.1f} GiB free", fix)
    if data.exists() and data.stat().st_mode & 0o066:
        mode = oct(data.stat().st_mode & 0o777)
        yield Finding("warn", f"{data} is open to others ({mode})", f"chmod 700 {data}")


def _users(place: Place) -> Iterator[Finding]:
    options = place.options() or Options()
    if os.geteuid() != 0:
        own = pwd.getpwuid(os.geteuid()).pw_name
        yield Finding("ok", f"tasks run as {own}, and share the trust of whoever runs `up`")
        return
    account = service_account(place.data / "postgres" / "data", options.service_user)
    yield Finding("ok", f"PostgreSQL and NATS run as {account.name if account else 'root'}")
    try:
        check_task_user(place, options)
    except Failure as problem:
        # Before the first `up` nothing is chosen yet.
        yield Finding("warn" if place.options() is None else "bad", problem.what, problem.fix)
        return
    if options.tasks_as_root:
        fix = "give them users of their own: shiftwork up --task-users FIRST-LAST"
        yield Finding("warn", "tasks run as root: whoever may submit has its rights", fix)
        return
    told = f"as {options.task_user}" if options.task_user else "each owner's as a user of their own"
    yield Finding("ok", f"tasks run {told}")
    first = (options.task_users or "").partition("-")[0]
    user = Account(int(first), int(first), "") if first else _account(options.task_user or "")
    if not can_run(user, [sys.executable, "-c", ""]):
        fix = "install it where everybody may read it, for example below /opt"
        yield Finding("warn", f"tasks cannot run {sys.executable}: `python` is closed to them", fix)


def _account(name: str) -> Account:
    found = pwd.getpwnam(name)
    return Account(found.pw_uid, found.pw_gid, name)


def _gpus(place: Place) -> Iterator[Finding]:
    options = place.options() or Options()
    found = find_gpus()
    if found.gpus:
        models = ", ".join(sorted({gpu.model for gpu in found.gpus}))
        yield Finding("ok", f"{len(found.gpus)} GPUs ({models}), driver {found.driver}")
        if found.problem:
            yield Finding("warn", found.problem)
    elif options.nodes is not None or options.slots is not None:
        nodes, slots = options.nodes or 1, 1 if options.slots is None else options.slots
        yield Finding("ok", f"no GPU ({found.problem}); {nodes} virtual nodes x {slots} slots")
    else:
        fix = "or declare slots: shiftwork up --nodes N --slots G"
        yield Finding("warn", f"no GPU ({found.problem}): this machine is one CPU-only node", fix)


def _limits(place: Place) -> Iterator[Finding]:
    del place
    groups = cgroups.find(f"shiftwork-doctor-{os.getpid()}", probe=True)
    try:
        if not groups.warnings:
            yield Finding("ok", "CPU and memory limits of tasks: control groups")
        for warning in groups.warnings:
            yield Finding("warn", warning, "run `up` where control groups are writable")
    finally:
        groups.close()


def _journals(place: Place) -> Iterator[Finding]:
    for file in sorted(place.runs.glob("*/journal.damaged")):
        text = f"a fault of the disk damaged the journal of node {file.parent.name}"
        yield Finding("warn", text, f"check the disk; the damaged lines are in {file}")


def _running(place: Place) -> Iterator[Finding]:
    keeper = place.keeper()
    if keeper is None:
        ended = place.ended()
        if place.is_kept():
            yield Finding("warn", "starting, or ending")
        elif ended is None:
            yield Finding("ok", "not running: shiftwork up")
        elif ended.problem:
            yield Finding("bad", f"crashed: {ended.problem}", f"see {place.log}; shiftwork up")
        else:
            text = f"not running: process {ended.pid} was killed, or the machine went down"
            yield Finding("bad", text, "shiftwork up: what runs goes on, the rest is resumed")
        return
    try:
        with urlopen(f"{keeper.url}/readyz", timeout=PROBE_SECONDS) as answer:  # noqa: S310 - our own http URL
            said = answer.read().decode().strip()
            level = "warn" if "ready, but" in said else "ok"
            yield Finding(
                level, f"running at {keeper.url}: {said}", f"see {place.log}" * (level == "warn")
            )
    except (URLError, OSError) as problem:
        said = getattr(problem, "read", lambda: b"")().decode(errors="replace").strip()
        yield Finding("bad", f"{keeper.url}: {said or problem}", f"see {place.log}")


def _parts(place: Place) -> Iterator[Finding]:
    if not place.is_kept() or not place.status.exists():
        return
    for name, part in json.loads(place.status.read_text()).items():
        restarts = f", {part['restarts']} restarts" if part["restarts"] else ""
        text = f"{name}: {part['state']} since {part['since']}{restarts}"
        if part["state"] == "up" and not part["problem"]:
            yield Finding("warn" if part["restarts"] else "ok", text)
        else:
            yield Finding("bad", f"{text}: {part['problem']}", f"see {place.log}")


CHECKS: tuple[Callable[[Place], Iterator[Finding]], ...] = (
    _python,
    _programs,
    _clock,
    _folder,
    _users,
    _gpus,
    _limits,
    _journals,
    _running,
    _parts,
)
