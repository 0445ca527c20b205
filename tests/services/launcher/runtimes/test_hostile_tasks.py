"""What a task's own processes can do to their node: they affect no other task."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from services.launcher.domain.model import RankState
from services.launcher.runtimes.node import proc, rank_processes
from tests.kit.launcher_builders import an_order, run_id
from tests.services.launcher.runtimes.test_process import HERE, RUN, Box, alive

NOBODY = 65_534
OTHER = run_id("other")


async def gone(pid: int) -> None:
    async with asyncio.timeout(5):
        while alive(pid):  # noqa: ASYNC110 - processes set no events
            await asyncio.sleep(0.01)


async def tear_the_journal(box: Box) -> None:
    """The supervisor dies, and the end of its journal is torn."""
    holder = box.supervisor
    os.kill(holder.pid, signal.SIGKILL)
    await gone(holder.pid)
    with (box.node / "journal").open("ab") as file:
        file.write(b'{"t": "st')
    await box.lead()


@contextmanager
def stranger(context: str, user: int | None = None) -> Iterator[int]:
    """A process that names a context which it may have invented."""
    child = subprocess.Popen(["sleep", "300"], env={"SHIFTWORK_CONTEXT": context}, user=user)
    try:
        yield child.pid
    finally:
        child.kill()
        child.wait()


# What a process claims about itself


@pytest.mark.parametrize(
    "text",
    [
        "task.1/0/../../../../../victim",
        "task.1/1/../0/context.json",
        "x",
        "notarun/0/context.json",
        "task.1/0",
        "task.01/7/context.json",
        "task.1/07/context.json",
        "../../victim/0/context.json",
    ],
)
async def test_an_invented_context_variable_names_no_path_and_no_run(box: Box, text: str) -> None:
    """After a fault of the journal, ranks are found by their environment."""
    await box.sh("exit 0")
    await box.over()
    victim = box.folder.parent / "victim"
    victim.write_text("of somebody else")
    with stranger(f"{box.node}/runs/{text}") as pid:
        await tear_the_journal(box)
        await box.runtime.launch(an_order(OTHER, ["sleep", "300"]))
        listing = await box.until(lambda seen: OTHER in seen.runs)
        assert set(listing.runs) == {RUN, OTHER}
        assert set(listing.runs[RUN].ranks) == {0}
        await box.runtime.forget(RUN, HERE, keep=True)
        assert alive(pid)
    assert victim.exists()
    named = (json.loads(line[9:]) for line in (box.node / "journal").read_bytes().splitlines())
    assert {record.get("run", "other.1") for record in named} <= {"task.1", "other.1"}


async def test_a_journal_record_without_meaning_affects_no_other_run(box: Box) -> None:
    """An earlier version recorded what a process had invented."""
    await box.sh("exit 3")
    await box.over()
    holder = box.supervisor
    os.kill(holder.pid, signal.SIGKILL)
    await gone(holder.pid)
    victim = box.folder.parent / "victim"
    victim.write_text("of somebody else")
    journal = box.node / "journal"
    start = box.start_record()
    with journal.open("a") as file:
        for record in (
            {**start, "run": "notarun"},
            {"t": "ended", "run": "../../x"},
            {"t": "exit"},
            {**start, "rank": 1, "context": str(victim)},
        ):
            file.write(json.dumps(record) + "\n")
    listing = await box.until(lambda seen: RUN in seen.runs and len(seen.runs[RUN].ranks) == 2)
    assert set(listing.runs) == {RUN}
    assert listing.runs[RUN].ranks[0].code == 3
    await box.until(lambda seen: seen.runs[RUN].ranks[1].over)
    await box.runtime.forget(RUN, HERE, keep=True)
    assert victim.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
async def test_a_process_of_another_user_does_not_count_as_a_rank(box: Box) -> None:
    await box.sh("sleep 300")
    await box.until(lambda seen: RUN in seen.runs)
    context = box.rank_folder / "context.json"
    (box.rank_folder.parent / "1").mkdir()
    (box.rank_folder.parent / "1/context.json").touch()
    os.chown(context, NOBODY - 1, -1)
    start = box.start_record()
    # The rank itself, whose start is known, and one whose start is not.
    with (
        stranger(str(context), NOBODY) as one,
        stranger(str(context.parents[1] / "1/context.json"), NOBODY) as two,
    ):
        holder = box.supervisor
        os.kill(holder.pid, signal.SIGKILL)
        await gone(holder.pid)
        # A version that wrote down no users.
        del start["uid"]
        journal = box.node / "journal"
        journal.write_text(json.dumps(start) + "\n" + '{"t": "st')
        listing = await box.until(lambda seen: RUN in seen.runs and seen.runs[RUN].ranks[0].over)
        assert set(listing.runs[RUN].ranks) == {0}
        assert listing.runs[RUN].ranks[0].state is RankState.LOST
        assert alive(one)
        assert alive(two)


def test_a_process_whose_environment_cannot_be_read_delays_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One example is a process that executes a program of an unresponsive file system: the kernel
    blocks the reader of its environment as long."""
    answers = threading.Event()
    asked: list[int] = []

    def environment(pid: int) -> bytes:
        asked.append(pid)
        if pid in (2, 3) and not answers.is_set():
            answers.wait(60)
        return b"NUMBER=%d\0" % pid

    monkeypatch.setattr(proc, "environment", environment)
    monkeypatch.setattr(proc, "user", {1: 10, 2: 20, 3: 20, 4: 40}.get)
    monkeypatch.setattr(rank_processes, "ANSWER_SECONDS", 0.1)
    everyone = [proc.Stat(pid, "S", 1, pid, pid, 0) for pid in (1, 2, 3, 4)]

    def read() -> set[int]:
        found = rank_processes.environments(everyone)
        assert all(b"NUMBER=%d" % one.pid in pairs for one, pairs in found)
        return {one.pid for one, _ in found}

    try:
        # The other process of that user is left alone: a thousand would take a thousand waits.
        assert read() == {1, 4}
        asked.clear()
        assert read() == {1, 4}
        # The supervisor reads neither again while the first answer is outstanding.
        assert sorted(asked) == [1, 4]
    finally:
        answers.set()
    ends = time.monotonic() + 5
    while read() != {1, 2, 3, 4}:
        assert time.monotonic() < ends
        time.sleep(0.01)


