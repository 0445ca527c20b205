"""Start one process behind a gate: it exists, but runs nothing until its record is on disk.

Called by ``ranks.py``. If the supervisor dies before it opens the gate, the child reads the end
of the pipe and exits: a process without a record never becomes a rank.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import struct
import termios
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat, tee
from operator import call
from typing import NoReturn

NOT_FOUND_CODE, NOT_RUN_CODE = 127, 126
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
# Variables that name an activated environment of Python.
ENVIRONMENTS = ("VIRTUAL_ENV", "CONDA_PREFIX")
# The inherited limit of open files, which ranks get too. The supervisor raises its own limit,
# because it has one open file for each rank.
OPEN_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)
CLONE3 = 435
CLONE_INTO_CGROUP = 0x2_0000_0000
# struct clone_args up to its last field, cgroup.
ARGUMENTS = "=11Q"
PR_SET_NO_NEW_PRIVS = 38
# Numbers of setgroups, setresgid and setresuid by machine.
CALLS = {"x86_64": (116, 119, 117), "aarch64": (159, 149, 147)}
# Whether a child of ``fork_into`` can become another user; other machines use ``os.fork``.
AFTER_CLONE = os.uname().machine in CALLS
# Loaded here, because a child must not load a library.
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Identity:
    """The user and groups of a rank."""

    uid: int
    gid: int
    groups: Sequence[int]


@dataclass(frozen=True)
class Program:
    """The program that the child executes."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    # Where it writes: the end of a pipe, as an open file.
    output: int
    # None: as the supervisor.
    identity: Identity | None
    # The limit of that user's processes and threads; 0: the supervisor's own.
    processes_max: int = 0
    # Standard input, output and error; empty: no input, and ``output`` for both others.
    stdio: tuple[int, ...] = ()
    # These are a terminal, which becomes the session's.
    terminal: bool = False


@dataclass(frozen=True)
class Gated:
    """A child that waits at its gate."""

    pid: int
    gate: int
    # Whether it is in its control group already.
    joined: bool

    def open(self, *, run: bool = True) -> None:
        """Let it run, or exit if it is no longer wanted. The exit of a child that is gone already
        is found later."""
        try:
            if run:
                os.write(self.gate, b"!")
        except BrokenPipeError:
            pass
        finally:
            os.close(self.gate)


def spawn(program: Program, *, cgroup: str = "", notices: Iterable[str] = ()) -> Gated:
    """Fork a child in a session of its own that waits for its gate. Raises ``OSError``.
    It begins in the version 2 control group, where there is one and the kernel can do that. The
    notices are the first lines of its output."""
    if program.identity is not None:
        # The rank's user must be able to open it again as /dev/stdout. The folder stays ours.
        for end in {program.output, *program.stdio}:
            os.fchown(end, program.identity.uid, program.identity.gid)
    for notice in notices:
        os.write(program.output, f"shiftwork: {notice}\n".encode())
    reader, gate = os.pipe()
    try:
        cloned = program.identity is None or AFTER_CLONE
        pid, joined = _fork(cgroup if cloned else "")
        if pid == 0:
            _become(program, reader, gate)
    except OSError:
        os.close(gate)
        raise
    finally:
        os.close(reader)
    return Gated(pid, gate, joined)


def _fork(cgroup: str) -> tuple[int, bool]:
    if cgroup:
        try:
            return fork_into(cgroup), True
        except OSError:
            # An older kernel: it is moved there afterwards.
            return os.fork(), False
    return os.fork(), False


def _become(program: Program, reader: int, gate: int) -> NoReturn:
    """Run the child. It never returns to the parent's code."""
    code = NOT_RUN_CODE
    try:
        os.setsid()
        os.close(gate)
        if not os.read(reader, 1):
            os._exit(code)
        if not program.stdio:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, end in enumerate(program.stdio or (0, program.output, program.output)):
            os.dup2(end, number)
        if program.terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        _restore_signals()
        resource.setrlimit(resource.RLIMIT_NOFILE, OPEN_FILES)
        code = _exec(program)
    except BaseException as error:  # noqa: BLE001 - the output shows any error
        _print(f"cannot start: {error}")
    os._exit(code)


