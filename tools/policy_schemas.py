"""The gateway's JSON schemas of policy documents, from the fields that the scheduler reads them by.

`make gen` runs it before ``generate_docs.py``, which imports what this writes: services do not
import one another, so the gateway has a copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from services.scheduler.policy_documents import FILE_SCHEMA
from tools.task_forms import ROOT, formatted

HEAD = '''"""JSON schemas of policies. GENERATED from the scheduler's fields by `make gen`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

'''


def split(schema: object, found: dict[str, Any]) -> object:
    """The schema with a reference in the place of each part that has a title; ``found`` gets these
    parts by their titles."""
    if isinstance(schema, list):
        return [split(each, found) for each in cast("list[object]", schema)]
    if not isinstance(schema, Mapping):
        return schema
    given = cast("Mapping[str, object]", schema)
    parts = {key: split(value, found) for key, value in given.items()}
    if not isinstance(given.get("title"), str):
        return parts
    name = str(given["title"])
    found[name] = parts
    return {"$ref": f"#/components/schemas/{name}"}


def files(root: Path) -> dict[Path, str]:
    """The generated file with its text."""
    found: dict[str, Any] = {}
    split(FILE_SCHEMA, found)
    source = f"{HEAD}SCHEMAS: Mapping[str, Any] = {dict(sorted(found.items()))!r}\n"
    return {root / "services" / "gateway" / "api" / "policy_schemas.py": formatted(source)}


def main() -> None:
    """Write the file."""
    for path, text in files(ROOT).items():
        path.write_text(text)


if __name__ == "__main__":
    main()
