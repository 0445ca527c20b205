"""JSON schemas of Kubernetes' kinds, from an API server's own OpenAPI, for kubeconform.

Nothing is downloaded: the schemas are those of the very version that the tests run. Strict, as the
API server with strict field validation: what no schema names is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Json = dict[str, Any]
# kubeconform looks here, in the words of its own templates.
LOCATION = "{{.ResourceKind}}{{.KindSuffix}}.json"
_KIND = "x-kubernetes-group-version-kind"


def write_schemas(get: Callable[[str], str], folder: Path, groups: Iterable[str]) -> int:
    """A file for every kind of these groups (``api/v1``, ``apis/apps/v1`` …); how many.

    ``get`` is what the API server answers to a path.
    """
    folder.mkdir(parents=True, exist_ok=True)
    index: dict[str, Json] = json.loads(get("/openapi/v3"))["paths"]
    count = 0
    for group in groups:
        document: Json = json.loads(get(index[group]["serverRelativeURL"]))
        definitions: dict[str, Json] = document["components"]["schemas"]
        strict = {name: _strict(schema) for name, schema in definitions.items()}
        for name, schema in definitions.items():
            kinds = schema.get(_KIND, ())
            if len(kinds) != 1 or not kinds[0]["version"]:
                continue
            path = folder / f"{_file(**kinds[0])}.json"
            path.write_text(json.dumps({"$ref": f"#/definitions/{name}", "definitions": strict}))
            count += 1
    return count


def _file(*, group: str, version: str, kind: str) -> str:
    first = group.partition(".")[0]
    return "-".join(part for part in (kind.lower(), first, version.lower()) if part)


def _strict(schema: Any) -> Any:
    """One schema in the words of JSON Schema."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _strict(value) for key, value in schema.items() if not key.startswith("x-")}
    if "$ref" in made:
        return {"$ref": made["$ref"].replace("#/components/schemas/", "#/definitions/")}
    if isinstance(made.get("properties"), dict) and "additionalProperties" not in made:
        made["additionalProperties"] = False
    if made.get("format") == "int-or-string" or schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    return made
