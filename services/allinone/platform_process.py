"""Run one platform in this process: signals, messages for people, an orderly end.

``shiftwork up`` calls it in the foreground, ``python -m services.allinone DIR`` in the background,
``dev`` with a platform whose services are processes.
SIGTERM, the end of the terminal and the first Ctrl-C let running tasks save; SIGQUIT and the second
Ctrl-C do not wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import uvloop
from shiftwork.cli import render
from shiftwork.cli.failures import INTERRUPTED, Failure

from libs.service import observability
from libs.service.connections import raise_descriptor_limit
from libs.service.run import collect_rarely
from services.allinone.checks import check_start
from services.allinone.chosen import announce
from services.allinone.data_folder import DataFolder, FolderInUseError, Options, options_of
from services.allinone.embedded.processes import ServerError
from services.allinone.platform import Platform
from services.launcher.runtimes.supervisor_shutdown import end_supervisors

# Of `up.log`; as much again may be in `up.log.1`.
LOG_BYTES_MAX = 32 << 20


class Kept(Protocol):
    """A platform that can be run: ``ready`` is set once it serves at ``url``."""

    ready: asyncio.Event
    url: str

    async def run(self) -> None:
        """Run until cancelled."""
        ...


# After so long without an end, a stop cancels again what is left.
STOP_AGAIN_SECONDS = 10.0

_log = observability.log("up")


@dataclass(frozen=True, slots=True)
class Output:
    """Functions that print this process's results, notes and warnings."""

    result: Callable[[str], None]
    note: Callable[[str], None]
    warn: Callable[[str], None]


def _while_there(write: Callable[[str], None]) -> Callable[[str], None]:
    """Write for a person, if the terminal is still there: its end must not end the platform."""

    def writing(text: str) -> None:
        with contextlib.suppress(OSError):
            write(text)

    return writing


PERSON = Output(*(_while_there(each) for each in (render.line, render.note, render.warning)))


def _as_line(level: str) -> Callable[[str], None]:
    """Write a line of the log, as it is set up by then."""

    def writing(text: str) -> None:
        getattr(_log, level)(text)

    return writing


# Of a process in the background.
LOG = Output(*(_as_line(level) for level in ("info", "info", "warning")))


def show_step(step: str) -> None:
    """Show a person who waits what is being started."""
    if render.is_terminal(sys.stderr):
        PERSON.note(f"starting {step}")


def keep_here(
    data_folder: DataFolder,
    options: Options,
    *,
    verbose: bool = False,
    form: Literal["json", "console"] = "json",
    bytes_max: int = 0,
    make: Callable[[DataFolder, Options, int], Kept] = Platform,
    output: Output = PERSON,
) -> int:
    """Run until asked to end; the exit status. ``make(place, options, pid)`` builds the platform.

    ``verbose``: the log goes to standard error, which is a file of at most ``bytes_max`` (0: not
    ours to cut), instead of to the folder's.
    """
    check_start(data_folder, options, output.warn)
    try:
        data_folder.take()
    except FolderInUseError as error:
        raise Failure(
            "another process holds this data folder",
            where=str(data_folder.data),
            fix=f"it is process {error.holder.pid}" if error.holder else "try again",
        ) from error
    problem = ""
    try:
        data_folder.keep_options(options)
        if options.task_user is not None or options.task_users is not None:
            data_folder.let_tasks_pass()
        with data_folder.log.open("a", encoding="utf-8") as log:
            raise_descriptor_limit()
            if verbose:
                observability.set_up_logs(form, "info", sys.stderr, bytes_max=bytes_max)
            else:
                observability.set_up_logs(form, "info", log, bytes_max=LOG_BYTES_MAX)
            return uvloop.run(_keep(data_folder, make(data_folder, options, os.getpid()), output))
    except KeyboardInterrupt:
        # Before the loop listened to signals.
        raise
    except (ServerError, OSError) as error:
        problem, fix = str(error), f"run `{data_folder.command('doctor')}`"
        raise Failure(problem, where=str(data_folder.data), fix=fix) from error
    except BaseException as error:
        problem = "; ".join(f"{type(leaf).__name__}: {leaf}" for leaf in _leaves(error))
        raise
    finally:
        data_folder.release(problem)


