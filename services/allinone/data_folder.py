"""One data folder: the files of one platform, the process that holds it now, and its options.

Used by every command of the all-in-one. The holder (``up``, ``dev``, the demo) has a lock on the
folder while it lives; its record has the URL.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints
from urllib.parse import urlsplit

from shiftwork.cli import installed
from shiftwork.cli.failures import Failure

from libs.contracts.tcp_ports import GATEWAY_PORT
from services.allinone.embedded.credentials import Credentials, private_folder, write_private

PORT_MAX = 65_535
# The record in the lock file is always as long, so that it can be changed on a full disk, too.
RECORD_BYTES, PROBLEM_CHARACTERS_MAX = 2048, 300
TAKE_TRIES, TAKE_SECONDS = 10, 0.02
# The name under which the command line knows this machine's platform.
CONTEXT = "local"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``up``; stored, so that the next ``up`` finds the same machine."""

    host: str = "127.0.0.1"
    port: int = GATEWAY_PORT
    # Virtual nodes and slots on each; None: this machine as one node with its GPUs.
    nodes: int | None = None
    slots: int | None = None
    # Groups, labels and taints of the nodes.
    nodes_file: str | None = None
    # The user that tasks run as if root runs the platform: a user's name, a range of user numbers
    # (each owner's tasks get a number of their own), or root itself. At most one of them.
    task_user: str | None = None
    task_users: str | None = None
    tasks_as_root: bool = False
    # The user that PostgreSQL and NATS run as if root runs the platform (a user's name).
    service_user: str | None = None
    # Whose tasks users see (own, team or all); None: as the gateway's settings say.
    visibility: str | None = None


