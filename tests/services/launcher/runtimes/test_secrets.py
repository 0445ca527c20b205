"""The values of a rank's secrets are masked before its output is written, whatever dies."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from pathlib import Path

import pytest

from services.launcher.domain.model import RankState
from services.launcher.runtimes.node import proc
from services.launcher.runtimes.node.output_writer import SECRETS
from tests.kit.launcher_builders import an_order
from tests.services.launcher.runtimes.test_process import RUN, Box

VALUE = "hf_Zq3vT8xLw2Rk9"
ENV = {"HF_TOKEN": VALUE, "PLAIN": "not-a-secret"}
NAMES = ("HF_TOKEN",)
# The first half of the value, then the second once a file is there.
HALVES = """
import os, sys, time
from pathlib import Path

value = os.environ["HF_TOKEN"]
sys.stdout.write("ready\\n" + value[:9])
sys.stdout.flush()
while not Path({go!r}).exists():
    time.sleep(0.01)
sys.stdout.write(value[9:] + " after\\n")
sys.stdout.flush()
Path({go!r} + "ne").touch()
time.sleep({linger})
"""


async def halves(box: Box, linger: float = 0) -> Path:
    """A rank that has written half of its secret."""
    go = box.folder / "go"
    await box.py(HALVES.format(go=str(go), linger=linger), env=ENV, secrets=NAMES)
    await box.started()
    await asyncio.sleep(0.1)
    assert box.output() == "ready\n"
    return go


def kill_writer(box: Box) -> None:
    writer = proc.by_signature((box.node / "output.lock").read_text())
    assert writer is not None
    os.kill(writer.pid, signal.SIGKILL)


async def test_a_secret_is_masked_and_the_rest_is_unchanged(box: Box) -> None:
    await box.sh(
        "echo $HF_TOKEN $PLAIN; printf '\\r10%%|%s|' $HF_TOKEN; echo $HF_TOKEN >&2;"
        " printf %s $HF_TOKEN | base64; printf %s $HF_TOKEN",
        env=ENV,
        secrets=NAMES,
    )
    await box.over()
    assert box.log.read_bytes() == b"*** not-a-secret\n\r10%|***|***\n***Q==\n***"


async def test_without_a_declaration_nothing_is_masked(box: Box) -> None:
    await box.sh("printf %s $HF_TOKEN", env=ENV)
    await box.over()
    assert box.output() == VALUE


async def test_a_secret_that_is_written_in_two_parts_is_masked(box: Box) -> None:
    go = await halves(box)
    go.touch()
    await box.over()
    assert box.output() == "ready\n*** after\n"


async def test_it_is_masked_when_the_supervisor_is_killed_in_between(box: Box) -> None:
    go = await halves(box)
    os.kill(box.supervisor.pid, signal.SIGKILL)
    go.touch()
    await box.started("after")
    assert (await box.over()).state is RankState.LOST
    assert box.output() == "ready\n*** after\n"


@pytest.mark.parametrize("with_supervisor", [False, True])
async def test_the_rest_of_it_is_masked_when_the_writer_is_killed_in_between(
    box: Box, with_supervisor: bool
) -> None:
    # Without supervisor and writer, only the rank itself keeps what is in its pipe.
    go = await halves(box, linger=300 if with_supervisor else 0)
    if with_supervisor:
        # Its successor knows the secret only from the disk.
        os.kill(box.supervisor.pid, signal.SIGKILL)
    kill_writer(box)
    go.touch()
    async with asyncio.timeout(5):
        while not (box.folder / "gone").exists():  # noqa: ASYNC110 - files set no events
            await asyncio.sleep(0.01)
    await box.over()
    text = box.output()
    assert "output may be missing here" in text
    assert VALUE[9:] not in text
    assert text.endswith("*** after\n")


async def test_an_unfinished_line_that_ends_like_a_secret_begins_is_shown(box: Box) -> None:
    go = box.folder / "go"
    script = "printf 'ready? h'; until [ -e $0 ]; do sleep 0.01; done; printf %s ${HF_TOKEN#h}"
    await box.runtime.launch(
        an_order(RUN, ["sh", "-c", script, str(go)], env=ENV, secrets=NAMES),
    )
    await box.started("ready? h")
    go.touch()
    await box.over()
    assert box.output() == "ready? h***"


async def test_values_are_in_a_private_file_while_the_rank_writes(box: Box) -> None:
    await box.sh("echo ready; read x < $0 || sleep 60", env=ENV, secrets=NAMES)
    await box.started()
    path = box.rank_folder / SECRETS
    assert VALUE in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_uid == os.getuid()
    await box.clear()
    assert not path.exists()
    assert VALUE not in (box.node / "journal").read_text()


@pytest.mark.parametrize("text", ["{", "5", "null", '{"a": "b"}', "[" * 100_000])
async def test_output_is_not_written_if_its_secrets_cannot_be_read(box: Box, text: str) -> None:
    await box.sh(
        f"echo ready; until [ -e {box.folder / 'go'} ]; do sleep 0.01; done; echo $HF_TOKEN",
        env=ENV,
        secrets=NAMES,
    )
    await box.started()
    (box.rank_folder / SECRETS).write_text(text)
    kill_writer(box)
    (box.folder / "go").touch()
    await box.over()
    assert "what follows is not kept: the secrets are damaged" in box.output()
    assert VALUE not in box.output()
