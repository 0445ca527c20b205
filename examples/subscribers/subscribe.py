"""Follow the platform's events with a stock NATS client.

    pip install nats-py
    python subscribe.py "$(shiftwork monitor-credentials NAME)" [--history]

Prints each event as a line: its number, its type, its subject and its body. ``--history`` begins
with what was kept and not acknowledged yet; without it only new events are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import nats
import nats.errors


def show(number: object, headers: dict[str, Any], subject: str, body: bytes) -> None:
    """Print one event."""
    print(number, headers["ce-type"], subject, body.decode(), flush=True)


async def main(given: dict[str, str], *, history: bool) -> None:
    """Print events until interrupted."""
    client = await nats.connect(given["url"], user=given["user"], password=given["password"])
    if not history:
        events = await client.subscribe(given["live"])
        # What is published before the server has the subscription does not come.
        await client.flush()
        print("subscribed", flush=True)
        async for message in events.messages:
            headers = dict(message.headers or {})
            # The numbers are consecutive: a gap shows that events were missed.
            show(headers["Nats-Sequence"], headers, message.subject, message.data)
        return
    stream = client.jetstream(domain=given["domain"])
    durable = await stream.pull_subscribe_bind(consumer=given["durable"], stream=given["stream"])
    while True:
        with contextlib.suppress(nats.errors.TimeoutError):
            for message in await durable.fetch(100, timeout=5):
                number = message.metadata.sequence.stream
                show(number, dict(message.headers or {}), message.subject, message.data)
                # The next start goes on behind it.
                await message.ack()


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("file", type=Path)
parser.add_argument("--history", action="store_true")
arguments = parser.parse_args()
with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main(json.loads(arguments.file.read_text()), history=arguments.history))
