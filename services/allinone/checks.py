"""What a platform on this machine needs before it starts: one table for ``up`` and ``doctor``.

``up`` and ``dev`` stop at the first thing that is bad, before anything is started or written;
``doctor`` lists all. A check only reads, and yields what it finds, each with its fix.
"""

from __future__ import annotations

import errno
import os
import pwd
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from shiftwork.cli.charts import size_text
from shiftwork.cli.failures import USAGE, Failure
from shiftwork.cli.homes import ANOTHER_FOLDER, own_data

from libs.contracts.services import SERVICES
from libs.contracts.tcp_ports import GATEWAY_PORT
from libs.contracts.wording import counted
from libs.signals.gpus import find_gpus
from services.allinone.data_folder import (
    DataFolder,
    Options,
    listening,
)
from services.allinone.embedded import nats, postgres
from services.allinone.embedded.accounts import Account, can_run, name_of, service_account
from services.allinone.findings import Finding, finding_of
from services.allinone.setting_relations import broken_relations
from services.allinone.task_user import check_service_user, check_task_user

Check = Callable[[DataFolder, Options], Iterator[Finding]]

FREE_BYTES_MIN = 2 * 2**30
# A new platform writes so much at once; NATS refuses to start with less than the other.
NEW_BYTES_MIN, OLD_BYTES_MIN = 256 * 2**20, 48 * 2**20
FREE_MEMORY_MIN = 512 * 2**20
FREE_PROCESSES_MIN = 200
CLOCK_YEAR_MIN = 2026
# What PostgreSQL makes of it with its own file names has 1024 bytes at most.
FOLDER_BYTES_MAX = 900
# A folder with one of these is a platform's; `lost+found` is the file system's own.
PLATFORM_FILES = frozenset({"up.lock", "admin-token", "options.json", "up.log"})
NOT_FOREIGN = frozenset({"lost+found"})
SETTINGS = tuple(f"SHIFTWORK_{name.upper()}_" for name in SERVICES)
# OpenTelemetry's own variables, which the services inherit.
COLLECTORS = "OTEL_EXPORTER_OTLP_"
# What is known of file systems: nobody stores there, no rights, not for a database, not for long.
_FILE_SYSTEMS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("proc", "sysfs", "cgroup", "cgroup2", "devpts", "debugfs", "tracefs", "securityfs"),
        ("bad", "holds no files of people"),
    ),
    **dict.fromkeys(
        ("vfat", "exfat", "msdos", "ntfs", "ntfs3", "fuseblk"),
        ("bad", "keeps no owners and rights of files"),
    ),
    **dict.fromkeys(
        ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs"),
        ("warn", "is on the network: a database belongs on a local disk"),
    ),
    **dict.fromkeys(
        ("tmpfs", "ramfs"), ("warn", "is in memory: all is lost when the machine restarts")
    ),
}


def python(data_folder: DataFolder, options: Options) -> Iterator[Finding]:
    """The interpreter's version."""
    del data_folder, options
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < (3, 11):  # noqa: UP036 - somebody may run it with another interpreter
        yield Finding("bad", f"Python {version}", "use Python 3.11 or newer")
    else:
        yield Finding("ok", f"Python {version}")


def programs(data_folder: DataFolder, options: Options) -> Iterator[Finding]:
    """The servers' programs."""
    del data_folder, options
    for name, find in (("nats-server", nats.program), ("PostgreSQL", postgres.programs_folder)):
        try:
            yield Finding("ok", f"{name}: {find()}")
        except LookupError as problem:
            yield Finding("bad", f"{name}: {problem}", "make setup")


def clock(data_folder: DataFolder, options: Options) -> Iterator[Finding]:
    """Whether the clock was ever set."""
    del data_folder, options
    year = time.gmtime().tm_year
    if year < CLOCK_YEAR_MIN:
        yield Finding("bad", f"the clock shows {year}", "set the clock (UTC), then start again")


