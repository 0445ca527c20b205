"""Commands inside ranks that are pods. Used by ``runtime.py``; see ``exec_port.ExecProcess``.

The command runs through the image's ``sh``, which marks it with a variable: hanging up does not end
a command in a container, so a second one ends everything that has the mark.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

import structlog

from libs.contracts.messages import ExecEnd, ExecStream
from libs.kube.client import KubeClient
from libs.kube.container_exec import STDIN, STDOUT, ContainerExec, open_exec
from libs.kube.transport import (
    ConfigurationError,
    ConnectionFailedError,
    UpgradeRefusedError,
)
from libs.pods.kubernetes_names import MAIN
from services.launcher.runtimes.exec_port import ExecOrder, ExecRefusedError
from services.launcher.runtimes.port import RuntimeUnavailableError

FORBIDDEN, SERVER_ERROR = 403, 500
MARK = (
    'export SHIFTWORK_EXEC="$1"; [ -z "$2" ] || export TERM="$2"; shift 2; '
    # The user's shell, else bash, else sh.
    '[ $# -gt 0 ] || for shell in "$SHELL" bash; do '
    'command -v "$shell" >/dev/null 2>&1 && exec "$shell"; done; '
    '[ $# -gt 0 ] || exec sh; exec "$@"'
)
CLEAR = (
    'for p in /proc/[0-9]*; do tr "\\0" "\\n" 2>/dev/null <$p/environ | '
    'grep -qx "SHIFTWORK_EXEC=$1" && kill -9 ${p#/proc/}; done; true'
)
CLEAR_SECONDS = 10.0
NO_INPUT_END = (
    "the API server cannot end the input of a command; that needs Kubernetes 1.30 or later"
)
_log = structlog.stdlib.get_logger(__name__)


class PodExec:
    """``exec_port.ExecProcess`` of a pod."""

    def __init__(self, container: ContainerExec) -> None:
        self._container = container
        self._problem = ""

    async def read(self) -> tuple[ExecStream, bytes] | None:
        """See ``exec_port.ExecProcess``."""
        found = await self._container.read()
        if found is None:
            return None
        channel, data = found
        return ExecStream.STDOUT if channel == STDOUT else ExecStream.STDERR, data

    async def write(self, data: bytes) -> None:
        """See ``exec_port.ExecProcess``."""
        await self._container.write(STDIN, data)

    async def close_input(self) -> None:
        """See ``exec_port.ExecProcess``. Raises ``ExecRefusedError`` where the API server cannot
        do that: the command would wait for ever."""
        if not self._container.can_close_input:
            raise ExecRefusedError(NO_INPUT_END)
        await self._container.close_input()

    async def resize(self, rows: int, columns: int) -> None:
        """See ``exec_port.ExecProcess``."""
        await self._container.resize(rows, columns)

    async def wait(self) -> ExecEnd:
        """See ``exec_port.ExecProcess``."""
        ended = self._container.ended
        assert ended is not None, "the output was read to its end"
        if ended.code is None and ("not found" in ended.problem or "no such" in ended.problem):
            return ExecEnd(problem="the image has no sh, which every session needs")
        return ExecEnd(code=ended.code, problem=ended.problem)


@contextlib.asynccontextmanager
async def open_pod_exec(
    client: KubeClient, pod_path: str, order: ExecOrder
) -> AsyncGenerator[PodExec]:
    """Start a command in a pod; what is left of it is killed when the context is closed."""
    term = order.term if order.terminal else ""
    argv = ["sh", "-c", MARK, "sh", order.session, term, *order.argv]
    try:
        async with open_exec(
            client.transport, pod_path, MAIN, argv, terminal=order.terminal
        ) as container:
            process = PodExec(container)
            if order.terminal and order.rows > 0 and order.columns > 0:
                await process.resize(order.rows, order.columns)
            try:
                yield process
            finally:
                await _clear(client, pod_path, order.session)
    except UpgradeRefusedError as problem:
        if problem.status == FORBIDDEN:
            fix = "it needs the right to create pods/exec in the tasks' namespace"
            raise ExecRefusedError(f"the launcher may not run commands in pods; {fix}") from None
        if problem.status < SERVER_ERROR:
            raise ExecRefusedError("the rank's container does not run") from None
        raise RuntimeUnavailableError(str(problem)) from None
    except (ConnectionFailedError, ConfigurationError) as problem:
        raise RuntimeUnavailableError(str(problem)) from problem


async def _clear(client: KubeClient, pod_path: str, session: str) -> None:
    """Kill what a session has left in its container. If that fails, it ends with the rank."""
    try:
        problem = await client.run_in(
            pod_path, MAIN, ["sh", "-c", CLEAR, "sh", session], CLEAR_SECONDS
        )
    except Exception as error:  # noqa: BLE001 - the session is over in any case
        problem = str(error)
    if problem:
        # The container is gone, or its image has not what this takes.
        _log.info("a session's container was not cleared", pod=pod_path, problem=problem)
