"""protoc plugin: our dialect of proto3 becomes frozen pydantic models and a registry.

Called by ``buf generate`` (see ``buf.gen.yaml``); writes ``messages.py``, ``registry.py`` and
``fields.py`` into ``libs/contracts``.

The dialect: scalars, enums, messages, repeated, maps and Timestamp. A message
or Timestamp field must be present unless it is marked ``optional``; a scalar defaults to zero.
Anything else (oneof, Any, Duration, groups) is refused here, with the field's name.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.compiler import plugin_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

Field = FieldDescriptorProto
HEADER = '"""GENERATED from proto/ by `make gen`. Do not edit."""\n\n'
SCALARS = {
    Field.TYPE_STRING: ("str", '""'),
    Field.TYPE_BOOL: ("bool", "False"),
    Field.TYPE_INT32: ("int", "0"),
    Field.TYPE_INT64: ("Int64", "0"),
    Field.TYPE_DOUBLE: ("float", "0.0"),
    Field.TYPE_BYTES: ("Base64", 'b""'),
}
TIMESTAMP = ".google.protobuf.Timestamp"
OPTIONS_FILE = "shiftwork/bus/v1/options.proto"
# Types of fields with the option ``id``, by its number.
IDS = {1: "TaskIdText", 2: "NodeIdText", 3: "NameText"}


class DialectError(Exception):
    """A .proto uses something outside our dialect."""


@dataclass(frozen=True)
class Comments:
    """Leading comments of a file's definitions, by their path."""

    by_path: dict[tuple[int, ...], str]

    @staticmethod
    def of(file: FileDescriptorProto) -> Comments:
        """Read them from a file's source information."""
        found = {
            tuple(location.path): " ".join(location.leading_comments.split())
            for location in file.source_code_info.location
            if location.leading_comments
        }
        return Comments(found)


def wrapped(text: str, indent: str, width: int = 96) -> list[str]:
    """Break a comment into lines of at most ``width`` columns."""
    lines: list[str] = []
    line = indent
    for word in text.split():
        if len(line) + len(word) + 1 > width and line.strip():
            lines.append(line)
            line = indent
        line += word if line == indent else f" {word}"
    return [*lines, line]


def docstring(text: str, indent: str) -> list[str]:
    lines = wrapped(f'"""{text}', indent)
    lines[-1] += '"""'
    return lines


def enum_source(enum: EnumDescriptorProto, doc: str) -> list[str]:
    prefix = enum.value[0].name.removesuffix("UNSPECIFIED")
    lines = [f"class {enum.name}(StrEnum):", *docstring(doc, "    "), ""]
    lines += [f'    {value.name.removeprefix(prefix)} = "{value.name}"' for value in enum.value]
    return lines


def short(type_name: str) -> str:
    return type_name.rsplit(".", 1)[-1]


def base_type(field: Field, where: str) -> tuple[str, str | None]:
    """Python type and default (None: must be given) of one value of the field."""
    if field.type in SCALARS:
        return SCALARS[field.type]
    if field.type == Field.TYPE_ENUM:
        return short(field.type_name), f"{short(field.type_name)}.UNSPECIFIED"
    if field.type_name == TIMESTAMP:
        return "Time", None
    if field.type == Field.TYPE_MESSAGE and not field.type_name.startswith(".google."):
        return short(field.type_name), None
    kind = field.type_name or field.type
    raise DialectError(f"{where}.{field.name}: type {kind} is not in the dialect")


def field_source(message: DescriptorProto, field: Field, ids: Mapping[str, int]) -> str:
    if field.HasField("oneof_index") and not field.proto3_optional:
        raise DialectError(f"{message.name}.{field.name}: oneof is not in the dialect")
    entries = {each.name: each for each in message.nested_type if each.options.map_entry}
    if field.type == Field.TYPE_MESSAGE and short(field.type_name) in entries:
        key, value = entries[short(field.type_name)].field
        kind = f"Mapping[{base_type(key, message.name)[0]}, {base_type(value, message.name)[0]}]"
        return f"    {field.name}: {kind} = pydantic.Field(default_factory=dict)"
    kind, default = base_type(field, message.name)
    named = ids.get(f"{message.name}.{field.name}")
    if named:
        if field.type != Field.TYPE_STRING:
            raise DialectError(f"{message.name}.{field.name}: only a text can be an id")
        kind, default = IDS[named], None
    if field.label == Field.LABEL_REPEATED:
        return f"    {field.name}: tuple[{kind}, ...] = ()"
    if field.proto3_optional:
        return f"    {field.name}: {kind} | None = None"
    return f"    {field.name}: {kind}" + ("" if default is None else f" = {default}")


