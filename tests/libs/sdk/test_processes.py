"""The SDK in processes of its own: start, fork, spawn, the fence and the end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.libs.sdk.conftest import task_environment

if TYPE_CHECKING:
    from tests.libs.sdk.run_server import RunServer

pytestmark = pytest.mark.server

SDK = Path(__file__).parents[3] / "libs" / "sdk"


def run(
    program: str, environment: dict[str, str], python: str = sys.executable
) -> tuple[int, str, str]:
    done = subprocess.run(
        [python, "-c", textwrap.dedent(program)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SDK), **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_import_is_quick_and_standard_library_only() -> None:
    program = """
        import sys, time
        before = set(sys.modules)
        began = time.process_time()
        import shiftwork
        took = time.process_time() - began
        loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
        foreign = loaded - set(sys.stdlib_module_names) - {"shiftwork"}
        heavy = loaded & {"http", "ssl", "socket", "asyncio", "email", "urllib", "multiprocessing"}
        assert not foreign, foreign
        assert not heavy, heavy
        import threading
        assert threading.active_count() == 1
        # The time of the processor, so that a busy machine does not change it.
        print(took)
    """
    took = []
    for _ in range(5):
        code, out, err = run(program, {})
        assert code == 0, err
        took.append(float(out))
    assert min(took) < 0.050


LEAVE = """
    import time, shiftwork
    for step in range(1, 2000):
        shiftwork.report(step=step)
        if shiftwork.should_preempt():
            shiftwork.checkpoint_saved(step, "file:///c/%d" % step)
            shiftwork.exit_preempted()
        time.sleep(0.005)
    raise SystemExit("never asked")
