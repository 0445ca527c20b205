"""What one fault on a node may do: never more than to what it hits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from services.launcher.domain.model import RankState
from services.launcher.runtimes.node import cgroups, proc
from services.launcher.runtimes.port import (
    RuntimeDeniedError,
    RuntimeUnavailableError,
    StartFailedError,
)
from services.launcher.runtimes.process import ProcessRuntime
from tests.kit.freezing import freeze
from tests.kit.launcher_builders import an_order, run_id
from tests.kit.small_disk import needs_small_disk, small_disk
from tests.services.launcher.runtimes.test_process import HERE, RUN, Box, alive

NOBODY = 65_534
OTHER = run_id("other")


# A rank's output


async def test_a_task_that_reopens_its_standard_error_truncates_nothing(box: Box) -> None:
    await box.sh("seq 1000; echo x > /dev/stderr; echo y > /dev/stdout; seq 200; echo end >&2")
    assert (await box.over()).code == 0
    lines = [*map(str, range(1, 1001)), "x", "y", *map(str, range(1, 201)), "end"]
    assert box.output().split() == lines


async def test_output_is_complete_when_the_supervisor_is_killed(box: Box) -> None:
    """The rank writes on, more than a pipe holds, while nobody supervises it."""
    go = box.folder / "go"
    await box.sh(f"echo ready; until [ -e {go} ]; do sleep 0.01; done; seq 40000; echo end")
    await box.started()
    os.kill(box.supervisor.pid, signal.SIGKILL)
    go.touch()
    await box.started("end")
    assert (await box.over()).state is RankState.LOST
    assert box.output().split() == ["ready", *map(str, range(1, 40_001)), "end"]


async def test_no_rank_is_ended_by_a_signal_of_its_output(box: Box) -> None:
    """The supervisor and the writer of output are dead; the rank writes and lives on."""
    go, done = box.folder / "go", box.folder / "done"
    await box.sh(
        f"echo ready; until [ -e {go} ]; do sleep 0.01; done; seq 1000; touch {done}; sleep 300"
    )
    await box.started()
    writer = proc.by_signature((box.node / "output.lock").read_text())
    assert writer is not None
    os.kill(box.supervisor.pid, signal.SIGKILL)
    os.kill(writer.pid, signal.SIGKILL)
    go.touch()
    async with asyncio.timeout(5):
        while not done.exists():  # noqa: ASYNC110 - files set no events
            await asyncio.sleep(0.01)
    await box.over()
    lines = box.output().splitlines()
    assert lines[0] == "ready"
    assert "output may be missing here" in lines[1]
    assert lines[2:] == [str(number) for number in range(1, 1001)]


async def test_a_writer_of_output_that_is_killed_is_replaced(box: Box) -> None:
    go = box.folder / "go"
    await box.sh(f"echo ready; until [ -e {go} ]; do sleep 0.01; done; seq 20000")
    await box.started()
    writer = proc.by_signature((box.node / "output.lock").read_text())
    assert writer is not None
    os.kill(writer.pid, signal.SIGKILL)
    go.touch()
    assert (await box.over()).code == 0
    lines = [line for line in box.output().splitlines() if not line.startswith("[shiftwork: ")]
    assert lines == ["ready", *map(str, range(1, 20_001))]


async def test_a_task_that_never_stops_printing_fills_no_disk(tmp_path: Path) -> None:
    box = Box(tmp_path / "machine", output_bytes_max=100_000)
    await box.lead()
    await box.sh("yes | head -c 5000000; echo never kept")
    assert (await box.over()).code == 0
    text = box.output()
    assert text[:100_000] == "y\n" * 50_000
    assert text[100_000:] == (
        "[shiftwork: the limit of 100000 bytes is reached; what follows is not kept]\n"
    )
    await box.clear()


async def test_a_truncated_output_file_keeps_its_offsets_and_notes_it(box: Box) -> None:
    await box.sh(f"echo before; sleep 0.3; : > {box.log}; echo after; rm {box.log}; echo last")
    assert (await box.over()).code == 0
    data = box.log.read_bytes()
    assert data.startswith(b"\0" * len("before\n"))
    assert b"[shiftwork: this file was cut to 0 bytes" in data
    assert data.endswith(b"last\n")


@needs_small_disk
async def test_on_a_full_disk_output_is_dropped_with_a_note_and_continues_later(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk", 4) as disk:
        box = Box(disk.folder / "machine")
        await box.lead()
        go, written, leave = (tmp_path / name for name in ("go", "written", "leave"))
        await box.sh(
            f"echo ready; until [ -e {go} ]; do sleep 0.01; done; seq 1000; touch {written};"
            f"until [ -e {leave} ]; do sleep 0.01; done; echo again; exit 3"
        )
        await box.started()
        disk.fill()
        go.touch()
        async with asyncio.timeout(8):
            while not written.exists():  # noqa: ASYNC110 - files set no events
                await asyncio.sleep(0.01)
        assert RUN in (await box.runtime.list()).runs
        disk.empty()
        leave.touch()
        assert (await box.over()).code == 3
        lines = box.output().splitlines()
        assert lines[0] == "ready"
        assert lines[-1] == "again"
        notes = [line for line in lines if line.startswith("[shiftwork: ")]
        assert len(notes) == 1
        assert "bytes of output are missing here: no space left" in notes[0].lower()
        await box.clear()


def has_groups() -> bool:
    probe = cgroups.find(f"shiftwork-probe-{os.getpid()}")
    probe.close()
    return bool(probe.unified)


@pytest.mark.skipif(not has_groups(), reason="no writable control groups of version 2")
async def test_groups_that_a_killed_supervisor_left_are_removed_at_the_next_start(
    box: Box,
) -> None:
    await box.sh("echo ready; sleep 300")
    await box.started()
    with (box.node / "lock").open() as lock:
        found = cgroups.find(cgroups.name_of(str(box.node), lock.fileno()))
    group = Path(found.unified)
    left = group / "left.1.0"
    before = box.supervisor
    os.kill(before.pid, signal.SIGKILL)
    left.mkdir()
    async with asyncio.timeout(8):
        while alive(before.pid):  # noqa: ASYNC110 - processes set no events
            await asyncio.sleep(0.01)
    await box.lead()
    assert (await box.over()).state is RankState.LOST
    assert box.supervisor != before
    assert [each for each in os.scandir(group) if each.is_dir()] == []


# Processes that may not be ended

BECOME_ROOT = """
import os, sys, time
os.setuid(0)
print("root", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""
IMPORT = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[4])!r})\n"
SETUID = """
import json, os, time
from services.launcher.runtimes import supervisor
from services.launcher.runtimes.node import cgroups
from services.launcher.runtimes.node.journal import Journal
from services.launcher.runtimes.node.outputs import Outputs
from services.launcher.runtimes.node.ranks import Ranks

folder, order = sys.argv[1], json.loads(sys.argv[2])
supervisor._become_subreaper()

def ranks_again():
    places = (folder + "/runs", folder + "/work")
    outputs = Outputs(folder, 1 << 30)
    return Ranks(*places, Journal(folder), outputs, cgroups.Cgroups("none"), time.time)

def wait(ranks, until):
    ends = time.monotonic() + 30
    while not until(ranks.listing()):
        assert time.monotonic() < ends, ranks.listing()
        ranks.tend()
        time.sleep(0.01)

def over(run):
    return lambda seen: "exited_at" in seen.get(run, {}).get("0", ())

ranks = ranks_again()
ranks.launch("stays.1", [order])
ranks.launch("other.1", [{**order, "argv": ["sleep", "300"]}])
wait(ranks, lambda seen: len(seen) == 2)
def is_root():
    path = folder + "/runs/stays.1/0/output.log"
    return os.path.exists(path) and "root" in open(path).read()

wait(ranks, lambda _: is_root())
# The rank behind one that has become root's gets its signal.
ranks.launch("stays.1", [{**order, "rank": 1, "argv": ["sleep", "300"]}])
wait(ranks, lambda seen: len(seen["stays.1"]) == 2)
ranks.signal("stays.1", 10)
wait(ranks, lambda seen: seen["stays.1"]["1"].get("signal") == 10)
ranks.end("stays.1")
ranks.end("other.1")
wait(ranks, over("other.1"))
assert not over("stays.1")(ranks.listing())
# A successor, as after a crash.
child = os.fork()
if child == 0:
    again = ranks_again()
    again.launch("third.1", [{**order, "argv": ["true"]}])
    wait(again, over("third.1"))
    assert not over("stays.1")(again.listing())
    open(folder + "/leave", "w").close()
    wait(again, over("stays.1"))
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print("done")
"""


