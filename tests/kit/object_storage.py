"""A real S3-compatible object storage for tests: a MinIO server, built from its Go module.

Tests that use the fixture ``minio`` have the marker ``objectstore``. Where the machine cannot have
the server they are skipped with the reason; where SHIFTWORK_OBJECTSTORE=required is set
(``make test-objectstore`` does) they fail with it instead.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from obstore.store import MemoryStore
from pydantic import BaseModel

from libs.service.clock import SystemClock
from services.log_collector.archives.bucket import Bucket, open_bucket
from services.log_collector.archives.bucket_options import BucketOptions
from tools.cluster.programs import BuildError, program

REQUIRED = "SHIFTWORK_OBJECTSTORE"
KEY_ID, SECRET, BUCKET = "shiftwork-test", "not-a-real-secret", "logs"
READY_SECONDS = 30.0
# The limit of a test's own body: for the first one the server may be built, which takes minutes.
TEST_SECONDS = 60


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "minio" not in getattr(item, "fixturenames", ()) and "minio" not in item.name:
            continue
        if item.get_closest_marker("objectstore") is None:
            raise pytest.UsageError(f"{item.nodeid} uses minio: mark it with objectstore")
        item.add_marker(pytest.mark.timeout(TEST_SECONDS, func_only=True))


def bucket_in_memory() -> Bucket:
    """The client on a store in memory."""
    return Bucket(MemoryStore())


class MinIO:
    """One server on a folder."""

    def __init__(self, path: Path, folder: Path) -> None:
        self._path, self._folder = path, folder
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self._port = found.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        # A folder is a bucket for a server with one disk.
        (folder / "data" / BUCKET).mkdir(parents=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Return when it answers."""
        environment = {
            **os.environ,
            "MINIO_ROOT_USER": KEY_ID,
            "MINIO_ROOT_PASSWORD": SECRET,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
            "HOME": str(self._folder),
        }
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._path, "server", "--quiet", "--address", f"127.0.0.1:{self._port}",
                 str(self._folder / "data")],
                env=environment, stdout=log, stderr=log,
            )  # fmt: skip
        ends_at = time.monotonic() + READY_SECONDS
        while time.monotonic() < ends_at:
            assert self._process.poll() is None, (self._folder / "server.log").read_text()
            try:
                with urllib.request.urlopen(f"{self.url}/minio/health/ready", timeout=1):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise AssertionError("MinIO does not answer")

    def kill(self) -> None:
        """As a crash of the server or of its machine."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """It accepts connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def settings(self, folder: Path, **changes: object) -> dict[str, object]:
        """The settings of a collector that uses it, with its credentials in files."""
        key, secret = folder / "key-id", folder / "secret"
        key.write_text(KEY_ID)
        secret.write_text(SECRET + "\n")
        return {
            "bucket_url": f"s3://{BUCKET}/{folder.name}",
            "bucket_endpoint": self.url,
            "bucket_key_id_file": key,
            "bucket_secret_file": secret,
            **changes,
        }

    def bucket(self, folder: Path, **changes: object) -> Bucket:
        """A client of it, with a part of the bucket of its own."""
        options: BaseModel = BucketOptions.model_validate(self.settings(folder, **changes))
        assert isinstance(options, BucketOptions)
        return open_bucket(options, SystemClock())


@pytest.fixture(scope="session")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinIO]:
    """A server for the whole session; a test that stops it starts it again."""
    try:
        path = program("minio")
    except BuildError as problem:
        if os.environ.get(REQUIRED) == "required":
            pytest.fail(f"{REQUIRED}=required, but: {problem}", pytrace=False)
        pytest.skip(f"no object storage: {problem}")
    made = MinIO(path, tmp_path_factory.mktemp("minio"))
    made.start()
    yield made
    made.thaw()
    made.kill()
