"""What Trainer, Accelerate and JAX tasks are told when something is missing or wrong."""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.gangs import BIN, PLAIN, SECONDS_MAX, gang

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.server,
    pytest.mark.usefixtures("frameworks_python"),
]


def run(script: str, **environment: str) -> str:
    done = subprocess.run(
        [BIN / "python", "-c", textwrap.dedent(script)],
        env={"PATH": os.environ["PATH"], **PLAIN, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_the_trainer_resumes_from_the_next_complete_checkpoint(tmp_path: Path) -> None:
    for step, complete in ((10, True), (30, True), (40, True), (50, False)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        if complete:
            (folder / "trainer_state.json").write_text("{}")
    script = """
        import json, os, shiftwork.transformers
        from shiftwork import training

        def found(step):
            uri = os.path.join(os.environ["FOLDER"], f"checkpoint-{step}")
            os.environ["SHIFTWORK_RESUME_FROM"] = json.dumps({"step": step, "uri": uri})
            training._process.context = None
            try:
                path = shiftwork.transformers.resume_path()
            except FileNotFoundError as error:
                return error
            return os.path.basename(path)

        for step in (30, 20, 50):
            print(found(step))
        del os.environ["SHIFTWORK_RESUME_FROM"]
        training._process.context = None
        print(shiftwork.transformers.resume_path())
    """
    lines = [line for line in run(script, FOLDER=str(tmp_path)).splitlines() if line]
    assert lines[:2] == ["checkpoint-30", "checkpoint-40"]
    assert "output_dir" in lines[2]
    assert lines[3] == "None"
    assert f"{tmp_path}/checkpoint-20 is gone; resuming from {tmp_path}/checkpoint-40" in lines[4]


def test_what_could_not_resume_is_refused_at_the_start(tmp_path: Path) -> None:
    script = """
        import os
        import torch
        from accelerate import Accelerator
        from transformers import TrainerControl, TrainerState, TrainingArguments
        import shiftwork.accelerate, shiftwork.transformers

        def problem(call):
            try:
                call()
            except (RuntimeError, ValueError) as error:
                print(f"{type(error).__name__}: {error}")

        def begin(**options):
            arguments = TrainingArguments(os.environ["OUT"], use_cpu=True, **options)
            callback = shiftwork.transformers.PreemptionCallback()
            callback.on_train_begin(arguments, TrainerState(), TrainerControl())

        accelerator = Accelerator(cpu=True)
        problem(lambda: begin(save_only_model=True))
        problem(lambda: begin())
        problem(lambda: shiftwork.accelerate.Checkpoints(accelerator, "out"))
        problem(lambda: shiftwork.accelerate.Checkpoints(accelerator, "out", keep=0))
    """
    out = run(script, OUT=str(tmp_path), SHIFTWORK_WORLD_SIZE="2").splitlines()
    told = [line for line in out if line.startswith(("RuntimeError", "ValueError"))]
    assert "save_only_model" in told[0]
    assert "2 ranks" in told[1]
    assert "torchrun" in told[1]
    assert told[2] == told[1]
    assert told[3] == "ValueError: keep: 0 must be 1 or more"


def test_a_jax_process_alone_in_a_gang_and_another_state_are_refused(tmp_path: Path) -> None:
    script = """
        import os
        import jax.numpy as jnp
        import shiftwork.jax
        from shiftwork import training

        def problem(call):
            try:
                call()
            except (FileNotFoundError, RuntimeError, ValueError) as error:
                print(error)

        folder = os.environ["OUT"]
        problem(lambda: shiftwork.jax.Checkpoints(folder))
        os.environ["SHIFTWORK_WORLD_SIZE"] = "1"
        training._process.context = None
        problem(lambda: shiftwork.jax.Checkpoints("gs://bucket"))
        checkpoints = shiftwork.jax.Checkpoints(folder, keep=1)
        for step in (1, 2, 3):
            checkpoints.save(step, {"weights": jnp.ones(2), "bias": jnp.ones(1)})
        (kept,) = os.listdir(folder)
        print(kept)
        uri = os.path.join(folder, kept)
        for place in (uri, uri + "-gone"):
            os.environ["SHIFTWORK_RESUME_FROM"] = '{"step": 3, "uri": "%s"}' % place
            training._process.context = None
            problem(lambda: checkpoints.resume({"weights": jnp.ones(2), "gain": jnp.ones(1)}))
    """
    told = run(script, OUT=str(tmp_path / "out"), SHIFTWORK_WORLD_SIZE="2")
    lines = [line for line in told.splitlines() if line]
    assert "shiftwork.jax.initialize()" in lines[0]
    assert "gs://bucket is not a path" in lines[1]
    assert lines[2] == "attempt-0000-step-000000000003"
    assert "state['bias'] is only in the checkpoint" in lines[3]
    assert "every node of the task must find the folder" in lines[4]


SUPERSEDED = """
import shiftwork
import shiftwork.jax
shiftwork.jax.initialize()
import jax.numpy as jnp
import sys
checkpoints = shiftwork.jax.Checkpoints(sys.argv[1])
try:
    checkpoints.save(1, {"own": jnp.ones(2)})
except shiftwork.Superseded:
    print("superseded", flush=True)
"""


def test_every_jax_process_hears_that_the_attempt_is_superseded(tmp_path: Path) -> None:
    script = tmp_path / "save.py"
    script.write_text(SUPERSEDED)
    refused: tuple[int, dict[str, Any]] = (409, {"type": "urn:shiftwork:problem:superseded"})
    with gang(2, script, tmp_path / "out") as ranks:
        ranks.servers[0].checkpoint_answers.append(refused)
        ranks.start(1, None)
        codes, outputs = ranks.end()
    assert codes == [0, 0], outputs
    assert all("superseded" in output for output in outputs)
