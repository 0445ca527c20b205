"""Fail if generated files differ from what their sources give now. Called by ``make check``.

Generates into a scratch copy, so that a check never changes the tree.
"""

from __future__ import annotations

import filecmp
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.generate_docs import pages

ROOT = Path(__file__).resolve().parent.parent
GENERATED_CODE = ("messages.py", "registry.py", "fields.py")


def stale_code() -> list[str]:
    """Names of generated modules that proto/ no longer gives."""
    with tempfile.TemporaryDirectory() as scratch:
        proto = Path(scratch) / "proto"
        shutil.copytree(ROOT / "proto", proto)
        contracts = Path(scratch) / "libs" / "contracts"
        contracts.mkdir(parents=True)
        template = (proto / "buf.gen.yaml").read_text()
        python = str(Path(sys.executable))
        (proto / "buf.gen.yaml").write_text(template.replace("../.venv/bin/python", python))
        subprocess.run([Path(python).parent / "buf", "generate"], cwd=proto, check=True)  # noqa: S603 - our own tool
        return [
            f"libs/contracts/{name}"
            for name in GENERATED_CODE
            if not filecmp.cmp(contracts / name, ROOT / "libs" / "contracts" / name, shallow=False)
        ]


def stale_pages() -> list[str]:
    """Names of generated pages that their sources no longer give."""
    return [
        str(path.relative_to(ROOT))
        for path, text in pages().items()
        if not path.exists() or path.read_text() != text
    ]


def main() -> None:
    """Print what is stale; exit status 1 if anything is."""
    stale = stale_code() + stale_pages()
    for name in stale:
        print(f"{name} is not what its source gives: run `make gen` and commit it", file=sys.stderr)
    raise SystemExit(bool(stale))


if __name__ == "__main__":
    main()
