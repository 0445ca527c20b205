"""The schemas of the served OpenAPI document, for tests that hold documents to them."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import jsonschema

from services.gateway.api.app import application

DOCUMENT = application().openapi()
SCHEMAS = DOCUMENT["components"]["schemas"]


@cache
def exact(name: str) -> jsonschema.Draft202012Validator:
    """Validates against one type of the document. A field that the type does not have is an error
    here: the document itself permits it, because a later version may add fields."""
    closed = {each: _closed(copy.deepcopy(schema)) for each, schema in SCHEMAS.items()}
    schema = {"components": {"schemas": closed}, "$ref": f"#/components/schemas/{name}"}
    formats = jsonschema.Draft202012Validator.FORMAT_CHECKER
    return jsonschema.Draft202012Validator(schema, format_checker=formats)


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _closed(each) for key, each in schema.items() if key != "examples"}
    if isinstance(found.get("properties"), dict) and found.get("type") == "object":
        found.setdefault("additionalProperties", False)
    return found