def folder(data_folder: DataFolder, options: Options) -> Iterator[Finding]:
    """Whether the data folder can hold a platform."""
    del options
    data = data_folder.data
    try:
        for finding in _folder(data):
            yield finding
            if finding.level == "bad":
                return
    except OSError as problem:
        text = f"the data folder {data} cannot be used: {problem.strerror or problem}"
        yield Finding("bad", text, ANOTHER_FOLDER, "--data")


def _folder(data: Path) -> Iterator[Finding]:
    if (problem := _path_problem(data)) is not None:
        yield problem
        return
    existing = next(path for path in (data, *data.parents) if path.exists())
    kind = _file_system(existing)
    level, why = _FILE_SYSTEMS.get(kind, ("ok", ""))
    if level == "bad":
        text = f"the data folder {data} lies on a file system ({kind}) that {why}"
        yield Finding("bad", text, ANOTHER_FOLDER, "--data")
        return
    if level == "warn":
        yield Finding("warn", f"the file system of {data} ({kind}) {why}", ANOTHER_FOLDER, "--data")
    if problem := owner_problem(data):
        yield problem
        if problem.level == "bad":
            return
    if not os.access(existing, os.W_OK | os.X_OK):
        readonly = os.statvfs(existing).f_flag & os.ST_RDONLY
        why = "its file system is read-only" if readonly else "you have no right to"
        yield Finding("bad", f"{existing} cannot be written: {why}", ANOTHER_FOLDER, "--data")
        return
    held = set(os.listdir(data)) - NOT_FOREIGN if data.exists() else set[str]()  # noqa: PTH208 - names only
    if held and not held & PLATFORM_FILES:
        names = ", ".join(sorted(held)[:3]) + (", …" if len(held) > 3 else "")  # noqa: PLR2004 - as above
        text = f"the data folder {data} holds something else ({names})"
        yield Finding("bad", text, "name a new or empty folder: --data DIR", "--data")
        return
    yield _disk_space(
        data, shutil.disk_usage(existing).free, NEW_BYTES_MIN if not held else OLD_BYTES_MIN
    )
    if data.exists() and data.stat().st_mode & 0o066:
        mode = oct(data.stat().st_mode & 0o777)
        yield Finding("warn", f"{data} is open to others ({mode})", f"chmod 700 {data}")


def _path_problem(data: Path) -> Finding | None:
    """Why there can be no folder at that path."""
    if len(os.fsencode(data)) > FOLDER_BYTES_MAX:
        text = f"the path of the data folder has more than {FOLDER_BYTES_MAX} bytes"
        return Finding("bad", text, ANOTHER_FOLDER, "--data")
    if (missing := _missing_home(data)) is not None:
        return finding_of(missing)
    existing = next(path for path in (data, *data.parents) if os.path.lexists(path))
    if existing.is_symlink() and not existing.exists():
        text = f"{existing} is a symbolic link to {existing.readlink()}, which does not exist"
        return Finding("bad", text, f"correct the link, or {ANOTHER_FOLDER}", "--data")
    if not existing.is_dir():
        text = f"{existing} is a file, so {data} cannot be the data folder"
        return Finding("bad", text, ANOTHER_FOLDER, "--data")
    return None


def _missing_home(data: Path) -> Failure | None:
    """Why nothing is to be created below the user's own folders, if the data lies there."""
    try:
        own = own_data()
    except Failure:
        return None
    return own.missing() if own.anchor in data.parents else None


def owner_problem(data: Path) -> Finding | None:
    """A finding if the folder belongs to another user; ``bad`` if we cannot read it. Root may take
    over any user's folder and gets a warning."""
    try:
        if data.stat().st_uid == os.geteuid():
            return None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        text = f"you have no right to look into the data folder {data}"
        return Finding("bad", text, ANOTHER_FOLDER, "--data")
    owner = _name_of(data.stat().st_uid)
    if os.geteuid() == 0:
        text = f"the data folder {data} belongs to {owner}, who cannot use what root writes there"
        return Finding("warn", text, f"run it as {owner}, or {ANOTHER_FOLDER}", "--data")
    text = f"the data folder {data} belongs to {owner}, not to you"
    return Finding("bad", text, ANOTHER_FOLDER, "--data")


