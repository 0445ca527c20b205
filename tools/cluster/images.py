"""Images for nodes without a registry: the pause image, and what podman or docker has built."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tools.cluster.nodes import Node
from tools.cluster.programs import program
from tools.cluster.system import find

ENGINES = ("podman", "docker")
EPOCH = "1970-01-01T00:00:00Z"


class ImageError(RuntimeError):
    """An image cannot be brought to the nodes."""


def single_program_image(binary: Path, name: str) -> bytes:
    """An image with one static program in it, as ``docker save`` would write it.

    The bytes depend on the program and the name only.
    """
    layer = _tar({binary.name: (binary.read_bytes(), 0o755)})
    digest = hashlib.sha256(layer).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": EPOCH,
            "config": {"Entrypoint": [f"/{binary.name}"], "User": "65534:65534"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            "history": [{"created": EPOCH}],
        }
    ).encode()
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    return _tar(
        {
            "manifest.json": (json.dumps(manifest).encode(), 0o644),
            "config.json": (config, 0o644),
            "layer.tar": (layer, 0o644),
        }
    )


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def load_program(node: Node, name: str, image: str) -> None:
    """Give the node an image made of one of the cluster's own static programs."""
    archive = node.plan.folder / f"{name}.tar"
    archive.write_bytes(single_program_image(program(name), image))
    node.ctr("images", "import", archive)
    archive.unlink()


def load(nodes: Iterable[Node], images: Iterable[str]) -> None:
    """Bring images from this machine's podman (or docker) to every node.

    Raises:
        ImageError: No such engine, or it does not have the image.
    """
    engine = next((path for name in ENGINES if (path := find(name))), None)
    if engine is None:
        raise ImageError(
            "images come from podman or docker, and neither is installed; on Debian and Ubuntu: "
            "apt-get install podman"
        )
    kind = "oci-archive" if Path(engine).name == "podman" else None
    reached = list(nodes)
    for image in images:
        identity = _said(engine, "image", "inspect", "--format", "{{.Id}}", image).strip()
        lacking = [node for node in reached if not _has(node, image, identity)]
        if not lacking:
            continue
        with tempfile.TemporaryDirectory(prefix="shiftwork-image-") as folder:
            archive = Path(folder) / "image.tar"
            _said(engine, "save", *(["--format", kind] if kind else []), "-o", str(archive), image)
            for node in lacking:
                # A name of its own: two loads at once do not write into one another's file.
                kept = node.plan.folder / f"{Path(folder).name}.tar"
                shutil.copyfile(archive, kept)
                try:
                    node.ctr("images", "import", kept)
                finally:
                    kept.unlink()
                _label_of(node, image).write_text(identity)


def _said(engine: Path | str, *arguments: str) -> str:
    done = subprocess.run(  # noqa: S603 - our own arguments
        [engine, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ImageError(f"{arguments[-1]}: {done.stderr.strip()[-1_000:]}")
    return done.stdout


def _label_of(node: Node, image: str) -> Path:
    """Where it is noted which build of an image a node was given last."""
    folder = node.plan.folder / "loaded"
    folder.mkdir(exist_ok=True)
    return folder / hashlib.sha256(image.encode()).hexdigest()


def _has(node: Node, image: str, identity: str) -> bool:
    """Whether the node was given this very build and still has it (a full disk takes images)."""
    label = _label_of(node, image)
    given = label.exists() and label.read_text() == identity
    return given and image in node.ctr("images", "list", "--quiet").split()
