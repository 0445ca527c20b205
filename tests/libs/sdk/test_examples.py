"""The examples as their users run them: off the platform, asked to leave, resumed to the bit."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.libs.sdk.conftest import task_environment
from tests.libs.sdk.run_server import RunServer
from tools.first_hour.documents import steps

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.server

EXAMPLES = Path(__file__).parents[3] / "examples"
SDK = Path(__file__).parents[3] / "libs" / "sdk"


def start(
    script: str, arguments: Sequence[object], environment: dict[str, str], cwd: Path
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / script), *map(str, arguments)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SDK), **environment},
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, _ = process.communicate(timeout=30)
    return process.returncode, out


def attempt(
    server: RunServer, number: int, resume_from: dict[str, Any] | None = None
) -> dict[str, str]:
    return {
        **task_environment(server),
        "SHIFTWORK_ATTEMPT": str(number),
        "SHIFTWORK_RESUME_FROM": json.dumps(resume_from) if resume_from else "",
    }


def final(folder: Path) -> Any:
    return json.loads((folder / "final.json").read_text())


def test_digits_ends_with_the_same_bits_however_often_it_leaves(
    server: RunServer, tmp_path: Path
) -> None:
    options = ["--steps", 60, "--out"]
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    # A person's shell has other variables than a task; the bits must not depend on them.
    shell = {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    assert end(start("digits.py", [*options, alone], shell, tmp_path))[0] == 0

    saved = None
    for number in (1, 2):
        server.preempt, server.revision = False, 0
        running = start(
            "digits.py",
            [*options, shared, "--step-seconds", 0.02],
            attempt(server, number, saved),
            tmp_path,
        )
        already = len(server.samples)
        server.wait_for(lambda already=already: len(server.samples) > already, 20)
        server.ask_to_leave()
        code, out = end(running)
        assert code == 75, out
        saved = {**server.checkpoints[-1], "attempt": number}
        assert f"attempt-{number}-step-{saved['step']:08d}" in saved["uri"]
    assert 0 < server.checkpoints[0]["step"] < server.checkpoints[1]["step"] < 60

    server.preempt, server.revision = False, 0
    code, out = end(start("digits.py", [*options, shared], attempt(server, 3, saved), tmp_path))
    assert code == 0, out
    assert f"from step {saved['step']} of 60" in out
    assert final(shared) == final(alone)


def test_digits_refuses_a_checkpoint_that_is_not_what_was_saved(
    server: RunServer, tmp_path: Path
) -> None:
    path = tmp_path / "broken.npz"
    path.write_bytes(b"other bytes")
    saved = {"step": 5, "uri": path.as_uri(), "digest": "sha256:00", "attempt": 1}
    code, out = end(start("digits.py", [], attempt(server, 2, saved), tmp_path))
    assert code == 1
    assert "is not what was saved" in out


def free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])


def gang(
    servers: list[RunServer], number: int, saved: dict[str, Any] | None, out: Path, slow: float
) -> list[subprocess.Popen[str]]:
    port = str(free_port())
    return [
        start(
            "gang.py",
            ["--steps", 80, "--out", out, "--step-seconds", slow],
            {
                **attempt(server, number, saved),
                "SHIFTWORK_RANK": str(rank),
                "SHIFTWORK_WORLD_SIZE": str(len(servers)),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            },
            out,
        )
        for rank, server in enumerate(servers)
    ]


def test_a_gang_leaves_at_one_step_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    # Each rank has a server of its own, so that only one of them receives the preemption request.
    servers = [RunServer(), RunServer()]
    try:
        alone, shared = tmp_path / "alone", tmp_path / "shared"
        alone.mkdir()
        shared.mkdir()
        for process in gang(servers, 1, None, alone, 0.0):
            assert end(process)[0] == 0
        ranks = gang(servers, 1, None, shared, 0.01)
        servers[1].wait_for(lambda: len(servers[1].polls) >= 2, 10)
        time.sleep(0.1)
        servers[1].ask_to_leave()
        ended = [end(process) for process in ranks]
        assert [code for code, _ in ended] == [75, 75], ended
        step = servers[0].checkpoints[0]["step"]
        assert servers[1].checkpoints == []
        assert all(f"leaves at step {step}\n" in out for _, out in ended)
        servers[1].preempt, servers[1].revision = False, 0
        saved = {**servers[0].checkpoints[0], "attempt": 1}
        for process in gang(servers, 2, saved, shared, 0.0):
            assert end(process)[0] == 0
        assert final(shared) == final(alone)
    finally:
        for server in servers:
            server.stop()


def test_a_gang_that_loses_a_rank_fails(server: RunServer, tmp_path: Path) -> None:
    ranks = gang([server, server], 1, None, tmp_path, 0.05)
    assert ranks[0].stdout is not None
    ranks[0].stdout.readline()
    ranks[1].kill()
    end(ranks[1])
    code, out = end(ranks[0])
    assert code == 1
    assert "another rank has gone" in out or "reset" in out


def test_a_program_without_the_sdk_leaves_on_a_signal(tmp_path: Path) -> None:
    options = ["--steps", 40, "--out"]
    code, whole = end(
        start("signal_mode.py", [*options, "alone", "--step-seconds", 0], {}, tmp_path)
    )
    assert code == 0
    running = start("signal_mode.py", [*options, "shared", "--step-seconds", 0.02], {}, tmp_path)
    assert running.stdout is not None
    running.stdout.readline()
    time.sleep(0.1)
    running.send_signal(signal.SIGUSR1)
    assert end(running)[0] == 75
    code, rest = end(
        start("signal_mode.py", [*options, "shared", "--step-seconds", 0], {}, tmp_path)
    )
    assert code == 0
    assert "from step 0 " not in rest
    assert rest.splitlines()[-1] == whole.splitlines()[-1]


def test_the_minimal_script_leaves_and_resumes(server: RunServer, tmp_path: Path) -> None:
    running = start("minimal.py", [], attempt(server, 1), tmp_path)
    server.wait_for(lambda: len(server.polls) >= 2, 10)
    server.ask_to_leave()
    assert end(running) == (0, "")
    saved = {**server.checkpoints[0], "attempt": 1}
    held = json.loads(Path(saved["uri"]).read_text())
    assert held["step"] == saved["step"] > 0
    # Resumed at the last step but one, so that the test need not wait for a hundred.
    held.update(step=99)
    Path(saved["uri"]).write_text(json.dumps(held))
    server.preempt, server.revision = False, 0
    code, out = end(start("minimal.py", [], attempt(server, 2, saved), tmp_path))
    assert code == 0
    assert out == f"sum {held['sum'] + 1 / 100:.12f}\n"


@pytest.mark.slow
def test_the_script_in_the_readme_runs_as_copied_leaves_and_resumes(
    server: RunServer, tmp_path: Path
) -> None:
    readme = (EXAMPLES.parent / "README.md").read_text()
    (script,) = [step.text for step in steps("README.md", readme) if step.file == "train.py"]
    train = tmp_path / "train.py"
    train.write_text(script)
    code, whole = end(start(str(train), [], {}, tmp_path))
    assert code == 0, whole
    running = start(str(train), [], attempt(server, 1), tmp_path)
    server.wait_for(lambda: len(server.polls) >= 2, 10)
    server.ask_to_leave()
    assert end(running) == (75, "")
    saved = {**server.checkpoints[0], "attempt": 1}
    server.preempt, server.revision = False, 0
    assert end(start(str(train), [], attempt(server, 2, saved), tmp_path)) == (0, whole)
