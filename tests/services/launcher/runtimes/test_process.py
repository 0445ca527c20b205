"""The process runtime with real processes: groups, records, files, and what a crash leaves."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import resource
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from libs.service.deletion_limit import DeletionLimit
from services.launcher.domain.model import Fault, Listing, ObservedRank, RankState
from services.launcher.runtimes.node import cgroups, proc
from services.launcher.runtimes.node.journal import Journal
from services.launcher.runtimes.node_client import NodePlan
from services.launcher.runtimes.port import LaunchRefusedError, RuntimeUnavailableError
from services.launcher.runtimes.process import ProcessRuntime
from services.launcher.runtimes.supervisor import clear_output
from services.launcher.runtimes.supervisor_shutdown import end_supervisors
from services.launcher.task_users import OneUser, TaskUser, own_environment
from tests.kit.launcher_builders import a_machine, a_node, an_order, run_id

RUN = run_id()
HERE = frozenset({"local-0"})


def can_limit() -> bool:
    probe = cgroups.find(f"shiftwork-probe-{os.getpid()}")
    probe.close()
    return probe.can_limit


class Box:
    """One node with real processes."""

    def __init__(self, folder: Path, output_bytes_max: int = 1 << 30) -> None:
        self.folder = folder
        self.output_bytes_max = output_bytes_max
        self.epoch = 0
        self.runtime = self.again()

    @property
    def node(self) -> Path:
        """The node's own folder."""
        return self.folder / "nodes/local-0"

    def again(self) -> ProcessRuntime:
        """A new launcher's handle."""
        machine = a_machine(
            self.folder,
            call_seconds=3.0,
            retry_seconds=0.02,
            listing_seconds=0.2,
            idle_seconds=1.0,
            output_bytes_max=self.output_bytes_max,
        )
        self.runtime = ProcessRuntime(machine, [NodePlan(a_node(), devices=("4", "7"))])
        return self.runtime

    async def lead(self) -> None:
        self.epoch += 1
        await self.runtime.lead(self.epoch)

    @property
    def rank_folder(self) -> Path:
        return self.node / "runs/task.1/0"

    @property
    def log(self) -> Path:
        return self.rank_folder / "output.log"

    def output(self) -> str:
        return self.log.read_text()

    async def started(self, text: str = "ready") -> None:
        async with asyncio.timeout(5):
            while not self.log.exists() or text not in self.output():  # noqa: ASYNC110 - files and processes set no events
                await asyncio.sleep(0.01)

    async def sh(self, script: str, **more: object) -> None:
        await self.runtime.launch(an_order(RUN, ["sh", "-c", script], **more))  # type: ignore[arg-type]

    async def py(self, script: str, **more: object) -> None:
        await self.runtime.launch(an_order(RUN, [sys.executable, "-c", script], **more))  # type: ignore[arg-type]

    async def until(self, true: Callable[[Listing], bool]) -> Listing:
        async with asyncio.timeout(8):
            while True:
                listing = await self.runtime.list()
                if true(listing):
                    return listing
                await asyncio.sleep(0.01)

    async def over(self) -> ObservedRank:
        listing = await self.until(
            lambda seen: (
                RUN in seen.runs
                and all(r.state is not RankState.RUNNING for r in seen.runs[RUN].ranks.values())
            )
        )
        return listing.runs[RUN].ranks[0]

    @property
    def supervisor(self) -> proc.Stat:
        found = proc.by_signature((self.node / "lock").read_text())
        assert found is not None
        return found

    def start_record(self) -> dict[str, Any]:
        records = Journal(str(self.node)).records
        return dict(next(record for record in records if record["t"] == "start"))

    async def clear(self) -> None:
        await self.lead()
        for run, seen in (await self.runtime.list()).runs.items():
            await self.runtime.end(run, seen.node_ids, grace_seconds=0)
        await self.until(
            lambda listing: all(
                rank.state is not RankState.RUNNING
                for seen in listing.runs.values()
                for rank in seen.ranks.values()
            )
        )
        await self.runtime.close()


@pytest_asyncio.fixture
async def box(tmp_path: Path) -> AsyncIterator[Box]:
    made = Box(tmp_path / "a-folder-with-a-long-name" / ("x" * 90))
    await made.lead()
    yield made
    await made.clear()


def alive(pid: int) -> bool:
    found = proc.stat(pid)
    return found is not None and found.alive


def pids(text: str) -> list[int]:
    return [int(part) for part in text.split() if part.isdecimal()]