def python_of_nobody() -> str:
    """An interpreter that another user may run with our modules; empty if there is none."""
    for program in (sys.executable, "/usr/bin/python3"):
        probe = [program, "-I", "-S", "-c", IMPORT + "import services.launcher.runtimes.supervisor"]
        with contextlib.suppress(OSError):
            made = subprocess.run(
                probe, user=NOBODY, group=NOBODY, capture_output=True, check=False
            )
            if made.returncode == 0:
                return program
    return ""


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a setuid program")
async def test_a_process_that_may_not_be_ended_delays_no_other(tmp_path: Path) -> None:
    """A setuid program under a platform that is not root."""
    python = python_of_nobody()
    if not python:
        pytest.skip("no Python here that another user may run")
    place = Path("/tmp") / f"shiftwork-setuid-{os.getpid()}"
    place.mkdir(mode=0o755)
    try:
        program = place / "becomes-root"
        shutil.copy(python, program)
        program.chmod(0o4755)
        home = place / "node"
        for folder in (home, home / "runs", home / "work"):
            folder.mkdir()
            os.chown(folder, NOBODY, NOBODY)
        order = {
            "rank": 0,
            "argv": [
                *(str(program), "-I", "-S", "-c"),
                BECOME_ROOT,
                str(home / "leave"),
            ],
            "env": {"PATH": os.defpath},
            "cwd": "/",
            "context": "{}",
            "cpus": None,
            "memory_bytes": None,
            "user": None,
        }
        child = await asyncio.create_subprocess_exec(
            *(python, "-I", "-S", "-c", IMPORT + SETUID),
            *(str(home), json.dumps(order)),
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            stdout=-1,
            stderr=-1,
        )
        answer, problem = await asyncio.wait_for(child.communicate(), 25)
        assert answer == b"done\n", problem.decode()
    finally:
        shutil.rmtree(place)


