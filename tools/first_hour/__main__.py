"""Follow README and the guide in a fresh clone, with a fresh home. Exit code 1 at the first
difference from a page; nothing is left running, and the folder is removed.

``python -m tools.first_hour [--keep] [PAGE ...]``
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.first_hour.terminal import Terminal
from tools.first_hour.walk import WalkError, walk

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/guide.md", "docs/frameworks.md")
SUPERVISOR = b"runtimes/supervisor.py"
# Where packages come from is the machine's affair, and stays; what an environment or a platform
# set does not.
DROPPED = ("SHIFTWORK_", "VIRTUAL_ENV", "CONDA_", "PYTHON", "PYTEST_", "XDG_", "MAKE", "MFLAGS")


def main() -> None:
    """Follow the pages."""
    parser = argparse.ArgumentParser(prog="tools.first_hour", description=__doc__)
    parser.add_argument("pages", nargs="*", help=f"pages to follow; {' '.join(PAGES)}")
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # A socket's path has a limit.
    folder = Path(tempfile.mkdtemp(prefix="sw-hour-"))
    folder.chmod(0o755)
    try:
        failed = _hour(folder, asked.pages)
    finally:
        if asked.keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    sys.exit(failed)


def _hour(folder: Path, pages: list[str]) -> int:
    clone, home = folder / "shiftwork", folder / "home"
    home.mkdir()
    _clone(clone)
    environ = fresh_environment(os.environ, home)
    began = time.monotonic()
    try:
        with Terminal(clone, environ, folder) as terminal:
            there = [page for page in pages or PAGES if (clone / page).exists()]
            walk(clone, there, terminal, lambda line: print(line, flush=True))
            failed = 0
    except WalkError as error:
        print(f"\n{error}\nTo repeat: make first-hour", file=sys.stderr)
        failed = 1
    finally:
        left = _end_all(clone, home, environ)
    if left and not failed:
        print("still running after the last page:\n" + "\n".join(left), file=sys.stderr)
        failed = 1
    print(f"{time.monotonic() - began:.0f} s", flush=True)
    return failed


def _clone(clone: Path) -> None:
    """The commit that is checked out, and what is changed on top of it."""
    _git(ROOT, ("clone", "--quiet", str(ROOT), str(clone)))
    listed = ("ls-files", "-z", "--modified", "--others", "--exclude-standard")
    names = _git(ROOT, listed)
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, clone / name)
        else:
            (clone / name).unlink(missing_ok=True)


def _git(folder: Path, line: Sequence[str]) -> str:
    done = subprocess.run(["git", *line], cwd=folder, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603, S607 - our own words
    return done.stdout


def fresh_environment(environ: Mapping[str, str], home: Path) -> dict[str, str]:
    """A new user's variables: nothing of an activated environment, nothing of a platform."""
    used = environ.get("VIRTUAL_ENV", "-"), environ.get("CONDA_PREFIX", "-"), str(ROOT)
    path = [
        folder
        for folder in environ["PATH"].split(os.pathsep)
        if not any(Path(folder).is_relative_to(one) for one in used)
    ]
    cache = environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {
        **{name: value for name, value in environ.items() if not name.startswith(DROPPED)},
        "PATH": os.pathsep.join(path),
        "HOME": str(home),
        "PORT": str(port),
        # Downloaded once for all clones.
        "UV_CACHE_DIR": environ.get("UV_CACHE_DIR", f"{cache}/uv"),
        "PIP_CACHE_DIR": environ.get("PIP_CACHE_DIR", f"{cache}/pip"),
    }


def _end_all(clone: Path, home: Path, environ: Mapping[str, str]) -> list[str]:
    """End what still runs of this hour; what had to be killed."""
    program = clone / ".venv/bin/shiftwork"
    if (home / "data").exists() and program.exists():
        line = [str(program), "down", "--now", "--data", str(home / "data")]
        subprocess.run(line, env=dict(environ), check=False, capture_output=True, timeout=120)  # noqa: S603 - our own words
    # Supervisors of nodes leave by themselves, half a minute after their last run.
    left: list[str] = []
    for pid in _of_this_hour(home.parent):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue
        if SUPERVISOR not in words:
            left.append(f"{pid} {words.decode('utf-8', 'replace')}")
    return left


def _of_this_hour(folder: Path) -> list[int]:
    """Processes that run below the folder of this hour, or whose variables or words name it."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        if entry.name == str(os.getpid()):
            continue
        for kind in ("cwd", "environ", "cmdline"):
            with contextlib.suppress(OSError):
                path = entry / kind
                text = str(path.readlink()).encode() if kind == "cwd" else path.read_bytes()
                if str(folder).encode() in text:
                    found.append(int(entry.name))
                    break
    return found


if __name__ == "__main__":
    main()