def message_source(message: DescriptorProto, doc: str, ids: Mapping[str, int]) -> list[str]:
    return [
        f"class {message.name}(Message):",
        *docstring(doc, "    "),
        "",
        *[field_source(message, field, ids) for field in message.field],
    ]


def in_order(messages: list[tuple[DescriptorProto, str]]) -> list[tuple[DescriptorProto, str]]:
    """Every message after those it contains, otherwise as declared."""
    names = {message.name: (message, doc) for message, doc in messages}
    done: dict[str, tuple[DescriptorProto, str]] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in done:
            return
        if name in path:
            raise DialectError(f"{' -> '.join((*path, name))}: messages contain each other")
        for field in names[name][0].field:
            inner = short(field.type_name)
            if field.type == Field.TYPE_MESSAGE and inner in names:
                visit(inner, (*path, name))
        done[name] = names[name]

    for message, _ in messages:
        visit(message.name, ())
    return list(done.values())


PRELUDE = """from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import pydantic

from libs.contracts.base import (
    Base64,
    Int64,
    Message,
    NameText,
    NodeIdText,
    TaskIdText,
    Time,
)

"""


def messages_py(files: list[FileDescriptorProto], ids: Mapping[str, int]) -> str:
    enums: list[list[str]] = []
    messages: list[tuple[DescriptorProto, str]] = []
    for file in files:
        comments = Comments.of(file).by_path
        for index, enum in enumerate(file.enum_type):
            enums.append(enum_source(enum, comments.get((5, index), enum.name)))
        for index, message in enumerate(file.message_type):
            messages.append((message, comments.get((4, index), message.name)))
    blocks = enums + [message_source(message, doc, ids) for message, doc in in_order(messages)]
    return HEADER + PRELUDE + "\n" + "\n\n\n".join("\n".join(block) for block in blocks) + "\n"


def our_options(
    request: plugin_pb2.CodeGeneratorRequest, of: str, name: str
) -> tuple[type, FieldDescriptor]:
    """A class of options and our extension of it, from a pool that knows it."""
    pool = descriptor_pool.DescriptorPool()
    for file in request.proto_file:
        pool.Add(file)
    descriptor = pool.FindMessageTypeByName(f"google.protobuf.{of}")
    extension = pool.FindExtensionByName(f"shiftwork.bus.v1.{name}")
    return message_factory.GetMessageClass(descriptor), extension


def ids_of(request: plugin_pb2.CodeGeneratorRequest) -> dict[str, int]:
    """What each field that has the option ``id`` names, by ``Message.field``."""
    options_class, extension = our_options(request, "FieldOptions", "id")
    found: dict[str, int] = {}
    for file in request.proto_file:
        for message in file.message_type:
            for field in message.field:
                options = options_class.FromString(field.options.SerializeToString())
                if options.HasExtension(extension):
                    found[f"{message.name}.{field.name}"] = options.Extensions[extension]
    return found


def withheld_of(
    request: plugin_pb2.CodeGeneratorRequest, files: list[FileDescriptorProto]
) -> dict[str, list[str]]:
    """By message, the fields that monitoring users do not get: those with the option ``withheld``,
    and those that are shown as secret."""
    options_class, withheld = our_options(request, "FieldOptions", "withheld")
    shown = options_class.DESCRIPTOR.file.pool.FindExtensionByName("shiftwork.bus.v1.shown")
    found: dict[str, list[str]] = {}
    for file in files:
        for message in file.message_type:
            for field in message.field:
                options = options_class.FromString(field.options.SerializeToString())
                if options.Extensions[withheld] or options.Extensions[shown].secret:
                    found.setdefault(message.name, []).append(field.name)
    return found


def shown_py(request: plugin_pb2.CodeGeneratorRequest, files: list[FileDescriptorProto]) -> str:
    """``fields.py``: comments and ``shown`` options of the messages that people write, which are
    those with such an option and what they contain."""
    options_class, extension = our_options(request, "FieldOptions", "shown")
    found: dict[str, dict[str, list[str]]] = {}
    inner: dict[str, list[str]] = {}
    chosen: list[str] = []
    for file in files:
        comments = Comments.of(file).by_path
        for index, message in enumerate(file.message_type):
            inner[message.name] = [short(field.type_name) for field in message.field]
            fields = found[message.name] = {}
            for position, field in enumerate(message.field):
                about = repr(comments.get((4, index, 2, position), ""))
                fields[field.name] = [f"about={about}"] if about != "''" else []
                options = options_class.FromString(field.options.SerializeToString())
                if options.HasExtension(extension):
                    chosen += [message.name]
                    fields[field.name] += settings_of(options.Extensions[extension])
    for name in chosen:
        chosen += [each for each in inner[name] if each in inner and each not in chosen]
    lines = ["SHOWN: Mapping[str, Mapping[str, Shown]] = {"]
    for name, fields in found.items():
        if name in chosen:
            lines += [f'    "{name}": {{']
            for field, settings in fields.items():
                lines += [f'"{field}": Shown({", ".join(settings)}),']
            lines += ["    },"]
    return formatted(HEADER + SHOWN_PRELUDE + "\n".join([*lines, "}"]) + "\n")


