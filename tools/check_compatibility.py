"""Fail if proto/ breaks readers of the last release. Called by ``make check``.

Compares with the newest tag ``v*``; before the first release with the first commit that has
proto/. In a clone without history it prints that there is nothing to compare with.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def git(*arguments: str) -> str:
    """Output of a git command; empty if it failed."""
    done = subprocess.run(  # noqa: S603 - fixed commands
        ["git", *arguments],  # noqa: S607 - git from the PATH, as everywhere
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def baseline() -> str:
    """The commit to compare with; empty if there is none."""
    tag = git("describe", "--tags", "--abbrev=0", "--match", "v*")
    if tag:
        return tag
    first = git("log", "--reverse", "--format=%H", "--", "proto/buf.yaml").splitlines()
    return first[0] if first else ""


def main() -> None:
    """Run the comparison; exit status 1 if something breaks."""
    base = baseline()
    if not base or git("rev-parse", "--is-shallow-repository") == "true":
        print("proto/: no earlier version here to compare with", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "proto.tar"
        git("archive", "--output", str(archive), base, "proto")
        subprocess.run(["tar", "-xf", archive, "-C", scratch], check=True)  # noqa: S603, S607 - our own archive
        buf = Path(sys.executable).parent / "buf"
        done = subprocess.run(  # noqa: S603 - our own tool
            [buf, "breaking", "--against", Path(scratch) / "proto"],
            cwd=ROOT / "proto",
            check=False,
        )
    raise SystemExit(done.returncode)


if __name__ == "__main__":
    main()
