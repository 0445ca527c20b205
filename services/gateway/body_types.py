"""What values in requests may be. Used by ``bodies.py`` and the generated ``spec_bodies.py``."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    Strict,
    model_validator,
)
from pydantic_core import PydanticKnownError
from typing_extensions import TypeAliasType

from libs.contracts.ids import NAME_FORM

NAME = f"^{NAME_FORM}$"
INT64_MAX = 2**63 - 1
INT32_MAX = 2**31 - 1


def _no_flag(kind: Literal["int_type", "float_type"], value: object) -> object:
    """Refuse true and false, which pydantic would take as 1 and 0."""
    if isinstance(value, bool):
        raise PydanticKnownError(kind)
    return value


_INT = BeforeValidator(partial(_no_flag, "int_type"))
_FLOAT = BeforeValidator(partial(_no_flag, "float_type"))

Name = Annotated[str, Field(pattern=NAME)]
Count = Annotated[int, Field(ge=0, le=INT32_MAX), _INT]
Big = Annotated[int, Field(ge=0, le=INT64_MAX), _INT]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False), _FLOAT]
# At most a century.
Seconds = Annotated[float, Field(ge=0, le=3.2e9, allow_inf_nan=False), _FLOAT]
Text = Annotated[str, Field(max_length=4096)]


def _shown(text: str) -> str:
    """Refuse what a terminal obeys instead of showing it, and what turns the order of a line."""
    hidden = next((each for each in text if not each.isprintable()), None)
    if hidden is not None:
        raise ValueError(f"has the character U+{ord(hidden):04X}, which is not shown; leave it out")
    return text


# What people call something, in one line.
Label = Annotated[str, AfterValidator(_shown)]
# JSON has words for it: "yes" and 1 are mistakes.
Flag = Annotated[bool, Strict()]

# Of the fields that are not known so many are named.
UNKNOWN_NAMED_MAX = 10
ENTRIES_MAX = 1000


def few(value: object) -> object:
    """Refuse a large map before each of its entries is validated."""
    if isinstance(value, dict) and len(cast("dict[str, object]", value)) > ENTRIES_MAX:
        raise ValueError(f"has more than {ENTRIES_MAX} entries")
    return cast("object", value)


TextMap = Annotated[dict[str, str], BeforeValidator(few)]
Texts = Annotated[list[str], FailFast()]
NamedTexts = Annotated[list[Text], FailFast(), Field(max_length=ENTRIES_MAX)]
# Kubernetes defines it: here it is any JSON object.
PodTemplate = TypeAliasType(
    "PodTemplate",
    Annotated[
        dict[str, Any],
        Field(
            description="Part of a Kubernetes PodTemplateSpec. Kubernetes defines its fields, which"
            " differ between its versions; the site decides which of them are allowed.",
            json_schema_extra={
                "externalDocs": {
                    "url": "https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-template-v1/#PodTemplateSpec"
                }
            },
        ),
    ],
)


class Body(BaseModel):
    """A JSON object with the fields named here and no others."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _few_unknown(cls, value: object) -> object:
        """Pydantic describes each field that is not known: name some, and pass over the rest."""
        if isinstance(value, dict):
            given = cast("dict[str, object]", value)
            unknown = given.keys() - cls.model_fields.keys()
            for name in sorted(unknown)[UNKNOWN_NAMED_MAX:]:
                given.pop(name)
        return cast("object", value)
