"""Commands and terminals in real ranks: streams, sizes, exit codes, users, and what is left."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from libs.contracts.ids import RunId
from libs.contracts.messages import ExecEnd, ExecStream, Placement
from services.launcher.domain.model import RankState
from services.launcher.runtimes.exec_port import ExecOrder, ExecRefusedError
from services.launcher.runtimes.node import exec_sessions, proc
from services.launcher.runtimes.node_client import NodePlan
from services.launcher.runtimes.node_exec import NodeExec, shell_of
from services.launcher.runtimes.port import RunOrder, RuntimeUnavailableError
from services.launcher.runtimes.process import ProcessRuntime
from services.launcher.task_users import OwnerUsers
from tests.kit.launcher_builders import a_machine, a_node, an_order, run_id
from tests.services.launcher.runtimes.test_process import HERE, RUN, Box

PYTHON = sys.executable


def order(*argv: str, terminal: bool = False, **more: object) -> ExecOrder:
    values: dict[str, object] = {
        "session": f"session{os.urandom(4).hex()}",
        "run_id": RUN,
        "place": Placement(rank=0, node_id="local-0"),
        "owner": "ann",
        "argv": argv,
        "terminal": terminal,
        "rows": 24 if terminal else 0,
        "columns": 80 if terminal else 0,
        "term": "xterm" if terminal else "",
    }
    return ExecOrder(**{**values, **more})  # type: ignore[arg-type]


async def finished(process: NodeExec) -> tuple[bytes, bytes, ExecEnd]:
    found = {ExecStream.STDOUT: b"", ExecStream.STDERR: b""}
    async with asyncio.timeout(10):
        while (piece := await process.read()) is not None:
            found[piece[0]] += piece[1]
        return found[ExecStream.STDOUT], found[ExecStream.STDERR], await process.wait()


async def result(box: Box, *argv: str, terminal: bool = False) -> tuple[bytes, bytes, ExecEnd]:
    async with box.runtime.open_exec(order(*argv, terminal=terminal)) as process:
        if not terminal:
            await process.close_input()
        return await finished(process)


async def shown(process: NodeExec, text: bytes) -> bytes:
    seen = b""
    async with asyncio.timeout(10):
        while text not in seen:
            piece = await process.read()
            assert piece is not None, seen
            seen += piece[1]
    return seen


async def no_process_has(name: str) -> None:
    """No process of a session is left."""
    async with asyncio.timeout(5):
        while holders(name):  # noqa: ASYNC110 - processes set no events
            await asyncio.sleep(0.01)


def holders(name: str) -> list[int]:
    wanted = f"{exec_sessions.VARIABLE}={name}".encode()
    return [
        each.pid
        for each in proc.everyone()
        if each.alive and wanted in proc.environment(each.pid).split(b"\0")
    ]


@pytest_asyncio.fixture
async def busy(box: Box) -> Box:
    """A node with a rank that runs."""
    await box.sh("echo ready; exec sleep 600", env={"MINE": "yes"})
    await box.started()
    return box


async def test_a_command_has_its_streams_apart_and_its_own_exit_code(busy: Box) -> None:
    out, error, end = await result(busy, "sh", "-c", "echo out; echo error >&2; exit 7")
    assert (out, error, end) == (b"out\n", b"error\n", ExecEnd(code=7))
    _, _, end = await result(busy, "sh", "-c", "kill -TERM $$")
    assert end == ExecEnd(code=128 + signal.SIGTERM)
    _, error, end = await result(busy, "no-such-command")
    assert end == ExecEnd(code=127)
    assert b"no such command on PATH" in error


async def test_pipes_carry_any_bytes_in_both_directions_and_close_one_by_one(busy: Box) -> None:
    data = os.urandom(3 << 20)
    async with busy.runtime.open_exec(order("cat")) as process:

        async def write() -> None:
            await process.write(data)
            await process.close_input()

        writing = asyncio.ensure_future(write())
        out, error, end = await finished(process)
        await writing
    assert (out == data, error, end) == (True, b"", ExecEnd(code=0))


async def test_what_nobody_reads_makes_the_command_wait(busy: Box) -> None:
    async with busy.runtime.open_exec(order("sh", "-c", "yes | head -c 10000000")) as process:
        await asyncio.sleep(0.3)
        out, _, end = await finished(process)
    assert (len(out), end.code) == (10_000_000, 0)


async def test_input_that_a_command_does_not_read_is_dropped(busy: Box) -> None:
    async with busy.runtime.open_exec(order("sh", "-c", "exec 0<&-; sleep 0.2")) as process:
        async with asyncio.timeout(5):
            await process.write(b"x" * (1 << 20))
        assert (await finished(process))[2] == ExecEnd(code=0)


async def test_a_command_has_what_the_rank_has(busy: Box) -> None:
    main = busy.start_record()["pid"]
    show = (
        "import os; print(os.getcwd());print('\\0'.join(f'{k}={v}' for k, v in os.environ.items()))"
    )
    out, _, _ = await result(busy, PYTHON, "-c", show)
    cwd, environment = out.decode().rstrip("\n").split("\n", 1)
    assert cwd == os.readlink(f"/proc/{main}/cwd")  # noqa: PTH115 - of /proc
    found = dict(pair.split("=", 1) for pair in environment.split("\0"))
    own = found.pop(exec_sessions.VARIABLE)
    assert own.startswith("session")
    found.pop("LC_CTYPE", None)
    pairs = proc.environment(main).decode().rstrip("\0").split("\0")
    of_rank = dict(pair.split("=", 1) for pair in pairs)
    # The rank's shell has set these.
    assert found == {name: of_rank[name] for name in of_rank if name not in {"PWD", "OLDPWD", "_"}}
    assert (found["MINE"], found["CUDA_VISIBLE_DEVICES"]) == ("yes", "4")
    groups, _, _ = await result(busy, "cat", "/proc/self/cgroup")
    assert groups.decode() == Path(f"/proc/{main}/cgroup").read_text()  # noqa: ASYNC240 - of /proc


async def test_a_terminal_shows_resizes_and_is_interrupted(busy: Box) -> None:
    async with busy.runtime.open_exec(order("sh", terminal=True)) as process:
        await process.write(b"stty -echo size; tty; echo $TERM; echo rea''dy\n")
        seen = await shown(process, b"ready")
        assert b"24 80" in seen
        assert b"/dev/pts/" in seen
        assert b"xterm" in seen
        await process.resize(40, 132)
        await process.write(b"stty size\n")
        await shown(process, b"40 132")
        await process.write(b"sleep 600; echo code $?\n")
        await asyncio.sleep(0.2)
        await process.write(b"\x03")
        await process.write(b"echo code $?; exit 5\n")
        seen = await shown(process, b"code 130")
        assert (await finished(process))[2] == ExecEnd(code=5)


async def test_the_default_is_the_users_shell(busy: Box) -> None:
    async with busy.runtime.open_exec(order(terminal=True)) as process:
        await process.write(b"readlink /proc/$$/exe; exit\n")
        seen, _, _ = await finished(process)
    assert os.path.realpath(shell_of(os.getuid())) in seen.decode()  # noqa: ASYNC240 - as seen
    assert shell_of(399_999) == "sh"


async def test_hanging_up_leaves_nothing(busy: Box) -> None:
    made = order("sh", "-c", "trap '' HUP TERM; setsid sleep 600 & (sleep 600 &) ; echo on; wait")
    async with busy.runtime.open_exec(made) as process:
        await shown(process, b"on")
        assert len(holders(made.session)) >= 3
    await no_process_has(made.session)
    assert (await busy.runtime.list()).runs[RUN].ranks[0].state is RankState.RUNNING


async def test_what_a_command_leaves_behind_ends_with_it(busy: Box) -> None:
    made = order("sh", "-c", "setsid sleep 600 & exit 3")
    async with busy.runtime.open_exec(made) as process:
        assert (await finished(process))[2] == ExecEnd(code=3)
        assert holders(made.session) == []


async def test_a_killed_launcher_leaves_nothing(busy: Box) -> None:
    """The connection is all that holds a session: the kernel closes it with the process."""
    made = order("sleep", "600")
    code = f"""
