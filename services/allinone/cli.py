"""``shiftwork up``, ``down`` and ``doctor``: joined to the command line by the entry point.

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
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from shiftwork.cli import render, session
from shiftwork.cli.failures import USAGE, Failure
from shiftwork.cli.homes import default_data

from services.allinone.place import (
    PORT_MAX,
    Keeper,
    Options,
    Place,
    with_task_user,
)

if TYPE_CHECKING:
    from services.allinone.findings import Finding

DETACH_SECONDS_MAX = 120.0
DOWN_SECONDS_MAX = 4 * 3600.0
LOOK_SECONDS = 0.1
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
    app.command("doctor")(doctor)


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
    detach: Annotated[bool, typer.Option("--detach", help="Return once it is ready.")] = False,
) -> None:
    """Run the whole platform on this machine until Ctrl-C (or --detach and `down`).

    What was said the last time is remembered. Everything is checked before anything starts. On a
    folder that is kept already, wait until everything is up and return; other options than it runs
    with are refused.
    """
    place = Place(data or default_data())
    told = {
        "port": port,
        "host": host,
        "nodes": nodes,
        "slots": slots,
        "nodes_file": None if nodes_file is None else str(nodes_file.absolute()),
        "task_user": task_user,
        "task_users": task_users,
        "tasks_as_root": tasks_as_root or None,
        "service_user": service_user,
    }
    typed: dict[str, Any] = {name: value for name, value in told.items() if value is not None}
    if place.is_kept():
        _join(place, typed)
        return
    from services.allinone.checks import check_start  # noqa: PLC0415 - imports services

    users = {"task_user", "task_users", "tasks_as_root"}
    changed = {name: value for name, value in typed.items() if name not in users}
    try:
        kept = place.options() or Options()
    except Failure:
        # Whose the folder is, or what it is, says more.
        check_start(place, Options(port=0, tasks_as_root=True), lambda _: None)
        raise
    options = with_task_user(replace(kept, **changed), task_user, task_users, tasks_as_root)
    if detach:
        check_start(place, options, render.warning)
        _report(place, _detached(place, options))
        return
    from services.allinone.keep import keep_here, show_step  # noqa: PLC0415 - imports the platform

    place.on_step = show_step
    try:
        ended = keep_here(place, options, verbose=session.current().verbose)
    except Failure:
        if not place.is_kept():
            raise
        # Another `up` took the folder a moment earlier.
        _join(place, typed)
    else:
        raise typer.Exit(ended)


def _join(place: Place, typed: Mapping[str, Any]) -> None:
    """Wait for a platform that somebody keeps already, if it is the one that is wanted."""
    from services.allinone.checks import check_same  # noqa: PLC0415 - imports services

    check_same(place, typed)
    _report(place, _wait_ready(place, None))


def _detached(place: Place, options: Options) -> Keeper:
    from services.allinone.embedded.credentials import private_folder  # noqa: PLC0415 - small

    private_folder(place.data)
    with place.log.open("ab") as log:
        begin = log.tell()
        process = subprocess.Popen(  # noqa: S603 - this very program
            [
                sys.executable,
                "-m",
                "services.allinone",
                str(place.data),
                json.dumps(asdict(options)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
        )
    try:
        return _wait_ready(place, process, begin)
    except KeyboardInterrupt:
        # Before it listens to signals it has started nothing.
        process.terminate()
        render.note("ending what was started")
        process.wait()
        raise


def _wait_ready(
    place: Place, process: subprocess.Popen[bytes] | None, log_begin: int = 0
) -> Keeper:
    """Until the keeper of the folder says that it serves and its probe agrees. ``process``: our
    own, whose log begins at ``log_begin``; None: somebody else's."""
    from services.allinone.keep import show_step  # noqa: PLC0415 - imports the platform

    ends_at = time.monotonic() + DETACH_SECONDS_MAX
    shown = ""
    while time.monotonic() < ends_at:
        keeper = place.keeper()
        if keeper is not None and keeper.ready and _serves(keeper):
            return keeper
        if (step := place.step()) not in ("", shown):
            show_step(step)
            shown = step
        if process is not None and process.poll() is not None and not place.is_kept():
            raise _ended(place, process.returncode, log_begin)
        if process is None and not place.is_kept():
            fix = f"run `{place.command('up')}` again"
            raise Failure("the platform ended meanwhile", fix=fix)
        time.sleep(LOOK_SECONDS)
    raise Failure(
        f"not ready after {DETACH_SECONDS_MAX:g} s; it goes on starting",
        where=str(place.log),
        fix=f"`{place.command('doctor')}` says what it waits for; `{place.command('down')}` ends"
        " it",
    )


