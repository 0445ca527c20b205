"""The signature of a webhook, as https://www.standardwebhooks.com describes it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

PREFIX = "whsec_"
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 24, 64


def key_of(secret: str) -> bytes:
    """The key in a secret. ValueError if it has none of the right length."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("is not base64") from None
    if not SECRET_BYTES_MIN <= len(key) <= SECRET_BYTES_MAX:
        raise ValueError(f"has not {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes")
    return key


def secret_of(key: bytes) -> str:
    """The text of a key."""
    return PREFIX + base64.b64encode(key).decode()


def headers_of(secret: str, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers that identify and sign a message."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    digest = hmac.new(key_of(secret), signed, hashlib.sha256).digest()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }
