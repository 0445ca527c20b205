"""What is derived from the messages that people submit: the gateway's request bodies and answers,
the options of ``shiftwork submit``, and a page of documentation. Used by ``generate_docs.py``.

A field that is added to ``proto/`` appears in all of them without another edit.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from libs.contracts import messages as m
from libs.contracts.base import Message
from libs.contracts.kinds import Kind, kinds
from libs.contracts.shown import Read
from services.submit.domain.model import Limits, bound_setting

HEADER = '"""{} GENERATED from proto/ by `make gen`."""\n\n'
SPEC = m.TaskSpec
SCALARS = {str: "Text", bool: "Flag", int: "Count", float: "Amount"}
ZEROS = {str: '""', bool: "False", int: "0", float: "0.0"}
SHAPES = {str: "str", bool: "bool", int: "int", float: "float"}


def contained(message: type[Message]) -> Iterator[type[Message]]:
    """The message and those in its fields, each after what it contains."""
    for kind in kinds(message).values():
        if kind.message:
            yield from contained(kind.message)
    yield message


def short(message: type[Message]) -> str:
    """What people call it: ``Preemption`` of PreemptionPolicy."""
    return message.__name__.removesuffix("Policy").removesuffix("Request")


def doc(message: type[Message]) -> str:
    """The message's comment."""
    return " ".join((message.__doc__ or "").split())


def formatted(source: str) -> str:
    """The source as the project's formatter writes it, without imports that it does not use."""
    ruff = str(Path(sys.executable).with_name("ruff"))
    lint = ["check", "--fix", "--exit-zero", "--quiet", "--select", "F401,I"]
    for command in (lint, ["format"]):
        whole = [ruff, *command, "--isolated", "--line-length", "100", "-"]
        done = subprocess.run(whole, input=source, capture_output=True, text=True, check=True)  # noqa: S603 - our own tool
        source = done.stdout
    return source


def described(kind: Kind) -> str:
    """The field's comment with its bounds and what an empty field becomes."""
    return " ".join(filter(None, [kind.shown.about, bounds(kind), initial(kind)]))


def initial(kind: Kind) -> str:
    """What an empty field becomes, as a sentence; empty if nothing."""
    text = kind.shown.initial
    unit = f" {kind.shown.unit}" if kind.shown.unit else ""
    return f"Left out: {text}{unit}." if text else ""


def bounds(kind: Kind) -> str:
    """The bounds as a sentence; empty for none."""
    shown = kind.shown
    low = f"{'more than' if shown.above else 'at least'} {shown.min:.0f}" if shown.min else ""
    high = f"at most {shown.max:.0f}" if shown.max is not None else ""
    if not (low or high):
        return ""
    unit = f" {shown.unit}" if shown.unit else ""
    text = f"{', '.join(filter(None, [low, high]))}{unit}".capitalize()
    return text + (" unless the site sets other bounds." if adjustable(kind) else ".")


def adjustable(kind: Kind) -> bool:
    """Whether submit has a setting for one of its bounds."""
    names = Limits.model_fields
    return any(bound_setting(kind.name, end) in names for end in ("min", "max"))


def bodies() -> str:
    """``services/gateway/spec_bodies.py``."""
    enums: dict[str, list[str]] = {}
    classes: list[str] = []
    for message in dict.fromkeys(contained(SPEC)):
        lines = [f"class {short(message)}Body(Body):", f'    """{doc(message)}"""', ""]
        for kind in kinds(message).values():
            if kind.enum:
                words = [repr(member.name.lower()) for member in list(kind.enum)[1:]]
                enums[f"{kind.enum.__name__}Word"] = words
            lines += body_field(kind)
        classes.append("\n".join(lines))
    aliases = [f"{name} = Literal[{', '.join(words)}]" for name, words in enums.items()]
    head = HEADER.format("What people submit, as JSON bodies.") + (
        "from __future__ import annotations\n\n"
        "from typing import Annotated, Any, Literal\n\n"
        "from pydantic import FailFast, Field\n\n"
        "from services.gateway.body_types import ENTRIES_MAX, Amount, Big, Body, Count, Flag, "
        "NamedTexts, Seconds, Text, TextMap, Texts\n\n"
    )
    return formatted(head + "\n".join(aliases) + "\n" + "\n".join(classes))


