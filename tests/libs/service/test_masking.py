"""Secrets in a stream are masked, however the stream is cut, and nothing else is changed."""

from __future__ import annotations

import base64
import gc
import json
import time
from collections.abc import Iterable
from itertools import pairwise
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from libs.service import masking
from libs.service.masking import FORMS_MAX, PART_BYTES_MAX, Automaton, Masker, secret_forms

TOKEN = "hf_AbC+dEf/123 ä?"
KEY = "-----BEGIN KEY-----\r\nMIIEvQIBADANBg\nkqhkiG9w0BAQEF\n-----END KEY-----\n"
# Few letters, so that values overlap, repeat themselves and begin within each other.
LETTERS = st.text("abc", min_size=6, max_size=12)
VALUES = st.lists(st.one_of(LETTERS, st.text("ab /+\n", min_size=6, max_size=14)), min_size=1)
FORMS = VALUES.map(secret_forms).filter(bool)


def masked(pieces: Iterable[bytes], forms: tuple[bytes, ...]) -> bytes:
    masker = Masker(forms)
    return b"".join([*map(masker.feed, pieces), masker.flush()])


def mask(text: str, *values: str) -> str:
    return masked([text.encode()], secret_forms(values)).decode()


@st.composite
def streams(draw: st.DrawFn) -> tuple[tuple[bytes, ...], bytes]:
    """Values, and bytes with some of them, whole and in parts."""
    forms = draw(FORMS)
    parts = st.sampled_from(forms).flatmap(
        lambda form: st.tuples(st.integers(0, len(form)), st.integers(0, len(form))).map(
            lambda ends: form[min(ends) : max(ends)]
        )
    )
    other = st.text("abc \n\r", max_size=8).map(str.encode)
    pieces = draw(st.lists(st.one_of(st.sampled_from(forms), parts, other)))
    return forms, b"".join(pieces)


@given(streams(), st.data())
def test_any_cut_of_the_stream_gives_the_same(
    stream: tuple[tuple[bytes, ...], bytes], data: st.DataObject
) -> None:
    forms, text = stream
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    pieces = [text[begin:end] for begin, end in pairwise([0, *cuts, len(text)]) if begin < end]
    assert masked(pieces, forms) == masked([text] if text else [], forms)


@given(streams())
def test_no_value_is_left(stream: tuple[tuple[bytes, ...], bytes]) -> None:
    forms, text = stream
    result = masked([bytes([byte]) for byte in text], forms)
    assert [form for form in forms if form in result] == []


def oracle(text: bytes, forms: tuple[bytes, ...]) -> bytes:
    """Each stretch that forms cover becomes one mask; six bytes of a form at the end as well."""
    covered = [False] * len(text)
    for form in forms:
        for at in range(len(text)):
            if text.startswith(form, at):
                covered[at : at + len(form)] = [True] * len(form)
    ends = [
        at
        for at in range(len(text))
        if any(form.startswith(text[at:]) and form != text[at:] for form in forms)
    ]
    if ends and len(text) - ends[0] >= 6:
        covered[ends[0] :] = [True] * (len(text) - ends[0])
    found = b""
    for at, is_covered in enumerate(covered):
        if not is_covered:
            found += text[at : at + 1]
        elif at == 0 or not covered[at - 1]:
            found += b"***"
    return found


@given(streams(), st.data(), st.sampled_from([0.0, 1.0]))
def test_the_result_is_that_of_a_plain_search(
    stream: tuple[tuple[bytes, ...], bytes], data: st.DataObject, seconds: float
) -> None:
    # Both by searching for each text, and by the automaton.
    forms, text = stream
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    pieces = [text[begin:end] for begin, end in pairwise([0, *cuts, len(text)]) if begin < end]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masking, "SEARCH_SECONDS_PER_BYTE", seconds)
        patch.setattr(masking, "SEARCHES_PER_CHECK", 1)
        patch.setattr(masking, "TRANSITIONS_MAX", 20)
        assert masked(pieces, forms) == oracle(text, forms)


