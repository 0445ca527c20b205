"""Reads ``docker/compose.yaml`` as compose does, as far as that file goes, and runs it with podman.

The variables and the merged mappings are all of the format that the file uses; what is unknown here
fails, so that nothing in it goes unread.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.images.conftest import Containers
from tools.images.catalog import DOCKER

FILE = DOCKER / "compose.yaml"
VARIABLE = re.compile(r"\$\{([A-Z_]+):-([^}]*)\}")
FLAGS = {"read_only": "--read-only", "init": "--init"}
LISTS = {
    "tmpfs": "--tmpfs",
    "cap_drop": "--cap-drop",
    "cap_add": "--cap-add",
    "security_opt": "--security-opt",
    "ports": "--publish",
}
VALUES = {"user": "--user", "shm_size": "--shm-size"}
# Keys that set times and limits, not what runs.
ABOUT = {"image", "command", "environment", "env_file", "volumes", "depends_on"} | {
    "healthcheck",
    "restart",
    "stop_grace_period",
}


def read(variables: Mapping[str, str]) -> dict[str, Any]:
    """The file with its variables filled in."""
    text = VARIABLE.sub(lambda found: variables.get(found[1]) or found[2], FILE.read_text())
    assert "$" not in text.replace("$(cat docker/secrets/admin-token)", "")
    return yaml.safe_load(text)


@dataclass
class Project:
    """Containers of the file, on a network and volumes of their own."""

    containers: Containers
    document: dict[str, Any]
    name: str
    running: dict[str, str] = field(default_factory=dict)

    def prepare(self) -> None:
        made = [
            ("network", self.name),
            *(("volume", f"{self.name}-{v}") for v in self.document["volumes"]),
        ]
        for kind, name in made:
            done = self.containers.call(kind, "create", name)
            assert done.returncode == 0, done.stderr

    def options(self, service: str) -> list[str]:
        """A service's options for ``run``."""
        wanted = self.document["services"][service]
        unknown = set(wanted) - ABOUT - set(FLAGS) - set(LISTS) - set(VALUES)
        assert not unknown, unknown
        return [
            f"--network={self.name}",
            f"--network-alias={service}",
            *(option for key, option in FLAGS.items() if wanted.get(key)),
            *(f"{option}={wanted[key]}" for key, option in VALUES.items() if key in wanted),
            *(f"{option}={each}" for key, option in LISTS.items() for each in wanted.get(key, ())),
            *(f"--env={key}={value}" for key, value in wanted.get("environment", {}).items()),
            *(f"--env-file={path}" for path in wanted.get("env_file", ())),
            *(f"--volume={self.volume(each)}" for each in wanted.get("volumes", ())),
        ]

    def volume(self, text: str) -> str:
        source, _, rest = text.partition(":")
        if source in self.document["volumes"]:
            return f"{self.name}-{source}:{rest}"
        return f"{(DOCKER / source).resolve()}:{rest}"

    def start(self, service: str) -> None:
        """Start it; one that ends by itself is waited for, another until it is healthy."""
        wanted = self.document["services"][service]
        image, command = wanted["image"], wanted.get("command", ())
        options = self.options(service)
        if wanted["restart"] == "on-failure":
            done = self.containers.run(*options, image, *command)
            assert done.returncode == 0, done.stdout + done.stderr
            return
        self.running[service] = self.containers.start(*options, image, *command)

    def wait_healthy(self, service: str, seconds_max: float = 90.0) -> None:
        """Run the file's own health check; without systemd no program runs it."""
        check, until = self.document["services"][service]["healthcheck"]["test"], time.monotonic()
        assert check[0] == "CMD"
        until += seconds_max
        while True:
            done = self.containers.exec(self.running[service], *check[1:])
            if done.returncode == 0:
                return
            assert time.monotonic() < until, self.containers.logs(self.running[service])
            time.sleep(0.5)

    def remove(self) -> None:
        self.containers.remove_all()
        for volume in self.document["volumes"]:
            self.containers.call("volume", "rm", "--force", f"{self.name}-{volume}")
        self.containers.call("network", "rm", "--force", self.name)


def secrets_of(folder: Path) -> dict[str, str]:
    """What ``docker/secrets.sh`` made, by path."""
    return {
        str(path.relative_to(folder)): path.read_text().strip()
        for path in folder.rglob("*")
        if path.is_file()
    }
