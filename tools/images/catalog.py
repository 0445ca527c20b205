"""Which images there are: the one table that builds, sizes, archives and tests go by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
# Public, small, with python3 and its venv module; any other of the kind by BASE=.
PUBLIC_BASE = "python:3.11-slim-bookworm"
# Where names have no registry, podman and buildah put them below this; docker takes it as it is.
LOCAL = "localhost"
# Times of files in images, so that two builds are equal: SOURCE_DATE_EPOCH, or this (2026-01-01).
EPOCH = 1_767_225_600


@dataclass(frozen=True, slots=True)
class Image:
    """One image: its name below ``shiftwork/`` and what it is built from."""

    name: str
    dockerfile: Path
    # Built by `make images` without being asked for.
    usual: bool = True

    def reference(self, tag: str) -> str:
        """Its full name on this machine."""
        return f"{LOCAL}/shiftwork/{self.name}:{tag}"


IMAGES: tuple[Image, ...] = (
    Image("platform", DOCKER / "service.Dockerfile"),
    Image("task", DOCKER / "task.Dockerfile"),
    Image("nats", DOCKER / "nats.Dockerfile"),
    Image("postgres", DOCKER / "postgres.Dockerfile"),
    Image("task-torch", DOCKER / "task-torch.Dockerfile"),
)
BY_NAME = {image.name: image for image in IMAGES}