def _leaves(error: BaseException) -> list[BaseException]:
    """What a group of errors is made of."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _leaves(each)]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType, reportUnknownMemberType] - a group's type is open
    return [error]


async def _keep(data_folder: DataFolder, platform: Kept, output: Output) -> int:
    asked, now, ctrl_c = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def interrupted() -> None:
        ctrl_c.set()
        (now if asked.is_set() else asked).set()

    def at_once() -> None:
        now.set()
        asked.set()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, interrupted)
    loop.add_signal_handler(signal.SIGTERM, asked.set)
    loop.add_signal_handler(signal.SIGQUIT, at_once)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        loop.add_signal_handler(signal.SIGHUP, asked.set)
    # What a start makes stays; looking for garbage in it only makes the start longer.
    gc.disable()
    running = asyncio.ensure_future(platform.run())
    # Tasks that ran before go on until a platform is there that can let them save.
    survivors = data_folder.nodes_live()
    ended, code = False, 0
    try:
        await _first(running, platform.ready, asked)
        collect_rarely()
        if platform.ready.is_set():
            announce(data_folder, platform.url, os.getpid(), output.result, output.warn)
            # Beside the waiting for an end, which opening nodes must not hold up.
            opening = asyncio.ensure_future(_open_nodes(data_folder, platform.url, output.warn))
            try:
                await _first(running, asked)
            finally:
                opening.cancel()
                await asyncio.gather(opening, return_exceptions=True)
            if not running.done():
                await _leave(data_folder, platform, now, output.note)
        else:
            output.note("stopped before it was ready")
            code = INTERRUPTED if ctrl_c.is_set() else 0
        ended = platform.ready.is_set() or now.is_set() or not survivors
        if not ended:
            again = f"the next `{data_folder.command('up')}` takes them over"
            output.note(f"tasks that ran before go on; {again}")
    finally:
        await _end(running)
        # A platform that could not start, or crashed, ends no task: the next one takes them over.
        if ended:
            await asyncio.to_thread(end_supervisors, data_folder.machine)
    return code


async def _open_nodes(data_folder: DataFolder, url: str, warn: Callable[[str], None]) -> None:
    """Open the nodes that the last stop drained. Whatever fails here ends no platform."""
    if not data_folder.drained.exists():
        return
    from services.allinone.stopping import reopen  # noqa: PLC0415 - slow to import

    try:
        await reopen(data_folder, url, warn)
    except Exception as problem:  # noqa: BLE001 - what is wrong here harms only these nodes
        warn(f"nodes that the last stop drained stay closed: {type(problem).__name__}: {problem}")


async def _leave(
    data_folder: DataFolder, platform: Kept, now: asyncio.Event, note: Callable[[str], None]
) -> None:
    """Let running tasks save, unless ``now`` is set."""
    if now.is_set():
        return
    import httpx  # noqa: PLC0415 - slow to import, and only a stop needs it

    from services.allinone.stopping import drain  # noqa: PLC0415

    note("stopping (Ctrl-C again: do not wait for running tasks)")
    saving = asyncio.ensure_future(drain(data_folder, platform.url, note))
    hurried = asyncio.ensure_future(now.wait())
    await asyncio.wait((saving, hurried), return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    if not saving.done():
        saving.cancel()
    for problem in await asyncio.gather(saving, return_exceptions=True):
        if isinstance(problem, httpx.HTTPError | TimeoutError):
            note(f"not every task could save: {problem}")
        elif isinstance(problem, Exception):
            raise problem


async def _first(running: asyncio.Future[None], *events: asyncio.Event) -> None:
    """Wait for an event, or raise what ended the platform."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait((running, *waits), return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if running.done():
        running.result()


async def _end(running: asyncio.Future[None]) -> None:
    """Cancel the platform and wait for its end. Libraries swallow a cancellation now and then; what
    is left is cancelled again, but not the platform itself, which may be ending its servers."""
    running.cancel()
    while not (await asyncio.wait((running,), timeout=STOP_AGAIN_SECONDS))[0]:
        left = asyncio.all_tasks() - {running, asyncio.current_task()}
        _log.warning("the stop takes long", waits_for=sorted(each.get_name() for each in left))
        for task in left:
            task.cancel()
    for problem in await asyncio.gather(running, return_exceptions=True):
        if isinstance(problem, Exception):
            raise problem


def main() -> int:
    """``python -m services.allinone DIR [OPTIONS]``: keep the folder's platform with these options
    (JSON), or with its kept ones. Every line on standard error is JSON: it is the log."""
    observability.set_up_logs("json", "info", sys.stderr)
    observability.log_stray_errors()
    try:
        data_folder = DataFolder(Path(sys.argv[1]))
        given = sys.argv[2:]
        options = options_of(json.loads(given[0])) if given else data_folder.options() or Options()
        return keep_here(data_folder, options, verbose=True, bytes_max=LOG_BYTES_MAX, output=LOG)
    except Failure as failure:
        _log.error(failure.what, where=failure.where, fix=failure.fix)
        return failure.code
    except KeyboardInterrupt:
        _log.info("interrupted")
        return INTERRUPTED
    except (Exception, BaseExceptionGroup):  # noqa: BLE001 - its log has it
        _log.exception("the platform crashed")
        return 1
