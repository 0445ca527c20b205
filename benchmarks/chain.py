"""The floor of P1 and P5: the bare primitives of the durable path, on servers of their own.

The same servers with the same configuration as the platform's, driven by the plain clients: what
is left when the platform itself costs nothing. One thing after the other, nothing else running.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

from benchmarks.harness import connected, now_s, written_times
from services.allinone.embedded.credentials import NATS_ADMIN, Credentials, ensure_credentials
from services.allinone.embedded.nats import Nats
from services.allinone.embedded.postgres import DATABASE, Postgres

BODY = b"x" * 900
HOPS = 2


@dataclass
class Chain:
    """Open connections, ready to be timed."""

    folder: Path
    database: Any
    jetstream: Any
    pull: Any
    client: Any

    async def commit(self) -> None:
        """One durable row."""
        await self.database.execute("INSERT INTO chain (body) VALUES ($1)", BODY)

    async def hop(self) -> None:
        """One event: stored by the server, pulled by its durable, acknowledged."""
        pulled = asyncio.ensure_future(self.pull.fetch(1, timeout=5))
        await asyncio.sleep(0)
        await self.jetstream.publish("chain.event", BODY)
        (message,) = await pulled
        await message.ack_sync()

    async def ask(self) -> None:
        """One request and its reply."""
        await self.client.request("chain.ask", BODY, timeout=5)

    async def spawn(self, number: int, ranks: int) -> float:
        """Start the child ``ranks`` times; returns when the last one wrote its first byte."""
        prefix = self.folder / f"{number}"
        pids = [
            os.posix_spawn(  # noqa: ASYNC221 - what is measured
                "/bin/sh",
                ["/bin/sh", "-c", f'exec date +%s.%N >"{prefix}.$RANK"'],
                {"PATH": "/usr/bin:/bin", "RANK": str(rank)},
            )
            for rank in range(ranks)
        ]
        for pid in pids:
            await asyncio.to_thread(os.waitpid, pid, 0)
        times = written_times(prefix, ranks)
        assert times is not None, "the children have ended"
        return max(times)

    async def chain(self, number: int, ranks: int) -> float:
        """Commit, the hops of the path (submit to scheduler, scheduler to launcher), the child."""
        began = now_s()
        await self.commit()
        for _ in range(HOPS):
            await self.hop()
        return await self.spawn(number, ranks) - began

    async def walk(self, number: int, ranks: int) -> float:
        """Every durable step of the platform's path, bare: a question to submit and its commit, an
        event to the scheduler, its fact and its decision, an event to the launcher, its fact and
        its order, the child.
        """
        began = now_s()
        await self.ask()
        await self.commit()
        for _ in range(HOPS):
            await self.hop()
            await self.commit()
            await self.commit()
        return await self.spawn(number, ranks) - began

    async def preemption(self, number: int, ranks: int) -> float:
        """One preemption, bare: the decision and its event, the question with the checkpoint and
        its commit, the exit's commit and event, the assignment's commit and event, the child.
        """
        began = now_s()
        await self.commit()
        await self.hop()
        await self.ask()
        for _ in range(HOPS):
            await self.commit()
            await self.hop()
        await self.commit()
        return await self.spawn(number, ranks) - began


@contextlib.asynccontextmanager
async def open_chain() -> AsyncGenerator[Chain]:
    """The servers and the connections, for as long as the context is open."""
    folder = Path(tempfile.mkdtemp(prefix="shiftwork-bench-chain-"))
    ensure_credentials(folder)
    credentials = Credentials(folder)
    postgres = Postgres(folder, credentials)
    bus = Nats(folder, credentials, {})
    try:
        await postgres.start()
        await postgres.prepare()
        await bus.start()
        async with connected(
            postgres.url("postgres", DATABASE), postgres.admin_password
        ) as database:
            await database.execute("CREATE TABLE chain (id bigserial PRIMARY KEY, body bytea)")
            password = credentials.nats_password(NATS_ADMIN)
            client = await nats.connect(bus.url, user=NATS_ADMIN, password=password)
            try:
                jetstream = client.jetstream()
                await jetstream.add_stream(StreamConfig(name="CHAIN", subjects=["chain.event"]))
                pull = await jetstream.pull_subscribe(
                    "chain.event",
                    durable="chain",
                    config=ConsumerConfig(ack_policy=AckPolicy.EXPLICIT),
                )

                async def reply(message: Any) -> None:  # noqa: ANN401 - the client's message
                    await message.respond(b"{}")

                await client.subscribe("chain.ask", cb=reply)
                (folder / "out").mkdir()
                yield Chain(folder / "out", database, jetstream, pull, client)
            finally:
                await client.close()
    finally:
        await bus.stop()
        await postgres.stop()
        postgres.remove_temporary()
        shutil.rmtree(folder, ignore_errors=True)


async def measure(count: int, ranks: int) -> dict[str, list[float]]:
    """The primitives and the chains, in seconds, ``count`` times each, taking turns."""
    names = ("commit", "hop", "chain", "walk", "preemption")
    found: dict[str, list[float]] = {name: [] for name in names}
    async with open_chain() as chain:
        for number in range(count + 5):
            for name, step in (("commit", chain.commit), ("hop", chain.hop)):
                began = time.perf_counter()
                await step()
                found[name].append(time.perf_counter() - began)
            chains = (
                ("chain", chain.chain),
                ("walk", chain.walk),
                ("preemption", chain.preemption),
            )
            for place, (name, whole) in enumerate(chains):
                found[name].append(await whole(len(chains) * number + place, ranks))
    # The first few warm the connections up.
    return {name: values[5:] for name, values in found.items()}
