"""``shiftwork logs TASK --export DIR``."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from shiftwork.cli import log_export

from tests.libs.sdk.cli.conftest import Shiftwork
from tests.libs.sdk.cli.server import CliServer, a_task

BIG = b"".join(b"%07d\r some text\n" % number for number in range(150_000))


@pytest.fixture
def exporting(server: CliServer) -> CliServer:
    server.tasks["ta"] = a_task("ta", state="succeeded", nodes=2)
    server.output = {(1, 0): b"one\n", (1, 1): b"", (2, 0): BIG, (2, 1): b"\0binary\xff"}
    return server


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }


WHOLE = {
    "ta/1/0.log": b"one\n",
    "ta/1/1.log": b"",
    "ta/2/0.log": BIG,
    "ta/2/1.log": b"\0binary\xff",
}


def test_every_rank_and_attempt_becomes_a_file(
    shiftwork: Shiftwork, exporting: CliServer, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = shiftwork("logs", "ta", "--export", str(out))
    assert (done.code, done.out) == (0, f"4 files in {out / 'ta'}\n")
    assert files(out) == WHOLE
    document = json.loads((out / "ta" / "manifest.json").read_text())
    assert (document["format"], document["task"]) == (1, "ta")
    for each in document["outputs"]:
        data = WHOLE[f"ta/{each['file']}"]
        assert each["size"] == len(data)
        assert each["sha256"] == hashlib.sha256(data).hexdigest()
        assert each["complete"] is True
    # Again: nothing is fetched a second time.
    before = len([seen for seen in exporting.seen if "offset" in seen.query])
    assert shiftwork("logs", "ta", "--export", str(out)).code == 0
    assert len([seen for seen in exporting.seen if "offset" in seen.query]) == before
    one = shiftwork(
        "logs", "ta", "--rank", "0", "--attempt", "1", "--export", str(tmp_path / "one")
    )
    assert one.code == 0
    assert files(tmp_path / "one") == {"ta/1/0.log": b"one\n"}


def test_an_interrupted_export_goes_on_where_it_ended(
    shiftwork: Shiftwork,
    exporting: CliServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out"
    real, calls = log_export.Api.read_range, 0

    def read_range(api: object, path: str, query: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return real(api, path, query)  # type: ignore[arg-type]

    monkeypatch.setattr(log_export.Api, "read_range", read_range)
    assert shiftwork("logs", "ta", "--export", str(out)).code == 130
    half = files(out)["ta/2/0.log"]
    assert 0 < len(half) < len(BIG)
    monkeypatch.setattr(log_export.Api, "read_range", real)
    exporting.seen.clear()
    assert shiftwork("logs", "ta", "--export", str(out)).code == 0
    assert files(out) == WHOLE
    wanted = [seen.query for seen in exporting.seen if seen.query.get("attempt") == "2"]
    assert min(int(query["offset"]) for query in wanted if query["rank"] == "0") == len(half)


def test_an_output_that_has_grown_is_continued(
    shiftwork: Shiftwork, exporting: CliServer, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert shiftwork("logs", "ta", "--export", str(out)).code == 0
    manifest = out / "ta" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"complete": true', '"complete": false'))
    exporting.output[(1, 0)] += b"two\n"
    assert shiftwork("logs", "ta", "--export", str(out)).code == 0
    assert files(out)["ta/1/0.log"] == b"one\ntwo\n"


@pytest.mark.parametrize("kind", ["file", "link", "folder link", "hard link", "manifest", "longer"])
def test_other_files_are_never_touched(
    shiftwork: Shiftwork, exporting: CliServer, tmp_path: Path, kind: str
) -> None:
    out, precious = tmp_path / "out", tmp_path / "precious"
    precious.mkdir()
    (precious / "0.log").write_bytes(b"precious")
    target = out / "ta"
    target.mkdir(parents=True)
    if kind == "file":
        (target / "1").mkdir()
        # Shorter than the output: it could be taken for the beginning of an export.
        (target / "1" / "0.log").write_bytes(b"pre")
    elif kind == "link":
        (target / "1").mkdir()
        (target / "1" / "0.log").symlink_to(precious / "0.log")
    elif kind == "folder link":
        (target / "1").symlink_to(precious)
    elif kind == "manifest":
        (target / "manifest.json").write_text("{}")
    else:
        assert shiftwork("logs", "ta", "--export", str(out)).code == 0
        path = target / "1" / "0.log"
        path.unlink()
        if kind == "hard link":
            os.link(precious / "0.log", path)
        else:
            path.write_bytes(b"precious bytes of another program")
    before = files(out)
    done = shiftwork("logs", "ta", "--export", str(out))
    assert done.code != 0
    assert str(target) in done.err
    assert files(out) == before
    assert (precious / "0.log").read_bytes() == b"precious"
    assert sorted(path.name for path in precious.iterdir()) == ["0.log"]


def test_it_is_the_whole_output_or_nothing(
    shiftwork: Shiftwork, exporting: CliServer, tmp_path: Path
) -> None:
    for option in (["-f"], ["--tail", "3"], ["--search", "x"], ["-t"], ["--since", "1h"]):
        done = shiftwork("logs", "ta", "--export", str(tmp_path / "x"), *option)
        assert done.code == 2
        assert "--export" in done.err
    assert not (tmp_path / "x").exists()
