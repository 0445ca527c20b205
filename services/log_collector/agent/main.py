"""Runs the agent of a node: settings from the environment, the spool, samples, HTTP.

Exit status 0 after SIGTERM or SIGINT, 1 when a part died, 2 for bad settings. It needs no database
and no bus, and imports neither: there is one on every node.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import sys
import time
from collections.abc import Callable
from typing import NoReturn

import uvloop
from pydantic import ValidationError

from libs.service import observability
from libs.service.clock import SystemClock
from libs.service.http import serve_http
from libs.service.loop import pause
from services.log_collector.agent.http_app import AgentApp, Token
from services.log_collector.agent.sampling import NodeSampler, Sampling
from services.log_collector.agent.settings import AgentSettings
from services.log_collector.agent.spool import SERVICE, Spool


async def run(
    settings: AgentSettings, token: Token, *, on_bound: Callable[[int], None] | None = None
) -> None:
    """Serve until cancelled; raises what killed a part."""
    spool = Spool(
        settings.pods_dir,
        settings.spool_dir,
        namespace=settings.namespace,
        container=settings.container,
        limits=settings.limits(),
        clock=SystemClock(),
        monotonic=time.monotonic,
    )
    turn = asyncio.Lock()
    sampling = Sampling(NodeSampler(settings)) if settings.sample else None
    await asyncio.to_thread(spool.load)
    observability.log(SERVICE).info("collects", outputs=spool.outputs, problem=spool.problem)
    async with asyncio.TaskGroup() as group:
        group.create_task(_scan_repeatedly(settings, spool, turn), name="scan")
        group.create_task(
            serve_http(
                AgentApp(spool, turn, token, secrets.token_hex(8), sampling),
                host=settings.host,
                port=settings.port,
                ready=lambda: (not spool.problem, spool.problem or "ready"),
                on_bound=on_bound,
            ),
            name="http",
        )


async def _scan_repeatedly(settings: AgentSettings, spool: Spool, turn: asyncio.Lock) -> None:
    """Scan for new files at each tick, and prune the spool now and then."""
    prune_at = time.monotonic()
    while True:
        async with turn:
            await asyncio.to_thread(spool.scan)
            if time.monotonic() >= prune_at:
                await asyncio.to_thread(spool.prune)
                prune_at = time.monotonic() + settings.prune_seconds
        await pause(settings.poll_seconds)


def main() -> NoReturn:
    """Entry of ``python -m services.log_collector.agent``."""
    try:
        settings = AgentSettings()  # pyright: ignore[reportCallIssue] - fields come from the environment
    except ValidationError as error:
        for problem in error.errors():
            name = "SHIFTWORK_LOG_AGENT_" + "_".join(str(part) for part in problem["loc"]).upper()
            sys.stderr.write(f"{name}: {problem['msg']}. Set it in the environment.\n")
        raise SystemExit(2) from None
    try:
        token = Token(settings.token_file)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"SHIFTWORK_LOG_AGENT_TOKEN_FILE: {error}. Mount the agents' Secret.\n")
        raise SystemExit(2) from None
    observability.set_up_logs(settings.log_format, settings.log_level)
    raise SystemExit(uvloop.run(_main(settings, token)))


async def _main(settings: AgentSettings, token: Token) -> int:
    task, loop, log = asyncio.current_task(), asyncio.get_running_loop(), observability.log(SERVICE)
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await run(settings, token)
    except asyncio.CancelledError:
        log.info("stopped")
        return 0
    except BaseExceptionGroup:
        log.exception("a part died")
        return 1
    except OSError as error:
        log.error("cannot start", problem=str(error))  # noqa: TRY400 - the text is enough
        return 1
    finally:
        with contextlib.suppress(ValueError, RuntimeError):
            loop.remove_signal_handler(signal.SIGTERM)
    return 1
