"""What monitoring users get of each event, compared with the declarations in ``proto/``.

The fields are read from the descriptors, not from the code under test: a text in an event is
either withheld or named here, so that a new one has to be decided on.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from libs.contracts.base import Message
from libs.contracts.public_form import public_body, withheld_version
from libs.contracts.registry import ROUTES, WITHHELD
from libs.contracts.routes import Kind
from libs.contracts.subjects import types_of

PROTO = Path(__file__).parents[3] / "proto"
# The texts that monitoring users get: ids, names that people chose, and sentences that the platform
# makes of numbers. Before you add one: can it hold a value of an environment variable, a part of a
# pod template, a word of a command, or what a program or the cluster wrote? Then declare it
# ``withheld``.
PUBLIC_TEXTS = """
AbnormalActionSettled.detail AbnormalActionSettled.node_id AbnormalActionSettled.rule
AbnormalTaskChanged.rule AbnormalTaskChanged.suggestion Checkpoint.digest Checkpoint.task_id
Completion.failure Completion.success Continuation.state_of Endpoint.address Endpoint.name
Endpoint.role EnvSource.config_map EnvSource.field EnvSource.key EnvSource.name EnvSource.secret
GoalChanged.changed_by InventoryListed.runtime ModeChanged.changed_by Node.gpu_model Node.group
Node.labels Node.taints Placement.role PodRequest.capabilities PodRequest.image
PodRequest.image_pull_policy PodRequest.image_pull_secrets PodRequest.resources PodRequest.storage
PolicyChanged.group PolicyRecord.changed_by PolicyRecord.document PolicyRecord.group
PolicyRecord.policy Port.name PreemptionPolicy.signal PriorityChanged.changed_by Quota.group
Quota.team Quota.user QuotaChanged.changed_by QuotaChanged.group_token RankEnded.role
RankErrorLines.kind RankErrorLines.role RankRestarted.node_id RankRestarted.role ReadyProbe.path
ReadyProbe.port Reason.numbers RestartRule.exit_codes Role.image Role.name Role.working_directory
RunAssigned.team RunDelayed.node_ids RunExited.owner RunResumed.team RunStarted.owner
StartsAfter.role TaskSpec.group TaskSpec.labels TaskSpec.name TaskSpec.node_selector
TaskSpec.secret_env TaskSpec.tolerations TaskSpec.working_directory TaskStateChanged.group
TaskStateChanged.owner TaskStateChanged.team TaskSubmitted.team TaskWarning.code TaskWarning.field
TaskWarning.message UsageRecorded.group UsageRecorded.owner UsageRecorded.task_id UsageRecorded.team
"""


@dataclass(frozen=True)
class Declared:
    """A field as ``proto/`` declares it."""

    message: str
    name: str
    type: str
    of: str
    repeated: bool
    withheld: bool
    id: str

    @property
    def key(self) -> str:
        return f"{self.message}.{self.name}"


@cache
def declared() -> dict[str, list[Declared]]:
    """The fields of each message; the two of a map's entries, too."""
    buf = str(Path(sys.executable).with_name("buf"))
    command = [buf, "build", str(PROTO), "-o", "-#format=json"]
    image = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    found: dict[str, list[Declared]] = {}

    def read(message: dict[str, Any], name: str) -> None:
        for inner in message.get("nestedType", ()):
            read(inner, f"{name}.{inner['name']}")
        found[name] = []
        for each in message.get("field", ()):
            options = each.get("options", {})
            shown = options.get("[shiftwork.bus.v1.shown]", {})
            found[name].append(
                Declared(
                    message=name,
                    name=each["name"],
                    type=each["type"],
                    of=".".join(p for p in each.get("typeName", "").split(".") if p[:1].isupper()),
                    repeated=each["label"] == "LABEL_REPEATED",
                    withheld=bool(
                        options.get("[shiftwork.bus.v1.withheld]") or shown.get("secret")
                    ),
                    id=options.get("[shiftwork.bus.v1.id]", ""),
                )
            )

    for file in image["file"]:
        for message in file.get("messageType", ()):
            read(message, message["name"])
    return found


IDS = {"ID_TASK": "t7k2m9qf4xw1", "ID_NODE": "gpu-07", "ID_NAME": "ann"}
NUMBERS = {"TYPE_BOOL": True, "TYPE_INT32": 1, "TYPE_INT64": "1", "TYPE_DOUBLE": 1.5}


