"""Names of things. This module parses and formats ids; making new ones is an adapter's job."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import NewType

TaskId = NewType("TaskId", str)
NodeId = NewType("NodeId", str)

# The forms of ids, for fields of messages (``base.py``) and the functions below. Submit makes task
# ids of fewer characters; what other versions made must still be read.
TASK_ID_FORM = r"[a-z][a-z0-9]{0,25}"
NODE_ID_FORM = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,251}[A-Za-z0-9])?"
# Of namespaces, containers and volumes in Kubernetes.
DNS_LABEL_FORM = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
NAME_FORM = r"[a-z0-9]([-_a-z0-9]{0,61}[a-z0-9])?"
_TASK_ID = re.compile(TASK_ID_FORM)
_NAME = re.compile(NAME_FORM)


def is_task_id(text: str) -> bool:
    """True if ``text`` has the form of a task id: a letter, then letters and digits, at most 26."""
    return _TASK_ID.fullmatch(text) is not None


# As submit makes them: found within a text.
_ID_IN_TEXT = re.compile(r"\bt[a-z2-7]{20}\b")


def ids_in(text: str) -> list[str]:
    """The ids of tasks in a text, in their order."""
    return list(dict.fromkeys(_ID_IN_TEXT.findall(text)))


def without_hidden_ids(text: str, shown: Collection[str]) -> str:
    """The text with ``hidden-1`` and so on instead of the ids of tasks that are not among
    ``shown``."""
    hidden = [each for each in ids_in(text) if each not in shown]
    names = {each: f"hidden-{number}" for number, each in enumerate(hidden, start=1)}
    return _ID_IN_TEXT.sub(lambda found: names.get(found[0], found[0]), text)


# The label of a task that was submitted again: the id of the task before.
RETRY_OF = "retry-of"
# The name of a task that was given none ends with so many of its id's last characters.
NAME_ID_DIGITS = 6


def name_ending(task_id: str) -> str:
    """The ending of the name of a task with this id that was given none. An id is unknown before
    its task is stored, so a given name does not end like this."""
    return f"-{task_id[-NAME_ID_DIGITS:]}"


def is_name(text: str) -> bool:
    """True if ``text`` can name a user, team or group: ``NAME_RULE``."""
    return _NAME.fullmatch(text) is not None


NAME_RULE = "1 to 63 of a-z, 0-9, - and _, a letter or digit at both ends"
LABEL_KEY_RULE = "1 to 253 of letters, digits, - _ . and /, a letter or digit at both ends"
LABEL_VALUE_RULE = "at most 63 of letters, digits, - _ and ., a letter or digit at both ends"
_LABEL_KEY = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_./]{0,251}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def is_label_key(text: str) -> bool:
    """True if ``text`` can be the key of a node's label or taint: ``LABEL_KEY_RULE``."""
    return _LABEL_KEY.fullmatch(text) is not None


def is_label_value(text: str) -> bool:
    """True if ``text`` can be the value of a node's label: ``LABEL_VALUE_RULE``, or empty."""
    return _LABEL_VALUE.fullmatch(text) is not None


def is_taint(text: str) -> bool:
    """True if ``text`` is a node's taint: ``key``, or ``key=value`` with a value."""
    key, sign, value = text.partition("=")
    return is_label_key(key) and (not sign or (bool(value) and is_label_value(value)))


@dataclass(frozen=True, slots=True, order=True)
class RunId:
    """One attempt of one task, written ``<task>.<attempt>``; derived, never random."""

    task_id: TaskId
    attempt: int

    def __str__(self) -> str:
        return f"{self.task_id}.{self.attempt}"

    @staticmethod
    def parse(text: str) -> RunId:
        """Read ``<task>.<attempt>``; ValueError if it is not one."""
        task_id, dot, attempt = text.rpartition(".")
        if not dot or not is_task_id(task_id) or not attempt.isdecimal():
            raise ValueError(f"run id {text!r} is not <task>.<attempt>")
        return RunId(TaskId(task_id), int(attempt))
