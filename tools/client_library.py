"""The generated part of the client library: types and methods from the OpenAPI document.

`make gen` writes the files, `make check` compares them. A new route needs nothing here: its
operation id gives the resource and the method (services/gateway/api/description.py).
"""

from __future__ import annotations

import keyword
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.gateway.api.app import application
from services.gateway.api.description import resource_of
from tools.task_forms import formatted

HEAD = '''"""{about} Generated from the OpenAPI document: change the routes, then `make gen`."""

from __future__ import annotations

'''
STREAM = "text/event-stream"
# What streams bring, by operation: the item, and the reader that joins streams that were cut off.
STREAMS = {"events_list": ("types.Event", "EventReader"), "tasks_logs": ("Output", "OutputReader")}
# Parameters that streams do not have: they are given by the method itself, or by its reader.
NOT_OF_STREAMS = {
    "cursor",
    "follow",
    "limit",
    "limit_bytes",
    "list",
    "before",
    "until",
    "Last-Event-ID",
}
BASES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}


def files(root: Path) -> dict[Path, str]:
    """Every generated file with its text."""
    folder = root / "libs" / "sdk" / "shiftwork" / "client"
    document = application().openapi()
    operations = list(all_operations(document))
    return {
        folder / "types.py": formatted(types_module(document["components"]["schemas"])),
        folder / "resources.py": formatted(resources_module(operations, is_async=False)),
        folder / "async_resources.py": formatted(resources_module(operations, is_async=True)),
    }


def name_of(word: str) -> str:
    """A word of the API as a name in Python."""
    name = word.replace("-", "_").lower()
    return f"{name}_" if keyword.iskeyword(name) else name


@dataclass(frozen=True)
class Parameter:
    """One parameter of an operation."""

    wire: str
    place: str
    kind: str
    about: str

    @property
    def name(self) -> str:
        """Its name in Python."""
        return name_of(self.wire)


@dataclass(frozen=True)
class Operation:
    """One operation as the methods need it."""

    id: str
    method: str
    path: str
    about: str
    parameters: tuple[Parameter, ...]
    # The type of its body, and whether that may be left out; empty: it has none.
    body: str
    text_body: str
    result: str
    # Of a list: the types of its items and pages.
    item: str
    # Content types of further results.
    texts: tuple[str, ...]
    is_stream: bool

    @property
    def resource(self) -> str:
        """The attribute of the client."""
        return resource_of(self.path)

    @property
    def verb(self) -> str:
        """The method's name."""
        return name_of(self.id.removeprefix(f"{self.resource}_"))

    @property
    def keyed(self) -> bool:
        """It takes an Idempotency-Key."""
        return any(each.wire == "Idempotency-Key" for each in self.parameters)

    @property
    def repeatable(self) -> bool:
        """Sending it twice does no more than sending it once."""
        return self.method != "POST" or self.path.endswith(":dry-run")

    def of(self, place: str) -> list[Parameter]:
        """The parameters of the path, the query or the headers."""
        return [each for each in self.parameters if each.place == place]


