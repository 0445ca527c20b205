"""How people meet a field: the ``shown`` option of ``proto/`` as a value.

``fields.py`` (generated) holds one for each field of what people submit. The gateway's bodies, the
options of the command line, submit's bounds and the pages of docs/generated are derived from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Read(Enum):
    """How an option's text becomes the value, where the field's type and unit do not define it."""

    BY_TYPE = auto()
    FOLDER = auto()
    TAINT = auto()
    DOCUMENT = auto()
    MODE = auto()


@dataclass(frozen=True, slots=True)
class Shown:
    """The attributes are described in ``proto/shiftwork/bus/v1/options.proto``; ``about`` is the
    field's comment."""

    about: str = ""
    options: tuple[str, ...] = ()
    metavar: str = ""
    read: Read = Read.BY_TYPE
    min: float | None = None
    max: float | None = None
    above: bool = False
    unit: str = ""
    initial: str = ""
    secret: bool = False
    choices: tuple[str, ...] = ()
    long: bool = False
    required: bool = False
    hidden: bool = False
