"""``make sbom``: the Python packages of each image, as CycloneDX JSON, from the image's lock.

Debian packages of the base image are not in it: a scanner of images reads those from the image.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Each image that contains Python packages, and its lock in requirements/.
LOCKS = {"platform": "services.txt", "nats": "nats.txt", "task": "examples.txt"}


def write(folder: Path) -> list[Path]:
    """One file for each image; the same locks give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for image, lock in LOCKS.items():
        file = folder / f"{image}.cdx.json"
        subprocess.run(  # noqa: S603 - our own arguments
            [
                *(sys.executable, "-W", "ignore", "-m", "cyclonedx_py", "requirements"),
                str(ROOT / "requirements" / lock),
                *("--pyproject", str(ROOT / "pyproject.toml")),
                *("--output-reproducible", "--of", "JSON", "--output-file", str(file)),
            ],
            check=True,
        )
        written.append(file)
    return written


if __name__ == "__main__":
    for path in write(Path(sys.argv[1])):
        sys.stdout.write(f"{path}\n")