def all_operations(document: Mapping[str, Any]) -> Iterator[Operation]:
    """The operations in the order of their resources."""
    found = [
        _operation(document, path, method.upper(), operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if not _is_page(operation)
    ]
    yield from sorted(found, key=lambda each: each.resource)


def _is_page(operation: Mapping[str, Any]) -> bool:
    """True for what only browsers open: pages, and what leads to other sites."""
    good = [each for status, each in operation["responses"].items() if status.startswith("2")]
    return not good or "text/html" in good[0].get("content", {})


def _operation(
    document: Mapping[str, Any], path: str, method: str, operation: Mapping[str, Any]
) -> Operation:
    content = operation.get("requestBody", {}).get("content", {})
    (good,) = (each for status, each in operation["responses"].items() if status.startswith("2"))
    answers = good.get("content", {})
    schema = answers.get("application/json", {}).get("schema")
    result = type_of(schema, "types.") if schema else "None"
    page = document["components"]["schemas"].get(result.removeprefix("types."), {})
    fields = page.get("properties", {})
    is_list = method == "GET" and {"items", "next_cursor"} <= set(fields)
    body = type_of(content["application/json"]["schema"], "types.") if content else ""
    text_body = next((kind for kind in content if kind != "application/json"), "")
    return Operation(
        id=operation["operationId"],
        method=method,
        path=path,
        about=operation.get("description", ""),
        parameters=tuple(
            Parameter(
                each["name"],
                each["in"],
                type_of(each["schema"], "types.", of_arguments=True),
                each["description"],
            )
            for each in operation.get("parameters", ())
        ),
        body=f"Union[{body.removeprefix('Union[').rstrip(']')}, str]" if text_body else body,
        text_body=text_body,
        result=result,
        item=type_of(fields["items"]["items"], "types.") if is_list else "",
        texts=tuple(kind for kind in answers if kind not in ("application/json", STREAM)),
        is_stream=STREAM in answers,
    )


def type_of(schema: Mapping[str, Any], prefix: str = "", *, of_arguments: bool = False) -> str:
    """The type of a schema, as an annotation."""
    if "$ref" in schema:
        return prefix + schema["$ref"].rpartition("/")[2]
    if "anyOf" in schema:
        parts = list(
            dict.fromkeys(
                type_of(each, prefix, of_arguments=of_arguments) for each in schema["anyOf"]
            )
        )
        others = [each for each in parts if each != "None"]
        if "str" in others:
            others = [each for each in others if not each.startswith("Literal")]
        literals = [each for each in others if each.startswith("Literal")]
        if len(literals) > 1:
            words = ", ".join(each.removeprefix("Literal[").removesuffix("]") for each in literals)
            others = [each for each in others if each not in literals] + [f"Literal[{words}]"]
        joined = others[0] if len(others) == 1 else f"Union[{', '.join(others)}]"
        return f"Optional[{joined}]" if "None" in parts else joined
    if "enum" in schema or "const" in schema:
        words = schema.get("enum") or [schema["const"]]
        return f"Literal[{', '.join(map(repr, words))}]"
    kind = schema.get("type")
    if kind == "array":
        inner = schema.get("items") or {"anyOf": schema["prefixItems"]}
        # A method may be named list.
        return f"{'Sequence' if of_arguments else 'List'}[{type_of(inner, prefix)}]"
    if kind == "object":
        inner = schema.get("additionalProperties")
        return f"Dict[str, {type_of(inner, prefix) if isinstance(inner, Mapping) else 'Any'}]"
    return BASES.get(kind or "", "Any")


def types_module(schemas: Mapping[str, Any]) -> str:
    """The types of everything that is sent and answered."""
    parts = [
        HEAD.format(about="What the API takes and answers, as types."),
        "from typing import TYPE_CHECKING, Any, Dict, List, Literal, Optional, TypedDict, Union\n",
        "if TYPE_CHECKING:\n    from typing_extensions import NotRequired\n\n",
    ]
    unions = {name: schema for name, schema in sorted(schemas.items()) if "oneOf" in schema}
    classes = {name: schema for name, schema in sorted(schemas.items()) if "properties" in schema}
    for name, schema in sorted(schemas.items()):
        if name not in unions and name not in classes:
            parts.append(f"{name} = {type_of(schema)}\n\n")
    parts += [_typed_dict(name, schema) for name, schema in classes.items()]
    for name, schema in unions.items():
        kinds = [schemas[type_of(each)] for each in schema["oneOf"]]
        parts.append(_typed_dict(f"Other{name}", _other(name, schema, kinds)))
        # Type checkers tell members apart only where each has literals in its tag: no other one.
        parts.append(f"{name} = Union[{', '.join(map(type_of, schema['oneOf']))}]\n")
    return "\n".join(parts)


def _other(
    name: str, union: Mapping[str, Any], kinds: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The schema of a member of a union that a later version of the API may add: it has the fields
    that all known ones have, and where each of these has a type of its own, an object."""
    tag = union["discriminator"]["propertyName"]
    fields: dict[str, Any] = {}
    for field in kinds[0]["properties"]:
        found = [kind["properties"][field] for kind in kinds]
        if field == tag:
            fields[field] = {"type": "string"}
        elif all("$ref" in each for each in found):
            fields[field] = {"type": "object"}
        else:
            fields[field] = {
                "anyOf": [part for each in found for part in each.get("anyOf", [each])]
            }
    about = (
        f"{name} of a type that this version of the library does not know, for ``cast``:"
        f" ``{name}`` itself is one of the known types, so that type checkers tell them apart."
    )
    return {"description": about, "properties": fields, "required": list(fields)}


def _typed_dict(name: str, schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    fields = {
        field: type_of(kind) if field in required else f"NotRequired[{type_of(kind)}]"
        for field, kind in schema.get("properties", {}).items()
    }
    about = _docstring(schema.get("description", name), "    ")
    if any(keyword.iskeyword(field) for field in fields):
        # Names that no class can have.
        rows = "".join(f"    {field!r}: {kind!r},\n" for field, kind in fields.items())
        return f"{name} = TypedDict({name!r}, {{\n{rows}}})\n"
    rows = "".join(f"    {field}: {kind}\n" for field, kind in fields.items())
    return f"class {name}(TypedDict):\n{about}\n{rows}\n"


def _docstring(text: str, indent: str) -> str:
    lines = [line.rstrip() for line in text.strip().replace("\\", "\\\\").split("\n")]
    joined = f"\n{indent}".join(lines)
    return f'{indent}"""{joined}"""\n'.replace(f"\n{indent}\n", "\n\n")


def resources_module(operations: list[Operation], *, is_async: bool) -> str:
    """The classes with a method for each operation."""
    mark = "Async" if is_async else ""
    about = "The operations of the API" + (", for asyncio." if is_async else ".")
    parts = [
        HEAD.format(about=about),
        "from typing import Any, AsyncGenerator, Dict, Iterator, List, Literal, Optional\n",
        "from typing import TYPE_CHECKING, Sequence, Union\n",
        f"from shiftwork.client.operations import {mark}Listing, {mark}Resource\n",
        "from shiftwork.client.operations import Core, Operation, Text, Workers\n",
        "from shiftwork.client.streams import EventReader, Output, OutputReader\n\n",
        "if TYPE_CHECKING:\n    from shiftwork.client import types\n\n\n",
    ]
    by_resource: dict[str, list[Operation]] = {}
    for each in operations:
        by_resource.setdefault(each.resource, []).append(each)
    for resource, found in by_resource.items():
        parts.append(f"class {mark}{_class(resource)}({mark}Resource):\n")
        parts.append(f'    """``client.{resource}``."""\n\n')
        for each in found:
            parts += _methods(each, is_async=is_async)
    parts.append(f"class {mark}Resources:\n")
    parts.append('    """Every resource of the API."""\n\n')
    arguments, given = ("core: Core, workers: Workers", "core, workers")
    if not is_async:
        arguments, given = "core: Core", "core"
    parts.append(f"    def __init__(self, {arguments}) -> None:\n")
    for resource in by_resource:
        parts.append(f"        self.{resource} = {mark}{_class(resource)}({given})\n")
    return "".join(parts)


def _class(resource: str) -> str:
    return "".join(word.capitalize() for word in resource.split("_"))


def _methods(operation: Operation, *, is_async: bool) -> Iterator[str]:
    """The method of an operation, and those of its other forms."""
    awaiting, mark = ("await ", "Async") if is_async else ("", "")
    define = "async def" if is_async else "def"
    if operation.item:
        result = f"{mark}Listing[{operation.item}, {operation.result}]"
        call = f"return self._list({_call(operation)})"
        yield _method("def", operation.verb, operation, result, call)
    else:
        call = f"{awaiting}self._json({_call(operation)})"
        prefix = "" if operation.result == "None" else "return "
        yield _method(define, operation.verb, operation, operation.result, prefix + call)
    for kind in operation.texts:
        suffix = "csv" if kind == "text/csv" else "text"
        left_out = frozenset({"format", "follow", "list", "timestamps"})
        call = f"return {awaiting}self._text({_call(operation, left_out)}, {kind!r})"
        verb = f"{operation.verb}_{suffix}"
        yield _method(define, verb, operation, "Text", call, left_out, f"As {kind}.")
    if operation.is_stream:
        item, reader = STREAMS[operation.id]
        verb = "follow" if operation.item else f"follow_{operation.verb}"
        kind = f"AsyncGenerator[{item}, None]" if is_async else f"Iterator[{item}]"
        place, query = _path(operation), _query(operation, NOT_OF_STREAMS)
        call = f"return self._follow({_declared(operation)}, {place}, {query}, {reader}())"
        more = "As they come; a stream that is cut off continues without a gap or a repetition."
        yield _method("def", verb, operation, kind, call, NOT_OF_STREAMS, more)


def _method(  # noqa: PLR0917 - the parts of a method
    define: str,
    verb: str,
    operation: Operation,
    result: str,
    call: str,
    left_out: frozenset[str] | set[str] = frozenset(),
    more: str = "",
) -> str:
    arguments = ["self"]
    arguments += [f"{each.name}: {each.kind}" for each in operation.of("path")]
    if operation.body:
        arguments.append(f"body: {operation.body}")
    named = [
        each for each in operation.parameters if each.place != "path" and each.wire not in left_out
    ]
    if named:
        arguments.append("*")
    for each in named:
        kind = each.kind if each.kind.startswith("Optional") else f"Optional[{each.kind}]"
        arguments.append(f"{each.name}: {kind} = None")
    about = operation.about.strip() or f"{operation.method} {operation.path}."
    rows = [f"    {each.name}: {each.about}" for each in named if each.about]
    text = "\n\n".join(filter(None, [about, more, f"{operation.method} {operation.path}"])) + (
        "\n\nArgs:\n" + "\n".join(rows) if rows else ""
    )
    body = _docstring(text.replace("\n", "\n        ").replace("\n        \n", "\n\n"), "        ")
    return f"    {define} {verb}({', '.join(arguments)}) -> {result}:\n{body}        {call}\n\n"


def _declared(operation: Operation) -> str:
    more = ", keyed=True" if operation.keyed else ""
    more += f", text_body={operation.text_body!r}" if operation.text_body else ""
    repeatable = f"repeatable={operation.repeatable}"
    return f"Operation({operation.method!r}, {operation.path!r}, {repeatable}{more})"


def _path(operation: Operation) -> str:
    return "{" + ", ".join(f"{each.wire!r}: {each.name}" for each in operation.of("path")) + "}"


def _query(operation: Operation, left_out: frozenset[str] | set[str]) -> str:
    given = [each for each in operation.of("query") if each.wire not in left_out]
    return "{" + ", ".join(f"{each.wire!r}: {each.name}" for each in given) + "}"


def _call(operation: Operation, left_out: frozenset[str] = frozenset()) -> str:
    headers = "{" + ", ".join(
        f"{each.wire.lower()!r}: {each.name}" for each in operation.of("header")
    )
    body = ", body" if operation.body else ""
    place, query = _path(operation), _query(operation, left_out)
    return f"{_declared(operation)}, {place}, {query}, {headers}}}{body}"
