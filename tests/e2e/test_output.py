"""Output as people expect it: unbuffered, bars live and kept as a line, the end of a failure."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from datetime import datetime
from pathlib import Path

import pytest

from tests.e2e.conftest import Shiftwork

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(120)]

# As tqdm writes it: the carriage return first, and no end of the line before the bar's own.
BAR = """
import sys, time
from pathlib import Path

print("loading", end="")
while not Path("go-1").exists():
    time.sleep(0.01)
print(" done")
for number in range(4201):
    sys.stderr.write(f"\\r{number / 100:3.0f}%|####| {number}/10000")
    sys.stderr.flush()
while not Path("go-2").exists():
    time.sleep(0.01)
sys.stderr.write("\\r100%|####| 10000/10000\\n")
print("end")
"""
CPU = ("--gpus-per-node", "0")


def drawn(master: int, text: bytes, so_far: bytes = b"") -> bytes:
    """What a terminal got until a text was in it."""
    until = time.monotonic() + 60
    while text not in so_far:
        assert time.monotonic() < until, so_far[-2000:]
        if select.select([master], [], [], 1.0)[0]:
            so_far += os.read(master, 65_536)
    return so_far


def test_a_prompt_and_a_bar_are_live_on_a_terminal_and_kept_as_a_line(
    shiftwork: Shiftwork, tmp_path: Path
) -> None:
    (tmp_path / "bar.py").write_text(BAR)
    task = shiftwork.submit(*CPU, "--workdir", str(tmp_path), "--", "python", "bar.py")
    master, slave = pty.openpty()
    environ = {"PATH": os.environ["PATH"], "HOME": str(shiftwork.home), "TERM": "xterm"}
    with subprocess.Popen(
        shiftwork.command("logs", "-f", task),
        env=environ | shiftwork.environ,
        stdin=slave,
        stdout=slave,
        stderr=slave,
    ) as following:
        os.close(slave)
        # Neither line has ended.
        drawn(master, b"loading")
        (tmp_path / "go-1").touch()
        shown = drawn(master, b"| 4200/10000")
        (tmp_path / "go-2").touch()
        shown = drawn(master, b"end", shown)
        assert following.wait(60) == 0
    os.close(master)
    assert shown.count(b"%|####|") < 100
    # As bytes: text would have its carriage returns replaced.
    kept = subprocess.run(
        shiftwork.command("logs", task),
        env=environ | shiftwork.environ,
        check=True,
        capture_output=True,
    ).stdout
    lines = [line.rpartition(b"\r")[2] for line in kept.split(b"\n")]
    assert lines == [b"loading done", b"100%|####| 10000/10000", b"end", b""]
    assert kept.count(b"%|####|") < 20


def test_followed_into_a_file_a_bar_is_how_it_ended(shiftwork: Shiftwork, tmp_path: Path) -> None:
    (tmp_path / "bar.py").write_text(BAR)
    (tmp_path / "go-1").touch()
    (tmp_path / "go-2").touch()
    done = shiftwork(*("submit", "-f", *CPU, "--workdir", str(tmp_path), "--", "python", "bar.py"))
    assert done.out.splitlines()[1:] == ["loading done", "100%|####| 10000/10000", "end"]


# Each line contains the time at which it was written.
CLOCK = """
import time

for number in range(6):
    print(f"{time.time():.6f}")
    time.sleep(0.3)