@given(st.data(), st.sampled_from([0.0, 1.0]))
def test_values_within_values_leave_no_rest(data: st.DataObject, seconds: float) -> None:
    # What is held back is searched again: a value that was found before ends within a longer one.
    whole = data.draw(st.text("ab", min_size=14, max_size=20)).encode()
    ends = st.tuples(st.integers(0, 14), st.integers(6, 14))
    slices = data.draw(st.lists(ends, min_size=2, max_size=5))
    forms = tuple(dict.fromkeys(whole[at : at + size] for at, size in slices if at + size <= 20))
    forms = tuple(form for form in forms if len(form) >= 6)
    parts = st.one_of(st.just(whole), st.sampled_from(forms or (whole,)), st.just(b"a"))
    text = b"".join(data.draw(st.lists(parts, max_size=6))) + b" and other text\n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[begin:end] for begin, end in pairwise([0, *cuts, len(text)]) if begin < end]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masking, "SEARCH_SECONDS_PER_BYTE", seconds)
        assert masked(pieces, forms) == oracle(text, forms)


def test_a_value_that_is_found_again_uncovers_no_longer_one() -> None:
    forms = masking.secret_forms(["abcdef", "tok-abcdef-98761234", "abcdef-98761234/zzz"])
    rest = b" and so on, a line that goes on for a while with other text\n"
    assert masked([b"x tok-abcdef-98761234", rest], forms) == b"x ***" + rest


def test_overlapping_values_leave_no_rest() -> None:
    assert mask("x abcdefghijklmnop y", "abcdef", "defghijklmnop") == "x *** y"


@given(streams(), st.data())
def test_what_is_taken_back_and_fed_again_gives_the_same(
    stream: tuple[tuple[bytes, ...], bytes], data: st.DataObject
) -> None:
    forms, text = stream
    masker, passed = Masker(forms), b""
    for byte in text:
        before = masker.take_back() if data.draw(st.booleans()) else b""
        passed += masker.feed(before + bytes([byte]))
    assert passed + masker.flush() == oracle(text, forms)


HOSTILE = ["a" * 200 + f"{number:03d}" + "b" * 40 for number in range(FORMS_MAX)]


NESTED = ["a" * number + "b" for number in range(6, 255)]