def settings_of(shown: Any) -> list[str]:  # noqa: ANN401 - a class made from the descriptor
    """The keyword arguments of a ``Shown``; what is not set is left out."""
    settings: list[str] = []
    for field, value in shown.ListFields():
        if field.name == "read":
            settings.append(f"read=Read.{READS[value]}")
        elif field.name in ("options", "choices"):
            settings.append(f"{field.name}={tuple(value.split())!r}")
        else:
            settings.append(f"{field.name}={value!r}")
    return settings


def formatted(source: str) -> str:
    """The source as the project's formatter writes it."""
    ruff = Path(sys.executable).with_name("ruff")
    # Wherever buf runs it, also in a copy without the project's settings.
    command = [str(ruff), "format", "--isolated", "--line-length", "100", "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=True)  # noqa: S603 - our own tool
    return done.stdout


def routes(request: plugin_pb2.CodeGeneratorRequest) -> dict[str, object]:
    """Message options, read through a pool that knows our extension."""
    options_class, extension = our_options(request, "MessageOptions", "route")
    found: dict[str, object] = {}
    for file in request.proto_file:
        for message in file.message_type:
            options = options_class.FromString(message.options.SerializeToString())
            if options.HasExtension(extension):
                found[f"{file.package}.{message.name}"] = options.Extensions[extension]
    return found


READS = {1: "FOLDER", 2: "TAINT", 3: "DOCUMENT", 4: "MODE"}
SHOWN_PRELUDE = """from __future__ import annotations

from collections.abc import Mapping

from libs.contracts.shown import Read, Shown

"""

REGISTRY_PRELUDE = """from __future__ import annotations

from libs.contracts import messages as m
from libs.contracts.routes import Kind, Route

"""


def registry_py(request: plugin_pb2.CodeGeneratorRequest, files: list[FileDescriptorProto]) -> str:
    kinds = {
        1: "EVENT",
        2: "COMMAND",
        3: "REPLY",
        4: "TELEMETRY",
        5: "SESSION",
        6: "HINT",
        7: "SAMPLE",
    }
    lines = ["ROUTES: dict[type[m.Message], Route] = {"]
    for full_name, route in routes(request).items():
        name = short(full_name)
        reply = f"m.{route.reply}" if route.reply else "None"
        lines += [
            f"    m.{name}: Route(",
            f'        type_name="{full_name}",',
            f'        subject="{route.subject}",',
            f'        owner="{route.owner}",',
            f"        kind=Kind.{kinds[route.kind]},",
            f"        reply={reply},",
            "    ),",
        ]
    lines += ["}", "", "# By message, the fields that monitoring users do not get."]
    lines += ["WITHHELD: dict[type[m.Message], tuple[str, ...]] = {"]
    for name, fields in withheld_of(request, files).items():
        lines += [f"m.{name}: {tuple(fields)!r},"]
    return formatted(HEADER + REGISTRY_PRELUDE + "\n".join([*lines, "}"]) + "\n")


def main() -> None:
    request = plugin_pb2.CodeGeneratorRequest.FromString(sys.stdin.buffer.read())
    response = plugin_pb2.CodeGeneratorResponse()
    response.supported_features = plugin_pb2.CodeGeneratorResponse.FEATURE_PROTO3_OPTIONAL
    ours = [
        file
        for file in request.proto_file
        if file.name.startswith("shiftwork/") and file.name != OPTIONS_FILE
    ]
    try:
        response.file.add(name="messages.py", content=messages_py(ours, ids_of(request)))
        response.file.add(name="registry.py", content=registry_py(request, ours))
        response.file.add(name="fields.py", content=shown_py(request, ours))
    except DialectError as error:
        response.error = str(error)
    sys.stdout.buffer.write(response.SerializeToString())


if __name__ == "__main__":
    main()
