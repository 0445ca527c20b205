"""``shiftwork up``, ``down``, ``backup``, ``restore`` and ``doctor``: joined to the command line by
the entry point.

Kept light: what runs a platform is imported only by the command that runs one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from shiftwork.cli import render, session
from shiftwork.cli.failures import USAGE, Failure
from shiftwork.cli.homes import default_data

from services.allinone.data_folder import (
    PORT_MAX,
    DataFolder,
    Holder,
    Options,
    with_task_user,
)
from services.gateway.permissions import Visibility

if TYPE_CHECKING:
    from services.allinone.findings import Finding

DETACH_SECONDS_MAX = 120.0
DOWN_SECONDS_MAX = 4 * 3600.0
POLL_SECONDS = 0.1
# Of a log's end: so much is read, so much is shown, and these values of a line.
LOG_TAIL_BYTES, LOG_TAIL_LINES = 4096, 8
LOG_SHOWN = ("part", "problem", "where", "fix")


def _folder(text: str) -> Path:
    if not text:
        raise typer.BadParameter("it is empty; leave the option out for the default folder")
    try:
        return Path(text).expanduser()
    except RuntimeError as problem:
        raise typer.BadParameter(f"{text}: {problem}") from None


Data = Annotated[
    Path | None,
    typer.Option("--data", help="Data folder.", metavar="DIR", parser=_folder, show_default=False),
]
Port = Annotated[int | None, typer.Option(min=0, max=PORT_MAX, help="HTTP port (0: a free one).")]
TaskUser = Annotated[str | None, typer.Option(help="Root: run all tasks as this user.")]
TaskUsers = Annotated[
    str | None,
    typer.Option(
        metavar="FIRST-LAST",
        help="Root: run each owner's tasks as a user of their own, by numbers from this range.",
    ),
]
TasksAsRoot = Annotated[
    bool, typer.Option("--tasks-as-root", help="Root: run tasks as root, with all its rights.")
]


def register(app: session.App) -> None:
    """Add the commands."""
    app.command("up")(up)
    app.command("down")(down)
    app.command("backup")(backup)
    app.command("restore")(restore)
    app.command("doctor")(doctor)
    app.command("monitor-credentials")(monitor_credentials)


def up(  # noqa: PLR0917 - a command: every parameter is an option by name
    data: Data = None,
    port: Port = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Virtual nodes.")] = None,
    slots: Annotated[int | None, typer.Option(min=0, help="Slots on each virtual node.")] = None,
    nodes_file: Annotated[
        Path | None, typer.Option(help="Groups, labels and taints of the nodes.", exists=True)
    ] = None,
    task_user: TaskUser = None,
    task_users: TaskUsers = None,
    tasks_as_root: TasksAsRoot = False,
    service_user: Annotated[
        str | None, typer.Option(help="Root: run PostgreSQL and NATS as this user.")
    ] = None,
    visibility: Annotated[
        Visibility | None,
        typer.Option(help="Whose tasks users see; operators see all. Default: their team's."),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return once it is ready.")] = False,
) -> None:
    """Run the whole platform on this machine until Ctrl-C (or --detach and `down`).

    The options of the last start are remembered. Everything is checked before anything starts. On a
    folder that is kept already, wait until everything is up and return; other options than it runs
    with are refused.
    """
    data_folder = DataFolder(data or default_data())
    given = {
        "port": port,
        "host": host,
        "nodes": nodes,
        "slots": slots,
        "nodes_file": None if nodes_file is None else str(nodes_file.absolute()),
        "task_user": task_user,
        "task_users": task_users,
        "tasks_as_root": tasks_as_root or None,
        "service_user": service_user,
        "visibility": None if visibility is None else visibility.value,
    }
    typed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if data_folder.is_kept():
        _join(data_folder, typed)
        return
    from services.allinone.checks import check_start  # noqa: PLC0415 - imports services

    users = {"task_user", "task_users", "tasks_as_root"}
    changed = {name: value for name, value in typed.items() if name not in users}
    try:
        kept = data_folder.options() or Options()
    except Failure:
        # An error about the folder itself or its owner is more useful.
        check_start(data_folder, Options(port=0, tasks_as_root=True), lambda _: None)
        raise
    options = with_task_user(replace(kept, **changed), task_user, task_users, tasks_as_root)
    if detach:
        check_start(data_folder, options, render.warning)
        _report(data_folder, _detached(data_folder, options))
        return
    from services.allinone.platform_process import keep_here, show_step  # noqa: PLC0415 - imports the platform

    data_folder.on_step = show_step
    try:
        ended = keep_here(data_folder, options, verbose=session.current().verbose)
    except Failure:
        if not data_folder.is_kept():
            raise
        # Another `up` has just taken the folder.
        _join(data_folder, typed)
    else:
        raise typer.Exit(ended)


def _join(data_folder: DataFolder, typed: Mapping[str, Any]) -> None:
    """Wait for a platform that somebody keeps already, if it is the one that is wanted."""
    from services.allinone.checks import check_same  # noqa: PLC0415 - imports services

    check_same(data_folder, typed)
    _report(data_folder, _wait_ready(data_folder, None))


def _detached(data_folder: DataFolder, options: Options) -> Holder:
    from services.allinone.embedded.credentials import private_folder  # noqa: PLC0415 - small

    private_folder(data_folder.data)
    words = [str(data_folder.data), json.dumps(asdict(options))]
    process: subprocess.Popen[bytes] | None = None
    try:
        with data_folder.log.open("ab") as log, _interrupts_held() as interrupted:
            begin = log.tell()
            process = subprocess.Popen(  # noqa: S603 - this very program
                [sys.executable, "-m", "services.allinone", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
            )
        if interrupted.is_set():
            raise KeyboardInterrupt  # noqa: TRY301 - as Ctrl-C would
        return _wait_ready(data_folder, process, begin)
    except KeyboardInterrupt:
        if process is not None:
            # Before it listens to signals it has started nothing.
            process.terminate()
            render.note("ending what was started")
            process.wait()
        raise


@contextlib.contextmanager
def _interrupts_held() -> Generator[threading.Event]:
    """Set the event on Ctrl-C instead of raising: `Popen` that is interrupted forgets its child."""
    interrupted = threading.Event()

    def hold(_number: int, _frame: FrameType | None) -> None:
        interrupted.set()

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, hold)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def _wait_ready(
    data_folder: DataFolder, process: subprocess.Popen[bytes] | None, log_begin: int = 0
) -> Holder:
    """Wait until the platform of the folder reports that it serves and its probe agrees.
    ``process`` is our own child, whose log begins at ``log_begin``; None if another process runs
    the platform."""
    from services.allinone.platform_process import show_step  # noqa: PLC0415 - imports the platform

    ends_at = time.monotonic() + DETACH_SECONDS_MAX
    shown = ""
    while time.monotonic() < ends_at:
        holder = data_folder.holder()
        if holder is not None and holder.ready and _serves(holder):
            return holder
        if (step := data_folder.step()) not in ("", shown):
            show_step(step)
            shown = step
        if process is not None and process.poll() is not None and not data_folder.is_kept():
            raise _ended(data_folder, process.returncode, log_begin)
        if process is None and not data_folder.is_kept():
            fix = f"run `{data_folder.command('up')}` again"
            raise Failure("the platform ended meanwhile", fix=fix)
        time.sleep(POLL_SECONDS)
    doctor, down = data_folder.command("doctor"), data_folder.command("down")
    raise Failure(
        f"not ready after {DETACH_SECONDS_MAX:g} s; it goes on starting",
        where=str(data_folder.log),
        fix=f"`{doctor}` shows what it waits for; `{down}` ends it",
    )


def _ended(data_folder: DataFolder, status: int, log_begin: int) -> Failure:
    """How the process that was to run the platform ended, with the last lines that it wrote."""
    if status == 0:
        text = "the platform was ended before it was ready"
        return Failure(
            text, where=str(data_folder.data), fix=f"run `{data_folder.command('up')}` again"
        )
    how = f"ended with status {status}" if status >= 0 else f"was ended by signal {-status}"
    with data_folder.log.open("rb") as log:
        log.seek(max(log_begin, data_folder.log.stat().st_size - LOG_TAIL_BYTES))
        lines = log.read().decode(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    given = [_readable(line) for line in lines] or ["(none)"]
    return Failure(
        "\n".join([f"the platform {how}; its last lines:", *given]),
        where=str(data_folder.log),
        fix=f"read the rest of that log, or run `{data_folder.command('up')}` in the foreground",
    )


def _readable(line: str) -> str:
    """A line of the log for people: what happened, and the values that explain it."""
    try:
        found: Any = json.loads(line)
        parts = [
            found.pop("event"),
            *(f"{name}: {found[name]}" for name in LOG_SHOWN if found.get(name)),
        ]
        parts += [f"{each['exc_type']}: {each['exc_value']}" for each in found.get("exception", ())]
    except (ValueError, LookupError, TypeError, AttributeError):
        return line
    return "; ".join(map(str, parts))


def _serves(holder: Holder) -> bool:
    from urllib.error import URLError  # noqa: PLC0415 - only while waiting
    from urllib.request import urlopen  # noqa: PLC0415 - only while waiting

    try:
        with urlopen(f"{holder.url}/readyz", timeout=5) as answer:  # noqa: S310 - our own http URL
            return answer.status == 200  # noqa: PLR2004 - OK
    except (URLError, OSError):
        return False


def _report(data_folder: DataFolder, holder: Holder) -> None:
    from services.allinone.chosen import announce  # noqa: PLC0415 - small

    announce(data_folder, holder.url, holder.pid, render.line, render.warning)


def down(
    data: Data = None,
    now: Annotated[
        bool, typer.Option("--now", help="Do not let running tasks save first.")
    ] = False,
) -> None:
    """End the platform: running tasks save and leave first; the next `up` resumes them.

    It is the current context's, unless --data, --context or --url names another.
    """
    from services.allinone.chosen import chosen  # noqa: PLC0415 - small

    it = chosen(data)
    data_folder = it.here(
        "name the one to end: --data DIR or --context NAME (`shiftwork context ls`)"
    )
    if not data_folder.is_kept():
        if not data_folder.left_over():
            _nothing_runs(data_folder)
            return
        _take_over(data_folder)
    _end(data_folder, now)
    if it.context:
        from services.allinone.chosen import running  # noqa: PLC0415 - small

        # Commands still go to the platform that is gone.
        for name, folder in running().items():
            render.note(f"{folder} runs: shiftwork context use {shlex.quote(name)}")


def _take_over(data_folder: DataFolder) -> None:
    """Start again what was killed: only a platform can let running tasks save, and end its servers
    and nodes in their order."""
    from services.allinone.checks import check_start  # noqa: PLC0415 - imports services

    render.note("the platform was killed, and what it ran still does: taking it over to end it")
    options = data_folder.options() or Options()
    try:
        check_start(data_folder, options, lambda _: None)
    except Failure as problem:
        if problem.where == "--port":
            # `down` has no such option.
            again = f"`{data_folder.command('up')} --port N`, then `{data_folder.command('down')}`"
            problem.fix = f"end that program and try again, or {again}"
        raise
    _detached(data_folder, options)


def _end(data_folder: DataFolder, now: bool) -> None:
    ends_at = time.monotonic() + DOWN_SECONDS_MAX
    pid, holder = _pid_to_end(data_folder, now), data_folder.holder()
    if pid is not None:
        answers = f" ({holder.url})" if holder else ""
        render.note(f"stopping the platform of {data_folder.data}{answers}")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGQUIT if now else signal.SIGTERM)
    while data_folder.is_kept():
        if time.monotonic() > ends_at:
            fix = f"`{data_folder.command('down')} --now`"
            raise Failure("it does not end", where=str(data_folder.log), fix=fix)
        time.sleep(POLL_SECONDS)
    while pid and _runs(pid) and time.monotonic() < ends_at:
        # The folder is free, and the process itself ends soon, too.
        time.sleep(POLL_SECONDS / 10)
    render.note("stopped")
    if session.current().json:
        render.document(_outcome(data_folder, holder, stopped=pid is not None))


def _runs(pid: int) -> bool:
    """False once a process has ended, even if its parent never waits for it: the parent may be this
    process, or the first one of a container."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def _pid_to_end(data_folder: DataFolder, now: bool) -> int | None:
    """The process to signal; None if it ended by itself. Waits for a platform that is starting,
    because it can soon let tasks save that ran before."""
    ends_at = time.monotonic() + DETACH_SECONDS_MAX
    waited = False
    while data_folder.is_kept():
        holder, pid = data_folder.holder(), data_folder.listens()
        if holder is not None and holder.ready:
            return holder.pid
        if pid is not None and (now or time.monotonic() > ends_at):
            return pid
        if time.monotonic() > ends_at:
            raise Failure(
                "it has been starting for long, and does not listen yet",
                where=str(data_folder.log),
                fix="read the end of that log, and try again",
            )
        if not waited:
            render.note("it is still starting (--now: do not wait for that)")
            waited = True
        time.sleep(POLL_SECONDS)
    return None