"""


def pythons() -> list[str]:
    """This Python, and a Python 3.8 where one is at hand."""
    known = [shutil.which("python3.8"), *Path.home().glob(".pyenv/versions/3.8*/bin/python3.8")]
    older = [str(path) for path in known if path and run("", {}, str(path))[0] == 0]
    return [sys.executable, *older[:1]]


@pytest.mark.parametrize("python", pythons(), ids=lambda path: Path(path).name)
def test_a_process_leaves_with_75_and_its_last_metrics(server: RunServer, python: str) -> None:
    asked = threading.Timer(0.5, server.ask_to_leave)
    asked.start()
    code, _out, err = run(LEAVE, task_environment(server), python)
    assert (code, err) == (75, "")
    steps = [sample["values"]["step"] for sample in server.samples]
    assert steps == list(range(1, len(steps) + 1))
    assert server.checkpoints[0]["step"] == steps[-1]


def test_a_forked_child_polls_for_itself_and_does_not_disturb_its_parent(server: RunServer) -> None:
    program = """
        import os, time, shiftwork
        shiftwork.checkpoint_saved(1, "file:///parent")
        assert not shiftwork.should_preempt()
        child = os.fork()
        name = "parent" if child else "child"
        shiftwork.checkpoint_saved(2, "file:///" + name)
        while not shiftwork.should_preempt():
            time.sleep(0.005)
        shiftwork.report(**{name: 1})
        shiftwork.checkpoint_saved(3, "file:///" + name)
        if child:
            assert os.waitpid(child, 0)[1] == 0
        else:
            time.sleep(1.3)  # os._exit flushes nothing: let a batch go
            os._exit(0)
    """
    threading.Timer(0.6, server.ask_to_leave).start()
    code, _out, err = run(program, task_environment(server))
    assert (code, err) == (0, "")
    saved_checkpoints = sorted((saved["step"], saved["uri"]) for saved in server.checkpoints)
    assert saved_checkpoints == [
        (1, "file:///parent"),
        (2, "file:///child"),
        (2, "file:///parent"),
        (3, "file:///child"),
        (3, "file:///parent"),
    ]
    assert sorted(name for s in server.samples for name in s["values"]) == ["child", "parent"]


@pytest.mark.parametrize("delay_ms", [0, 1, 3, 6, 10, 15, 20])
def test_a_child_forked_right_after_the_first_call_does_not_hang(
    server: RunServer, delay_ms: int
) -> None:
    program = f"""
        import os, signal, time, shiftwork
        shiftwork.should_preempt()
        time.sleep({delay_ms} / 1000)
        child = os.fork()
        if not child:
            signal.alarm(10)  # ends a child that hangs
            shiftwork.should_preempt()
            shiftwork.checkpoint_saved(1, "file:///child")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    """
    code, _out, err = run(program, task_environment(server))
    assert (code, err) == (0, "")
    assert [saved["uri"] for saved in server.checkpoints] == ["file:///child"]


@pytest.mark.parametrize("python", pythons(), ids=lambda path: Path(path).name)
def test_background_threads_import_nothing(server: RunServer, python: str) -> None:
    # A thread that imports while the program forks leaves its locks to the child for ever.
    program = """
        import sys, threading, shiftwork
        started, loaded = threading.Thread.start, []

        def start(thread):
            if thread.name.startswith("shiftwork-") and not loaded:
                loaded.append(set(sys.modules))
            started(thread)

        threading.Thread.start = start
        shiftwork.should_preempt()
        while not shiftwork.should_preempt():
            shiftwork.report(loss=1)
            shiftwork.checkpoint_saved(1, "file:///c")
        print(sorted(set(sys.modules) - loaded[0]))
    """
    threading.Timer(1.0, server.ask_to_leave).start()
    environment = task_environment(server)
    environment["SHIFTWORK_URL"] = f"http://localhost:{server.port}"
    code, out, err = run(program, environment, python)
    assert (code, out, err) == (0, "[]\n", "")


def test_a_process_that_forks_while_it_begins_leaves_a_child_that_works(server: RunServer) -> None:
    program = """
        import os, signal, sys, threading, time, shiftwork
        beginning = threading.Thread(target=shiftwork.should_preempt)
        beginning.start()
        while "http" not in sys.modules:
            time.sleep(0.0001)
        child = os.fork()
        if not child:
            signal.alarm(10)
            shiftwork.checkpoint_saved(1, "file:///child")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        beginning.join()
    """
    code, _out, err = run(program, task_environment(server))
    assert (code, err) == (0, "")


def test_a_child_forked_after_the_request_knows_at_once(server: RunServer) -> None:
    program = """
        import os, time, shiftwork
        while not shiftwork.should_preempt():
            time.sleep(0.005)
        child = os.fork()
        if not child:
            os._exit(0 if shiftwork.should_preempt() else 9)
        assert os.waitpid(child, 0)[1] == 0
    """
    server.ask_to_leave()
    code, _out, err = run(program, task_environment(server))
    assert (code, err) == (0, "")


def test_a_spawned_child_polls_too(server: RunServer, tmp_path: Path) -> None:
    script = tmp_path / "spawning.py"
    script.write_text(
        textwrap.dedent("""
        import multiprocessing, time, shiftwork

        def child():
            while not shiftwork.should_preempt():
                time.sleep(0.005)
            shiftwork.checkpoint_saved(5, "file:///spawned")

        if __name__ == "__main__":
            shiftwork.should_preempt()
            process = multiprocessing.get_context("spawn").Process(target=child)
            process.start()
            process.join(10)
            raise SystemExit(process.exitcode)
        """)
    )
    server.ask_to_leave()
    program = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    code, _out, err = run(program, task_environment(server))
    assert (code, err) == (0, "")
    assert server.checkpoints[0]["uri"] == "file:///spawned"


WAIT = """
    import time, shiftwork
    shiftwork.should_preempt()
    time.sleep(2.0)
    print("still here")
