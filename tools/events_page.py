"""What programs outside read about events: ``asyncapi.json`` for tools, and a page for people, from
the messages themselves. The examples are messages that the platform's own code encodes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

from libs.contracts import messages as m
from libs.contracts.base import Message
from libs.contracts.envelope import Envelope
from libs.contracts.kinds import Kind as Field
from libs.contracts.kinds import every_kind, kinds
from libs.contracts.public_form import public_body
from libs.contracts.registry import ROUTES, WITHHELD
from libs.contracts.routes import Kind
from libs.contracts.subjects import parameters_of, types_of

PROTO = Path(__file__).resolve().parent.parent / "proto"
AT = datetime(2026, 3, 14, 9, 26, 53, tzinfo=UTC)
# What people write is on a page of its own.
TASK_PAGE = "task.md"
# The field of a file's messages, and of a message's fields, in a descriptor.
_MESSAGES, _FIELDS = 4, 2
# Values of fields in examples, by name. A number or text that is not here is 1 or "".
EXAMPLES: Mapping[str, Any] = {
    "task_id": "t7k2m9qf4xw1",
    "victim_task_id": "t7k2m9qf4xw1",
    "owner": "ann",
    "team": "vision",
    "group": "default",
    "group_token": "default",
    "user": "ann",
    "name": "resnet",
    "node_id": "gpu-07",
    "id": "gpu-07",
    "node_ids": "gpu-07",
    "hostname": "gpu-07.lab.example",
    "runtime": "process",
    "command": "python",
    "uri": "/data/ann/resnet/step-1200.pt",
    "digest": "sha256:9f86d081884c7d65",
    "step": 1200,
    "gpus": 0,
    "text": "waits for nodes",
    "detail": "rank 0 ended with exit code 1",
    "role": "worker",
    "changed_by": "ann",
    "gpu_model": "H100",
    "policy": "priority",
    "address": "10.0.0.7",
    "schedulable": True,
    "ready": True,
}
_PLAIN = (str, bool, int, float, bytes)
# A run that is over is described here, not in every event that may hold one.
_DEPTH_MAX = 3


def comments() -> dict[tuple[str, str], str]:
    """The comment of each field, by message and field, as ``proto/`` has it."""
    buf = str(Path(sys.executable).with_name("buf"))
    command = [buf, "build", str(PROTO), "-o", "-#format=json"]
    image = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603 - our own tool
    found: dict[tuple[str, str], str] = {}
    for file in json.loads(image)["file"]:
        for place in file.get("sourceCodeInfo", {}).get("location", ()):
            path = place.get("path", ())
            text = " ".join(place.get("leadingComments", "").split())
            if text and tuple(path[::2]) == (_MESSAGES, _FIELDS):
                message = file["messageType"][path[1]]
                found[message["name"], message["field"][path[3]]["name"]] = text
    return found


def example(kind: type[Message], depth: int = 0) -> Message:
    """A message with its fields filled, as far as it is not nested too deeply."""
    values = {
        field.name: _value(field, depth)
        for field in kinds(kind).values()
        if not (field.message and field.optional and depth >= _DEPTH_MAX)
    }
    return kind.model_validate(values)


def _value(field: Field, depth: int) -> Any:  # noqa: ANN401 - any value of a field
    if field.mapped:
        return {}
    if field.repeated and field.message and depth >= _DEPTH_MAX:
        return ()
    value = _single(field, depth)
    return (value,) if field.repeated else value


def _single(field: Field, depth: int) -> Any:  # noqa: ANN401 - any value of a field
    if field.message:
        return example(field.message, depth + 1)
    if field.enum:
        return list(field.enum)[1]
    if field.of not in _PLAIN:
        return AT
    if isinstance(found := EXAMPLES.get(field.name), field.of):
        return found
    return field.of() if field.of in (str, bool) else field.of(1)


def envelope(kind: type[Message]) -> Envelope:
    """An example as its owner publishes it."""
    identity = f"9b1deb4d3b7d4bad-42-{kind.__name__.lower()}"
    return Envelope(id=identity, source=ROUTES[kind].owner, time=AT, message=example(kind))


def asyncapi(about: Mapping[tuple[str, str], str]) -> str:
    """An AsyncAPI 3.0 description of events and telemetry, for tools."""
    channels: dict[str, object] = {}
    operations: dict[str, object] = {}
    schemas: dict[str, Any] = {}
    for message in (*types_of(Kind.EVENT), *types_of(Kind.TELEMETRY)):
        name, route = message.__name__, ROUTES[message]
        # As it is written: numbers of 64 bits are text.
        schema = message.model_json_schema(
            mode="serialization", ref_template="#/components/schemas/{model}"
        )
        schemas |= schema.pop("$defs", {})
        schemas[name] = schema
        sent = envelope(message)
        body = public_body(sent.message) if route.kind is Kind.EVENT else sent.body()
        channels[name] = {
            "address": route.subject,
            "parameters": {
                each: {"description": f"The field {each}; a dot in it is written _."}
                for each in parameters_of(message)
            },
            "messages": {
                name: {
                    "name": route.type_name,
                    "summary": summary(message),
                    "contentType": "application/json",
                    "headers": {"$ref": "#/components/schemas/CloudEventHeaders"},
                    "payload": {"$ref": f"#/components/schemas/{name}"},
                    "examples": [{"headers": sent.headers(), "payload": json.loads(body)}],
                }
            },
        }
        operations[f"{route.owner}_publishes_{name}"] = {
            "action": "send",
            "channel": {"$ref": f"#/channels/{name}"},
            "messages": [{"$ref": f"#/channels/{name}/messages/{name}"}],
        }
    for kind, fields in WITHHELD.items():
        for field in fields if kind.__name__ in schemas else ():
            schemas[kind.__name__]["properties"].pop(field)
    for name, schema in schemas.items():
        for field, described in schema.get("properties", {}).items():
            if text := about.get((name, field)):
                described["description"] = text
    schemas["CloudEventHeaders"] = _HEADERS
    page = {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Shiftwork events",
            "version": "1",
            "description": "What the platform publishes on NATS, as CloudEvents; of events what "
            "monitoring users get.",
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {"schemas": dict(sorted(schemas.items()))},
    }
    return json.dumps(page, indent=1, sort_keys=False) + "\n"


_HEADER_TEXTS = {
    "ce-specversion": "The version of CloudEvents: 1.0.",
    "ce-id": "The same at every redelivery, and no other event has it.",
    "ce-source": "The service that publishes it.",
    "ce-type": "The message's type.",
    "ce-time": "When it was made.",
    "ce-subject": "The NATS subject.",
    "content-type": "Always application/json.",
    "traceparent": "The trace that it belongs to (W3C Trace Context); not always there.",
    "Nats-Sequence": "Its number in the stream; live events of monitoring users have it.",
}
_HEADERS = {
    "type": "object",
    "description": "CloudEvents attributes as NATS headers (binary mode).",
    "properties": {
        name: {"type": "string", "description": text} for name, text in _HEADER_TEXTS.items()
    },
    "required": list(_HEADER_TEXTS)[:7],
}


def summary(message: type[Message]) -> str:
    """The message's comment without its name."""
    text = " ".join((message.__doc__ or "").split())
    text = text.removeprefix(message.__name__).removeprefix(":").strip()
    return text[:1].upper() + text[1:]


