"""The errors of the Trainer, Accelerate and JAX adapters when something is missing or wrong."""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.local_gang import BIN, PLAIN, Gang

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
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_the_trainer_resumes_from_the_next_complete_checkpoint(tmp_path: Path) -> None:
    script = """
        import json, os, pathlib
        import transformers, shiftwork.transformers
        from shiftwork import folders, training

        out = pathlib.Path(os.environ["FOLDER"])

        def be(task, step=None):
            os.environ["SHIFTWORK_TASK"] = task
            saved = {"step": step, "uri": str(out / f"checkpoint-{step}")}
            os.environ["SHIFTWORK_RESUME_FROM"] = json.dumps(saved) if step else ""
            training._process.context = None

        for step, task in ((10, "ta"), (30, "ta"), (40, "ta"), (9000, "tb"), (50, ""), (60, "ta")):
            path = out / f"checkpoint-{step}"
            path.mkdir()
            (path / "trainer_state.json").write_text("{}")
            be(task)
            if task:
                folders.seal(path, step)
        (path / "trainer_state.json").write_text("")  # torn: its size is another

        def found():
            try:
                return os.path.basename(shiftwork.transformers.resume_path())
            except (FileNotFoundError, ValueError) as error:
                return error

        for step in (30, 20, 35, 45, 50, 9000):
            be("ta", step)
            print(step, found())
        be("ta")
        print(shiftwork.transformers.resume_path())
        # An attempt that begins at 30 is going to write over what lies beyond it.
        be("ta", 30)
        arguments = transformers.TrainingArguments(str(out), use_cpu=True)
        state = transformers.TrainerState(global_step=30)
        callback = shiftwork.transformers.PreemptionCallback()
        callback.on_train_begin(arguments, state, transformers.TrainerControl())
        print(sorted(int(path.parent.name[11:]) for path in out.glob("*/manifest.json")))
    """
    output = run(script, FOLDER=str(tmp_path))
    lines = [line for line in output.splitlines() if line]
    assert lines[:3] == ["30 checkpoint-30", "20 checkpoint-40", "35 checkpoint-40"]
    assert "45 the checkpoint of step 45 is not at" in lines[3]
    assert "the Trainer's output_dir" in lines[3]
    assert "checkpoint-50 is not complete: it has no manifest.json" in lines[4]
    assert "is of task tb, not ta; give each task a folder of its own" in lines[5]
    assert lines[6] == "None"
    assert lines[7] == "[10, 30, 9000]"
    assert f"resuming from {tmp_path}/checkpoint-40" in output


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

        problem(lambda: begin(save_only_model=True))
        problem(lambda: begin())
        accelerator = Accelerator(cpu=True)  # TrainingArguments forget one that is made before
        problem(lambda: shiftwork.accelerate.Checkpoints(accelerator, "out"))
        problem(lambda: shiftwork.accelerate.Checkpoints(accelerator, "out", keep=0))
    """
    out = run(script, OUT=str(tmp_path), SHIFTWORK_WORLD_SIZE="2").splitlines()
    errors = [line for line in out if line.startswith(("RuntimeError", "ValueError"))]
    assert "save_only_model" in errors[0]
    assert "2 ranks" in errors[1]
    assert "torchrun" in errors[1]
    assert errors[2] == errors[1]
    assert errors[3] == "ValueError: keep: 0 must be 1 or more"


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
        # Saved once more, as when the task is asked to leave at that step, and cut off in it.
        class Killed(BaseException):
            pass
        def killed(*_, **__):
            raise Killed
        save, shiftwork.jax.ocp.Checkpointer.save = shiftwork.jax.ocp.Checkpointer.save, killed
        try:
            checkpoints.save(3, {"weights": jnp.zeros(2), "bias": jnp.zeros(1)})
        except Killed:
            print(sorted(os.listdir(folder)))
        shiftwork.jax.ocp.Checkpointer.save = save
        saved = '{"step": 3, "uri": "%s"}' % os.path.join(folder, kept)
        os.environ["SHIFTWORK_RESUME_FROM"] = saved
        training._process.context = None
        print(checkpoints.resume({"weights": jnp.zeros(2), "bias": jnp.zeros(1)}))
        os.environ["SHIFTWORK_TASK"] = "tb"
        training._process.context = None
        problem(lambda: checkpoints.resume({"weights": jnp.zeros(2), "bias": jnp.zeros(1)}))
        del os.environ["SHIFTWORK_TASK"]
        uri = os.path.join(folder, kept)
        for place in (uri, uri + "-gone"):
            os.environ["SHIFTWORK_RESUME_FROM"] = '{"step": 3, "uri": "%s"}' % place
            training._process.context = None
            problem(lambda: checkpoints.resume({"weights": jnp.ones(2), "gain": jnp.ones(1)}))
    """
    output = run(script, OUT=str(tmp_path / "out"), SHIFTWORK_WORLD_SIZE="2")
    lines = [line for line in output.splitlines() if line]
    assert "shiftwork.jax.initialize()" in lines[0]
    assert "gs://bucket is not a path" in lines[1]
    kept = "local-attempt-0000-step-000000000003"
    assert lines[2] == kept
    assert lines[3] == str([kept, f"{kept}-2"])
    assert lines[4].startswith("(3, {'bias': Array([1.]")
    assert "give each task a folder of its own" in lines[5]
    assert "state['bias'] is only in the checkpoint" in lines[6]
    assert "every node of the task must find the folder" in lines[7]