# What a rank that runs as our user does to its own files

COUNT = "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.05; done"
REPLACED = {
    "link": "ln -s /dev/null {}",
    "file": "touch {}",
    "folder": "mkdir {}",
    "gone": "true",
}


async def lines_of_other(box: Box, more: int) -> None:
    """The other task goes on writing."""
    log = box.node / "runs/other.1/0/output.log"
    count = log.read_text().count("\n") if log.exists() else 0
    async with asyncio.timeout(8):
        while not log.exists() or log.read_text().count("\n") < count + more:  # noqa: ASYNC110 - files set no events
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("instead", REPLACED)
async def test_a_rank_that_replaces_its_pipe_loses_its_own_output_only(
    box: Box, instead: str
) -> None:
    pipe = f"{box.rank_folder}/output.pipe"
    replace = f"rm {pipe}; {REPLACED[instead].format(pipe)}"
    await box.sh(f"echo ready; sleep 1; {replace}; echo replaced; sleep 300")
    await box.started("replaced")
    await box.runtime.launch(an_order(OTHER, ["sh", "-c", COUNT]))
    await lines_of_other(box, 2)
    writer = proc.by_signature((box.node / "output.lock").read_text())
    assert writer is not None
    os.kill(writer.pid, signal.SIGKILL)
    await lines_of_other(box, 10)
    if instead != "gone":
        assert "[shiftwork: what follows is not kept: " in box.output()
    holder = box.supervisor
    os.kill(holder.pid, signal.SIGKILL)
    await gone(holder.pid)
    await box.lead()
    await box.runtime.launch(an_order(run_id("third"), ["true"]))
    third = run_id("third")
    await box.until(lambda seen: all(seen.runs[run].ranks[0].over for run in (RUN, OTHER, third)))


@pytest.mark.parametrize("instead", ["ln -s /dev/null {}", "mkfifo {}", "mkdir {}"])
async def test_a_rank_that_replaces_its_file_loses_its_own_output_only(
    box: Box, instead: str
) -> None:
    await box.sh(
        f"echo ready; sleep 0.5; rm {box.log}; {instead.format(box.log)}; echo more; exit 4"
    )
    await box.runtime.launch(an_order(OTHER, ["sh", "-c", COUNT]))
    assert (await box.over()).code == 4
    await lines_of_other(box, 10)


@pytest.mark.parametrize("order", [False, True])
async def test_a_run_whose_folder_is_gone_is_over(box: Box, order: bool) -> None:
    await box.sh(
        f"echo ready; sleep 0.5; rm -rf {box.rank_folder}; echo more; sleep {300 if order else 0}"
    )
    await box.until(lambda seen: RUN in seen.runs)
    async with asyncio.timeout(5):
        while box.rank_folder.exists():  # noqa: ASYNC110 - files set no events
            await asyncio.sleep(0.01)
    if order:
        await box.runtime.end(RUN, HERE, grace_seconds=0)
    await box.over()


async def test_a_writer_without_supervisor_and_ranks_leaves(box: Box) -> None:
    await box.sh(f"echo ready; sleep 0.5; rm -rf {box.rank_folder}; echo more; sleep 300")
    await box.until(lambda seen: RUN in seen.runs)
    async with asyncio.timeout(5):
        while box.rank_folder.exists():  # noqa: ASYNC110 - files set no events
            await asyncio.sleep(0.01)
    writer = proc.by_signature((box.node / "output.lock").read_text())
    assert writer is not None
    rank = box.start_record()["pid"]
    os.kill(box.supervisor.pid, signal.SIGKILL)
    os.kill(rank, signal.SIGKILL)
    await gone(writer.pid)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small disk")
async def test_a_full_disk_keeps_no_run_that_is_ended(tmp_path: Path) -> None:
    """The disk of the output alone: with the journal's, the exit cannot be recorded either."""
    box = Box(tmp_path / "machine")
    (box.node / "runs").mkdir(parents=True)
    disk = box.node / "runs"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], check=True)  # noqa: ASYNC221 - quick
    try:
        await box.lead()
        # A whole page, after which the disk has no space for another.
        await box.sh("echo ready; head -c 4090 /dev/zero | tr '\\0' x; sleep 1; seq 9; sleep 300")
        await box.started()
        with pytest.raises(OSError, match="No space left"):
            (disk / "filler").write_bytes(b"x" * (2 << 20))
        await asyncio.sleep(1.5)
        await box.runtime.end(RUN, HERE, grace_seconds=0)
        assert (await box.over()).signal == signal.SIGKILL
        await box.clear()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)  # noqa: ASYNC221 - quick