# A supervisor that is slow


@pytest.mark.slow
async def test_a_supervisor_that_is_silent_but_lives_keeps_its_ranks(box: Box) -> None:
    await box.sh("echo $$ ready; sleep 300")
    await box.started()
    pid = int(box.output().split()[0])
    holder = box.supervisor
    freeze(holder.pid)
    with pytest.raises(RuntimeUnavailableError):
        await asyncio.wait_for(box.runtime.end(run_id("nobody"), HERE, grace_seconds=0), 10)
    with pytest.raises(RuntimeUnavailableError, match="lives"):
        await box.runtime.fence("local-0")
    assert alive(pid)
    os.kill(holder.pid, signal.SIGCONT)
    listing = await box.until(lambda seen: seen.nodes["local-0"].node.ready)
    assert listing.runs[RUN].ranks[0].state is RankState.RUNNING
    assert box.supervisor == holder or box.supervisor.pid == holder.pid


async def test_a_disk_that_stalls_makes_no_supervisor_silent(box: Box) -> None:
    """Orders wait for the disk; questions, signals and other launchers do not."""
    await box.sh("echo ready; sleep 300")
    await box.started()
    stall = box.node / "stall"
    stall.touch()
    slow = await slow_disk(box)
    launch = asyncio.ensure_future(slow.launch(an_order(OTHER, ["sleep", "300"])))
    await asyncio.sleep(0.2)
    for _ in range(5):
        listing = await slow.list()
        assert set(listing.runs) == {RUN}
        assert listing.nodes["local-0"].node.ready
        await asyncio.sleep(0.05)
    assert not launch.done()
    stall.unlink()
    await launch
    assert set((await box.until(lambda seen: OTHER in seen.runs)).runs) == {RUN, OTHER}


async def slow_disk(box: Box) -> ProcessRuntime:
    """The same node under a supervisor whose syncs wait while the file ``stall`` is there."""
    os.kill(box.supervisor.pid, signal.SIGKILL)
    script = (
        "import os, sys, time\n"
        "from services.launcher.runtimes import supervisor\n"
        "sync = os.fdatasync\n"
        "def slow(fd):\n"
        f"    while os.path.exists({str(box.node / 'stall')!r}): time.sleep(0.01)\n"
        "    sync(fd)\n"
        "import threading\n"
        "main = threading.get_ident()\n"
        "os.fdatasync = lambda fd: sync(fd) if threading.get_ident() == main else slow(fd)\n"
        "supervisor.main()\n"
    )
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        script,
        str(box.node),
        str(box.folder / "work"),
        json.dumps(
            {"idle_seconds": 1, "keep_seconds": 9, "output_bytes_max": 1 << 30, "pids_max": 0}
        ),
    )
    assert await child.wait() == 0
    (box.node / "stall").unlink()
    await box.over()
    await box.runtime.forget(RUN, HERE, keep=True)
    await box.sh("echo ready; sleep 300")
    (box.node / "stall").touch()
    return box.runtime


