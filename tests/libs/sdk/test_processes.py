"""The SDK in processes of its own: start, fork, spawn, the fence and the end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import threading
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
        began = time.perf_counter()
        import shiftwork
        took = time.perf_counter() - began
        loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
        foreign = loaded - set(sys.stdlib_module_names) - {"shiftwork"}
        heavy = loaded & {"http", "ssl", "socket", "asyncio", "email", "urllib", "multiprocessing"}
        assert not foreign, foreign
        assert not heavy, heavy
        import threading
        assert threading.active_count() == 1
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


def test_a_forked_child_hears_for_itself_and_leaves_its_parent_be(server: RunServer) -> None:
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
    told = sorted((saved["step"], saved["uri"]) for saved in server.checkpoints)
    assert told == [
        (1, "file:///parent"),
        (2, "file:///child"),
        (2, "file:///parent"),
        (3, "file:///child"),
        (3, "file:///parent"),
    ]
    assert sorted(name for s in server.samples for name in s["values"]) == ["child", "parent"]


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


def test_a_spawned_child_hears_too(server: RunServer, tmp_path: Path) -> None:
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


def test_out_of_touch_too_long_ends_the_process_if_the_task_asks(server: RunServer) -> None:
    server.stop()
    environment = {**task_environment(server), "SHIFTWORK_FENCE_AFTER_SECONDS": "0.4"}
    code, out, err = run(WAIT, environment)
    assert (code, out) == (69, "")
    assert "out of touch with the platform for 0.4 s" in err


def test_in_touch_the_fence_holds_its_peace(server: RunServer) -> None:
    # Each answered poll counts, also those that bring nothing new.
    environment = {**task_environment(server), "SHIFTWORK_FENCE_AFTER_SECONDS": "1.2"}
    program = """
        import dataclasses, shiftwork.training as training
        training._process = training._Process(
            dataclasses.replace(training.Limits(), poll_seconds=0.3)
        )
    """
    code, out, err = run(textwrap.dedent(program) + textwrap.dedent(WAIT), environment)
    assert (code, out, err) == (0, "still here\n", "")


def test_without_a_fence_a_platform_that_is_down_ends_nothing(server: RunServer) -> None:
    server.stop()
    code, out, _err = run(WAIT, task_environment(server))
    assert (code, out) == (0, "still here\n")


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


def test_the_sdk_holds_to_python_3_8() -> None:
    vermin = Path(sys.executable).parent / "vermin"
    done = subprocess.run(
        [str(vermin), "-t=3.8-", "--no-tips", "--violations", str(SDK / "shiftwork")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
