from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from shiftwork import context
from shiftwork.context import Checkpoint

if TYPE_CHECKING:
    from pathlib import Path

CHECKPOINT = {"step": 40, "uri": "file:///c/40", "digest": "sha256:ab", "attempt": 2, "no": 3}
CONTEXT: dict[str, Any] = {
    "task": "ta",
    "attempt": 3,
    "node": "local-0",
    "gpus": [0, 1],
    "rank": 1,
    "world_size": 2,
    "local_rank": 0,
    "role": "worker",
    "resume_from": CHECKPOINT,
    "url": "http://127.0.0.1:8642/",
    "run_token": "srt_x",
    "fence_after_seconds": None,
}
NOWHERE = "/nonexistent/context.json"
ENVIRONMENT = {
    "SHIFTWORK_TASK": "tb",
    "SHIFTWORK_ATTEMPT": "9",
    "SHIFTWORK_RANK": "5",
    "SHIFTWORK_WORLD_SIZE": "6",
    "SHIFTWORK_URL": "https://[::1]:1/prefix/",
    "SHIFTWORK_RUN_TOKEN": "srt_y",
    "SHIFTWORK_RESUME_FROM": json.dumps({**CHECKPOINT, "step": 7, "digest": ""}),
}


def written(folder: Path, content: object) -> dict[str, str]:
    path = folder / "context.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return {"SHIFTWORK_CONTEXT": str(path)}


def test_the_file_wins_over_the_environment(tmp_path: Path) -> None:
    read = context.read({**ENVIRONMENT, **written(tmp_path, CONTEXT)}, NOWHERE)
    assert (read.task, read.attempt, read.rank, read.world_size) == ("ta", 3, 1, 2)
    assert read.url == "http://127.0.0.1:8642"
    assert read.resume_from == Checkpoint(40, "file:///c/40", "sha256:ab", 2)
    assert read.on_platform
    assert read.problem == ""


def test_null_in_the_file_wins_over_the_environment(tmp_path: Path) -> None:
    read = context.read(
        {**ENVIRONMENT, **written(tmp_path, {**CONTEXT, "resume_from": None})}, NOWHERE
    )
    assert read.resume_from is None


def test_the_environment_fills_what_the_file_lacks(tmp_path: Path) -> None:
    read = context.read({**ENVIRONMENT, **written(tmp_path, {"task": "ta"})}, NOWHERE)
    assert (read.task, read.attempt, read.run_token) == ("ta", 9, "srt_y")


def test_the_environment_alone_is_enough(tmp_path: Path) -> None:
    read = context.read(ENVIRONMENT, str(tmp_path / "none"))
    assert (read.task, read.rank, read.world_size) == ("tb", 5, 6)
    assert read.url == "https://[::1]:1/prefix"
    assert read.resume_from == Checkpoint(7, "file:///c/40", None, 2)
    assert read.problem == ""


def test_an_empty_resume_from_is_none(tmp_path: Path) -> None:
    read = context.read({**ENVIRONMENT, "SHIFTWORK_RESUME_FROM": ""}, str(tmp_path / "none"))
    assert read.resume_from is None


def test_the_fixed_path_is_read_without_a_variable(tmp_path: Path) -> None:
    path = written(tmp_path, CONTEXT)["SHIFTWORK_CONTEXT"]
    assert context.read({}, path).task == "ta"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "cannot be read"),
        ("[]", "holds no JSON object"),
        ({**CONTEXT, "rank": "first"}, "malformed"),
        ({**CONTEXT, "resume_from": {"uri": "x"}}, "malformed"),
        ({**CONTEXT, "url": "ftp://x"}, "is not an http:// or https:// address"),
        ({**CONTEXT, "url": "http://x:port"}, "is not an http:// or https:// address"),
    ],
)
def test_a_malformed_value_is_warned_about_and_ignored(
    tmp_path: Path, content: object, problem: str
) -> None:
    read = context.read(written(tmp_path, content), NOWHERE)
    assert problem in read.problem
    assert not read.on_platform


def test_a_missing_context_file_that_the_environment_names_is_a_problem(tmp_path: Path) -> None:
    read = context.read({**ENVIRONMENT, "SHIFTWORK_CONTEXT": str(tmp_path / "gone")}, NOWHERE)
    assert "does not exist" in read.problem
    assert read.on_platform


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (1, 2)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, (1, 2)),
        ({"RANK": "11", "WORLD_SIZE": "16", "TORCHELASTIC_RUN_ID": "x"}, (11, 16)),
    ],
)
def test_ranks_are_the_replicas_and_torchruns_inside_torchrun(
    tmp_path: Path, environ: dict[str, str], expected: tuple[int, int]
) -> None:
    read = context.read(written(tmp_path, CONTEXT), NOWHERE)
    found = context.process_rank(read, environ), context.process_world_size(read, environ)
    assert found == expected


def test_ranks_off_the_platform() -> None:
    alone = context.Context()
    assert context.process_rank(alone, {}) == 0
    assert context.process_world_size(alone, {}) == 1
    assert context.process_rank(alone, {"RANK": "3"}) == 3
    assert context.process_world_size(alone, {"WORLD_SIZE": "4"}) == 4