def options_of(found: Mapping[str, Any]) -> Options:
    """The options in a document that somebody may have changed by hand. TypeError or ValueError
    names what is wrong."""
    options = Options(**found)
    for name, kind in get_type_hints(Options).items():
        value = getattr(options, name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(f"{name} is {value!r}")
    if not 0 <= options.port <= PORT_MAX:
        raise ValueError(f"port is {options.port}")
    return options


def with_task_user(
    options: Options, task_user: str | None, task_users: str | None, tasks_as_root: bool
) -> Options:
    """The options with a new choice of the user of tasks, which replaces the former one; as they
    were if nothing was chosen."""
    if task_user is None and task_users is None and not tasks_as_root:
        return options
    return replace(options, task_user=task_user, task_users=task_users, tasks_as_root=tasks_as_root)


def url_at(host: str, port: int) -> str:
    """How this machine reaches what listens there: an address for all is none to connect to."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - only compared
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


@contextlib.contextmanager
def listening(host: str, port: int) -> Generator[socket.socket]:
    """A socket bound to the address as a server binds it: a port that was just closed is free.
    Raises OSError if the address is taken."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, port))
        yield taken


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a data folder now, as written in its lock file."""

    pid: int
    url: str
    ready: bool = False
    # What it is starting now.
    step: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """How the folder's last holder ended without being asked to. ``problem`` is empty if it could
    not write one: it was killed, or the machine went down."""

    pid: int
    problem: str


class FolderInUseError(Exception):
    """Another process holds this folder."""

    def __init__(self, holder: Holder | None) -> None:
        super().__init__("another process holds this data folder")
        self.holder = holder


class DataFolder:
    """The paths of one data folder."""

    def __init__(self, data: Path) -> None:
        # As a shell reads it: `~` behind `--data=`, and `x/..` without x.
        self.data = Path(os.path.abspath(data.expanduser()))  # noqa: PTH100 - it must not follow links
        # Called with each step of a start, for the person at the terminal.
        self.on_step: Callable[[str], None] | None = None
        self._lock: int | None = None
        # What the holder before this one wrote last: nothing, unless it was killed.
        self._former: Mapping[str, Any] = {}

    def command(self, name: str) -> str:
        """A command of the platform as it is typed for this folder."""
        return installed.command(name, str(self.data))

    @property
    def credentials(self) -> Credentials:
        """The folder of the secrets."""
        return Credentials(self.data)

    @property
    def machine(self) -> Path:
        """The launcher's: supervisors' records and the runs' folders."""
        return self.data / "machine"

    @property
    def runs(self) -> Path:
        """The folder in which the nodes' supervisors write the ranks' output."""
        return self.machine / "nodes"

    @property
    def logs(self) -> Path:
        """The kept output of tasks."""
        return self.data / "output"

    @property
    def dumps(self) -> Path:
        """Snapshots of refused plans."""
        return self.data / "refused-plans"

    @property
    def log(self) -> Path:
        """The log of the services."""
        return self.data / "up.log"

    @property
    def status(self) -> Path:
        """How servers and services fare, for ``doctor``."""
        return self.data / "status.json"

    @property
    def drained(self) -> Path:
        """Nodes that a stop has drained; the next start opens them again."""
        return self.data / "drained.json"

    def options(self) -> Options | None:
        """The options of the last ``up``; None on a new folder. Failure if it cannot be read."""
        file = self.data / "options.json"
        try:
            return options_of(json.loads(file.read_text()))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, TypeError, RecursionError) as problem:
            raise Failure(
                f"the options of the last `up` cannot be read: {problem}",
                where=str(file),
                fix="correct or remove that file, and give the options of `up` again",
            ) from problem

    def keep_options(self, options: Options) -> None:
        """Remember them for the next start."""
        write_private(self.data / "options.json", json.dumps(asdict(options)) + "\n")

    def let_tasks_pass(self) -> None:
        """Let the user of tasks reach its own folders in here, by name; the rest stays private."""
        for folder in (self.logs, self.dumps):
            private_folder(folder).chmod(0o700)
        self.log.touch()
        self.log.chmod(0o600)
        self.data.chmod(0o711)

    # The lock

    def take(self) -> None:
        """Become this folder's holder; FolderInUseError if there is another."""
        private_folder(self.data)
        descriptor = os.open(self.data / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        for left in reversed(range(TAKE_TRIES)):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # A process that only reads holds the lock briefly.
                if not left:
                    os.close(descriptor)
                    raise FolderInUseError(self.holder()) from None
                time.sleep(TAKE_SECONDS)
        self._lock = descriptor
        self._former = _document(descriptor)
        self._record({"pid": os.getpid()})

    @contextlib.contextmanager
    def borrowed(self, step: str) -> Generator[None]:
        """Hold the folder of a platform that is down, for something that leaves it down. The record
        of the last holder is the same afterwards. Raises FolderInUseError."""
        self.take()
        try:
            self.report_step(step)
            yield
        finally:
            if self._former:
                self._record(self._former)
                os.close(self._lock)  # pyright: ignore[reportArgumentType] - taken above
                self._lock = None
            else:
                self.release()

    def port_for(self, options: Options) -> int:
        """Where to answer, of options that leave it open: as the holder before this one if that was
        killed, because its tasks still ask there; else 0, for any free port."""
        former = urlsplit(str(self._former.get("url", ""))).port or 0
        if options.port or not former:
            return options.port
        try:
            with listening(options.host, former):
                return former
        except OSError:
            return 0

    def report(self, holder: Holder) -> None:
        """Write the record of the holder: its process and its URL."""
        self._record(asdict(holder))
        self._step(holder.step)

    def report_step(self, step: str) -> None:
        """Write down what is started now; it does not answer yet."""
        self._record({"pid": os.getpid(), "step": step})
        self._step(step)

    def _step(self, step: str) -> None:
        if step and self.on_step is not None:
            self.on_step(step)

    def step(self) -> str:
        """What the holder of the folder starts now; empty if it has written nothing."""
        return str(self._kept_record().get("step", ""))

    def release(self, problem: str = "") -> None:
        """Give the folder up. ``problem``: why it ends although nobody asked for it."""
        if self._lock is None:
            return
        if problem:
            self._record({"pid": os.getpid(), "problem": problem[:PROBLEM_CHARACTERS_MAX]})
        else:
            os.ftruncate(self._lock, 0)
        os.close(self._lock)
        self._lock = None

    def ended(self) -> Ended | None:
        """How the last holder ended; None if a process holds the folder, or it was asked to end."""
        if self.is_kept():
            return None
        try:
            record = json.loads((self.data / "up.lock").read_bytes())
        except (OSError, ValueError):
            return None
        return Ended(record.get("pid", 0), record.get("problem", ""))

    def _record(self, record: Mapping[str, object]) -> None:
        assert self._lock is not None, "take() first"
        text = json.dumps(record).encode()
        # If a full disk refuses even that, only ``doctor`` knows less.
        with contextlib.suppress(OSError):
            os.pwrite(self._lock, text.ljust(RECORD_BYTES), 0)

    def holder(self) -> Holder | None:
        """The holder of the folder; None without one, or before it has written its record."""
        record = self._kept_record()
        return Holder(**record) if "url" in record else None

    def listens(self) -> int | None:
        """The process that holds the folder, once it listens to signals; None before that, and if
        there is none."""
        record = self._kept_record()
        return record.get("pid") if "step" in record or "url" in record else None

    def left_over(self) -> bool:
        """True if servers or nodes of a holder that was killed still run."""
        servers = (self.data / "postgres" / "lock", self.data / "nats" / "lock")
        return self.nodes_live() or any(map(_is_held, servers))

    def nodes_live(self) -> bool:
        """True if supervisors of nodes run, and perhaps tasks under them; False also if we may not
        look."""
        try:
            return any(map(_is_held, self.runs.glob("*/lock")))
        except OSError:
            return False

    def is_kept(self) -> bool:
        """True while some process keeps the folder; also if it has written nothing yet."""
        return _is_held(self.data / "up.lock")

    def _kept_record(self) -> dict[str, Any]:
        """The record of the folder's holder; nothing without a holder."""
        with self._locked() as lock:
            return _document(lock) if lock is not None else {}

    def _locked(self) -> contextlib.AbstractContextManager[int | None]:
        return _held(self.data / "up.lock")


def _document(lock: int) -> dict[str, Any]:
    try:
        return json.loads(os.pread(lock, RECORD_BYTES, 0))
    except ValueError:
        return {}


def _is_held(lock: Path) -> bool:
    with _held(lock) as descriptor:
        return descriptor is not None


@contextlib.contextmanager
def _held(lock: Path) -> Generator[int | None]:
    """The lock file while another process holds the lock; None if nobody does, or if we may not
    look."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            held = False
        except BlockingIOError:
            held = True
        yield descriptor if held else None
    finally:
        os.close(descriptor)