import asyncio, pathlib
from libs.contracts.ids import RunId
from libs.contracts.messages import Placement
from services.launcher.runtimes.exec_port import ExecOrder
from services.launcher.runtimes.node_exec import open_node_exec
made = ExecOrder({made.session!r}, RunId.parse({str(RUN)!r}), Placement(rank=0, node_id='local-0'),
                 'ann', ('sh', '-c', 'echo on; sleep 600; :'), False, 0, 0, '')
async def main():
    async with open_node_exec(pathlib.Path({str(busy.node)!r}), {busy.epoch}, made, 'sh', 5) as it:
        await it.read()
        print('on', flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""
    launcher = await asyncio.create_subprocess_exec(
        PYTHON, "-c", code, stdout=asyncio.subprocess.PIPE
    )
    assert launcher.stdout is not None
    assert await launcher.stdout.readline() == b"on\n"
    assert holders(made.session)
    launcher.kill()
    await launcher.wait()
    await no_process_has(made.session)


async def test_a_session_ends_with_its_rank_and_does_not_hold_it(busy: Box) -> None:
    made = order("sh", "-c", "trap '' HUP TERM; echo on; while :; do sleep 1; done")
    async with busy.runtime.open_exec(made) as process:
        await shown(process, b"on")
        await busy.runtime.end(RUN, HERE, grace_seconds=0)
        await busy.over()
        _, _, end = await finished(process)
    assert end.code == 128 + signal.SIGKILL
    assert holders(made.session) == []
    with pytest.raises(ExecRefusedError, match="is over"):
        await result(busy, "true")


async def test_a_session_ends_when_the_rank_ends_by_itself(box: Box, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    await box.sh(f"echo ready; while [ ! -e {gate} ]; do sleep 0.02; done; exit 4")
    await box.started()
    async with box.runtime.open_exec(order("sleep", "600")) as process:
        gate.touch()
        assert (await box.over()).code == 4
        assert (await finished(process))[2].code == 128 + signal.SIGKILL


async def test_a_killed_supervisor_leaves_nothing(busy: Box) -> None:
    made = order("sleep", "600")
    async with busy.runtime.open_exec(made) as process:
        os.kill(busy.supervisor.pid, signal.SIGKILL)
        _, _, end = await finished_or_hung(process)
        assert end == ExecEnd(problem="the supervisor of its node ended")
    assert (await busy.over()).state is RankState.LOST
    await no_process_has(made.session)


async def finished_or_hung(process: NodeExec) -> tuple[bytes, bytes, ExecEnd]:
    """As ``finished``, for a command whose output does not end."""
    async with asyncio.timeout(10):
        return b"", b"", await process.wait()


async def test_what_cannot_be_opened_is_refused_with_the_reason(busy: Box) -> None:
    async def refusal(made: ExecOrder) -> str:
        with pytest.raises(ExecRefusedError) as found:
            async with busy.runtime.open_exec(made):
                pass
        return str(found.value)

    assert "rank 0 of run other.1" in await refusal(order("true", run_id=run_id("other")))
    elsewhere = Placement(rank=1, node_id="local-0")
    assert "rank 1 of run task.1" in await refusal(order("true", place=elsewhere))
    async with AsyncExitStack() as held:
        for _ in range(exec_sessions.SESSIONS_MAX):
            await held.enter_async_context(busy.runtime.open_exec(order("sleep", "600")))
        assert "sessions are open on this node" in await refusal(order("true"))
        assert RUN in (await busy.runtime.list()).runs
    async with asyncio.timeout(5):
        while True:
            try:
                assert (await result(busy, "true"))[2] == ExecEnd(code=0)
            except ExecRefusedError:
                await asyncio.sleep(0.01)
            else:
                break


async def test_an_earlier_leader_opens_nothing_and_loses_its_sessions(busy: Box) -> None:
    made = order("sleep", "600")
    earlier = busy.runtime
    async with earlier.open_exec(made) as process:
        busy.again()
        await busy.lead()
        await busy.runtime.list()
        assert (await finished(process))[2].code == 128 + signal.SIGKILL
        with pytest.raises(RuntimeUnavailableError, match="another leader"):
            async with earlier.open_exec(order("true")):
                pass


UIDS = range(391_000, 391_010)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs tasks as other users")
async def test_a_session_runs_as_the_tasks_user_and_reaches_no_other_task() -> None:
    with tempfile.TemporaryDirectory(prefix="shiftwork-exec-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # noqa: ASYNC240 - at the start
        machine = folder / "machine"
        users = OwnerUsers(machine, UIDS)
        runtime = ProcessRuntime(a_machine(machine, users=users), [NodePlan(a_node())])
        await runtime.lead(1)
        hers, his = run_id("hers"), run_id("his")
        for run, owner in ((hers, "ann"), (his, "ben")):
            made = an_order(run, ["sleep", "600"])
            await runtime.launch(RunOrder(run, made.ranks, owner=owner))
        try:
            await examine(runtime, hers, his, machine)
        finally:
            for run in (hers, his):
                await runtime.end(run, HERE, grace_seconds=0)
            async with asyncio.timeout(5):
                while not all(  # noqa: ASYNC110 - processes set no events
                    rank.over
                    for each in (await runtime.list()).runs.values()
                    for rank in each.ranks.values()
                ):
                    await asyncio.sleep(0.02)
            await runtime.close()


async def examine(runtime: ProcessRuntime, hers: RunId, his: RunId, machine: Path) -> None:
    async def output_of(run: RunId, owner: str, *argv: str, terminal: bool = False) -> str:
        made = order(*argv, run_id=run, owner=owner, terminal=terminal)
        async with runtime.open_exec(made) as process:
            return (await finished(process))[0].decode()

    number = int(await output_of(hers, "ann", "id", "-u"))
    assert number in UIDS
    assert await output_of(his, "ben", "id", "-u") != str(number)
    # Its terminal and pipes can be opened by name, as by programs that ask for a password.
    reopen = "echo tty >/dev/tty; echo out >/dev/stdout; ps -o tty= -p $$ >/dev/null; umask"
    assert (await output_of(hers, "ann", "sh", "-c", reopen, terminal=True)).split() == [
        "tty",
        "out",
        "0077",
    ]
    assert "out" in await output_of(hers, "ann", "sh", "-c", "echo out >/dev/stdout")
    privileges = await output_of(hers, "ann", "grep", "NoNewPrivs", "/proc/self/status")
    assert privileges.split() == ["NoNewPrivs:", "1"]
    context = machine / "nodes/local-0/runs/his.1/0/context.json"
    assert stat.S_ISREG(context.stat().st_mode)
    assert "denied" in await output_of(hers, "ann", "sh", "-c", f"cat {context} 2>&1")
    spying = "for p in /proc/[0-9]*; do cat $p/environ 2>/dev/null; done | tr '\\0' '\\n'"
    assert "his.1" not in await output_of(hers, "ann", "sh", "-c", spying)
