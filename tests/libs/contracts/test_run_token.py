from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts.ids import RunId, TaskId
from libs.contracts.run_token import make_run_token, verify_run_token

KEY = b"k" * 32
RUN = RunId(TaskId("abc"), 7)


def test_a_token_is_good_for_its_run() -> None:
    token = make_run_token(KEY, RUN)
    assert token.startswith("srt_abc.7.")
    assert verify_run_token(KEY, token) == RUN


def test_a_token_of_another_key_is_refused() -> None:
    assert verify_run_token(b"x" * 32, make_run_token(KEY, RUN)) is None


@pytest.mark.parametrize(
    "text", ["", "srt_", "srt_abc.7", "srt_abc.7.", "abc.7.00", "srt_ABC.7.00", "srt_abc.x.00"]
)
def test_malformed_tokens_are_refused(text: str) -> None:
    assert verify_run_token(KEY, text) is None


def test_another_attempt_with_the_same_mac_is_refused() -> None:
    mac = make_run_token(KEY, RUN).rsplit(".", 1)[1]
    assert verify_run_token(KEY, f"srt_abc.8.{mac}") is None


def test_one_run_has_one_spelling() -> None:
    mac = make_run_token(KEY, RUN).rsplit(".", 1)[1]
    assert verify_run_token(KEY, f"srt_abc.07.{mac}") is None


def test_a_short_key_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least 32"):
        make_run_token(b"short", RUN)


@given(position=st.integers(0, 200), letter=st.characters(codec="utf-8"))
def test_any_changed_token_is_refused(position: int, letter: str) -> None:
    token = make_run_token(KEY, RUN)
    position %= len(token)
    changed = token[:position] + letter + token[position + 1 :]
    assert (verify_run_token(KEY, changed) == RUN) == (changed == token)
