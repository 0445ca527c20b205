"""Secrets that a task prints are nowhere in what is kept of its output, and not in what is live."""

from __future__ import annotations

import base64
import re
import time
from pathlib import Path
from urllib.parse import quote

import pytest
import zstandard

from libs.contracts.run_token import PREFIX
from tests.e2e.conftest import Shiftwork

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(120)]

TOKEN, DSN = "hf_Zq3vT8xLw2Rk9", "postgres://me:p@ss word/9@db"
FORMS = (
    TOKEN,
    DSN,
    quote(DSN, safe=""),
    base64.b64encode(TOKEN.encode()).decode()[:20],
    base64.b64encode(DSN.encode()).decode()[:36],
)
# Its secrets across flushes, in a progress bar, encoded, in an error line; its run token.
PROGRAM = """
import base64, os, sys, time
from pathlib import Path
from urllib.parse import quote

token, dsn = os.environ["HF_TOKEN"], os.environ["DSN"]
print("begin", token, dsn)
for number, part in enumerate((token[:3], token[3:9], token[9:], "\\n", dsn[:12], dsn[12:])):
    print(part, end="", flush=True)
    time.sleep(0.3)
print(f"\\r10%|{token}\\r20%|{token}")
print(base64.b64encode(token.encode()).decode(), base64.b64encode(dsn.encode()).decode())
print(quote(dsn, safe=""), os.environ["SHIFTWORK_RUN_TOKEN"])
print("half", token[:9], end="", flush=True)
while not Path("go").exists():
    time.sleep(0.01)
print(token[9:], "whole")
print(f"RuntimeError: cannot log in with {token} at {dsn}")
print(*range(20), sep="\\n")
sys.exit(1)
"""


def kept(folder: Path) -> bytes:
    """Every byte of output that is on the disk."""
    found = b""
    for path in folder.rglob("*"):
        if path.suffix == ".log" and path.is_file():
            found += path.read_bytes()
        elif path.suffix == ".zst":
            with path.open("rb") as file:
                reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
                found += reader.read()
    return found


def hidden(text: str) -> str:
    assert [form for form in FORMS if form in text] == []
    return text


def test_secrets_are_masked_everywhere(shiftwork: Shiftwork, tmp_path: Path) -> None:
    (tmp_path / "leaky.py").write_text(PROGRAM)
    task = shiftwork.submit(
        *("--gpus-per-node", "0", "--workdir", str(tmp_path)),
        *("--env", f"HF_TOKEN={TOKEN}", "--env", f"DSN={DSN}", "--secret-env", "DSN"),
        *("--", "python", "leaky.py"),
    )
    live = shiftwork.start("logs", "-f", task)
    ends_at = time.monotonic() + 60
    while b"half" not in kept(shiftwork.data / "machine"):
        assert time.monotonic() < ends_at
        time.sleep(0.1)
    (tmp_path / "go").touch()
    shiftwork("wait", task)
    out, _ = live.communicate(timeout=30)
    assert out.splitlines()[:3] == ["begin *** ***", "***", "***"]
    assert "half *** whole" in hidden(out).splitlines()
    assert "RuntimeError: cannot log in with *** at ***" in out
    while "error lines" not in shiftwork.good("show", task).out:
        assert time.monotonic() < ends_at
        time.sleep(0.2)
    for command in ("show", "explain", "events"):
        assert "cannot log in with *** at ***" in hidden(shiftwork.good(command, task).out)
    assert PREFIX not in hidden(shiftwork.good("logs", task).out)
    found = shiftwork("logs", task, "--search", "|".join(map(re.escape, FORMS)))
    assert found.out == ""
    assert "no output that matches" in found.err
    masked = shiftwork.good("logs", task, "--search", "with *** at", "--text").out
    assert masked == "RuntimeError: cannot log in with *** at ***\n"
    shiftwork.good("logs", task, "--export", str(tmp_path / "export"))
    for folder in (tmp_path / "export", shiftwork.data / "output", shiftwork.data / "machine"):
        text = kept(folder).decode(errors="replace")
        assert "half *** whole" in hidden(text), folder
    # Names of secrets are shown, and their values to the owner alone.
    assert shiftwork.task(task)["secret_env"] == ["DSN"]
    assert not any(shiftwork.data.rglob("secrets.json"))


def test_a_secret_that_cannot_be_masked_is_refused(shiftwork: Shiftwork) -> None:
    refused = shiftwork("submit", "--env", "PIN=1234", "--secret-env", "PIN", "--", "true")
    assert refused.code == 1
    assert "fewer than 6 characters" in refused.err
    assert "1234" not in refused.err
