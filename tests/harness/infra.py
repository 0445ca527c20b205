"""Where tests get real servers from: wheels (default), containers, or servers that are given."""

from __future__ import annotations

import os
from enum import Enum

import pytest

NATS_URL = "SHIFTWORK_TEST_NATS_URL"
POSTGRES_URL = "SHIFTWORK_TEST_POSTGRES_URL"


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
    """For tests of who may say what: a given server knows one user, who may do everything."""
    if infra is Infra.EXTERNAL:
        pytest.skip("the given NATS server has no users with the services' permissions")


def need_containers() -> None:
    from docker import from_env
    from docker.errors import DockerException

    try:
        client = from_env()
    except DockerException as problem:
        pytest.fail(f"--infra=containers needs Docker or Podman, which does not answer: {problem}")
    client.close()
