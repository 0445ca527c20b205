"""/docs: the API's description as one page, made of /v1/openapi.json. No scripts, no hosts."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
h2{margin-top:2.5rem;border-bottom:1px solid #ddd}h3{margin:1.6rem 0 .2rem;font:600 15px monospace}
h3 b{display:inline-block;width:5em;color:#06c}table{border-collapse:collapse;margin:.4rem 0}
td{padding:.15rem .8rem .15rem 0;vertical-align:top}td:first-child{font-family:monospace}
small{color:#777}pre{background:#f6f6f6;padding:.6rem;overflow:auto}
"""


def page(openapi: Mapping[str, Any]) -> str:
    """The page."""
    by_tag: dict[str, list[str]] = {}
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            tag = (operation.get("tags") or ["other"])[0]
            by_tag.setdefault(tag, []).append(_operation(openapi, method, path, operation))
    sections = "".join(f"<h2>{escape(tag)}</h2>{''.join(found)}" for tag, found in by_tag.items())
    info = openapi["info"]
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        f"<title>{escape(info['title'])}</title><style>{STYLE}</style>"
        f"<h1>{escape(info['title'])} <small>{escape(info['version'])}</small></h1>"
        f"<p>{escape(info.get('description', ''))}</p>"
        '<p>For programs: <a href="/v1/openapi.json">/v1/openapi.json</a></p>'
        f"{sections}</html>"
    )


def _operation(
    openapi: Mapping[str, Any], method: str, path: str, operation: Mapping[str, Any]
) -> str:
    rows = [
        (item["name"], item["in"], _type(item.get("schema", {})), item.get("description", ""))
        for item in operation.get("parameters", ())
    ]
    content = operation.get("requestBody", {}).get("content", {})
    schema = _resolve(openapi, content.get("application/json", {}).get("schema", {}))
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        kind = "body, required" if name in required else "body"
        rows.append((name, kind, _type(field), field.get("description", "")))
    table = "".join(
        f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows
    )
    return (
        f"<h3><b>{method.upper()}</b> {escape(path)}</h3>"
        f"<div>{escape(operation.get('description', ''))}</div><table>{table}</table>"
    )


def _resolve(openapi: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    if reference is None:
        return schema
    return openapi["components"]["schemas"][reference.rpartition("/")[2]]


def _type(schema: Mapping[str, Any]) -> str:
    """A few words for a schema."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " | ".join(_type(part) for part in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "any"))