_HEAD = """# Events

What the platform publishes about tasks, runs, nodes, quotas and policies. Other programs read it as
[monitoring users](../monitoring.md#events-for-other-programs); their tools, as
[AsyncAPI](asyncapi.json).

An event is a message on NATS: a JSON object with the headers of CloudEvents. Numbers of 64 bits are
written as text, which every language reads without loss. A field that is left out has its default:
0, an empty text, an empty list, or nothing. A reader ignores fields that it does not know: later
versions add some. An event may come twice, with the same `ce-id`. [Some fields](#what-is-left-out),
such as environments and commands, are not in what monitoring users get.

"""


def page(about: Mapping[tuple[str, str], str], consumers: Mapping[str, list[str]]) -> str:
    """Every event: when it is published, its subject, fields, and an example."""
    events = sorted(types_of(Kind.EVENT), key=lambda kind: ROUTES[kind].subject)
    lines = [
        *_HEAD.splitlines(),
        "| header | meaning |",
        "| --- | --- |",
        *(f"| `{name}` | {text} |" for name, text in _HEADER_TEXTS.items()),
        "",
        "| event | subject | published by |",
        "| --- | --- | --- |",
    ]
    for kind in events:
        route = ROUTES[kind]
        link = f"[{kind.__name__}](#{kind.__name__.lower()})"
        lines.append(f"| {link} | `{route.subject}` | {route.owner} |")
    for kind in events:
        lines += ["", *_event(kind, about, consumers)]
    lines += ["", *_withheld(events, about), "## Parts of events", ""]
    parts = {part.__name__: part for kind in events for part in _parts(kind)}
    for name in sorted(parts):
        lines += [f"### {name}", "", summary(parts[name]), "", *_table(parts[name], about), ""]
    return "\n".join(lines).rstrip() + "\n"


