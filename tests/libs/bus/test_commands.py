from __future__ import annotations

import pytest

from libs.bus.command_replies import answer, answering, read_reply, refuse, reply_type
from libs.bus.port import BusError
from libs.contracts import messages as m
from libs.contracts.base import Message
from libs.contracts.routes import Kind
from libs.contracts.subjects import types_of


@pytest.mark.parametrize("kind", types_of(Kind.COMMAND))
def test_every_command_can_be_refused(kind: type[Message]) -> None:
    refusal = m.Refusal(code=m.RefusalCode.INVALID, detail="no")
    reply = refuse(kind, refusal)
    assert type(reply) is reply_type(kind)
    assert reply.refusal == refusal  # pyright: ignore - each reply has it, which is the test


@pytest.mark.parametrize("kind", [m.TaskSubmitted, m.SetGoalReply, m.LogChunk])
def test_other_messages_have_no_reply(kind: type[Message]) -> None:
    with pytest.raises(ValueError, match=kind.__name__):
        reply_type(kind)


async def test_a_refusal_names_each_field_and_cuts_long_values() -> None:
    async def never(_: Message) -> Message:
        raise AssertionError

    body = b'{"task_id": "t", "attempt": "many", "step": "' + b"x" * 999 + b'"}'
    headers = {"ce-type": "shiftwork.command.v1.AckCheckpoint"}
    reply = await answer(m.AckCheckpoint, never, headers, body)
    assert isinstance(reply, m.AckCheckpointReply)
    assert reply.refusal
    assert reply.refusal.code is m.RefusalCode.INVALID
    assert {each.field: len(each.value) for each in reply.refusal.errors} == {
        "attempt": 4,
        "step": 200,
    }


@pytest.mark.parametrize(
    ("headers", "body", "message"),
    [
        ({}, b"{}", "has type None"),
        ({"ce-type": "shiftwork.command.v1.SetQuotaReply"}, b"{}", "SetQuotaReply"),
        ({"ce-type": "shiftwork.command.v1.SetGoalReply"}, b'{"revision": "x"}', "fit its type"),
    ],
)
def test_an_answer_of_another_type_is_no_answer(
    headers: dict[str, str], body: bytes, message: str
) -> None:
    with pytest.raises(BusError, match=message):
        read_reply(m.SetGoal, headers, body)


async def test_a_group_of_the_body_stays_a_group() -> None:
    with pytest.raises(ExceptionGroup, match="mine") as caught:
        async with answering():
            raise ExceptionGroup("mine", [LookupError()])
    assert isinstance(caught.value.exceptions[0], LookupError)
