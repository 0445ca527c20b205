"""The run token: what a task shows the platform, good for its own run and nothing else.

``srt_<task>.<attempt>.<HMAC-SHA256 in hex>``. The launcher makes it, the gateway checks it; both
hold the key and nobody else does. It is derived, so a run that is taken up again after a crash
has the same one.
"""

from __future__ import annotations

import hashlib
import hmac

from libs.contracts.ids import RunId

PREFIX = "srt_"
KEY_BYTES_MIN = 32


def make_run_token(key: bytes, run_id: RunId) -> str:
    """The token of a run; ValueError if the key is too short to protect anything."""
    return f"{PREFIX}{run_id}.{_mac(key, run_id)}"


def verify_run_token(key: bytes, token: str) -> RunId | None:
    """The run that a genuine token belongs to, or None. Takes the same time for any wrong MAC."""
    if not token.startswith(PREFIX):
        return None
    name, _, mac = token.removeprefix(PREFIX).rpartition(".")
    try:
        run_id = RunId.parse(name)
    except ValueError:
        return None
    # The canonical spelling only: one run has one token (no leading zeros, no other digits).
    if str(run_id) != name:
        return None
    return run_id if hmac.compare_digest(mac.encode(), _mac(key, run_id).encode()) else None


def _mac(key: bytes, run_id: RunId) -> str:
    if len(key) < KEY_BYTES_MIN:
        raise ValueError(f"the run token key has {len(key)} bytes; use at least {KEY_BYTES_MIN}")
    return hmac.new(key, f"run {run_id}".encode(), hashlib.sha256).hexdigest()
