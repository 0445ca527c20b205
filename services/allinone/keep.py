"""Keep one platform running in this process: signals, messages for people, an orderly end.

``shiftwork up`` calls it in the foreground, ``python -m services.allinone DIR`` in the background,
``dev`` with a platform whose services are processes.
SIGTERM and the first Ctrl-C let running tasks save; SIGQUIT and the second Ctrl-C do not wait.
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
from pathlib import Path
from typing import Literal, Protocol

import uvloop
from shiftwork.cli import render
from shiftwork.cli.failures import Failure
from shiftwork.cli.render import safe

from libs.service import observability
from libs.service.connections import raise_descriptor_limit
from libs.service.run import collect_rarely
from services.allinone.checks import check_start
from services.allinone.chosen import make_current
from services.allinone.embedded.processes import ServerError
from services.allinone.place import KeptByAnotherError, Options, Place
from services.allinone.platform import Platform
from services.launcher.runtimes.ending import end_supervisors

# Of `up.log`; as much again may be in `up.log.1`.
LOG_BYTES_MAX = 32 << 20


class Kept(Protocol):
    """A platform that can be kept: ``ready`` is set once it serves at ``url``."""

    ready: asyncio.Event
    url: str

    async def run(self) -> None:
        """Run until cancelled."""
        ...


def say(text: str) -> None:
    """A line for the person at the terminal, if there still is one."""
    with contextlib.suppress(OSError):
        sys.stdout.write(f"{safe(text)}\n")
        sys.stdout.flush()


def show_step(step: str) -> None:
    """What is started now, for a person who waits."""
    if render.is_terminal(sys.stderr):
        render.note(f"starting {step}")


def keep_here(
    place: Place,
    options: Options,
    *,
    verbose: bool = False,
    form: Literal["json", "console"] = "json",
    make: Callable[[Place, Options, int], Kept] = Platform,
    warn: Callable[[str], None] = render.warning,
) -> int:
    """Run until told to end; the exit status. ``make(place, options, pid)`` builds the platform,
    and ``warn`` gets what is doubtful about a start."""
    check_start(place, options, warn)
    try:
        place.take()
    except KeptByAnotherError as error:
        raise Failure(
            "another process keeps this data folder",
            where=str(place.data),
            fix=f"it is process {error.keeper.pid}" if error.keeper else "try again",
        ) from error
    problem = ""
    try:
        place.keep_options(options)
        if options.task_user is not None or options.task_users is not None:
            place.let_tasks_pass()
        with place.log.open("a", encoding="utf-8") as log:
            raise_descriptor_limit()
            if verbose:
                observability.set_up_logs(form, "info", sys.stderr)
            else:
                observability.set_up_logs(form, "info", log, bytes_max=LOG_BYTES_MAX)
            return uvloop.run(_keep(place, make(place, options, os.getpid())))
    except (ServerError, OSError) as error:
        problem = str(error)
        raise Failure(problem, where=str(place.data), fix="run `shiftwork doctor`") from error
    except BaseException as error:
        problem = "; ".join(f"{type(leaf).__name__}: {leaf}" for leaf in _leaves(error))
        raise
    finally:
        place.release(problem)


def _leaves(error: BaseException) -> list[BaseException]:
    """What a group of errors is made of."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _leaves(each)]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType, reportUnknownMemberType] - a group's type is open
    return [error]


async def _keep(place: Place, platform: Kept) -> int:
    asked, now = asyncio.Event(), asyncio.Event()

    def interrupted() -> None:
        (now if asked.is_set() else asked).set()

    def at_once() -> None:
        now.set()
        asked.set()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, interrupted)
    loop.add_signal_handler(signal.SIGTERM, asked.set)
    loop.add_signal_handler(signal.SIGQUIT, at_once)
    # What a start makes stays; looking for garbage in it only makes the start longer.
    gc.disable()
    running = asyncio.ensure_future(platform.run())
    ended = False
    try:
        await _first(running, platform.ready, asked)
        collect_rarely()
        if platform.ready.is_set():
            _announce(place, platform)
            if place.drained.exists():
                from services.allinone.stopping import reopen  # noqa: PLC0415 - slow to import

                await reopen(place, platform.url)
            await _first(running, asked)
            if not running.done():
                await _leave(place, platform, now)
        else:
            say("stopped before it was ready")
        ended = True
    finally:
        await _end(running)
        # A platform that could not start, or crashed, ends no task: the next one takes them over.
        if ended:
            await asyncio.to_thread(end_supervisors, place.machine)
    return 0


def _announce(place: Place, platform: Kept) -> None:
    problem = make_current(place, platform.url)
    say(f"Shiftwork is ready at {platform.url}")
    say(f"Administrator's token: {place.credentials.admin_token_file}")
    if problem:
        render.warning(problem)


async def _leave(place: Place, platform: Kept, now: asyncio.Event) -> None:
    """Let running tasks save, unless told not to wait."""
    if now.is_set():
        return
    import httpx  # noqa: PLC0415 - slow to import, and only a stop needs it

    from services.allinone.stopping import drain  # noqa: PLC0415

    say("stopping (Ctrl-C again: do not wait for running tasks)")
    saving = asyncio.ensure_future(drain(place, platform.url, say))
    hurried = asyncio.ensure_future(now.wait())
    await asyncio.wait((saving, hurried), return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    if not saving.done():
        saving.cancel()
    for problem in await asyncio.gather(saving, return_exceptions=True):
        if isinstance(problem, httpx.HTTPError | TimeoutError):
            say(f"not every task could save: {problem}")
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
    running.cancel()
    for problem in await asyncio.gather(running, return_exceptions=True):
        if isinstance(problem, Exception):
            raise problem


def main() -> int:
    """``python -m services.allinone DIR [OPTIONS]``: keep the folder's platform with these options
    (JSON), or with its kept ones."""
    place = Place(Path(sys.argv[1]))
    try:
        given = sys.argv[2:]
        options = Options(**json.loads(given[0])) if given else place.options() or Options()
        # Whoever started this process has been told what is doubtful; its log is for machines.
        return keep_here(place, options, warn=lambda _: None)
    except Failure as failure:
        sys.stderr.write(f"{failure.what} ({failure.where}): {failure.fix}\n")
        return failure.code
