"""What every generated message is built on: frozen values, and protobuf's JSON spelling.

The wire is the JSON mapping of proto3 with the proto's own field names: int64 travels as a
string, bytes as base64, times as RFC 3339 in UTC (https://protobuf.dev/programming-guides/json/).
"""

from __future__ import annotations

import base64
from typing import Annotated

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    StringConstraints,
)

from libs.contracts.ids import NAME_FORM, NODE_ID_FORM, TASK_ID_FORM


def _from_base64(value: object) -> object:
    """Accept both base64 alphabets, with or without padding, as protobuf's JSON does."""
    if not isinstance(value, str):
        return value
    text = value.replace("-", "+").replace("_", "/")
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)


def _to_base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


# Digits in a string are read as a number without a declaration.
Int64 = Annotated[int, PlainSerializer(str, str, when_used="json")]
Base64 = Annotated[
    bytes, BeforeValidator(_from_base64), PlainSerializer(_to_base64, str, when_used="json")
]
Time = AwareDatetime
# Ids: a message with another text is refused where it is decoded, before anybody acts on it.
TaskIdText = Annotated[str, StringConstraints(pattern=f"^{TASK_ID_FORM}$")]
NodeIdText = Annotated[str, StringConstraints(pattern=f"^{NODE_ID_FORM}$")]
NameText = Annotated[str, StringConstraints(pattern=f"^{NAME_FORM}$")]


class Message(BaseModel):
    """A value of our vocabulary: frozen; a field from a newer peer is ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, defer_build=True)

    def to_json(self) -> bytes:
        """The message as the bus carries it; absent optional fields are left out."""
        return self.model_dump_json(exclude_none=True).encode()
