from __future__ import annotations

from pathlib import Path

import pytest

from libs.bus.trust import authority, wants_tls


def test_addresses_agree() -> None:
    assert wants_tls(["tls://a", "tls://b:4222"])
    assert not wants_tls(["nats://a", "b:4222"])
    with pytest.raises(ValueError, match="write tls://HOST:PORT for each of the servers"):
        wants_tls(["tls://a", "nats://b"])


def test_an_authority_is_read_at_the_start(tmp_path: Path) -> None:
    assert authority(None) is None
    with pytest.raises(ValueError, match=r"missing holds no certificate .*No such file"):
        authority(tmp_path / "missing")
    (tmp_path / "wrong").write_text("not a certificate")
    with pytest.raises(ValueError, match="wrong holds no certificate"):
        authority(tmp_path / "wrong")