"""


def test_losing_contact_for_too_long_ends_the_process_if_the_task_has_a_fence(
    server: RunServer,
) -> None:
    server.stop()
    environment = {**task_environment(server), "SHIFTWORK_FENCE_AFTER_SECONDS": "0.4"}
    code, out, err = run(WAIT, environment)
    assert (code, out) == (69, "")
    assert "out of touch with the platform for 0.4 s" in err


@pytest.mark.slow
def test_a_fence_shorter_than_the_poll_spares_a_process_in_touch(
    server: RunServer, tmp_path: Path
) -> None:
    # With the poll as it is everywhere: held for up to 30 s where there is no fence.
    context = tmp_path / "context.json"
    environment = {**task_environment(server), "SHIFTWORK_CONTEXT": str(context)}
    context.write_text(json.dumps({"fence_after_seconds": 3.0}))
    code, out, err = run(WAIT.replace("2.0", "5.0"), environment)
    assert (code, out, err) == (0, "still here\n", "")
    # Each answered poll counts, also those that bring nothing new.
    assert {poll["wait_seconds"] for poll in server.polls} == {"0", "1"}


def test_without_a_fence_a_platform_that_is_down_ends_nothing(server: RunServer) -> None:
    server.stop()
    code, out, _err = run(WAIT, task_environment(server))
    assert (code, out) == (0, "still here\n")


def test_the_end_of_the_program_sends_checkpoints_on_their_way(server: RunServer) -> None:
    server.stop()
    threading.Timer(1.0, server.start).start()
    program = """
        import shiftwork
        for step in range(3):
            shiftwork.checkpoint_saved(step, "file:///c", wait=False)
    """
    code, _out, err = run(program, task_environment(server))
    assert (code, err) == (0, "")
    assert [saved["step"] for saved in server.checkpoints] == [0, 1, 2]


@pytest.mark.parametrize("python", pythons(), ids=lambda path: Path(path).name)
def test_a_checkpoint_saved_while_the_interpreter_ends_is_stored(
    server: RunServer, python: str
) -> None:
    program = """
        import atexit, shiftwork
        atexit.register(shiftwork.checkpoint_saved, 1, "file:///c")
        shiftwork.should_preempt()
    """
    code, _out, err = run(program, task_environment(server), python)
    assert (code, err) == (0, "")
    assert [saved["step"] for saved in server.checkpoints] == [1]


def test_four_local_ranks_report_each_under_its_own_rank(server: RunServer) -> None:
    # Torchrun starts them so on the second node; the platform answers some with a conflict.
    server.metrics_answers = [(409, {"type": "conflict"})] * 6
    program = """
        import time, shiftwork
        for step in range(200):
            shiftwork.report(step=step)
            assert not shiftwork.should_preempt()
            time.sleep(0.01)
        shiftwork.checkpoint_saved(200, "file:///c")
    """
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program)],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(SDK),
                **task_environment(server),
                "SHIFTWORK_RANK": "1",
                "RANK": str(4 + local),
                "WORLD_SIZE": "8",
                "TORCHELASTIC_RUN_ID": "none",
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        for local in range(4)
    ]
    assert [(rank.communicate(timeout=60)[1], rank.returncode) for rank in ranks] == [("", 0)] * 4
    assert set(server.ranks) == {4, 5, 6, 7}
    assert len(server.samples) == 4 * 200


UNTIL_ASKED = """
    import os, signal, sys, time, shiftwork
    {before}
    shiftwork.should_preempt()
    {after}
    os.kill(os.getpid(), signal.SIGTERM)
    ends = time.monotonic() + 5
    while not shiftwork.should_preempt() and time.monotonic() < ends:
        time.sleep(0.01)
    print("asked" if shiftwork.should_preempt() else "not asked", flush=True)
    shiftwork.checkpoint_saved(1, "file:///c")
    shiftwork.exit_preempted()
    print("goes on")
