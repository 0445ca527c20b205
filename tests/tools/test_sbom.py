"""Everything that an image's lock names is in the image's SBOM, with its version and hashes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tools import sbom

LOCKED = re.compile(r"^([a-z0-9._-]+)(?:\[[^]]*\])?==([^ ;\\]+)", re.MULTILINE | re.IGNORECASE)
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
INSTALLED = re.compile(r"COPY requirements/(\S+) ")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return sbom.write(tmp_path_factory.mktemp("sbom"))


@pytest.mark.slow
def test_each_locked_package_of_each_image_is_in_it(files: list[Path]) -> None:
    assert [file.name for file in files] == [f"{image}.cdx.json" for image in sbom.LOCKS]
    for file, lock in zip(files, sbom.LOCKS.values(), strict=True):
        text = (sbom.ROOT / "requirements" / lock).read_text()
        found = json.loads(file.read_text())
        assert found["bomFormat"] == "CycloneDX"
        assert found["metadata"]["component"]["name"] == "shiftwork-platform"
        components = found["components"]
        locked = LOCKED.findall(text)
        assert len(locked) > 0
        assert {(each["name"], each["version"]) for each in components} == set(locked)
        hashes = {
            digest["content"]
            for each in components
            for reference in each["externalReferences"]
            for digest in reference.get("hashes", ())
        }
        assert hashes == set(HASH.findall(text))


@pytest.mark.slow
def test_two_runs_write_the_same_bytes(files: list[Path], tmp_path: Path) -> None:
    again = sbom.write(tmp_path / "again")
    assert [file.read_bytes() for file in files] == [file.read_bytes() for file in again]


def test_each_lock_that_an_image_installs_has_its_sbom() -> None:
    installed = {
        lock
        for file in (sbom.ROOT / "docker").glob("*.Dockerfile")
        for lock in INSTALLED.findall(file.read_text())
    }
    # The build tools of the SDK's wheel stay in the stage that builds it.
    assert installed - {"build.txt"} == set(sbom.LOCKS.values())