"""


def test_each_line_has_its_time(shiftwork: Shiftwork, tmp_path: Path) -> None:
    """Both while it is written and afterwards; lines of all ranks in the order of their times."""
    (tmp_path / "clock.py").write_text(CLOCK)
    submitted = shiftwork.submit(
        *CPU, "--nodes", "2", "--workdir", str(tmp_path), "--", "python", "clock.py"
    )
    live = shiftwork.good("logs", submitted, "-f", "--timestamps").out.splitlines()
    kept = shiftwork.good("logs", submitted, "-t").out.splitlines()
    assert sorted(live) == sorted(kept)
    assert [line.split()[0] for line in kept] == sorted(line.split()[0] for line in kept)
    assert len(kept) == 2 * 6
    for line in kept:
        at, rank, own = line.split()
        assert rank in ("[0]", "[1]")
        stamped = datetime.fromisoformat(at).timestamp()
        # The kernel's clock of files has ticks, and the time is shown in milliseconds.
        assert -0.012 < stamped - float(own) < 1.5, line
    # A second later another range begins; no line of it is older.
    since = kept[6].split()[0]
    later = shiftwork.good("logs", submitted, "-t", "--since", since).out.splitlines()
    assert [line for line in kept if line.split()[0] >= since] == later


@pytest.mark.parametrize(
    ("options", "value"),
    [((), "1"), (("--env", "PYTHONUNBUFFERED="), ""), (("--env", "PYTHONUNBUFFERED=0"), "0")],
)
def test_python_is_unbuffered_unless_the_task_sets_it(
    shiftwork: Shiftwork, options: tuple[str, ...], value: str
) -> None:
    show = 'echo "($PYTHONUNBUFFERED)"'
    done = shiftwork("submit", "-f", *CPU, *options, "--", "sh", "-c", show)
    assert done.out.splitlines()[1:] == [f"({value})"]


def test_a_failure_is_shown_with_the_last_lines_of_the_rank_that_failed_first(
    shiftwork: Shiftwork,
) -> None:
    script = 'test $RANK = 0 && exec sleep 600; seq 20; echo "rank $RANK broke"; exit 3'
    task = shiftwork.submit(*CPU, "--nodes", "2", "--", "sh", "-c", script)
    done = shiftwork("wait", task)
    # Rank 0 was ended because of it.
    assert (done.code, done.out) == (3, "failed\n")
    expected = [
        "last output of rank 1, attempt 1:",
        *(f"  {number}" for number in range(12, 21)),
        "  rank 1 broke",
    ]
    assert [line.strip() for line in done.err.splitlines()] == [line.strip() for line in expected]
    assert shiftwork.good("show", task).out.splitlines()[-11:] == expected
    assert shiftwork.good("explain", task).out.splitlines()[-11:] == expected


def test_the_error_lines_of_a_failure_are_kept_and_output_is_searched_where_it_is(
    shiftwork: Shiftwork,
) -> None:
    script = (
        'seq 200; echo "rank $RANK begins"; test $RANK = 0 && exec sleep 600;'
        ' echo "RuntimeError: CUDA error: bad"; seq 20; exit 3'
    )
    task = shiftwork.submit(*CPU, "--nodes", "2", "--", "sh", "-c", script)
    shiftwork("wait", task)
    head, ends_at = "error lines of rank 1, attempt 1:", time.monotonic() + 20
    while head not in shiftwork.good("show", task).out:
        assert time.monotonic() < ends_at, "no error lines were found"
        time.sleep(0.2)
    assert "  RuntimeError: CUDA error: bad" in shiftwork.good("explain", task).out.splitlines()
    assert "CUDA error: bad (cuda)" in shiftwork.good("events", task).out
    found = shiftwork.good("logs", task, "--search", "RANK . BEG|cuda", "-i").out.splitlines()
    assert found == [
        "[0] rank 0 begins",
        "[1] rank 1 begins",
        "[1] RuntimeError: CUDA error: bad",
    ]
    around = shiftwork.good("logs", task, "--search", "CUDA", "-C", "1", "--rank", "1").out
    assert around == "rank 1 begins\nRuntimeError: CUDA error: bad\n1\n"
    begin = len("".join(f"{number}\n" for number in range(1, 201)))
    before = ("--rank", "1", "--before", str(begin), "--tail", "2")
    assert shiftwork.good("logs", task, *before).out == "199\n200\n"
    refused = shiftwork("logs", task, "--search", "(?=x)")
    assert refused.code == 2
    assert "RE2" in refused.err


def test_what_a_task_reports_is_in_the_list(shiftwork: Shiftwork) -> None:
    program = "import shiftwork; shiftwork.report(step=1200, loss=0.31, other=float('nan'))"
    task = shiftwork.submit("--name", "reporting", *CPU, "--", "python", "-c", program)
    shiftwork.good("wait", task)
    listed = next(line for line in shiftwork.good("ls", "--all").out.splitlines() if task in line)
    assert "step 1200  loss 0.31" in listed
    assert "step 1200  loss 0.31  other NaN (" in shiftwork.good("show", task).out