def _withheld(events: Sequence[type[Message]], about: Mapping[tuple[str, str], str]) -> list[str]:
    """The fields that this page leaves out elsewhere, and the events that hold them."""
    lines = [
        "## What is left out",
        "",
        "Monitoring users do not get these fields, wherever they are: they may hold a secret,",
        "words of a command, or what a program or the cluster wrote. The services get them.",
        "",
        "| field | in the events | meaning |",
        "| --- | --- | --- |",
    ]
    for kind, fields in WITHHELD.items():
        within = [each.__name__ for each in events if kind is each or kind in _every_part(each)]
        for name in fields if within else ():
            text = _cell(about.get((kind.__name__, name), ""))
            lines.append(f"| `{kind.__name__}.{name}` | {', '.join(within)} | {text} |")
    return [*lines, ""]


def _every_part(kind: type[Message]) -> set[type[Message]]:
    """The messages in a message, at any depth."""
    inner = {field.message for field in every_kind(kind).values() if field.message}
    return inner.union(*(_every_part(each) for each in inner))


def _event(
    kind: type[Message],
    about: Mapping[tuple[str, str], str],
    consumers: Mapping[str, list[str]],
) -> list[str]:
    route, sent = ROUTES[kind], envelope(kind)
    readers = ", ".join(consumers.get(kind.__name__, [])) or "nobody of the platform"
    headers = [f"{name}: {value}" for name, value in sent.headers().items()]
    body = json.dumps(json.loads(public_body(sent.message)), indent=1)
    return [
        f"## {kind.__name__}",
        "",
        summary(kind),
        "",
        f"Subject `{route.subject}`, type `{route.type_name}`.",
        f"Published by {route.owner}; read by {readers}.",
        "",
        *_table(kind, about),
        "",
        "<details><summary>Example</summary>",
        "",
        "```text",
        sent.subject,
        *headers,
        "",
        *body.splitlines(),
        "```",
        "",
        "</details>",
    ]


def _table(kind: type[Message], about: Mapping[tuple[str, str], str]) -> list[str]:
    rows = [
        f"| `{field.name}` | {_type(field)} | {_cell(about.get((kind.__name__, field.name), ''))} |"
        for field in kinds(kind).values()
        if field.name not in WITHHELD.get(kind, ())
    ]
    return ["| field | type | meaning |", "| --- | --- | --- |", *rows]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _type(field: Field) -> str:
    if field.message is m.TaskSpec:
        name = f"[TaskSpec]({TASK_PAGE})"
    elif field.message:
        name = f"[{field.message.__name__}](#{field.message.__name__.lower()})"
    elif field.enum:
        name = ", ".join(f"`{each}`" for each in _names(field.enum))
    else:
        names = {str: "text", bool: "true or false", int: "number", float: "number"}
        name = "number as text" if field.wide else names.get(field.of, "time")
    if field.mapped:
        return f"map of {name}"
    return f"list of {name}" if field.repeated else name


def _names(enum: type[Enum]) -> list[str]:
    """The values as they are written in JSON, without the one that stands for none."""
    return [str(each.value) for each in enum][1:]


def _parts(kind: type[Message]) -> Iterator[type[Message]]:
    """The messages in the fields of an event, without those that the page of tasks has."""
    for field in kinds(kind).values():
        if field.message and field.message is not m.TaskSpec:
            yield field.message
            yield from _parts(field.message)