def _outcome(data_folder: DataFolder, holder: Holder | None, *, stopped: bool) -> dict[str, Any]:
    url = None if holder is None else holder.url
    return {"data": str(data_folder.data), "url": url, "stopped": stopped}


def _nothing_runs(data_folder: DataFolder) -> None:
    from services.allinone.checks import owner_problem  # noqa: PLC0415 - imports services
    from services.allinone.chosen import running  # noqa: PLC0415 - small

    problem = owner_problem(data_folder.data)
    if problem is not None and problem.level == "bad":
        raise problem.failure()
    render.note(f"nothing runs on {data_folder.data} (another folder: --data DIR)")
    if session.current().json:
        render.document(_outcome(data_folder, None, stopped=False))
    with contextlib.suppress(Failure):
        for name, folder in running().items():
            render.note(f"{folder} runs: shiftwork down --context {shlex.quote(name)}")


File = Annotated[Path, typer.Argument(metavar="FILE", show_default=False)]


def backup(
    file: File,
    data: Data = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check a backup instead: is it complete and unchanged?")
    ] = False,
) -> None:
    """Write a backup of the platform to FILE, while it runs or when it is down.

    It is as of one moment, and private: it holds secrets. `restore` makes a data folder of it.
    The platform is the current context's, unless --data, --context or --url names another.
    """
    from services.allinone.backup import commands  # noqa: PLC0415 - small

    if verify:
        commands.verify_backup(file)
    else:
        commands.make_backup(file, data)


