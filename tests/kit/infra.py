"""Where tests get real servers from: wheels (default), containers, or servers that are given."""

from __future__ import annotations

import contextlib
import os
import shutil
from enum import Enum
from functools import cache
from pathlib import Path

import pytest

NATS_URL = "SHIFTWORK_TEST_NATS_URL"
POSTGRES_URL = "SHIFTWORK_TEST_POSTGRES_URL"
DOCKER_SOCKET = Path("/var/run/docker.sock")


class Infra(Enum):
    EMBEDDED = "embedded"
    CONTAINERS = "containers"
    EXTERNAL = "external"


def external_url(variable: str) -> str:
    url = os.environ.get(variable)
    if not url:
        pytest.fail(f"--infra=external needs {variable} (with an administrator's user, password)")
    return url


def skip_without_control(infra: Infra) -> None:
    """For tests that stop and kill a server: only a process of our own is theirs to kill."""
    if infra is not Infra.EMBEDDED:
        pytest.skip(f"servers of --infra={infra.value} are not ours to kill")


def skip_without_own_users(infra: Infra) -> None:
    """For tests of permissions: a given server knows one user, who may do everything."""
    if infra is Infra.EXTERNAL:
        pytest.skip("the given NATS server has no users with the services' permissions")


@cache
def need_containers() -> None:
    """Docker's API answers from here on: Docker, what DOCKER_HOST names, or podman's, started."""
    from docker import from_env
    from docker.errors import DockerException

    if "DOCKER_HOST" not in os.environ and shutil.which("podman") and not DOCKER_SOCKET.exists():
        from tests.kit.container_engine import start_service

        start_service()
    try:
        client = from_env()
    except DockerException as problem:
        pytest.fail(f"--infra=containers needs Docker or Podman, which does not answer: {problem}")
    client.close()


def image(name: str, public: str) -> str:
    """The image of ``make images`` if it is here, else the public one."""
    from docker import from_env
    from docker.errors import ImageNotFound

    own = f"localhost/shiftwork/{name}:{os.environ.get('TAG') or 'dev'}"
    with contextlib.closing(from_env()) as client:
        try:
            client.images.get(own)
        except ImageNotFound:
            return public
    return own
