"""Run a service as a process: signals, HTTP, exit status. The entry of ``python -m services.X``.

Everything it is made of runs under one TaskGroup, which also owns HTTP (see ``runner.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import NoReturn

import uvloop
from pydantic import ValidationError

from libs.service import observability
from libs.service.connections import raise_descriptor_limit
from libs.service.http import serve_http
from libs.service.runner import DOWN, Runner
from libs.service.schema_wait import wait_for_schema
from libs.service.settings import SETTING_ERROR, BaseServiceSettings
from libs.service.wiring import Wiring, connect

# Thresholds of the collector: new objects, and rounds of the younger generations.
COLLECT_AFTER = (25_000, 20, 20)


def collect_rarely() -> None:
    """Freeze the objects that exist now (code, types, schemas), and run the garbage collector less
    often: a service's memory is freed by reference counts, and each full collection is a pause.

    Called once a process is set up.
    """
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    gc.enable()


@contextlib.asynccontextmanager
async def stop_on_signal(stop: Callable[[], object]) -> AsyncGenerator[None]:
    """Call ``stop`` at SIGTERM and SIGINT while the context is open."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def run_with_http(runner: Runner) -> None:
    """The service and its HTTP side by side, until cancelled or one of them dies."""
    async with asyncio.TaskGroup() as group:
        group.create_task(runner.run(), name=runner.service.name)
        if runner.settings.http_port is not None:
            group.create_task(
                serve_http(
                    runner.service.app,
                    host=runner.settings.http_host,
                    port=runner.settings.http_port,
                    ready=lambda: runner.ready,
                    limits=runner.settings.http_limits(),
                    metrics_token=runner.settings.metrics_token(),
                    trusted_proxies=runner.settings.http_trusted_proxies,
                ),
                name=f"{runner.service.name}:http",
            )


def load_settings(wiring: Wiring) -> BaseServiceSettings:
    """The service's settings from the environment; prints what is wrong and exits with 2."""
    try:
        return wiring.settings()  # pyright: ignore[reportCallIssue] - fields come from the environment
    except ValidationError as error:
        for problem in setting_problems(wiring, error):
            names = ", ".join(problem.variables)
            fix = f"To correct it: {problem.fix}" if problem.fix else "Set it in the environment"
            sys.stderr.write(f"{names}: {problem.text}. {fix}.\n")
        raise SystemExit(2) from None


@dataclass(frozen=True, slots=True)
class SettingProblem:
    """What is wrong with a service's settings: the environment's variables, why, and the fix if it
    is not plain."""

    variables: tuple[str, ...]
    text: str
    fix: str = ""


def setting_problems(wiring: Wiring, error: ValidationError) -> list[SettingProblem]:
    """What is wrong with a service's settings."""
    prefix = wiring.settings.model_config.get("env_prefix", "")
    found: list[SettingProblem] = []
    for problem in error.errors():
        text = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == SETTING_ERROR:
            context = problem.get("ctx", {})
            found.append(SettingProblem(context["variables"], context["text"], context["fix"]))
        else:
            name = prefix + "_".join(str(part) for part in problem["loc"]).upper()
            found.append(SettingProblem((name,), text))
    return found


def main(wiring: Wiring) -> NoReturn:
    """Entry of ``python -m services.<name>``: settings from the environment, then run.

    Exit status 0 after SIGTERM or SIGINT, 1 when a part died, 2 for bad settings.
    """
    settings = load_settings(wiring)
    observability.set_up_logs(settings.log_format, settings.log_level)
    observability.log_stray_errors()
    raise_descriptor_limit()
    raise SystemExit(uvloop.run(_main(wiring, settings)))


async def _main(wiring: Wiring, settings: BaseServiceSettings) -> int:
    log, task = observability.log(wiring.name), asyncio.current_task()
    assert task is not None
    async with stop_on_signal(task.cancel):
        try:
            await wait_for_schema(wiring, settings)
            async with connect(wiring, settings) as ports:
                collect_rarely()
                await run_with_http(Runner(wiring.build(settings, ports), settings))
        except asyncio.CancelledError:
            log.info("stopped")
            return 0
        except DOWN as problem:
            log.error("cannot start", problem=str(problem))  # noqa: TRY400 - the text is enough
            return 1
        except (Exception, BaseExceptionGroup):
            log.exception("a part died")
            return 1
    return 1