def test_an_accelerate_loop_takes_only_its_own_checkpoint_that_is_whole(tmp_path: Path) -> None:
    script = """
        import json, os, pathlib
        import torch
        from accelerate import Accelerator
        import shiftwork.accelerate
        from shiftwork import training

        os.chdir(os.environ["OUT"])
        accelerator = Accelerator(cpu=True)
        data = torch.utils.data.TensorDataset(torch.arange(8.0).reshape(8, 1))
        loader = torch.utils.data.DataLoader(data)
        model, loader = accelerator.prepare(torch.nn.Linear(1, 1), loader)
        acknowledged = []
        shiftwork.checkpoint_saved = lambda *given: acknowledged.append(given)

        def be(task, attempt, saved=None):
            os.environ.update(SHIFTWORK_TASK=task, SHIFTWORK_ATTEMPT=str(attempt))
            named = saved and dict(zip(("step", "uri", "digest"), saved))
            os.environ["SHIFTWORK_RESUME_FROM"] = json.dumps(named) if named else ""
            training._process.context = None
            return shiftwork.accelerate.Checkpoints(accelerator, "out", every=4, keep=1)

        for task in ("ta", "tb"):
            checkpoints = be(task, 1)
            for _ in checkpoints.epochs(1):
                for _ in checkpoints.batches(loader):
                    pass
        print(sorted(os.listdir("out")))
        last = acknowledged[1]
        print(be("ta", 2, last).load())

        def refused(task):
            try:
                be(task, 2, last).load()
            except ValueError as error:
                print(error)

        refused("tb")
        (pathlib.Path(last[1]) / "model.safetensors").write_bytes(b"")
        refused("ta")
    """
    lines = run(script, OUT=str(tmp_path)).splitlines()
    assert lines[0] == str([f"{task}-attempt-0001-step-000000000008" for task in ("ta", "tb")])
    assert lines[1] == "8"
    assert "is of task ta, not tb; give each task a folder of its own" in lines[2]
    assert "is not what was saved: model.safetensors has 0 bytes" in lines[3]


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


def test_every_jax_process_learns_that_the_attempt_is_superseded(tmp_path: Path) -> None:
    script = tmp_path / "save.py"
    script.write_text(SUPERSEDED)
    refused: tuple[int, dict[str, Any]] = (409, {"type": "urn:shiftwork:problem:superseded"})
    with Gang(tmp_path, replicas=2) as gang:
        gang.server.checkpoint_answers.append(refused)
        gang.start(BIN / "python", script, tmp_path / "out")
        codes, outputs = gang.end()
    assert codes == [0, 0], outputs
    assert all("superseded" in output for output in outputs)
