"""Tasks of several owners on one machine, as real processes of users of their own."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from libs.contracts.ids import RunId
from services.launcher.domain.model import ObservedRank, RankState
from services.launcher.runtimes import node_client
from services.launcher.runtimes.node import cgroups, proc
from services.launcher.runtimes.node_client import NodePlan
from services.launcher.runtimes.port import RunOrder, RuntimeUnavailableError
from services.launcher.runtimes.process import ProcessRuntime
from services.launcher.runtimes.supervisor_shutdown import end_supervisors
from services.launcher.task_users import OwnerUsers
from tests.kit.launcher_builders import a_machine, a_node, an_order, run_id

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs tasks as other users")
UIDS = range(390_000, 390_010)
TOKEN = "SHIFTWORK_RUN_TOKEN=secret-of-ann"


class Shared:
    """One node, on which owners' tasks run as users of their own."""

    def __init__(self, folder: Path, **changes: int) -> None:
        self.folder = folder
        self.machine = folder / "machine"
        self.runtime = ProcessRuntime(
            a_machine(
                self.machine,
                users=OwnerUsers(self.machine, UIDS),
                retry_seconds=0.02,
                listing_seconds=0.05,
                idle_seconds=1.0,
                **changes,
            ),
            [NodePlan(a_node())],
        )

    async def start(self, owner: str, run: RunId, script: str, context: str = "{}") -> None:
        made = an_order(run, ["sh", "-c", script], context=context)
        ranks = made.ranks
        if owner == "ann":
            name, _, value = TOKEN.partition("=")
            (rank,) = made.ranks
            ranks = (
                type(rank)(
                    rank=0,
                    node_id=rank.node_id,
                    argv=rank.argv,
                    env={**rank.env, name: value},
                    gpus=rank.gpus,
                    cwd="",
                    context=context,
                ),
            )
        await self.runtime.launch(RunOrder(run, ranks, owner=owner))

    async def over(self, run: RunId) -> ObservedRank:
        async with asyncio.timeout(20):
            while True:
                found = (await self.runtime.list()).runs.get(run)
                if found and found.ranks[0].state is not RankState.RUNNING:
                    return found.ranks[0]
                await asyncio.sleep(0.02)

    async def play(self, owner: str, run: RunId, script: str) -> list[str]:
        """The lines of a task that runs to its end."""
        await self.start(owner, run, script)
        await self.over(run)
        return self.output(run).splitlines()

    def output(self, run: RunId) -> str:
        return (self.rank_folder(run) / "output.log").read_text()

    def rank_folder(self, run: RunId) -> Path:
        return self.machine / "nodes/local-0/runs" / str(run) / "0"

    def work_folder(self, run: RunId) -> Path:
        return self.machine / "work" / str(run)

    async def printed(self, run: RunId, text: str) -> None:
        async with asyncio.timeout(20):
            log = self.rank_folder(run) / "output.log"
            while not log.exists() or text not in log.read_text():  # noqa: ASYNC110 - files set no events
                await asyncio.sleep(0.02)

    async def end(self) -> None:
        for run, seen in (await self.runtime.list()).runs.items():
            await self.runtime.end(run, seen.node_ids, grace_seconds=0)
            await self.over(run)
        await self.runtime.close()

    async def remove(self) -> None:
        # Until then its supervisor removes files, too.
        await asyncio.to_thread(end_supervisors, self.machine)
        shutil.rmtree(self.folder)


@pytest_asyncio.fixture
async def shared() -> AsyncIterator[Shared]:
    folder = Path(tempfile.mkdtemp(prefix="swo-"))
    folder.chmod(0o711)  # noqa: ASYNC240 - a local folder
    made = Shared(folder)
    await made.runtime.lead(1)
    try:
        yield made
        await made.end()
    finally:
        await made.remove()