@pytest.mark.parametrize("size", [100, 4096, 65_536])
@pytest.mark.parametrize("letters", ["a" * 300, "a" * 199 + "b", "a" * 210 + "1"])
@pytest.mark.parametrize("values", [HOSTILE, NESTED])
def test_hostile_input_is_not_slow(values: list[str], letters: str, size: int) -> None:
    # A megabyte takes about 0.1 s; searching for each value took from 0.2 s to 50 s.
    masker = Masker(secret_forms(values))
    text = (letters * (300_000 // len(letters))).encode()
    begin = time.thread_time()
    for at in range(0, len(text), size):
        masker.feed(text[at : at + size])
    assert time.thread_time() - begin < 0.5


def test_an_automaton_forgets_what_it_knows_before_it_takes_much_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(masking, "TRANSITIONS_MAX", 1000)
    automaton = Automaton([value.encode() for value in HOSTILE])
    state, text = automaton.start, "".join(HOSTILE)[:20_000]
    for byte in text.encode():
        state = state[byte]
        assert automaton.transitions <= 1000
    assert text.encode().endswith(state.text)
    assert len(state.text) > 3


def test_all_automata_together_take_limited_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "TRANSITIONS_MAX", 1000)
    gc.collect()  # those of other tests
    automata = [
        Automaton([value.encode() + b"%d" % each for value in HOSTILE]) for each in range(5)
    ]
    maskers = [Masker(automaton.forms) for automaton in automata for _ in range(10)]
    quiet = Masker((b"quiet-secret",))
    quiet.feed(b"quiet-s")
    for number, masker in enumerate(maskers):
        masker.feed((HOSTILE[number][:-1] + "x").encode())
        masker.feed(HOSTILE[number][:200].encode())
    assert sum(each.transitions for each in masking._room.automata) <= 1000
    states = [each for each in gc.get_objects() if isinstance(each, masking._State)]
    # And those that the maskers are in, and the first of each automaton.
    assert len(states) <= 1000 + len(maskers) + 2 * len(masking._room.automata)
    # Whoever is in a state goes on in it, and one that takes little does not begin again.
    assert quiet._automaton.transitions == len(b"quiet-s")
    for number, masker in enumerate(maskers):
        value = masker._forms[number]
        masker.take_back()
        assert masker.feed(value[:100]) + masker.feed(value[100:]) + masker.flush() == b"***"


@given(FORMS, st.binary())
@example((b"secret",), b"secre")
def test_what_holds_no_value_is_unchanged(forms: tuple[bytes, ...], data: bytes) -> None:
    if any(form[:6] in data for form in forms):
        return
    assert masked([data] if data else [], forms) == data


@given(FORMS, st.data())
def test_less_than_the_longest_value_is_held_back(
    forms: tuple[bytes, ...], data: st.DataObject
) -> None:
    text = data.draw(st.text("abc", max_size=60)).encode()
    masker, passed = Masker(forms), b""
    for byte in text:
        passed += masker.feed(bytes([byte]))
    if b"***" not in passed:
        assert len(text) - len(passed) < max(map(len, forms))


def test_lines_pass_at_once() -> None:
    masker = Masker(secret_forms(["step-secret"]))
    assert masker.feed(b"step 1\n") == b"step 1\n"
    assert masker.feed(b"step 2\rstep 3\r") == b"step 2\rstep 3\r"
    assert masker.feed(b"step") == b""
    assert masker.feed(b" 4") == b"step 4"


@pytest.mark.parametrize(
    ("after", "result"),
    [
        (b"cret-of-ann.", b"***."),
        (b"v", b"v"),
        (b"cret-of", b"***"),
        (b"cre", b"cre"),
        (b"", b""),
        (b"secret-of-ann", b"***"),
    ],
)
def test_two_letters_may_be_shown_and_the_rest_is_masked(after: bytes, result: bytes) -> None:
    masker = Masker(secret_forms(["secret-of-ann"]))
    assert masker.feed(b"units") == b"unit"
    assert masker.may_release
    assert masker.release() == b"s"
    assert not masker.may_release
    assert masker.feed(b"e") == b""
    assert masker.release() == b"e"
    pieces = [bytes([byte]) for byte in after]
    assert b"".join([*map(masker.feed, pieces), masker.flush()]) == result


def test_three_letters_wait() -> None:
    masker = Masker(secret_forms(["secret-of-ann"]))
    masker.feed(b"sec")
    assert not masker.may_release


@given(streams(), st.data())
def test_no_value_is_left_whenever_something_is_released(
    stream: tuple[tuple[bytes, ...], bytes], data: st.DataObject
) -> None:
    forms, text = stream
    masker, passed = Masker(forms), b""
    for byte in text:
        passed += masker.feed(bytes([byte]))
        if masker.may_release and data.draw(st.booleans()):
            passed += masker.release()
    passed += masker.flush()
    assert [form for form in forms if form in passed] == []


@pytest.mark.parametrize(
    "form",
    [
        TOKEN,
        quote(TOKEN),
        quote(TOKEN, safe=""),
        quote_plus(TOKEN),
        json.dumps(TOKEN)[1:-1],
        json.dumps({"token": TOKEN}),
        repr(TOKEN),
        base64.b64encode(TOKEN.encode()).decode(),
        base64.urlsafe_b64encode(f"user:{TOKEN}".encode()).decode(),
        base64.b64encode(f"me:{TOKEN}@host".encode()).decode(),
        base64.b64encode(f"m:{TOKEN}@host".encode()).decode(),
    ],
)
def test_encoded_forms_are_masked(form: str) -> None:
    found = mask(f"< {form} >", TOKEN)
    assert "***" in found
    assert len(found) < 25
    assert found.startswith("< ")
    assert found.endswith(" >")


def test_a_value_of_several_lines_is_masked_line_by_line() -> None:
    assert mask("cat:\n  MIIEvQIBADANBg\r\nkqhkiG9w0BAQEF\nend", KEY) == "cat:\n  ***\r\n***\nend"
    assert mask(repr(KEY), KEY) == "'***\\n'"
    assert "MIIE" not in mask(json.dumps({"key": KEY}), KEY)


def test_a_long_value_is_masked_in_parts() -> None:
    value = "".join(f"{number:05d}-" for number in range(1000))
    assert max(map(len, secret_forms([value]))) <= PART_BYTES_MAX
    assert set(mask(f"{value}\n", value)) == {"*", "\n"}


def test_of_two_values_that_begin_alike_the_longer_one_is_masked() -> None:
    forms = secret_forms(["secret", "secret-and-more"])
    assert masked([b"secret-", b"and-more secret-", b"and."], forms) == b"*** ***-and."


def test_short_values_are_not_masked() -> None:
    assert secret_forms(["", "1", "true", "12345", " 1 \n 2 "]) == ()


def test_an_end_within_a_value_is_masked() -> None:
    assert masked([b"a secret-of-a"], secret_forms(["secret-of-ann"])) == b"a ***"
    assert masked([b"a secr"], secret_forms(["secret-of-ann"])) == b"a secr"


@pytest.mark.parametrize(
    ("pieces", "result"),
    [
        ([b"et-of-ann\nsecret-of-ann\n"], b"***\n***\n"),
        ([b"et-", b"of-a", b"nn and"], b"*** and"),
        ([b"et-of-bob\n"], b"et-of-bob\n"),
        ([b"nn\n"], b"nn\n"),
        ([b"all is well\n"], b"all is well\n"),
        ([b"secret-of-ann"], b"***"),
        ([b"cret-of"], b"***"),
    ],
)
def test_a_stream_of_which_the_beginning_is_lost_shows_no_rest_of_a_value(
    pieces: list[bytes], result: bytes
) -> None:
    masker = Masker(secret_forms(["secret-of-ann"]), resumed=True)
    assert b"".join([*map(masker.feed, pieces), masker.flush()]) == result


def test_values_come_before_their_encoded_forms_where_there_are_too_many() -> None:
    values = [f"value-number-{number}" for number in range(FORMS_MAX)]
    assert secret_forms(values) == tuple(value.encode() for value in values)


def test_each_value_is_masked_however_many_there_are() -> None:
    values = [f"value-number-{number}-{number:05d}" for number in range(FORMS_MAX + 100)]
    assert secret_forms(values) == tuple(value.encode() for value in values)
    assert mask(" ".join(values), *values).strip() == " ".join(["***"] * len(values))


def test_a_value_of_many_lines_leaves_the_other_values_masked() -> None:
    long = "\n".join(f"line-of-the-key-{number}" for number in range(FORMS_MAX + 50))
    for values in ([long, "hunter2secret"], ["hunter2secret", long]):
        assert mask("password=hunter2secret\n", *values) == "password=***\n"
        assert mask("line-of-the-key-7\n", *values) == "***\n"


def test_a_value_of_some_lines_leaves_the_encoded_forms_of_others_masked() -> None:
    # Those of the long value alone are more than the texts that are searched.
    long = "\n".join(f"line-of-the-key-{number:03d}-{'x' * 200}" for number in range(200))
    encoded = base64.b64encode(b"hunter2secret").decode()
    assert encoded[:-4] not in mask(f"{encoded}\n", long, "hunter2secret")
