from __future__ import annotations

import pytest

from libs.contracts.ids import is_label_key, is_label_value, is_name, is_taint


@pytest.mark.parametrize("text", ["a", "zone", "example.com/gen", "a_b-c.d", "A1", "a" * 253])
def test_keys_of_labels(text: str) -> None:
    assert is_label_key(text)
    assert is_taint(text)
    assert is_taint(f"{text}=value-1")


@pytest.mark.parametrize("text", ["", "-a", "a-", "a b", "a=b", "é", "a\n", "a" * 254])
def test_no_keys_of_labels(text: str) -> None:
    assert not is_label_key(text)
    assert not is_taint(f"{text}=x")


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("", True),
        ("h100", True),
        ("a.b-c_d", True),
        ("a/b", False),
        ("-", False),
        ("a" * 64, False),
    ],
)
def test_values_of_labels(text: str, fits: bool) -> None:
    assert is_label_value(text) is fits
    assert is_taint(f"key={text}") is (fits and bool(text))


@pytest.mark.parametrize("text", ["a", "al_ice", "jupyter_cpu", "a-b", "7", "a" * 63])
def test_names_of_users_teams_and_groups(text: str) -> None:
    assert is_name(text)


@pytest.mark.parametrize("text", ["", "_a", "a_", "-a", "A", "a.b", "a b", "ä", "a" * 64])
def test_what_is_no_name(text: str) -> None:
    assert not is_name(text)