async def test_a_task_reads_nothing_of_another_owners_task(shared: Shared) -> None:
    anns, bens = run_id(), run_id("other")
    work = shared.work_folder(anns)
    await shared.start(
        "ann", anns, "echo data > checkpoint; echo pid=$$; exec sleep 300", '{"run_token": "s"}'
    )
    await shared.printed(anns, "pid=")
    pid = int(shared.output(anns).partition("pid=")[2].split()[0])
    # What would be read if rights did not forbid it.
    assert TOKEN.encode() in proc.environment(pid).split(b"\0")
    assert (work / "checkpoint").exists()
    files = (
        f"/proc/{pid}/environ",
        str(shared.rank_folder(anns) / "context.json"),
        str(shared.rank_folder(anns) / "output.log"),
        str(work / "checkpoint"),
        str(shared.machine / "owners.json"),
        str(shared.machine / "nodes/local-0/journal"),
    )
    folders = (str(work), f"/proc/{pid}/fd", str(shared.machine / "homes" / str(UIDS[0])))
    lines = await shared.play(
        "ben",
        bens,
        f"for f in {' '.join(files)}; do cat $f && echo READ $f; done;"
        f"for f in {' '.join(folders)}; do ls $f && echo READ $f; done;"
        f"touch {work}/x && echo WROTE; kill -9 {pid} && echo KILLED; echo done",
    )
    assert [line for line in lines if line.startswith(("READ", "WROTE", "KILLED"))] == [], lines
    assert sum("denied" in line or "not permitted" in line for line in lines) >= 10
    assert lines[-1] == "done"
    found = proc.stat(pid)
    assert found is not None
    assert found.alive


async def test_folders_and_files_belong_to_the_owners_user_alone(shared: Shared) -> None:
    run = run_id()
    lines = await shared.play(
        "ann",
        run,
        "id -u; id -G; umask; echo $HOME; echo $USER; cat $SHIFTWORK_CONTEXT; echo;"
        "touch file $HOME/file; echo again >> /dev/stdout",
    )
    home = shared.machine / "homes" / str(UIDS[0])
    uid = str(UIDS[0])
    assert lines == [uid, uid, "0077", str(home), "ann", "{}", "again"]
    work = shared.work_folder(run)
    for path, mode in (
        (work, 0o700),
        (home, 0o700),
        (work / "file", 0o600),
        (shared.rank_folder(run) / "context.json", 0o600),
    ):
        found = path.stat()
        assert (found.st_uid, found.st_gid) == (UIDS[0], UIDS[0]), path
        assert stat.S_IMODE(found.st_mode) == mode, path
    # Not the task's own: it could put a link in the place of its output, which we write as root.
    for path in (shared.rank_folder(run), shared.rank_folder(run).parent):
        found = path.stat()
        assert (found.st_uid, found.st_gid) == (0, UIDS[0])
        assert stat.S_IMODE(found.st_mode) == 0o710


async def test_a_later_attempt_reads_what_the_former_one_wrote(shared: Shared) -> None:
    first, second, stranger = run_id(), run_id(attempt=2), run_id("other")
    assert await shared.play("ann", first, "echo step-7 > checkpoint; pwd") == [
        str(shared.work_folder(first))
    ]
    checkpoint = shared.work_folder(first) / "checkpoint"
    assert await shared.play("ann", second, f"cat {checkpoint}") == ["step-7"]
    (line,) = await shared.play("ben", stranger, f"cat {checkpoint}")
    assert "Permission denied" in line


@pytest.mark.parametrize("name", ["VIRTUAL_ENV", "CONDA_PREFIX"])
@pytest.mark.parametrize("mode", [0o700, 0o755])
async def test_an_environment_that_the_user_cannot_read_is_named_and_nothing_else_runs(
    shared: Shared, name: str, mode: int
) -> None:
    closed = shared.folder / "closed"
    python = closed / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to("/bin/sh")
    closed.chmod(mode)
    run = run_id("task", 1)
    made = an_order(run, ["python", "-c", "echo ran"])
    (rank,) = made.ranks
    env = {**rank.env, "PATH": f"{python.parent}:/usr/bin:/bin", name: str(closed / "venv")}
    shell = run_id("shell", 1)
    needs_none = replace(an_order(shell, ["sh", "-c", "echo ran"]).ranks[0], env=env)
    await shared.runtime.launch(RunOrder(shell, (needs_none,), owner="ann"))
    assert (await shared.over(shell)).code == 0
    await shared.runtime.launch(RunOrder(run, (replace(rank, env=env),), owner="ann"))
    code = (await shared.over(run)).code
    if mode == 0o755:
        assert (code, shared.output(run)) == (0, "ran\n")
    else:
        assert code == 126
        assert f"cannot run {python}: this task runs as user {UIDS[0]}" in shared.output(run)


