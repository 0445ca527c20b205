"""A task starts with its environment, and a monitoring user of the platform sees none of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.msg import Msg

from tests.e2e.conftest import Shiftwork
from tests.kit.waiting import until

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(120)]

TOKEN, DSN, WORD = "hf_Zq3vT8xLw2Rk9", "postgres://me:p@ss-9@db", "an-argument-Wm4"
IN_TEMPLATE, LINE = "in-the-template-Kp7", "printed-Jd5"
TEMPLATE = {
    "spec": {"containers": [{"name": "main", "env": [{"name": "A", "value": IN_TEMPLATE}]}]}
}
PROGRAM = """
import os, sys
from pathlib import Path
Path("got").write_text("\\n".join([os.environ["HF_TOKEN"], os.environ["DSN"], sys.argv[1]]))
sys.exit("RuntimeError: printed-" + "Jd5")
"""


async def followed(shiftwork: Shiftwork, folder: Path) -> list[Msg]:
    """Submit the task as a monitoring user follows; what it reads, live and of the last days."""
    made = ("monitor-credentials", "probe", "--data", str(shiftwork.data))
    path = (await asyncio.to_thread(shiftwork.good, *made)).out.strip()
    user: dict[str, Any] = json.loads(await asyncio.to_thread(Path(path).read_text))
    client = await nats.connect(user["url"], user=user["user"], password=user["password"])
    try:
        live: list[Msg] = []

        async def take(message: Msg) -> None:
            live.append(message)

        await client.subscribe(user["live"], cb=take)
        await client.flush()
        task = await asyncio.to_thread(
            shiftwork.submit,
            *("--gpus-per-node", "0", "--workdir", str(folder), "--retries", "0"),
            *("--env", f"HF_TOKEN={TOKEN}", "--env", f"DSN={DSN}", "--secret-env", "DSN"),
            *("--pod-template", str(folder / "template.json")),
            *("--", "python", "program.py", WORD),
        )
        await asyncio.to_thread(shiftwork, "wait", task)
        last = f"evt.run.{task}.error_lines_found"
        await until(lambda: any(message.subject == last for message in live), 30)
        jetstream = client.jetstream(domain=user["domain"])
        durable = await jetstream.pull_subscribe_bind(
            consumer=user["durable"], stream=user["stream"]
        )
        kept: list[Msg] = []
        while not any(message.subject == last for message in kept):
            kept += await durable.fetch(100, timeout=30)
        subjects = {message.subject for message in kept}
        assert subjects == {message.subject for message in live}
        for name in ("task.{}.submitted", "run.{}.assigned", "run.{}.exited"):
            assert f"evt.{name.format(task)}" in subjects
        return [*live, *kept]
    finally:
        await client.close()


def test_a_monitoring_user_reads_nothing_of_what_a_task_starts_with(
    shiftwork: Shiftwork, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "template.json").write_text(json.dumps(TEMPLATE))
    messages = asyncio.run(followed(shiftwork, tmp_path))
    # The launcher started it with all of it, and its owner sees the rest.
    assert (tmp_path / "got").read_text().splitlines() == [TOKEN, DSN, WORD]
    read = b"\n".join(
        json.dumps([each.subject, each.headers]).encode() + each.data for each in messages
    )
    found = [text for text in (TOKEN, DSN, WORD, IN_TEMPLATE, LINE) if text.encode() in read]
    assert found == []
    assert b'"secret_env":["DSN"]' in read