# The journal


async def test_a_restarted_supervisor_remembers_the_commanding_epoch(box: Box) -> None:
    box.epoch = 7
    await box.lead()
    await box.sh("exit 0")
    await box.over()
    holder = box.supervisor
    os.kill(holder.pid, signal.SIGKILL)
    async with asyncio.timeout(5):
        while alive(holder.pid):  # noqa: ASYNC110 - processes set no events
            await asyncio.sleep(0.01)
    former = Box(box.folder).runtime
    await former.lead(6)
    with pytest.raises(
        (RuntimeDeniedError, RuntimeUnavailableError), match=r"epoch 6 is over.*raise_epoch 8$"
    ):
        await former.launch(an_order(OTHER, ["true"]))
    await box.runtime.list()


@pytest.mark.parametrize("damage", ["torn", "zeros", "middle", "start"])
async def test_a_damaged_journal_line_affects_only_its_own_record(box: Box, damage: str) -> None:
    await box.sh("exit 7")
    await box.over()
    await box.runtime.launch(an_order(OTHER, ["sh", "-c", "echo $$; exec sleep 300"]))
    log = box.node / "runs/other.1/0/output.log"
    async with asyncio.timeout(5):
        while not log.exists() or not log.read_text():  # noqa: ASYNC110 - files set no events
            await asyncio.sleep(0.01)
    pid = int(log.read_text())
    os.kill(box.supervisor.pid, signal.SIGKILL)
    journal = box.node / "journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    middle = next(n for n, line in enumerate(lines) if b'"exit"' in line)
    started = next(n for n, line in enumerate(lines) if b'"other.1"' in line)
    if damage == "torn":
        lines.append(b'{"t":"forgot","run":"ta\n')
    elif damage == "zeros":
        lines.append(b"\0" * 512 + b"\n")
    elif damage == "middle":
        lines[middle] = lines[middle].replace(b'"code":7', b'"code":8')
    else:
        lines[started] = b"\0" * len(lines[started])
        # Something good behind it.
        lines += [lines[0], lines[0]]
    journal.write_bytes(b"".join(lines))
    listing = await box.until(
        lambda seen: OTHER in seen.runs and seen.runs[OTHER].ranks[0].state is RankState.LOST
    )
    assert not alive(pid)
    first = listing.runs[RUN].ranks[0]
    if damage == "middle":
        # What cannot be known is lost, never wrong.
        assert (first.state, first.code) == (RankState.LOST, None)
    else:
        assert first.code == 7
    assert (box.node / "journal.damaged").exists() == (damage in ("middle", "start"))
    text = journal.read_bytes()
    for line in text.splitlines():
        assert int(line[:8], 16) == zlib.crc32(line[9:])


async def test_a_node_that_cannot_start_a_run_is_named(box: Box) -> None:
    await box.runtime.list()
    (box.node / "runs/other.1").touch()
    with pytest.raises(StartFailedError, match="Not a directory") as found:
        await box.runtime.launch(an_order(OTHER, ["true"]))
    assert found.value.node_ids == {"local-0"}


# Control groups


def groups_of(box: Box) -> list[Path]:
    inode = (box.node / "lock").stat().st_ino
    roots = Path("/proc/self/mounts").read_text().splitlines()
    mounts = {Path(line.split()[1]) for line in roots if line.split()[2].startswith("cgroup")}
    return [found for mount in mounts for found in mount.rglob(f"shiftwork-local-0-*{inode}")]


async def test_a_node_whose_control_group_is_gone_makes_it_again(box: Box) -> None:
    await box.sh("exit 0")
    await box.over()
    groups = groups_of(box)
    if not groups:
        pytest.skip("no control groups here")
    for group in groups:
        group.rmdir()
    await box.runtime.launch(an_order(OTHER, ["sh", "-c", "exit 5"]))
    listing = await box.until(lambda seen: OTHER in seen.runs and seen.runs[OTHER].ranks[0].over)
    assert listing.runs[OTHER].ranks[0].code == 5
    assert groups_of(box)
    await box.runtime.close()
    async with asyncio.timeout(5):
        while groups_of(box):  # noqa: ASYNC110 - files set no events
            await asyncio.sleep(0.02)
