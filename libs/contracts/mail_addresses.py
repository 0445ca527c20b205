"""The form of mail addresses, of people and of the site."""

from __future__ import annotations

import re

ADDRESS_MAX = 254
ADDRESS_RULE = f"NAME@HOST of at most {ADDRESS_MAX} ASCII characters, without spaces and quotes"
_LABEL = r"[A-Za-z0-9](?:[-A-Za-z0-9]{0,61}[A-Za-z0-9])?"
# What HTML takes for an address: no quoted names, comments or literal hosts. It has no character
# that means something in a header or in SMTP.
_ADDRESS = re.compile(rf"[A-Za-z0-9.!#$%&'*+/=?^_`{{|}}~-]{{1,64}}@{_LABEL}(?:\.{_LABEL})*")


def is_mail_address(text: str) -> bool:
    """True if ``text`` can be an address: ``ADDRESS_RULE``."""
    return len(text) <= ADDRESS_MAX and _ADDRESS.fullmatch(text) is not None