def _disk_space(data: Path, free: int, least: int) -> Finding:
    text = f"data folder {data}: {size_text(free)} free"
    if free < least:
        needed = f"at least {size_text(least)} are needed"
        text = f"the disk of {data} is full: {size_text(free)} free, {needed}"
        return Finding("bad", text, "free some space, or use another folder: --data DIR", "--data")
    if free < FREE_BYTES_MIN:
        return Finding("warn", text, "free some space, or use another folder: --data DIR", "--data")
    return Finding("ok", text)


def _file_system(path: Path) -> str:
    """The type of the file system that a folder is on; empty if nobody knows."""
    mounts = {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}
    above = (str(each) for each in (path.resolve(), *path.resolve().parents))
    return next((mounts[each] for each in above if each in mounts), "")


def nodes(data_folder: DataFolder, options: Options) -> Iterator[Finding]:
    """Whether the launcher accepts the nodes that the options declare."""
    from services.allinone.declared_nodes import (  # noqa: PLC0415 - slow to import
        check_nodes,
        declares_nodes,
    )

    if declares_nodes(options):
        yield from check_nodes(data_folder, options)


def gpus(data_folder: DataFolder, options: Options) -> Iterator[Finding]:
    """What tasks will find here to compute on."""
    found = find_gpus()
    if found.gpus:
        models = ", ".join(sorted({gpu.model for gpu in found.gpus}))
        yield Finding("ok", f"{counted(len(found.gpus), 'GPU')} ({models}), driver {found.driver}")
        if found.problem:
            yield Finding("warn", found.problem)
    elif options.nodes is not None or options.slots is not None:
        nodes, slots = options.nodes or 1, 1 if options.slots is None else options.slots
        size = f"{counted(nodes, 'virtual node')} x {counted(slots, 'slot')}"
        yield Finding("ok", f"no GPU ({found.problem}); {size}")
    else:
        fix = f"or declare slots: {data_folder.command('up')} --nodes N --slots G"
        yield Finding("warn", f"no GPU ({found.problem}): this machine is one CPU-only node", fix)


def address(data_folder: DataFolder, options: Options) -> Iterator[Finding]:
    """Whether the gateway can listen where it is to; a platform that runs does already."""
    if data_folder.is_kept():
        return
    host, port = options.host, options.port
    if not host.strip():
        # The operating system takes it for all addresses.
        yield Finding("bad", "the address is empty", f"give one of {_addresses()}", "--host")
        return
    try:
        with listening(host, port):
            pass
    except socket.gaierror as problem:
        text = f"{host!r} is no address of this machine: {problem.strerror}"
        yield Finding("bad", text, f"give one of {_addresses()}", "--host")
    except OSError as problem:
        yield _refused(host, port, problem)
    else:
        yield Finding("ok", f"port {port} of {host} is free" if port else "port: any free one")


def _refused(host: str, port: int, problem: OSError) -> Finding:
    if problem.errno == errno.EADDRNOTAVAIL:
        text = f"{host} is no address of this machine"
        return Finding("bad", text, f"give one of {_addresses()}", "--host")
    if problem.errno == errno.EADDRINUSE:
        listener, fix = _listener(port)
        fix = f"{fix}, or take another port: --port N (0: any free one)"
        return Finding("bad", f"port {port} is taken by {listener}", fix, "--port")
    if problem.errno in (errno.EACCES, errno.EPERM):
        text = f"port {port} is only for root"
        return Finding("bad", text, f"take a higher one: --port {GATEWAY_PORT}", "--port")
    text = f"{host}:{port} cannot be listened on: {problem.strerror}"
    return Finding("bad", text, "give another --host or --port", "--host")


def _addresses() -> str:
    found = (
        each.address
        for all_of in psutil.net_if_addrs().values()
        for each in all_of
        if each.family in (socket.AF_INET, socket.AF_INET6) and "%" not in each.address
    )
    return ", ".join(dict.fromkeys([*found, "0.0.0.0 (all)"]))