def body_field(kind: Kind) -> list[str]:
    """One field of a body."""
    annotation, default = body_type(kind)
    arguments = [default] if default else []
    if kind.shown.required and kind.repeated:
        arguments.append("min_length=1")
    if "list[" in annotation and kind.message:
        arguments.append("max_length=ENTRIES_MAX")
    if text := described(kind):
        arguments.append(f"description={text!r}")
    return [f"    {kind.name}: {annotation} = Field({', '.join(arguments)})"]


def body_type(kind: Kind) -> tuple[str, str]:  # noqa: PLR0911 - a table
    """Annotation of a field of a body and its default; without one it has to be given."""
    if kind.message:
        inner = f"{short(kind.message)}Body"
        if kind.repeated:
            return f"Annotated[list[{inner}], FailFast()]", "default_factory=list"
        return (
            (f"{inner} | None", "default=None") if kind.optional else (inner, f"default={inner}()")
        )
    if kind.mapped:
        return "TextMap", "default_factory=dict"
    if kind.repeated:
        texts = "Texts" if kind.shown.long else "NamedTexts"
        return texts, "" if kind.shown.required else "default_factory=list"
    if kind.shown.read is Read.DOCUMENT:
        return "dict[str, Any] | None", "default=None"
    if kind.shown.choices:
        words = ", ".join(map(repr, ("", *kind.shown.choices)))
        return f"Literal[{words}]", 'default=""'
    if kind.enum:
        return f"{kind.enum.__name__}Word | None", "default=None"
    name = "Big" if kind.wide else "Seconds" if kind.shown.unit == "s" else SCALARS[kind.of]
    if kind.optional:
        return f"{name} | None", "default=None"
    return name, "" if kind.shown.required else f"default={ZEROS[kind.of]}"


def shapes() -> str:
    """``services/gateway/api/spec_shapes.py``."""
    classes: list[str] = []
    for message in dict.fromkeys(contained(SPEC)):
        secrets = [kind for kind in kinds(message).values() if kind.shown.secret]
        base = "TypedDict"
        if secrets:
            base = f"_{short(message)}Secrets"
            lines = [f"class {base}(TypedDict, total=False):"]
            lines += [f"    {kind.name}: {shape_type(kind)}" for kind in secrets]
            classes.append("\n".join(lines))
        lines = [f"class {short(message)}({base}):", f'    """{doc(message)}"""', ""]
        lines += [
            f"    {kind.name}: {shape_type(kind)}"
            for kind in kinds(message).values()
            if not kind.shown.secret
        ]
        classes.append("\n".join(lines))
    head = HEADER.format("What people submitted, as types of answers.") + (
        "from __future__ import annotations\n\n"
        "from typing import Any\n\n"
        "from typing_extensions import TypedDict\n\n\n"
    )
    return formatted(head + "\n".join(classes))


def shape_type(kind: Kind) -> str:
    """The type of a field of an answer."""
    if kind.shown.read is Read.DOCUMENT:
        return "dict[str, Any] | None"
    one = "str" if kind.enum else short(kind.message) if kind.message else SHAPES[kind.of]
    if kind.mapped:
        return f"dict[str, {one}]"
    if kind.repeated:
        return f"list[{one}]"
    return f"{one} | None" if kind.optional else one


def paths(message: type[Message], above: str = "") -> Iterator[tuple[str, Kind]]:
    """Every field that has an option, with its path in the body: ``retry.max_retries``."""
    for kind in kinds(message).values():
        path = above + kind.name
        if kind.shown.options:
            yield path, kind
        if kind.message and not kind.repeated:
            yield from paths(kind.message, f"{path}.")