def restore(
    file: File,
    data: Annotated[
        Path,
        typer.Option("--data", help="New or empty folder.", metavar="DIR", parser=_folder),
    ],
) -> None:
    """Make a data folder of a backup; `up --data DIR` starts it.

    The whole file is checked first. What ran at the time of the backup resumes from its last
    checkpoint, as after a crash of the machine. End the backed-up platform before you start it.
    """
    from services.allinone.backup import commands  # noqa: PLC0415 - small

    commands.restore_backup(file, data)


def monitor_credentials(
    name: Annotated[
        str | None, typer.Argument(help="The program that will read.", show_default=False)
    ] = None,
    data: Data = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove this user instead.")] = False,
) -> None:
    """Make a user of the event bus that can read events and do nothing else.

    Prints the path of a private file with address, user and password. The same NAME again prints
    the same file. Without NAME: list the users. A user that is removed is disconnected at once.
    The platform is the current context's, unless --data, --context or --url names another.
    """
    from services.allinone import monitor_credentials as users  # noqa: PLC0415 - imports the bus
    from services.allinone.chosen import chosen  # noqa: PLC0415 - small

    it = chosen(data)
    data_folder = it.here(
        "name its data folder: --data DIR; for a cluster: nats.monitoringUsers of the chart"
    )
    render.note(f"platform: {it.described}")
    if name is None:
        users.list_users(data_folder)
    elif remove:
        users.remove_user(data_folder, name)
    else:
        users.make_user(data_folder, name)