@dataclass
class Filled:
    """A message with a text of its own in every field, in the order of the declaration."""

    mark: str = ""
    texts: dict[str, Declared] = field(default_factory=dict[str, Declared])
    # The texts in a field that is withheld, or in a message in such a field.
    hidden: set[str] = field(default_factory=set[str])

    def message(self, name: str, *, hidden: bool = False) -> dict[str, Any]:
        return {each.name: self._value(each, hidden) for each in declared()[name]}

    def _value(self, each: Declared, hidden: bool) -> Any:
        hidden = hidden or each.withheld
        if f"{each.message}.{each.of.rpartition('.')[2]}" == each.of and each.of in declared():
            _, value = declared()[each.of]
            return {self._text(each, hidden): self._single(value, hidden, each)}
        one = self._single(each, hidden, each)
        return [one] if each.repeated else one

    def _single(self, each: Declared, hidden: bool, of: Declared) -> Any:
        if each.type in NUMBERS:
            return NUMBERS[each.type]
        if each.type == "TYPE_STRING":
            return IDS.get(each.id) or self._text(of, hidden)
        if each.type == "TYPE_BYTES":
            return "AAAA"
        if each.of == "Timestamp":
            return "2026-01-02T03:04:05Z"
        if each.type == "TYPE_ENUM":
            return None
        return self.message(each.of, hidden=hidden)

    def _text(self, each: Declared, hidden: bool) -> str:
        text = f"text-{self.mark}{len(self.texts)}-"
        self.texts[text] = each
        if hidden:
            self.hidden.add(text)
        return text


def without_enums(value: Any) -> Any:
    """Enums keep their default."""
    if isinstance(value, dict):
        return {k: without_enums(v) for k, v in value.items() if v is not None and v != [None]}
    return [without_enums(each) for each in value] if isinstance(value, list) else value


def filled(kind: type[Message], mark: str = "") -> tuple[Filled, Message]:
    """A message of this type, and its texts, which begin with the mark."""
    made = Filled(mark)
    return made, kind.model_validate(without_enums(made.message(kind.__name__)))


EVENTS = types_of(Kind.EVENT)


@pytest.mark.parametrize("kind", EVENTS)
def test_the_public_form_has_every_text_that_is_not_withheld_and_none_that_is(
    kind: type[Message],
) -> None:
    made, message = filled(kind)
    whole, public = message.to_json().decode(), public_body(message).decode()
    assert [text for text in made.texts if text not in whole] == []
    assert {text for text in made.texts if text in public} == set(made.texts) - made.hidden
    # A reader finds the type that it expects.
    assert kind.model_validate_json(public)


def test_a_task_is_published_without_its_environment_template_and_commands() -> None:
    made, message = filled(next(kind for kind in EVENTS if kind.__name__ == "RunAssigned"))
    gone = {made.texts[text].key for text in made.hidden}
    assert gone == {
        *("TaskSpec.env", "Role.env", "Override.env", "PodRequest.template"),
        *("Role.command", "Role.args", "Override.command"),
        *("DebugProgram.command", "DebugProgram.args", "Checkpoint.uri"),
    }
    assert json.loads(public_body(message))["spec"]["secret_env"]


def test_every_text_of_an_event_is_withheld_or_decided_to_be_public() -> None:
    public = {
        made.texts[text].key
        for made, _ in [filled(kind) for kind in EVENTS]
        for text in set(made.texts) - made.hidden
    }
    assert sorted(public) == PUBLIC_TEXTS.split()


def test_fields_of_a_newer_version_are_not_published() -> None:
    kind = next(kind for kind in EVENTS if kind.__name__ == "TaskSubmitted")
    _, message = filled(kind)
    newer = json.loads(message.to_json())
    newer["spec"]["token"] = newer["token"] = "a secret of the next version"
    assert b"next version" not in public_body(kind.model_validate_json(json.dumps(newer)))


def every_withheld() -> Iterator[str]:
    return (each.key for fields in declared().values() for each in fields if each.withheld)


def test_another_withheld_field_is_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{kind.__name__}.{name}" for kind, names in WITHHELD.items() for name in names]
    assert sorted(names) == sorted(every_withheld())
    before = withheld_version()
    assert before == withheld_version()
    kind = next(iter(ROUTES))
    monkeypatch.setitem(WITHHELD, kind, ("task_id",))
    assert withheld_version() != before
