"""``shiftwork up``, ``down`` and ``doctor``: joined to the command line by the entry point.

Kept light: what runs a platform is imported only by the command that runs one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from shiftwork.cli import contexts, render, session
from shiftwork.cli.failures import Failure

from services.allinone.place import (
    CONTEXT,
    Keeper,
    Options,
    Place,
    default_data,
    with_task_user,
)

DETACH_SECONDS_MAX = 120.0
DOWN_SECONDS_MAX = 4 * 3600.0
LOOK_SECONDS = 0.1

Data = Annotated[Path | None, typer.Option("--data", help="Data folder.", show_default=False)]
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
    port: Annotated[int | None, typer.Option(help="HTTP port (0: a free one).")] = None,
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

    What was said the last time is remembered. On a folder that is kept already, wait until
    everything is up and return.
    """
    place = Place(data or default_data())
    told = {
        "port": port,
        "host": host,
        "nodes": nodes,
        "slots": slots,
        "nodes_file": None if nodes_file is None else str(nodes_file.absolute()),
        "service_user": service_user,
    }
    changed: dict[str, Any] = {name: value for name, value in told.items() if value is not None}
    options = replace(place.options() or Options(), **changed)
    options = with_task_user(options, task_user, task_users, tasks_as_root)
    if place.is_kept():
        _report(place, _wait_ready(place, None))
    elif detach:
        from services.allinone.task_user import check_task_user  # noqa: PLC0415 - imports services

        check_task_user(place, options)
        _report(place, _detached(place, options))
    else:
        from services.allinone.keep import keep_here  # noqa: PLC0415 - imports the platform

        raise typer.Exit(keep_here(place, options, verbose=session.current().verbose))


def _detached(place: Place, options: Options) -> Keeper:
    from services.allinone.embedded.credentials import private_folder  # noqa: PLC0415 - small

    private_folder(place.data)
    place.keep_options(options)
    with place.log.open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 - this very program
            [sys.executable, "-m", "services.allinone", str(place.data)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
        )
    return _wait_ready(place, process)


def _wait_ready(place: Place, process: subprocess.Popen[bytes] | None) -> Keeper:
    """Until the keeper of the folder says that it serves and its probe agrees."""
    ends_at = time.monotonic() + DETACH_SECONDS_MAX
    while time.monotonic() < ends_at:
        keeper = place.keeper()
        if keeper is not None and keeper.ready and _serves(keeper):
            return keeper
        if process is not None and process.poll() is not None:
            raise Failure(
                f"the platform ended with status {process.returncode}",
                where=str(place.log),
                fix="read the end of that log, or run `shiftwork up` in the foreground",
            )
        if process is None and not place.is_kept():
            raise Failure("the platform ended meanwhile", fix="run `shiftwork up` again")
        time.sleep(LOOK_SECONDS)
    raise Failure(
        f"not ready after {DETACH_SECONDS_MAX:g} s",
        where=str(place.log),
        fix="run `shiftwork doctor`",
    )


def _serves(keeper: Keeper) -> bool:
    from urllib.error import URLError  # noqa: PLC0415 - only while waiting
    from urllib.request import urlopen  # noqa: PLC0415 - only while waiting

    try:
        with urlopen(f"{keeper.url}/readyz", timeout=5) as answer:  # noqa: S310 - our own http URL
            return answer.status == 200  # noqa: PLR2004 - OK
    except (URLError, OSError):
        return False


def _report(place: Place, keeper: Keeper) -> None:
    """Say where it is, and make it the current context: that may have been another's meanwhile."""
    token_file = str(place.credentials.admin_token_file)
    contexts.save(contexts.default_path(), CONTEXT, contexts.Named(keeper.url, token_file))
    found = {"url": keeper.url, "pid": keeper.pid, "data": str(place.data)}
    found["admin_token_file"] = token_file
    if session.current().json:
        render.document(found)
    else:
        render.line(f"Shiftwork is ready at {keeper.url}")
        render.line(f"Administrator's token: {found['admin_token_file']}")


def down(
    data: Data = None,
    now: Annotated[
        bool, typer.Option("--now", help="Do not let running tasks save first.")
    ] = False,
) -> None:
    """End the platform: running tasks save and leave first; the next `up` resumes them."""
    place = Place(data or default_data())
    keeper = place.keeper()
    if keeper is None and not place.is_kept():
        render.note(f"nothing runs on {place.data} (another folder: --data DIR)")
        return
    if keeper is None:
        raise Failure("it is just starting", where=str(place.data), fix="try again in a moment")
    os.kill(keeper.pid, signal.SIGQUIT if now else signal.SIGTERM)
    ends_at = time.monotonic() + DOWN_SECONDS_MAX
    while place.is_kept():
        if time.monotonic() > ends_at:
            raise Failure("it does not end", where=str(place.log), fix="`shiftwork down --now`")
        time.sleep(LOOK_SECONDS)
    while Path(f"/proc/{keeper.pid}/fd").exists() and time.monotonic() < ends_at:
        # The folder is free; the process itself is gone in a moment, too.
        time.sleep(LOOK_SECONDS / 10)
    render.note("stopped")


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
        from services.allinone.doctor import examine  # noqa: PLC0415 - imports the platform

        findings = examine(Place(data or default_data()))
    if session.current().json:
        render.document({"findings": [finding.document() for finding in findings]})
    else:
        for finding in findings:
            for text in finding.lines():
                render.line(text)
    if any(finding.level == "bad" for finding in findings):
        raise typer.Exit(1)
