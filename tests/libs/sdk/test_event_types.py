"""What a type checker knows of an event, as it comes from ``client.events.follow()``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """\
from typing import cast
import shiftwork
from shiftwork.client import types

for event in shiftwork.Client().events.follow():
    if event["type"] == "run.exited":
        reveal_type(event["data"])
        print(event["data"]["exit"]["kind"])
        print(event["data"]["colour"])
    reveal_type(cast(types.OtherEvent, event)["data"])
"""


@pytest.mark.slow
def test_a_type_checker_knows_the_data_of_an_event_by_its_type(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    settings = {"extraPaths": [str(ROOT / "libs" / "sdk")], "typeCheckingMode": "standard"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    checker = Path(sys.executable).with_name("basedpyright")
    done = subprocess.run(
        [checker, "--outputjson", "--pythonpath", sys.executable, "-p", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    found = [
        (
            each["range"]["start"]["line"] + 1,
            each["severity"],
            each["message"].splitlines()[-1].strip(),
        )
        for each in json.loads(done.stdout)["generalDiagnostics"]
    ]
    assert found == [
        (7, "information", 'Type of "event["data"]" is "RunExitedData"'),
        (9, "error", '"colour" is not a defined key in "RunExitedData"'),
        (
            10,
            "information",
            'Type of "cast(types.OtherEvent, event)["data"]" is "Dict[str, Any]"',
        ),
    ]
