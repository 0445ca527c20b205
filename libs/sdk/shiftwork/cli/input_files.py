"""Files that people name on the command line: read whole, and advice where one is not there."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import re
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from shiftwork.cli import parse
from shiftwork.cli.failures import Failure, usage

DOCUMENT_BYTES_MAX = 1_048_576
STANDARD_INPUT = "standard input"
# Documents that were read, for the lines of their fields.
_texts: dict[str, str] = {}


def name_of(path: str) -> str:
    """The name of a file in errors; ``-`` is standard input."""
    return STANDARD_INPUT if path == "-" else path


def read(path: str, bytes_max: int) -> bytes:
    """The whole file, or standard input for ``-``. Raises Failure if it cannot be read, or has
    more bytes."""
    where = name_of(path)
    try:
        if path == "-":
            data = sys.stdin.buffer.read(bytes_max + 1)
        else:
            with Path(path).open("rb") as opened:
                data = opened.read(bytes_max + 1)
    except OSError as error:
        what = f"the file cannot be read: {error.strerror}"
        raise usage(what, where=where, fix=advice(path)) from error
    if len(data) > bytes_max:
        what = f"the file is larger than {bytes_max} bytes"
        raise usage(what, where=where, fix="split it into several")
    return data


def advice(path: str) -> str:
    """What to do about a file that cannot be read."""
    there = Path(path)
    if there.is_dir():
        return "give a file, not a directory"
    if there.exists():
        return f"let this user read it: chmod u+r {there}"
    return near(there) or "give the path of a file that is there"


def near(path: Path) -> str:
    """``did you mean PATH?`` for what lies in the same directory under a similar name; or empty."""
    # Without the suffixes, which may be all that the names have in common.
    stems = {Path(name).stem: name for name in entries(path.parent)}
    close = get_close_matches(path.stem, list(stems), 1)
    return f"did you mean {path.parent / stems[close[0]]}?" if close else ""


def entries(directory: Path) -> list[str]:
    """The names in a directory; none if it cannot be read."""
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208 - names alone
    except OSError:
        return []


def values(path: str, bytes_max: int) -> Any:  # noqa: ANN401 - any document
    """What a file holds: JSON always, YAML where PyYAML is. Raises Failure, with the line, if it
    is neither, or has a number that is not finite."""
    where = name_of(path)
    try:
        text = read(path, bytes_max).decode()
    except UnicodeDecodeError:
        raise usage("the file is not UTF-8", where=where, fix="save it as UTF-8") from None
    _texts[where] = text
    try:
        found = _parsed(path, where, text)
        _require_finite(found, where, "")
    except RecursionError:
        raise usage("the file nests too deep", where=where, fix="write it flatter") from None
    return found


def _require_finite(value: Any, where: str, field: str) -> None:  # noqa: ANN401 - any document
    """Raises Failure for NaN or an infinity, which no field of the API takes."""
    if isinstance(value, dict):
        for name, each in cast("dict[Any, Any]", value).items():
            _require_finite(each, where, f"{field}.{name}" if field else str(name))
    elif isinstance(value, list):
        for index, each in enumerate(cast("list[Any]", value)):
            _require_finite(each, where, f"{field}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        fix = "give a finite number, or leave it out"
        what = f"{field} {value}: is not a finite number"
        raise usage(what.strip(), where=place(where, field), fix=fix)


def document(path: Path, what: str = "task", such_as: str = "command: [...]") -> dict[str, Any]:
    """A document of fields from a file, in the API's own names. Raises Failure if it holds none."""
    body = parse.fields(values(str(path), DOCUMENT_BYTES_MAX))
    if not body:
        raise usage(
            f"the file holds no {what}",
            where=name_of(str(path)),
            fix=f"write its fields, such as {such_as}",
        )
    return body


def place(name: str, field: str) -> str:
    """``FILE, line N`` of a field ``a[0].b`` in a document that was read; the file alone where the
    line is not known."""
    try:
        import yaml  # noqa: PLC0415 - optional: the extra needs Typer alone
    except ImportError:
        return name
    node: Any = None
    # What the parser of JSON takes, such as tabs, YAML's may not.
    with contextlib.suppress(ValueError, yaml.YAMLError):
        node = cast("Any", yaml).compose(_texts.get(name, ""), yaml.SafeLoader)
    line = 0
    for part in re.findall(r"[^.\[\]]+", field):
        found: Any = node.value if node is not None else None
        if isinstance(node, yaml.MappingNode):
            key, node = next((pair for pair in found if pair[0].value == part), (None, None))
        elif isinstance(node, yaml.SequenceNode) and part.isdigit() and int(part) < len(found):
            key = node = found[int(part)]
        else:
            break
        if key is None:
            break
        line = key.start_mark.line + 1
    return f"{name}, line {line}" if line else name


def _parsed(path: str, where: str, text: str) -> Any:  # noqa: ANN401 - any document
    try:
        return json.loads(text, object_pairs_hook=functools.partial(_object, where))
    except ValueError as error:
        if not path.endswith(".json"):
            return _yaml(where, text, error)
        line = getattr(error, "lineno", 0)
        what = f"the file is not JSON: {getattr(error, 'msg', error)}"
        raise usage(what, where=f"{where}, line {line}", fix="correct that line") from None


def _object(where: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _twice(where, name)
        found[name] = value
    return found


def _twice(where: str, name: str) -> Failure:
    return usage(f"the field {name!r} is there twice", where=where, fix="keep one of them")


def _yaml(where: str, text: str, not_json: ValueError) -> Any:  # noqa: ANN401 - any document
    try:
        import yaml  # noqa: PLC0415 - optional: the extra needs Typer and rich alone
    except ImportError:
        raise usage(
            f"the file is not JSON ({not_json}) and YAML cannot be read here",
            where=where,
            fix="write JSON, or install PyYAML",
        ) from None

    class Loader(yaml.SafeLoader):
        """Dates stay the texts that they are: no field of the API is one."""

        yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's name and form
            first: [(tag, form) for tag, form in known if not tag.endswith(":timestamp")]
            for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: ANN401 - PyYAML's
            """A mapping, unless a key stands twice in it: the last one would win unnoticed."""
            seen: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if key.value in seen:
                        raise _twice(f"{where}, line {key.start_mark.line + 1}", key.value)
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader)  # noqa: S506 - a safe loader
    except yaml.YAMLError as error:
        position = getattr(error, "problem_mark", None)
        place = f"{where}, line {position.line + 1}" if position else where
        what = f"the file is not YAML: {getattr(error, 'problem', None) or error}"
        raise usage(
            what, where=place, fix=_yaml_fix(text, position.line if position else None)
        ) from None
    except ValueError as error:
        what = f"the file is not YAML: {error}"
        raise usage(what, where=where, fix="put that value in quotation marks") from None


def _yaml_fix(text: str, line: int | None) -> str:
    """How to correct a line that is not YAML. Often it has a rule such as ``chief[0]``."""
    lines = text.splitlines()
    found = lines[line] if line is not None and line < len(lines) else ""
    bare = re.search(r"[\[,]\s*([\w-]+\[[\w+]*\])", found)
    if bare is None:
        return "correct that line"
    return f'put a text with brackets in quotation marks: "{bare.group(1)}"'