def options() -> str:
    """``libs/sdk/shiftwork/cli/task_options.py``."""
    lines = [
        HEADER.format("Options of `shiftwork submit` that set fields."),
        "from __future__ import annotations\n\nfrom typing import NamedTuple\n",
        "class TaskOption(NamedTuple):\n",
        '    """An option and what it sets. ``read`` names how its text becomes the value."""\n\n',
        "    field: str\n    flags: tuple[str, ...]\n    read: str\n    repeated: bool\n",
        '    help: str\n    metavar: str = ""\n    least: int | None = None\n',
        "TASK_OPTIONS: tuple[TaskOption, ...] = (\n",
    ]
    for path, kind in paths(SPEC):
        many = kind.repeated or kind.mapped
        arguments = [path, kind.shown.options, option_read(kind), many, option_help(kind)]
        text = ", ".join(map(repr, arguments))
        metavar = kind.shown.metavar or ("K=V" if kind.mapped else "")
        text += f", metavar={metavar!r}" if metavar else ""
        if kind.of is int and not kind.shown.unit and kind.shown.min is not None:
            text += f", least={kind.shown.min:.0f}"
        lines.append(f"    TaskOption({text}),\n")
    return formatted("".join([*lines, ")\n"]))


def option_read(kind: Kind) -> str:
    """How the option's text becomes the value: a name in the command line's table of readers."""
    if kind.shown.read is not Read.BY_TYPE:
        return kind.shown.read.name.lower()
    if kind.enum:
        return kind.enum.__name__.lower()
    if kind.mapped:
        return "pairs"
    by_unit = {"s": "duration", "bytes": "size"}
    return by_unit.get(kind.shown.unit, "number" if kind.of is int else "text")


def option_help(kind: Kind) -> str:
    """The help of an option: short, because many stand in one page."""
    many = "Repeatable." if kind.repeated or kind.mapped else ""
    text = initial(kind).replace("60 s", "60s")
    return " ".join(filter(None, [kind.shown.about, text, many]))


def files(root: Path, note: str) -> dict[Path, str]:
    """Every derived file with its text."""
    gateway = root / "services" / "gateway"
    return {
        gateway / "spec_bodies.py": bodies(),
        gateway / "api" / "spec_shapes.py": shapes(),
        root / "libs" / "sdk" / "shiftwork" / "cli" / "task_options.py": options(),
        root / "docs" / "generated" / "task.md": note + page(),
    }


def page() -> str:
    """``docs/generated/task.md``: every field in tables."""
    lines = ["# What a task may say", ""]
    lines += [
        "The fields of a task file and of `POST /v1/tasks`, and the options of `shiftwork submit`.",
        "",
    ]
    for message in reversed(list(dict.fromkeys(contained(SPEC)))):
        lines += [f"## {short(message)}", "", doc(message), ""]
        lines += ["| field | type | option | meaning |", "| --- | --- | --- | --- |"]
        for kind in kinds(message).values():
            flags = " ".join(f"`{flag}`" for flag in kind.shown.options)
            lines.append(f"| `{kind.name}` | {page_type(kind)} | {flags} | {described(kind)} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def page_type(kind: Kind) -> str:
    """A few words for a field's type."""
    if kind.shown.read is Read.DOCUMENT:
        return "object"
    words = {str: "text", bool: "true or false", int: "number", float: "number"}
    if kind.enum:
        one = ", ".join(member.name.lower() for member in list(kind.enum)[1:])
    elif kind.message:
        one = f"[{short(kind.message)}](#{short(kind.message).lower()})"
    else:
        one = ", ".join(kind.shown.choices) or words[kind.of]
    return f"map of {one}s" if kind.mapped else f"list of {one}" if kind.repeated else one