def _listener(port: int) -> tuple[str, str]:
    """The program that listens on a port, and how to end it."""
    unknown = ("another program (of another user)", "end that program")
    try:
        pid = next(
            each.pid
            for each in psutil.net_connections("tcp")
            if each.status == psutil.CONN_LISTEN
            and each.laddr
            and each.laddr.port == port
            and each.pid
        )
        process = psutil.Process(pid)
        locks = (Path(each.path) for each in process.open_files())
        data = next((str(lock.parent) for lock in locks if lock.name == "up.lock"), "")
        if data:
            end = DataFolder(Path(data)).command("down")
            return f"the platform of {data} (process {pid})", end
        command = " ".join(process.cmdline()) or process.name()
    except (StopIteration, psutil.Error, OSError):
        return unknown
    cut = command if len(command) <= 60 else f"{command[:59]}…"  # noqa: PLR2004 - half a line
    return f"process {pid} ({cut})", "end that program"


def users(data_folder: DataFolder, options: Options) -> Iterator[Finding]:
    """The users that servers and tasks run as."""
    try:
        check_service_user(data_folder, options)
        if os.geteuid() == 0:
            account = service_account(data_folder.data / "postgres" / "data", options.service_user)
            yield Finding("ok", f"PostgreSQL and NATS run as {account.name if account else 'root'}")
        check_task_user(data_folder, options)
    except Failure as problem:
        yield finding_of(problem)
        return
    if os.geteuid() != 0:
        own = _name_of(os.geteuid())
        yield Finding("ok", f"tasks run as {own}, and share the trust of whoever runs `up`")
        return
    if options.tasks_as_root:
        fix = f"give them users of their own: {data_folder.command('up')} --task-users FIRST-LAST"
        yield Finding("warn", "tasks run as root: whoever may submit has its rights", fix)
        return
    run_as = (
        f"as {options.task_user}" if options.task_user else "each owner's as a user of their own"
    )
    yield Finding("ok", f"tasks run {run_as}")


def interpreter(data_folder: DataFolder, options: Options) -> Iterator[Finding]:
    """Whether tasks of other users can run this Python, which is the ``python`` of their PATH."""
    del data_folder
    first = (options.task_users or "").partition("-")[0]
    if os.geteuid() != 0 or not (first.isdecimal() or options.task_user):
        return
    try:
        user = Account(int(first), int(first), "") if first else _account(options.task_user or "")
    except KeyError:
        # ``users`` reports this.
        return
    if not can_run(user, [sys.executable, "-c", ""]):
        fix = (
            "move the clone, and the Python that its .venv was made with, to where everybody may"
            " read them, for example below /opt; then, in the clone: rm -r .venv && make setup"
            " PYTHON=/opt/PATH/bin/python3"
        )
        yield Finding("warn", f"tasks cannot run {sys.executable}: `python` is closed to them", fix)


def _account(name: str) -> Account:
    found = pwd.getpwnam(name)
    return Account(found.pw_uid, found.pw_gid, name)


def _name_of(uid: int) -> str:
    name = name_of(uid)
    return f"user {name}" if name.isdecimal() else name


def settings(data_folder: DataFolder, options: Options) -> Iterator[Finding]:
    """Whether the services accept the settings in the environment."""
    if not any(name.upper().startswith((*SETTINGS, COLLECTORS)) for name in os.environ):
        return
    from services.allinone.composition import doubtful_settings  # noqa: PLC0415 - slow to import

    # A variable that all services read is reported once.
    for problem, stops in dict.fromkeys(doubtful_settings(data_folder, options)):
        names = [each for each in problem.variables if each in os.environ] or problem.variables
        shown = ", ".join(f"{name}={os.environ.get(name, '')!r}" for name in names)
        fix = problem.fix or f"correct or unset {names[0]}"
        fix = f"{fix} (docs/generated/settings.md lists all)"
        text = f"{shown}: {problem.text}"
        yield Finding("bad" if stops else "warn", text, fix, ", ".join(names), USAGE)
    given = {name.upper(): value for name, value in os.environ.items()}
    yield from broken_relations(
        lambda service, name: given.get(f"SHIFTWORK_{service}_{name}".upper())
    )