def doctor(  # noqa: PLR0917 - a command: every parameter is an option by name
    data: Data = None,
    kubernetes: Annotated[
        bool, typer.Option("--kubernetes", help="Check a cluster instead of this machine.")
    ] = False,
    kubeconfig: Annotated[
        Path | None, typer.Option("--kubeconfig", help="Left out: $KUBECONFIG, ~/.kube/config.")
    ] = None,
    kube_context: Annotated[str, typer.Option(help="A context of that file.")] = "",
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Of the platform.")] = (
        "shiftwork"
    ),
    release: Annotated[str, typer.Option(help="Its name for helm.")] = "shiftwork",
    gpu_resource: Annotated[str, typer.Option(help="What the nodes call a GPU.")] = "",
    storage_class: Annotated[str, typer.Option(help="Instead of the default one.")] = "",
) -> None:
    """Check this machine, its GPUs, the servers and the services; show how to fix problems.

    The platform is the current context's, unless --data, --context or --url names another.
    With --kubernetes: a cluster, one's rights there, its nodes and GPUs, and what is installed.
    """
    if kubernetes:
        from services.allinone.kubernetes import preflight  # noqa: PLC0415 - only then
        from services.allinone.kubernetes.kubectl import Target  # noqa: PLC0415

        file = "" if kubeconfig is None else str(kubeconfig)
        findings = preflight.doctor(
            Target(file, kube_context, namespace, release), gpu_resource, storage_class
        )
    else:
        findings = _examined(data)
    if session.current().json:
        render.document({"findings": [finding.document() for finding in findings]})
    else:
        for finding in findings:
            for text in finding.lines():
                render.line(text)
    if any(finding.level == "bad" for finding in findings):
        raise typer.Exit(1)


def _examined(data: Path | None) -> list[Finding]:
    """What is found of the platform that is meant, which is named first."""
    from services.allinone.chosen import chosen  # noqa: PLC0415 - small
    from services.allinone.doctor import examine, examine_remote  # noqa: PLC0415 - the platform
    from services.allinone.findings import Finding, finding_of  # noqa: PLC0415 - small

    try:
        it = chosen(data)
    except Failure as problem:
        if problem.code == USAGE:
            raise
        data_folder = DataFolder(default_data())
        return [
            finding_of(problem),
            Finding("note", f"instead: {data_folder.data}"),
            *examine(data_folder),
        ]
    first = Finding("ok", f"platform: {it.described}")
    if it.data_folder is not None:
        return [first, *examine(it.data_folder)]
    own = "this machine's own platform: shiftwork doctor --data DIR; a cluster: --kubernetes"
    return [first, *examine_remote(it.url), Finding("note", own)]