# Files and environment


async def test_the_environment_is_built_from_nothing(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHIFTWORK_LAUNCHER_NATS_PASSWORD_FILE", "/secret")
    monkeypatch.setenv("PGPASSWORD", "secret")
    await box.runtime.launch(an_order(RUN, ["env", "-0"], env={"LANG": "C.UTF-8"}))
    await box.over()
    assert dict(pair.split("=", 1) for pair in box.output().split("\0") if pair) == {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "CUDA_VISIBLE_DEVICES": "4",
        "SHIFTWORK_CONTEXT": str(box.rank_folder / "context.json"),
        **own_environment(),
    }
    assert own_environment()["USER"] == pwd.getpwuid(os.getuid()).pw_name


async def test_files_are_private(box: Box) -> None:
    await box.sh("cat $SHIFTWORK_CONTEXT", context='{"run_token": "secret"}')
    await box.over()
    assert box.output() == '{"run_token": "secret"}'
    for path in (
        *box.folder.rglob("*.json"),
        *box.folder.rglob("*.log"),
        *box.folder.rglob("journal"),
    ):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE((box.node / "socket").stat().st_mode) == 0o600
    assert stat.S_IMODE(box.node.stat().st_mode) == 0o700
    journal = (box.node / "journal").read_text()
    assert "secret" not in journal
    await box.runtime.forget(RUN, HERE, keep=True)
    assert not (box.rank_folder / "context.json").exists()
    assert box.output() != ""


async def test_no_secret_in_the_process_list(box: Box) -> None:
    await box.sh("echo ready; sleep 60", context='{"run_token": "srt_secret"}')
    await box.started()
    for one in proc.everyone():
        try:
            line = Path(f"/proc/{one.pid}/cmdline").read_bytes()  # noqa: ASYNC240 - /proc does not block
        except OSError:
            continue
        assert b"srt_secret" not in line


async def test_working_directory(box: Box, tmp_path: Path) -> None:
    await box.sh("pwd", cwd=str(tmp_path))
    await box.over()
    assert box.output().strip() == str(tmp_path)


async def test_without_a_workdir_a_task_runs_in_its_own_folder(box: Box) -> None:
    await box.sh("pwd; touch here")
    await box.over()
    assert box.output().strip() == str(box.folder / "work/task.1")
    assert (box.folder / "work/task.1/here").exists()


@pytest.mark.parametrize(
    ("argv", "code", "text"),
    [
        (["no-such-command"], 127, "no such command on PATH"),
        (["/no/such/file"], 127, "no such command"),
        (["/etc/passwd"], 126, "Permission denied"),
        ([], 127, "no command"),
    ],
)
async def test_a_failed_start_explains_itself_in_the_output(
    box: Box, argv: list[str], code: int, text: str
) -> None:
    await box.runtime.launch(an_order(RUN, argv))
    assert (await box.over()).code == code
    assert text in box.output()


async def test_a_missing_working_directory_is_named_in_the_output(box: Box) -> None:
    await box.sh("true", cwd="/no/such/folder")
    assert (await box.over()).code == 126
    assert "cannot use the working directory /no/such/folder" in box.output()


async def test_output_is_merged_and_complete(box: Box) -> None:
    await box.sh("for i in $(seq 2000); do echo out$i; echo err$i >&2; done")
    await box.over()
    lines = box.output().split()
    assert lines[0::2] == [f"out{i}" for i in range(1, 2001)]
    assert lines[1::2] == [f"err{i}" for i in range(1, 2001)]


async def test_ranks_have_default_signals_and_no_open_files(box: Box) -> None:
    await box.py(
        "import os, signal\n"
        "print(sorted(os.listdir('/proc/self/fd'), key=int)[:-1])\n"
        "print([s for s in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)"
        " if signal.getsignal(s) == signal.SIG_IGN], signal.pthread_sigmask(0, ()))\n"
        "print(os.getsid(0) == os.getpid() == os.getpgid(0))\n"
        "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))\n"
    )
    await box.over()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert box.output().splitlines() == ["['0', '1', '2']", "[] set()", "True", str(files)]


# Ends


async def test_exits_by_signal_are_recorded(box: Box) -> None:
    await box.sh("kill -SEGV $$")
    rank = await box.over()
    assert (rank.code, rank.signal) == (None, signal.SIGSEGV)


CHILDREN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def show(): print(os.getpid(), flush=True)
show()
if os.fork() == 0:
    show()                       # a child
    if os.fork() == 0:
        os.setsid(); show()      # a grandchild in a session of its own
        if os.fork() == 0:
            show()               # orphaned by the next line's parent
            time.sleep(300)
        {middle}
    time.sleep(300)
time.sleep(0.3)
print('ready', flush=True)
{last}
"""


@pytest.mark.parametrize("middle", ["time.sleep(300)", "os._exit(0)"])
async def test_the_whole_group_ends(box: Box, middle: str) -> None:
    await box.py(CHILDREN.format(middle=middle, last="time.sleep(300)"))
    await box.started()
    found = pids(box.output())
    assert len(found) == 4
    await box.runtime.end(RUN, HERE, grace_seconds=0)
    rank = await box.over()
    assert rank.signal == signal.SIGKILL
    assert [pid for pid in found if alive(pid)] == []


async def test_ranks_that_are_asked_to_end_may_finish_writing(box: Box) -> None:
    await box.sh("trap 'echo saved; exit 3' TERM; echo ready; while :; do sleep 0.05; done")
    await box.started()
    await box.runtime.end(RUN, HERE, grace_seconds=20, asks=True)
    rank = await box.over()
    assert (rank.code, "saved" in box.output()) == (3, True)


async def test_ranks_that_do_not_end_when_asked_are_killed_after_the_grace_period(
    box: Box,
) -> None:
    await box.sh("trap 'echo asked' TERM; echo ready; while :; do sleep 0.05; done")
    await box.started()
    begun = time.monotonic()
    await box.runtime.end(RUN, HERE, grace_seconds=0.6, asks=True)
    await box.started("asked")
    # A repeated order gives no more time, and no second signal.
    await box.runtime.end(RUN, HERE, grace_seconds=20, asks=True)
    rank = await box.over()
    assert (rank.signal, box.output().count("asked")) == (signal.SIGKILL, 1)
    assert 0.6 <= time.monotonic() - begun < 5


async def test_an_order_to_kill_does_not_wait_for_a_grace_period(box: Box) -> None:
    await box.sh("trap '' TERM; echo ready; while :; do sleep 0.05; done")
    await box.started()
    await box.runtime.end(RUN, HERE, grace_seconds=60, asks=True)
    await box.runtime.end(RUN, HERE, grace_seconds=60)
    assert (await box.over()).signal == signal.SIGKILL


async def test_processes_that_a_rank_leaves_behind_are_ended(box: Box) -> None:
    await box.py(CHILDREN.format(middle="os._exit(0)", last="sys.exit(5)"))
    rank = await box.over()
    assert rank.code == 5
    assert [pid for pid in pids(box.output()) if alive(pid)] == []


WITHOUT_CGROUPS = """
import json, os, signal, sys, time
from services.launcher.runtimes import supervisor
from services.launcher.runtimes.node import cgroups
from services.launcher.runtimes.node.journal import Journal
from services.launcher.runtimes.node.outputs import Outputs
from services.launcher.runtimes.node.ranks import Ranks

folder, order = sys.argv[1], json.loads(sys.argv[2])
supervisor._become_subreaper()
places = (folder + "/runs", folder + "/work")
outputs = Outputs(folder, 1 << 30)
ranks = Ranks(*places, Journal(folder), outputs, cgroups.Cgroups("none"), time.time)
ranks.launch("task.1", [order])
ranks.launch("other.1", [{**order, "rank": 1, "argv": ["sleep", "300"]}])
def wait(until):
    ends = time.monotonic() + 8
    while not until():
        assert time.monotonic() < ends
        ranks.tend()
        time.sleep(0.01)
wait(lambda: "exited_at" in ranks.listing().get("task.1", {}).get("0", ()))
first = ranks.listing()
ranks.end("other.1")
wait(lambda: not ranks.running)
print(json.dumps([first, ranks.listing()]))
"""


async def test_processes_are_ended_without_control_groups_too(tmp_path: Path) -> None:
    """The search by descent, session and environment, in a process of its own."""
    for name in ("runs", "work"):
        (tmp_path / name).mkdir()
    script = CHILDREN.format(middle="os._exit(0)", last="sys.exit(5)")
    order = {
        "rank": 0,
        "argv": [sys.executable, "-c", script],
        "env": {"PATH": os.defpath},
        "cwd": "/",
        "context": "{}",
        "cpus": 1.0,
        "memory_bytes": None,
        "user": None,
    }
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WITHOUT_CGROUPS, str(tmp_path), json.dumps(order), stdout=-1
    )
    answer, _ = await child.communicate()
    first, last = json.loads(answer)
    assert first["task.1"]["0"]["code"] == 5
    assert "exited_at" not in first["other.1"]["1"]
    assert last["other.1"]["1"]["signal"] == signal.SIGKILL
    text = (tmp_path / "runs/task.1/0/output.log").read_text()
    assert "limits of this task are not enforced" in text
    assert len(pids(text)) == 4
    assert [pid for pid in pids(text) if alive(pid)] == []


DIES_BEFORE_THE_RECORD = """
import json, os, signal, sys, time
from services.launcher.runtimes.node import cgroups
from services.launcher.runtimes.node.journal import Journal
from services.launcher.runtimes.node.outputs import Outputs
from services.launcher.runtimes.node.ranks import Ranks

folder, order = sys.argv[1], json.loads(sys.argv[2])
places = (folder + "/runs", folder + "/work")
outputs = Outputs(folder, 1 << 30)
ranks = Ranks(*places, Journal(folder), outputs, cgroups.Cgroups("none"), time.time)
Journal.append = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
ranks.launch("task.1", [order, {**order, "rank": 1}])
"""


async def test_a_process_without_a_start_record_never_runs(tmp_path: Path) -> None:
    for name in ("runs", "work"):
        (tmp_path / name).mkdir()
    order = {
        "rank": 0,
        "argv": ["sh", "-c", f"echo x >> {tmp_path}/started; exec sleep 300"],
        "env": {"PATH": os.defpath},
        "cwd": "/",
        "context": "{}",
        "cpus": None,
        "memory_bytes": None,
        "user": None,
    }
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", DIES_BEFORE_THE_RECORD, str(tmp_path), json.dumps(order)
    )
    assert await child.wait() == -signal.SIGKILL
    await asyncio.sleep(0.3)
    assert [path for path in tmp_path.iterdir() if path.name == "started"] == []  # noqa: ASYNC240 - small
    marker = f"{tmp_path}".encode()
    left = [one.pid for one in proc.everyone() if one.alive and one.pgrp == child.pid]
    assert left == []
    assert [one for one in proc.everyone() if one.alive and marker in cmdline(one.pid)] == []


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can run tasks as another user")
async def test_tasks_run_as_the_configured_user() -> None:
    folder = Path(tempfile.mkdtemp(prefix="swu-"))
    folder.chmod(0o711)  # noqa: ASYNC240 - a local folder
    nobody = pwd.getpwnam("nobody")
    box = Box(folder / "machine")
    (folder / "machine").mkdir(mode=0o711)
    users = OneUser(TaskUser(nobody.pw_uid, nobody.pw_gid))
    machine = a_machine(folder / "machine", users=users, idle_seconds=1.0)
    box.runtime = ProcessRuntime(machine, [NodePlan(a_node())])
    try:
        await box.lead()
        await box.sh(
            "id -u; id -G; cat $SHIFTWORK_CONTEXT; echo; touch here && echo wrote >>/dev/stdout;"
            f"cat {folder}/machine/nodes/local-0/journal; touch {box.rank_folder}/x; echo end",
            context='{"a": 1}',
        )
        assert (await box.over()).code == 0
        lines = box.output().splitlines()
        assert lines[:4] == [str(nobody.pw_uid), str(nobody.pw_gid), '{"a": 1}', "wrote"]
        assert sum("Permission denied" in line for line in lines) == 2
        await box.clear()
    finally:
        # Until then its supervisor removes files, too.
        await asyncio.to_thread(end_supervisors, folder / "machine")
        shutil.rmtree(folder)


async def test_a_launch_that_cannot_be_recorded_starts_nothing(box: Box) -> None:
    await box.runtime.list()
    (box.folder / "nodes/local-0/runs").rmdir()
    (box.folder / "nodes/local-0/runs").write_text("in the way")
    with pytest.raises(RuntimeUnavailableError, match="cannot start run"):
        await box.sh("true")
    assert (await box.runtime.list()).runs == {}
    (box.folder / "nodes/local-0/runs").unlink()
    (box.folder / "nodes/local-0/runs").mkdir()


# Crashes


async def test_the_successor_of_a_dead_supervisor_ends_its_ranks_and_reports_them_lost(
    box: Box,
) -> None:
    await box.py(CHILDREN.format(middle="os._exit(0)", last="time.sleep(300)"))
    await box.started()
    before = box.supervisor
    os.kill(before.pid, signal.SIGKILL)
    rank = await box.over()
    assert (rank.state, rank.code, rank.signal) == (RankState.LOST, None, None)
    assert "supervisor" in rank.note
    assert [pid for pid in pids(box.output()) if alive(pid)] == []
    assert box.supervisor.pid != before.pid


async def test_exits_survive_the_supervisor(box: Box) -> None:
    await box.sh("exit 7")
    first = await box.over()
    os.kill(box.supervisor.pid, signal.SIGKILL)
    await asyncio.sleep(0.05)
    assert await box.over() == first
    assert first.code == 7


async def test_a_process_with_a_reused_number_is_not_ended(box: Box) -> None:
    """A start record whose process is gone, with a number that now belongs to somebody else."""
    await box.sh("echo ready; sleep 300")
    await box.started()
    record = box.start_record()
    os.kill(box.supervisor.pid, signal.SIGKILL)
    os.kill(record["pid"], signal.SIGKILL)
    stranger = await asyncio.create_subprocess_exec("sleep", "300", start_new_session=True)
    journal = box.folder / "nodes/local-0/journal"
    # The format before lines had checksums.
    record["pid"] = stranger.pid
    journal.write_text(json.dumps(record) + "\n")
    rank = await box.over()
    assert rank.state is RankState.LOST
    assert alive(stranger.pid)
    stranger.kill()
    await stranger.wait()


async def test_a_torn_last_line_of_the_journal_is_dropped(box: Box) -> None:
    await box.sh("exit 7")
    await box.over()
    os.kill(box.supervisor.pid, signal.SIGKILL)
    with (box.node / "journal").open("a") as journal:
        journal.write('{"t":"forgot","run":"ta')
    await asyncio.sleep(0.05)
    assert (await box.over()).code == 7


async def test_ranks_go_on_without_a_launcher(box: Box) -> None:
    await box.sh("echo ready; sleep 0.4; echo done; exit 9")
    await box.started()
    await box.runtime.close()
    await asyncio.sleep(0.6)
    box.again()
    await box.lead()
    rank = await box.over()
    assert rank.code == 9
    assert "done" in box.output()


async def test_no_double_start_from_many_launchers(box: Box, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    order = an_order(RUN, ["sh", "-c", f"echo x >> {starts}; exec sleep 300"])

    async def launch(epoch: int) -> None:
        handle = Box(box.folder).runtime
        await handle.lead(epoch)
        try:
            await handle.launch(order)
        except Exception:  # noqa: BLE001 - an older leader may be refused
            return

    await asyncio.gather(*(launch(10 + number % 2) for number in range(6)))
    box.epoch = 20
    await box.lead()
    await box.runtime.launch(order)
    await asyncio.sleep(0.2)
    assert starts.read_text() == "x\n"


async def test_a_node_has_one_supervisor(box: Box) -> None:
    handles = [Box(box.folder).runtime for _ in range(4)]
    await asyncio.gather(*(handle.list() for handle in handles))
    # Only the holder of the lock serves; the others left.
    holder = box.supervisor
    name = str(box.folder / "nodes/local-0").encode()
    serving = [one.pid for one in proc.everyone() if one.alive and name in cmdline(one.pid)]
    assert serving == [holder.pid]


async def test_an_idle_supervisor_leaves(box: Box) -> None:
    await box.runtime.list()
    pid = box.supervisor.pid
    await box.runtime.close()
    async with asyncio.timeout(5):
        while alive(pid):  # noqa: ASYNC110 - files and processes set no events
            await asyncio.sleep(0.02)
    assert not (box.node / "socket").exists()


async def test_a_node_no_longer_configured_finishes_what_it_runs(box: Box) -> None:
    await box.sh("echo ready; sleep 300")
    await box.started()
    await box.runtime.close()
    machine = a_machine(box.folder, idle_seconds=1.0)
    smaller = ProcessRuntime(machine, [NodePlan(a_node("another"))])
    await smaller.lead(5)
    listing = await smaller.list()
    assert listing.nodes["local-0"].retired
    assert RUN in listing.runs
    await smaller.end(RUN, HERE, grace_seconds=0)
    async with asyncio.timeout(5):
        while (await smaller.list()).runs[RUN].ranks[0].state is RankState.RUNNING:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
    await smaller.forget(RUN, HERE, keep=True)
    assert set((await smaller.list()).nodes) == {"another"}
    await smaller.close()
    box.epoch = 6


def test_old_output_is_cleared_away_and_links_are_not_followed(tmp_path: Path) -> None:
    runs, outside = tmp_path / "runs", tmp_path / "outside"
    for name in ("old.1/0", "young.1/0"):
        (runs / name).mkdir(parents=True)
        (runs / name / "output.log").write_text("x")
    outside.mkdir()
    (outside / "precious").write_text("x")
    (runs / "old.1/link").symlink_to(outside)
    for path in (*(runs / "old.1").rglob("*"), runs / "old.1"):
        os.utime(path, (1000, 1000), follow_symlinks=False)
    unbounded, none = DeletionLimit(0), frozenset[str]()
    assert clear_output(str(runs), 2000, frozenset({"old.1"}), unbounded, 0) == []
    assert clear_output(str(runs), 2000, none, unbounded, 0) == ["old.1"]
    assert [path.name for path in runs.iterdir()] == ["young.1"]
    assert (outside / "precious").exists()
    assert clear_output(str(tmp_path / "absent"), 2000, none, unbounded, 0) == []


def test_a_clock_that_jumps_ahead_clears_no_young_output_away(tmp_path: Path) -> None:
    (tmp_path / "young.1").mkdir()
    limit, now, keep = DeletionLimit(), time.time(), 14 * 86_400
    none = frozenset[str]()
    assert clear_output(str(tmp_path), now - keep, none, limit, -86_400.0) == []
    ahead = now + 3650 * 86_400
    for minutes in range(0, 60, 10):
        monotonic_s = 60.0 * minutes
        assert clear_output(str(tmp_path), ahead - keep, none, limit, monotonic_s) == []
    assert limit.held_seconds > 3000 * 86_400


# Limits


@pytest.mark.skipif(not can_limit(), reason="no writable cgroups")
async def test_memory_limit(box: Box) -> None:
    await box.py("b = bytearray(400 << 20); print(len(b))", memory_bytes=64 << 20)
    rank = await box.over()
    assert (rank.signal, rank.note) == (signal.SIGKILL, "out of its memory limit")
    assert rank.fault is Fault.OUT_OF_MEMORY


@pytest.mark.skipif(not can_limit(), reason="no writable cgroups")
async def test_memory_limit_of_a_program_that_another_one_started(box: Box) -> None:
    await box.py(
        "import subprocess, sys\n"
        "done = subprocess.run([sys.executable, '-c', 'b = bytearray(400 << 20)'])\n"
        "sys.exit(128 - done.returncode)",
        memory_bytes=64 << 20,
    )
    rank = await box.over()
    assert (rank.code, rank.fault) == (137, Fault.OUT_OF_MEMORY)


@pytest.mark.skipif(not can_limit(), reason="no writable cgroups")
async def test_a_failure_below_the_memory_limit_has_no_fault(box: Box) -> None:
    await box.py("import sys; sys.exit(137)", memory_bytes=64 << 20)
    rank = await box.over()
    assert (rank.code, rank.fault) == (137, None)


@pytest.mark.skipif(not can_limit(), reason="no writable cgroups")
async def test_cpu_limit(box: Box) -> None:
    await box.py(
        "import time\nt = time.process_time(); w = time.monotonic()\n"
        "while time.monotonic() < w + 0.5: pass\n"
        "print('used', time.process_time() - t)",
        cpus=0.2,
    )
    await box.over()
    assert float(box.output().split()[1]) < 0.35


async def test_a_run_whose_name_is_no_id_is_set_apart_and_hides_no_other(box: Box) -> None:
    """The record stays in the node's journal: every list contains it, also a later one."""
    await box.sh("echo ready; sleep 300")
    await box.started()
    client = box.runtime._clients["local-0"]
    order = an_order(RUN, ["true"])
    ranks = [box.runtime._rank(each, None) for each in order.ranks]
    with capture_logs() as logs:
        for bad in ("forged", "T.1"):
            await client.launch(bad, ranks)
        for _ in range(3):
            assert RUN in (await box.runtime.list()).runs
    problems = [each["problem"] for each in logs if each["event"] == "run set apart"]
    assert len(problems) == len(set(problems)) == 2


async def test_arguments_of_an_images_program_cannot_start(box: Box) -> None:
    order = an_order(RUN, ["--epochs", "3"], of_image=True, role="worker")
    with pytest.raises(LaunchRefusedError, match=r"no command.*role worker") as found:
        await box.runtime.launch(replace(order, image_roles=("worker",)))
    assert found.value.refused.fault is Fault.NO_COMMAND