def _ended(place: Place, status: int, log_begin: int) -> Failure:
    """How the process that was to run the platform ended, with the last lines that it wrote."""
    if status == 0:
        text = "the platform was ended before it was ready"
        return Failure(text, where=str(place.data), fix=f"run `{place.command('up')}` again")
    how = f"ended with status {status}" if status >= 0 else f"was ended by signal {-status}"
    with place.log.open("rb") as log:
        log.seek(max(log_begin, place.log.stat().st_size - LOG_TAIL_BYTES))
        lines = log.read().decode(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    told = [_readable(line) for line in lines] or ["(none)"]
    return Failure(
        "\n".join([f"the platform {how}; its last lines:", *told]),
        where=str(place.log),
        fix=f"read the rest of that log, or run `{place.command('up')}` in the foreground",
    )


def _readable(line: str) -> str:
    """A line of the log for people: what happened, and the values that say why."""
    try:
        found: Any = json.loads(line)
        said = [
            found.pop("event"),
            *(f"{name}: {found[name]}" for name in LOG_SHOWN if found.get(name)),
        ]
        said += [f"{each['exc_type']}: {each['exc_value']}" for each in found.get("exception", ())]
    except (ValueError, LookupError, TypeError, AttributeError):
        return line
    return "; ".join(map(str, said))


def _serves(keeper: Keeper) -> bool:
    from urllib.error import URLError  # noqa: PLC0415 - only while waiting
    from urllib.request import urlopen  # noqa: PLC0415 - only while waiting

    try:
        with urlopen(f"{keeper.url}/readyz", timeout=5) as answer:  # noqa: S310 - our own http URL
            return answer.status == 200  # noqa: PLR2004 - OK
    except (URLError, OSError):
        return False


def _report(place: Place, keeper: Keeper) -> None:
    from services.allinone.chosen import announce  # noqa: PLC0415 - small

    announce(place, keeper.url, keeper.pid, render.line, render.warning)


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
    place = it.place
    if place is None:
        raise Failure(
            f"{it.described} is not a platform that `up` started on this machine",
            where=it.because,
            fix="name the one to end: --data DIR or --context NAME (`shiftwork context ls`)",
        )
    if not place.is_kept():
        if not place.left_over():
            _nothing_runs(place)
            return
        _take_over(place)
    _end(place, now)
    if it.context:
        from services.allinone.chosen import running  # noqa: PLC0415 - small

        # Commands still go to the platform that is gone.
        for name, folder in running().items():
            render.note(f"{folder} runs: shiftwork context use {shlex.quote(name)}")


def _take_over(place: Place) -> None:
    """Start again what was killed: only a platform can let running tasks save, and end its servers
    and nodes in their order."""
    from services.allinone.checks import check_start  # noqa: PLC0415 - imports services

    render.note("the platform was killed, and what it ran still does: taking it over to end it")
    options = place.options() or Options()
    try:
        check_start(place, options, lambda _: None)
    except Failure as problem:
        if problem.where == "--port":
            # `down` has no such option.
            again = f"`{place.command('up')} --port N`, then `{place.command('down')}`"
            problem.fix = f"end that program and try again, or {again}"
        raise
    _detached(place, options)


def _end(place: Place, now: bool) -> None:
    ends_at = time.monotonic() + DOWN_SECONDS_MAX
    pid, keeper = _pid_to_end(place, now), place.keeper()
    if pid is not None:
        answers = f" ({keeper.url})" if keeper else ""
        render.note(f"stopping the platform of {place.data}{answers}")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGQUIT if now else signal.SIGTERM)
    while place.is_kept():
        if time.monotonic() > ends_at:
            fix = f"`{place.command('down')} --now`"
            raise Failure("it does not end", where=str(place.log), fix=fix)
        time.sleep(LOOK_SECONDS)
    while pid and _runs(pid) and time.monotonic() < ends_at:
        # The folder is free; the process itself is gone in a moment, too.
        time.sleep(LOOK_SECONDS / 10)
    render.note("stopped")
    if session.current().json:
        render.document(_outcome(place, keeper, stopped=pid is not None))


def _runs(pid: int) -> bool:
    """False once a process has ended, even if its parent never asks how: that may be this process,
    or the first one of a container."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def _pid_to_end(place: Place, now: bool) -> int | None:
    """Who is to be signalled; None if it ended by itself. One that begins will soon be able to let
    tasks save that ran before."""
    ends_at = time.monotonic() + DETACH_SECONDS_MAX
    waited = False
    while place.is_kept():
        keeper, pid = place.keeper(), place.listens()
        if keeper is not None and keeper.ready:
            return keeper.pid
        if pid is not None and (now or time.monotonic() > ends_at):
            return pid
        if time.monotonic() > ends_at:
            raise Failure(
                "it has been starting for long, and does not listen yet",
                where=str(place.log),
                fix="read the end of that log, and try again",
            )
        if not waited:
            render.note("it is still starting (--now: do not wait for that)")
            waited = True
        time.sleep(LOOK_SECONDS)
    return None


def _outcome(place: Place, keeper: Keeper | None, *, stopped: bool) -> dict[str, Any]:
    url = None if keeper is None else keeper.url
    return {"data": str(place.data), "url": url, "stopped": stopped}


def _nothing_runs(place: Place) -> None:
    from services.allinone.checks import owner_problem  # noqa: PLC0415 - imports services
    from services.allinone.chosen import running  # noqa: PLC0415 - small

    problem = owner_problem(place.data)
    if problem is not None and problem.level == "bad":
        raise problem.failure()
    render.note(f"nothing runs on {place.data} (another folder: --data DIR)")
    if session.current().json:
        render.document(_outcome(place, None, stopped=False))
    with contextlib.suppress(Failure):
        for name, folder in running().items():
            render.note(f"{folder} runs: shiftwork down --context {shlex.quote(name)}")


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
    """Check this machine, its GPUs, the servers and the services; say what to do about problems.

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
        place = Place(default_data())
        return [finding_of(problem), Finding("note", f"instead: {place.data}"), *examine(place)]
    first = Finding("ok", f"platform: {it.described}")
    if it.place is not None:
        return [first, *examine(it.place)]
    own = "this machine's own platform: shiftwork doctor --data DIR; a cluster: --kubernetes"
    return [first, *examine_remote(it.url), Finding("note", own)]
