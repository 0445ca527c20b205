"""Where a command runs: streams that are closed or full, few letters, a directory that is gone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def shiftwork(home: Path, line: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run ``line`` in a shell, in which ``shiftwork`` is the command line."""
    command = f'shiftwork() {{ "{sys.executable}" -m shiftwork "$@"; }}\n{line}'
    return subprocess.run(
        ["bash", "-c", command],
        env={"HOME": str(home), "PATH": "/usr/bin:/bin", **environ},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def contexts(home: Path) -> Path:
    known = {name: {"url": "http://127.0.0.1:1"} for name in ("labör", "日本")}
    folder = home / ".config" / "shiftwork"
    folder.mkdir(parents=True)
    (folder / "contexts.json").write_text(json.dumps({"current": "labör", "contexts": known}))
    return home


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_streams_may_be_closed(contexts: Path, closed: str) -> None:
    done = shiftwork(contexts, f"shiftwork context ls {closed}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_a_failure_with_its_fix(
    contexts: Path, unbuffered: str
) -> None:
    done = shiftwork(contexts, "shiftwork context ls > /dev/full", PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 1
    assert done.stderr.startswith("error: the output cannot be written: No space left on device\n")
    assert "fix:" in done.stderr


def test_a_closed_pipe_ends_the_command_quietly(contexts: Path) -> None:
    done = shiftwork(contexts, "shiftwork context ls | true; echo ${PIPESTATUS[0]}")
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_names_may_have_characters_that_the_terminals_encoding_lacks(contexts: Path) -> None:
    done = shiftwork(contexts, "shiftwork context ls", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert r"lab\xf6r" in done.stdout
    done = shiftwork(contexts, "shiftwork --json context ls", PYTHONIOENCODING="ascii")
    assert {each["name"] for each in json.loads(done.stdout)["items"]} == {"labör", "日本"}


def test_a_deleted_working_directory_is_reported(contexts: Path) -> None:
    gone = contexts / "gone"
    gone.mkdir()
    line = "cd gone && rmdir ../gone && shiftwork submit --dry-run -- true"
    done = shiftwork(contexts, line)
    assert done.returncode == 1
    assert done.stderr == (
        "error: the current directory does not exist any more\n"
        f"  where: {gone}\n  fix:   cd to a directory that exists\n"
    )


def test_the_version_is_printed_before_and_after_a_command(home: Path) -> None:
    before, after = (shiftwork(home, f"shiftwork {each}") for each in ("--version", "ls --version"))
    assert before.stdout.startswith("shiftwork ")
    assert after.stdout == before.stdout