async def test_a_setuid_program_gains_nothing(shared: Shared) -> None:
    program = shared.folder / "id"
    shutil.copy("/usr/bin/id", program)
    program.chmod(0o4755)
    lines = await shared.play("ann", run_id(), f"{program} -u; grep NoNewPrivs /proc/self/status")
    assert lines == [str(UIDS[0]), "NoNewPrivs:\t1"]


async def test_the_processes_of_an_owner_are_limited_without_control_groups() -> None:
    probe = cgroups.find(f"shiftwork-probe-{os.getpid()}", 40)
    probe.close()
    if not probe.user_pids_max:
        pytest.skip("control groups limit processes here")
    folder = Path(tempfile.mkdtemp(prefix="swo-"))
    folder.chmod(0o711)  # noqa: ASYNC240 - a local folder
    made = Shared(folder, pids_max=40)
    await made.runtime.lead(1)
    try:
        lines = await made.play(
            "ann",
            run_id(),
            "grep 'Max processes' /proc/self/limits;"
            "for i in $(seq 80); do sleep 300 & done; echo all",
        )
        assert lines[0].split()[2:4] == ["40", "40"]
        assert "all" not in lines
        # The limit is that owner's alone.
        assert (await made.play("ben", run_id("other"), "true; echo fine"))[-1] == "fine"
        await made.end()
    finally:
        await made.remove()


async def test_folders_of_a_supervisor_that_ran_tasks_as_root_are_opened(shared: Shared) -> None:
    before = ProcessRuntime(a_machine(shared.machine, idle_seconds=5.0), [NodePlan(a_node())])
    await before.lead(2)
    await before.launch(an_order(run_id(), ["sleep", "300"]))
    await shared.runtime.lead(3)
    assert await shared.play("ann", run_id("other"), "id -u") == [str(UIDS[0])]
    await before.close()


async def test_a_supervisor_of_an_earlier_version_starts_nothing_and_is_replaced(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old supervisor does not know which user the tasks run as."""
    await shared.runtime.list()
    lock = shared.machine / "nodes/local-0/lock"
    holder = lock.read_text()
    monkeypatch.setattr(node_client, "PROTOCOL", node_client.PROTOCOL + 1)
    with pytest.raises(RuntimeUnavailableError, match="earlier version"):
        await shared.start("ann", run_id(), "id -u")
    async with asyncio.timeout(10):
        while proc.by_signature(holder) is not None:  # noqa: ASYNC110 - processes set no events
            await asyncio.sleep(0.02)
    monkeypatch.undo()
    assert await shared.play("ann", run_id(), "id -u") == [str(UIDS[0])]
    assert lock.read_text() != holder


WHILE_THREADS_START = """
import _thread, os, signal, sys
from services.launcher.runtimes.node import spawn
from services.launcher.runtimes.node.spawn import Identity

into, group = os.open("/dev/null", os.O_WRONLY), sys.argv[1]
signal.alarm(40)
for _ in range(150):
    program = spawn.Program(["true"], {"PATH": os.defpath}, "/", into, Identity(390000, 390000, []))
    for _ in range(3):
        _thread.start_new_thread(int, ())
    gated = spawn.spawn(program, cgroup=group)
    assert gated.joined
    gated.open()
    assert os.waitpid(gated.pid, 0)[1] == 0
print("done")
"""


async def test_a_rank_changes_its_user_while_threads_of_the_supervisor_start() -> None:
    probe = cgroups.find(f"shiftwork-threads-{os.getpid()}")
    try:
        if not probe.unified:
            pytest.skip("no writable control group (version 2)")
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", WHILE_THREADS_START, probe.unified), stdout=-1
        )
        assert (await child.communicate())[0] == b"done\n"
    finally:
        probe.close()


async def test_a_folder_that_a_crash_left_half_made_is_finished(shared: Shared) -> None:
    run = run_id()
    await shared.runtime.list()
    for folder in (shared.work_folder(run), shared.rank_folder(run).parent):
        folder.mkdir(mode=0o700)
    assert await shared.play("ann", run, "touch here; cat $SHIFTWORK_CONTEXT") == ["{}"]
