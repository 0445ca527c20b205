"""Podman as a Docker for testcontainers: a service of our own on a socket of our own.

Where Docker answers, or ``DOCKER_HOST`` names an engine, this module does nothing. Otherwise
podman's service is started for this process, and ended with it, together with every
container that was started through it and not yet removed. Images are those of this user's podman.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 10.0
# Without CAP_SYS_RESOURCE no container may have more than its parent; podman requests a million.
LIMIT = 1024
SETTINGS = f"""[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[containers]
default_ulimits = ["nofile={LIMIT}:{LIMIT}", "nproc={LIMIT}:{LIMIT}"]
"""


class PodmanService:
    """Podman's Docker API, from ``start`` to ``stop``."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="swp-"))
        self.socket = self.folder / "podman.sock"
        self.environment = {"CONTAINERS_CONF": str(self._settings())}
        self._process: subprocess.Popen[bytes] | None = None

    def _settings(self) -> Path:
        path = self.folder / "containers.conf"
        # The machine's own configuration of its containers takes precedence.
        given = os.environ.get("CONTAINERS_CONF")
        path.write_text(Path(given).read_text() if given else SETTINGS)
        return path

    def start(self) -> None:
        log = self.folder / "service.log"
        with log.open("wb") as words:
            self._process = subprocess.Popen(
                ["podman", "system", "service", "--time=0", f"unix://{self.socket}"],
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                start_new_session=True,
            )
        until = time.monotonic() + START_SECONDS_MAX
        while not self.socket.exists():
            if self._process.poll() is not None or time.monotonic() > until:
                output = log.read_text(errors="replace").strip()[-2000:]
                self.stop()
                raise OSError(f"podman's service does not start: {output}")
            time.sleep(0.05)

    def variables(self) -> dict[str, str]:
        """The environment variables for Docker's client and testcontainers."""
        return {
            "DOCKER_HOST": f"unix://{self.socket}",
            # Its reaper is an image of a registry; ``stop`` does that work.
            "TESTCONTAINERS_RYUK_DISABLED": "true",
            # This machine may be a container itself: what is published is on its own loopback.
            "TESTCONTAINERS_CONNECTION_MODE": "docker_host",
            "TESTCONTAINERS_HOST_OVERRIDE": "localhost",
        }

    def podman(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["podman", *arguments],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        shutil.rmtree(self.folder, ignore_errors=True)


def start_service() -> PodmanService:
    """Start one for this process and point Docker's client and testcontainers at it; it ends at
    exit.

    Call it before testcontainers is imported: it reads the environment once, then.
    """
    service = PodmanService()
    service.start()
    os.environ.update(service.variables())

    def end() -> None:
        from testcontainers.core.labels import LABEL_SESSION_ID, SESSION_ID

        ours = f"label={LABEL_SESSION_ID}={SESSION_ID}"
        left = service.podman("ps", "--all", "--quiet", "--filter", ours).stdout.split()
        if left:
            service.podman("rm", "--force", "--volumes", *left)
        service.stop()

    atexit.register(end)
    return service