def _restore_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        # The C library refuses its own reserved numbers.
        try:
            if signal.getsignal(number) is not signal.SIG_DFL:
                signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            continue
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _exec(program: Program) -> int:
    """Execute the program. Returns an exit code if that fails; the output explains why."""
    os.umask(0o022)
    if program.identity is not None:
        become(program.identity, program.processes_max)
    try:
        os.chdir(program.cwd)
    except OSError as error:
        _print(f"cannot use the working directory {program.cwd}: {error.strerror}")
        return NOT_RUN_CODE
    if not program.argv:
        _print("the task has no command")
        return NOT_FOUND_CODE
    if closed := _closed_environment(program.argv[0], program.env):
        # The next folder of PATH would have another Python, without the task's packages.
        _print(
            f"cannot run {closed}: this task runs as user {os.geteuid()}, who cannot use it. "
            "Make the environment and its Python where every user can read them"
        )
        return NOT_RUN_CODE
    name, refused = program.argv[0], ""
    for candidate in _candidates(name, program.env.get("PATH", DEFAULT_PATH)):
        try:
            os.execve(candidate, list(program.argv), program.env)  # noqa: S606 - a task's own command
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            refused = refused or f"cannot run {candidate}: {error.strerror}"
    if refused:
        _print(refused)
        return NOT_RUN_CODE
    _print(f"cannot run {name}: no such command on PATH, or its interpreter is missing")
    return NOT_FOUND_CODE


def _closed_environment(command: str, env: Mapping[str, str]) -> str:
    """The Python of the task's activated environment, if the command is the environment's and its
    Python is closed to the user that we are. A shell or another program needs no such Python."""
    for name in ENVIRONMENTS:
        folder = f"{env[name]}/bin" if env.get(name) else ""
        if not folder or ("/" in command and not command.startswith(f"{folder}/")):
            continue
        python = f"{folder}/python"
        try:
            os.stat(command if "/" in command else f"{folder}/{command}")  # noqa: PTH116 - no pathlib between fork and exec
            if not os.access(python, os.X_OK):
                return python
        except PermissionError:
            # The content of a closed folder is unknown, but it certainly has the Python.
            if command.rpartition("/")[2].startswith("python"):
                return python
        except (OSError, ValueError):
            continue
    return ""


def _candidates(name: str, path: str) -> list[str]:
    if "/" in name:
        return [name]
    return [f"{folder or '.'}/{name}" for folder in path.split(":")]


def _print(text: str) -> None:
    os.write(2, f"shiftwork: {text}\n".encode(errors="replace"))


def fork_into(cgroup: str) -> int:
    """As ``os.fork``, but the child begins in this version 2 group. OSError where the kernel (or a
    filter on its calls) refuses; then nothing has happened."""
    fd = os.open(cgroup, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        packed = struct.pack(
            ARGUMENTS, CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, fd
        )
        arguments = ctypes.create_string_buffer(packed, len(packed))
        # PyDLL keeps the interpreter's lock, so that the child has it too.
        library = ctypes.PyDLL(None, use_errno=True)
        number, size = ctypes.c_long(CLONE3), ctypes.c_size_t(len(packed))
        before, in_parent, in_child = (
            getattr(ctypes.pythonapi, f"PyOS_{name}")
            for name in ("BeforeFork", "AfterFork_Parent", "AfterFork_Child")
        )
        # A thread that has waited for the interpreter's lock for a while makes the next bytecode
        # wait until that thread has had it. The child has no such thread and would wait for ever,
        # so no bytecode may run between the clone and what follows it: these iterators do not.
        pids, result = tee(map(call, (partial(library.syscall, number, arguments, size),)))
        after = map(call, map({0: in_child}.get, pids, repeat(in_parent)))
        before()
        next(after)
        problem, pid = ctypes.get_errno(), next(result)
        if pid < 0:
            raise OSError(problem, "cannot clone into a control group")
        return int(pid)
    finally:
        os.close(fd)


def become(user: Identity, processes_max: int) -> None:
    """Become another user for good: its files are its own, and no setuid program gives it more.
    OSError if any of that cannot be had; then nothing may run. ``processes_max``: so many processes
    and threads may that user have (0: no limit of ours)."""
    os.umask(0o077)
    if processes_max:
        _, most = resource.getrlimit(resource.RLIMIT_NPROC)
        most = processes_max if most == resource.RLIM_INFINITY else min(most, processes_max)
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    if not AFTER_CLONE:
        os.setgroups(list(user.groups))
        os.setresgid(user.gid, user.gid, user.gid)
        os.setresuid(user.uid, user.uid, user.uid)
    else:
        setgroups, setresgid, setresuid = CALLS[os.uname().machine]
        groups = (ctypes.c_uint32 * len(user.groups))(*user.groups)
        _call(setgroups, ctypes.c_size_t(len(groups)), groups)
        _call(setresgid, *[ctypes.c_uint32(user.gid)] * 3)
        _call(setresuid, *[ctypes.c_uint32(user.uid)] * 3)
    if _LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot give up new privileges")


def _call(number: int, *arguments: object) -> None:
    if _LIBC.syscall(ctypes.c_long(number), *arguments) != 0:
        problem = ctypes.get_errno()
        raise OSError(problem, f"cannot become another user: {os.strerror(problem)}")