"""


@pytest.mark.parametrize("on_platform", [True, False])
@pytest.mark.parametrize("python", pythons(), ids=lambda path: Path(path).name)
def test_sigterm_requests_a_checkpoint(server: RunServer, python: str, on_platform: bool) -> None:
    environment = task_environment(server) if on_platform else {}
    program = textwrap.dedent(UNTIL_ASKED).format(before="", after="")
    assert run(program, environment, python) == (75, "asked\n", "")
    assert len(server.checkpoints) == on_platform


def test_a_handler_that_the_program_has_installed_still_runs() -> None:
    program = textwrap.dedent(UNTIL_ASKED).format(
        before="signal.signal(signal.SIGTERM, lambda number, _: print('handled', int(number)))",
        after="",
    )
    assert run(program, {}) == (75, "handled 15\nasked\n", "")


def test_a_handler_that_the_program_installs_later_stays() -> None:
    program = """
        import os, signal, shiftwork
        shiftwork.should_preempt()
        signal.signal(signal.SIGTERM, lambda number, _: print("handled"))
        shiftwork.should_preempt()
        os.kill(os.getpid(), signal.SIGTERM)
        print(shiftwork.should_preempt())
    """
    assert run(program, {}) == (0, "handled\nFalse\n", "")


def test_an_ignored_sigterm_stays_ignored() -> None:
    program = """
        import os, signal, shiftwork
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        shiftwork.should_preempt()
        print(signal.getsignal(signal.SIGTERM) == signal.SIG_IGN)
    """
    assert run(program, {}) == (0, "True\n", "")


def test_a_program_that_does_not_ask_is_ended_by_sigterm() -> None:
    program = """
        import os, signal, time, shiftwork
        shiftwork.report(loss=1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    """
    assert run(program, {}) == (-signal.SIGTERM, "", "")


def test_another_thread_than_the_main_one_leaves_the_handler_to_the_main_one() -> None:
    program = """
        import signal, threading, shiftwork
        other = threading.Thread(target=shiftwork.should_preempt)
        other.start()
        other.join()
        print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
        shiftwork.should_preempt()
        print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
    """
    assert run(program, {}) == (0, "True\nFalse\n", "")


def test_sigterm_ends_a_forked_worker_that_does_not_ask() -> None:
    # Pools of multiprocessing and data loaders end their workers so.
    program = """
        import multiprocessing, time, shiftwork
        shiftwork.should_preempt()
        worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))
        worker.start()
        worker.terminate()
        worker.join(10)
        print(worker.exitcode)
    """
    assert run(program, {}) == (0, "-15\n", "")


def test_the_end_waits_only_so_long_for_metrics(server: RunServer) -> None:
    server.stop()
    program = """
        import time, atexit, shiftwork
        began = time.monotonic()
        shiftwork.report(loss=1)
        atexit.register(lambda: None)
        import sys
        sys.stdout.write(str(began))
    """
    import time

    code, out, err = run(program, task_environment(server))
    assert (code, err) == (0, "")
    assert time.monotonic() - float(out) < 4.0


def test_the_sdk_keeps_to_python_3_8() -> None:
    vermin = Path(sys.executable).parent / "vermin"
    done = subprocess.run(
        [str(vermin), "-t=3.8-", "--no-tips", "--violations", str(SDK / "shiftwork")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("answers", [[], [(503, {}), (503, {}), (429, {})]])
def test_the_end_of_a_program_waits_for_its_report_of_readiness(
    server: RunServer, answers: list[tuple[int, dict[str, object]]]
) -> None:
    server.ready_answers = answers
    code, _, err = run("import shiftwork; shiftwork.ready()", task_environment(server))
    assert (code, err) == (0, "")
    assert server.ready == [{"rank": 0, "restarts": 0}]


@pytest.mark.slow
def test_the_end_of_a_program_does_not_wait_for_ever_for_a_platform_that_is_away(
    server: RunServer,
) -> None:
    server.stop()
    program = "import shiftwork; shiftwork.ready()"
    began = time.monotonic()
    code, _, _ = run(program, task_environment(server))
    assert code == 0
    assert time.monotonic() - began < 15
