"""Asks ranks that are processes of this machine whether they are ready, by their ports. Called by
``loop.py``; where ranks are pods, their kubelets do this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from libs.contracts.ids import RunId
from libs.contracts.start_order import ready_probe
from services.launcher.domain import role_order
from services.launcher.domain.model import Listing, RankState, Run
from services.launcher.hosts import Host

# One probe, from connecting to the first line of the answer.
PROBE_SECONDS = 2.0
PARALLEL_MAX = 16
# Of one round; the others come in the next one, those first that have waited longest.
ROUND_MAX = 256
LINE_BYTES_MAX = 1024
# As kubelets have it.
READY_CODES = range(200, 400)


@dataclass(frozen=True, slots=True)
class Target:
    """One process to probe. ``path`` is empty for a plain connection."""

    run_id: RunId
    rank: int
    start: int
    address: str
    port: int
    path: str
    period_seconds: float


def probe_targets(
    runs: Iterable[Run], listing: Listing, hosts_of: Callable[[Run], Sequence[Host]]
) -> list[Target]:
    """The running ranks with a probe that are not known to be ready while other roles wait."""
    found: list[Target] = []
    for run in runs:
        if run.spec is None or run.id not in listing.runs:
            continue
        awaited = role_order.awaited(run)
        probes = {
            role.name: ready_probe(role)
            for role in run.spec.roles
            if role.name in awaited and role.ready is not None and role.ready.port
        }
        if not probes:
            continue
        ranks, ready = listing.runs[run.id].ranks, frozenset(run.ready_ranks)
        for host in hosts_of(run):
            probe, rank = probes.get(host.role), ranks.get(host.rank)
            if probe is None or rank is None or rank.state is not RankState.RUNNING:
                continue
            port = host.ports.get(probe.port)
            if port is None or host.rank in ready:
                continue
            period_s = probe.period_seconds
            found.append(
                Target(run.id, host.rank, rank.start, host.address, port, probe.path, period_s)
            )
    return found


class Prober:
    """Probes each target at its period. It remembers only when the next probe is due."""

    def __init__(self) -> None:
        # In the event loop's seconds.
        self._due_s: dict[Target, float] = {}

    def clear(self) -> None:
        """Forget everything."""
        self._due_s.clear()

    async def round(self, targets: Sequence[Target]) -> tuple[list[Target], float | None]:
        """Probe the targets that are due. Returns those that are ready, and in how many seconds
        the next one is due (None: there is none)."""
        now_s = asyncio.get_running_loop().time()
        self._due_s = {each: self._due_s.get(each, now_s) for each in targets}
        due = sorted(
            (each for each in targets if self._due_s[each] <= now_s), key=self._due_s.__getitem__
        )[:ROUND_MAX]
        gate = asyncio.Semaphore(PARALLEL_MAX)

        async def one(target: Target) -> bool:
            async with gate:
                return await is_ready(target)

        answers = await asyncio.gather(*map(one, due))
        now_s = asyncio.get_running_loop().time()
        for target, ready in zip(due, answers, strict=True):
            if ready:
                del self._due_s[target]
            else:
                self._due_s[target] = now_s + target.period_seconds
        next_s = min(self._due_s.values(), default=None)
        ready_now = [target for target, ready in zip(due, answers, strict=True) if ready]
        return ready_now, None if next_s is None else max(0.0, next_s - now_s)


async def is_ready(target: Target) -> bool:
    """Whether the port accepts a connection, or answers the path with 200 to 399."""
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            reader, writer = await asyncio.open_connection(
                target.address, target.port, limit=LINE_BYTES_MAX
            )
            try:
                return not target.path or await _answers(target, reader, writer)
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
        # ValueError: a line that is longer than the limit.
        return False


async def _answers(
    target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    host = f"{target.address}:{target.port}"
    lines = (f"GET {target.path} HTTP/1.1", f"Host: {host}", "Connection: close", "", "")
    writer.write("\r\n".join(lines).encode("ascii"))
    version, _, rest = (await reader.readline()).decode("ascii", "replace").partition(" ")
    code = rest[:3]
    return version.startswith("HTTP/") and code.isdecimal() and int(code) in READY_CODES
