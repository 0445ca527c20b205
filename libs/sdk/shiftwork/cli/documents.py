"""Reading a document that a person wrote: JSON, or YAML where PyYAML is."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from shiftwork.cli import parse
from shiftwork.cli.failures import usage

FILE_BYTES_MAX = 1_048_576


def read_file(path: Path, what: str = "task", such_as: str = "command: [...]") -> dict[str, Any]:
    """A task from a file, in the API's own fields. JSON always, YAML where PyYAML is."""
    try:
        if str(path) == "-":
            data = sys.stdin.buffer.read(FILE_BYTES_MAX + 1)
        else:
            with path.open("rb") as opened:
                data = opened.read(FILE_BYTES_MAX + 1)
        text = data.decode()
    except OSError as error:
        raise usage(f"the file cannot be read: {error.strerror}", where=str(path)) from error
    except UnicodeDecodeError:
        raise usage("the file is not UTF-8", where=str(path)) from None
    if len(data) > FILE_BYTES_MAX:
        raise usage(f"the file is larger than {FILE_BYTES_MAX} bytes", where=str(path))
    found: Any
    try:
        found = json.loads(text)
    except ValueError as not_json:
        found = _yaml(path, text, not_json)
    body = parse.fields(found)
    if not body:
        raise usage(
            f"the file holds no {what}",
            where=str(path),
            fix=f"write its fields, such as {such_as}",
        )
    return body


def _yaml(path: Path, text: str, not_json: ValueError) -> Any:  # noqa: ANN401 - any document
    try:
        import yaml  # noqa: PLC0415 - optional: the extra needs Typer and rich alone
    except ImportError:
        raise usage(
            f"the file is not JSON ({not_json}) and YAML cannot be read here",
            where=str(path),
            fix="write JSON, or install PyYAML",
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise usage(f"the file is not YAML: {error}", where=str(path)) from None