def memory(data_folder: DataFolder, options: Options) -> Iterator[Finding]:
    """Whether there is memory for the servers and services."""
    del options
    if data_folder.is_kept():
        return
    free = min(psutil.virtual_memory().available, _group_left("memory"))
    if free < FREE_MEMORY_MIN:
        text = f"{size_text(free)} of memory are free; the platform without its tasks wants 512 MiB"
        yield Finding("warn", text, "end other programs, or raise this container's limit")


def processes(data_folder: DataFolder, options: Options) -> Iterator[Finding]:
    """Whether processes and threads may still be started."""
    del options
    if data_folder.is_kept():
        return
    free = _group_left("pids")
    if free < FREE_PROCESSES_MIN:
        text = f"only {free:g} more processes may be started here"
        yield Finding("warn", text, "raise the limit of processes (pids.max of the control group)")


# The files in which each version of control groups has the limit and the usage.
_GROUP_FILES = {
    "memory": (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ),
    "pids": (("pids.max", "pids.current"),),
}


def _group_left(controller: str) -> float:
    """What the control groups of this process leave of something; infinite without a limit."""
    left = float("inf")
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return left
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = Path("/sys/fs/cgroup", controllers)
        group = root / path.lstrip("/")
        for above in (group, *group.parents):
            for limit, used in _GROUP_FILES[controller]:
                left = min(left, _left(above / limit, above / used))
            if above == root:
                break
    return left


def _left(limit: Path, used: Path) -> float:
    try:
        most, taken = limit.read_text().strip(), float(used.read_text())
    except (OSError, ValueError):
        return float("inf")
    if most == "max":
        return float("inf")
    return max(0.0, float(most) - taken + _reclaimable(limit.with_name("memory.stat")))


def _reclaimable(file: Path) -> float:
    """Files that the kernel keeps in memory and gives up when it is wanted."""
    try:
        rows = dict(line.split() for line in file.read_text().splitlines())
    except (OSError, ValueError):
        return 0.0
    return float(rows.get("inactive_file", 0)) + float(rows.get("active_file", 0))


BEFORE_START: tuple[Check, ...] = (
    python,
    programs,
    clock,
    folder,
    address,
    users,
    interpreter,
    settings,
    nodes,
    gpus,
    memory,
    processes,
)


def check_start(data_folder: DataFolder, options: Options, warn: Callable[[str], None]) -> None:
    """Failure, with the fix, for the first thing that must be mended before a start; what is
    doubtful goes to ``warn``. Nothing is written."""
    for check in BEFORE_START:
        for finding in check(data_folder, options):
            if finding.level == "bad":
                raise finding.failure()
            if finding.level == "warn":
                warn(f"{finding.what} (fix: {finding.fix})" if finding.fix else finding.what)


def check_same(data_folder: DataFolder, typed: Mapping[str, Any]) -> None:
    """Failure if options that were typed differ from those with which the folder's platform runs.

    ``typed`` has the fields of ``Options`` that were given.
    """
    live, holder = data_folder.options(), data_folder.holder()
    if live is None:
        return
    for field in fields(Options):
        if field.name not in typed:
            continue
        wanted, present = typed[field.name], getattr(live, field.name)
        if field.name == "port" and holder is not None:
            present = urlsplit(holder.url).port
            # 0 is any port.
            wanted = wanted or present
        if wanted != present:
            name = flag(field.name)
            raise Failure(
                f"the platform of {data_folder.data} runs {_spelled(name, present)}, not"
                f" {_spelled(name, wanted)}",
                where=name,
                fix=f"`{data_folder.command('down')}` first (running tasks save, and the next"
                f" `up` resumes them), or leave {name} out",
            )


def flag(field: str) -> str:
    """An option of ``up`` as it is typed."""
    return "--" + field.replace("_", "-")


def _spelled(name: str, value: object) -> str:
    if value is None or value is False:
        return f"without {name}"
    return f"with {name}" if value is True else f"with {name} {value}"
