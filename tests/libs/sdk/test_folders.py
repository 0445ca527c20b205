"""The folders of checkpoints: which are complete, whose they are, and which are removed."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from shiftwork import durable, folders, training
from shiftwork.context import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable


def be(task: str, attempt: int) -> None:
    """Go on as this attempt of this task."""
    training._process.context = replace(training._process.known(), task=task, attempt=attempt)


def save(folder: Path, step: int) -> tuple[Path, str]:
    path, _ = folders.new(folder, step)
    durable.write(path / "weights", lambda stream: stream.write(b"%d" % step))
    return path, folders.seal(path, step)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("keep", range(1, 7))
def test_as_many_checkpoints_stay_as_are_to_be_kept(tmp_path: Path, keep: int) -> None:
    be("ta", 1)
    left: list[int] = []
    for step in range(1, 9):
        path, _ = save(tmp_path, step)
        folders.prune(path, keep)
        left.append(len(names(tmp_path)))
        assert path.exists()
    assert left == [min(step, keep) for step in range(1, 9)]


def test_only_what_this_task_has_saved_by_then_is_removed(tmp_path: Path) -> None:
    be("tb", 1)
    other, _ = save(tmp_path, 50)
    be("ta", 1)
    first, _ = save(tmp_path, 100)
    torn, _ = folders.new(tmp_path, 110)
    be("ta", 10)
    later, _ = folders.new(tmp_path, 50)
    (tmp_path / "notes").mkdir()
    be("ta", 9)
    newest, _ = save(tmp_path, 120)
    folders.prune(newest, 1)
    assert names(tmp_path) == sorted([other.name, later.name, newest.name, "notes"])
    assert not first.exists()
    assert not torn.exists()


def test_a_step_that_is_saved_again_has_another_folder(tmp_path: Path) -> None:
    be("", 0)
    paths = [save(tmp_path, 3)[0].name for _ in range(11)]
    first = "local-attempt-0000-step-000000000003"
    assert paths == [first, *(f"{first}-{again}" for again in range(2, 12))]
    folders.prune(tmp_path / paths[-1], 2)
    assert names(tmp_path) == [f"{first}-10", f"{first}-11"]


def cut_short(path: Path) -> None:
    (path / "weights").write_bytes(b"")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (cut_short, "is not what was saved: weights has 0 bytes, not 3 bytes"),
        (lambda path: (path / "weights").unlink(), "weights is missing, not 3 bytes"),
        (lambda path: (path / folders.MANIFEST).unlink(), "is not complete: it has no manifest"),
        (lambda path: (path / folders.MANIFEST).write_text("{}"), "cannot be read"),
        (lambda _: be("tb", 1), "it is of task ta, not tb; give each task a folder of its own"),
        (lambda path: folders.seal(path, 101), "it is of step 101, not 100"),
        (lambda path: folders.seal(path, 100, ranks=2), "is not what was saved: its digest is"),
        (shutil.rmtree, "every node of the task must find the folder of its checkpoints"),
    ],
)
def test_a_checkpoint_that_is_not_the_stored_one_is_refused(
    tmp_path: Path, change: Callable[[Path], object], message: str
) -> None:
    be("ta", 1)
    path, digest = save(tmp_path, 100)
    stored = Checkpoint(100, str(path), digest, 1)
    be("ta", 2)
    assert folders.stored(stored) == path
    change(path)
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        folders.stored(stored)
    assert message in str(error.value)


def test_a_task_that_goes_on_with_another_reads_the_others_checkpoint(tmp_path: Path) -> None:
    be("ta", 2)
    path, digest = save(tmp_path, 100)
    be("tb", 1)
    with pytest.raises(ValueError, match="not the checkpoint of this task"):
        folders.stored(Checkpoint(100, str(path), digest, 2))
    assert folders.stored(Checkpoint(100, str(path), digest, 2, task="ta")) == path
    # Its own saves lie beside the other's, and prune only its own.
    own, _ = save(tmp_path, 100)
    later, _ = save(tmp_path, 200)
    folders.prune(later, keep=1)
    assert (path.is_dir(), own.exists(), later.is_dir()) == (True, False, True)


def test_an_incomplete_folder_of_a_killed_writer_is_not_listed(tmp_path: Path) -> None:
    be("ta", 1)
    path, _ = folders.new(tmp_path, 1)
    for name in ("manifest.json", "weights"):
        (path / f"{name}{durable.HALF}").write_bytes(b"half")
    folders.seal(path, 1)
    assert json.loads((path / "manifest.json").read_text())["files"] == {}


def test_every_file_and_folder_is_synced_before_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def record(handle: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", record)
    be("ta", 1)
    path, _ = save(tmp_path / "above" / "out", 1)
    assert synced == [
        str(each)
        for each in (
            tmp_path,
            tmp_path / "above",
            tmp_path / "above" / "out",
            path / f"weights{durable.HALF}",
            path,
            path / f"manifest.json{durable.HALF}",
            path,
        )
    ]


@pytest.mark.parametrize(("step", "kind"), [(-1, ValueError), ("5", TypeError), (5.0, TypeError)])
def test_an_invalid_step_makes_no_folder(
    tmp_path: Path, step: object, kind: type[Exception]
) -> None:
    be("ta", 1)
    with pytest.raises(kind, match="step must be"):
        folders.new(tmp_path / "out", step)  # type: ignore[arg-type]
    assert not names(tmp_path)
