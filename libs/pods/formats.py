"""Formats of Kubernetes values: names, quantities, paths. Pure; used by every module here."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from decimal import Decimal

from libs.contracts.ids import DNS_LABEL_FORM

_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(DNS_LABEL_FORM)
_QUALIFIED = re.compile(
    r"(?:(?=[^/]{1,253}/)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_CAPABILITY = re.compile(r"[A-Z][A-Z0-9_]{0,62}")
_QUANTITY = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")
# The units of quantities. ``n`` and ``u`` occur only in what a cluster reports.
TIMES = {
    **{sign: Decimal(10) ** power for sign, power in (("n", -9), ("u", -6), ("m", -3))},
    **{sign: Decimal(1000) ** (n + 1) for n, sign in enumerate("kMGTPE")},
    **{f"{sign}i": Decimal(1024) ** (n + 1) for n, sign in enumerate("KMGTPE")},
}
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,511}")
# A run's objects are ``<task>-<attempt>``, further Secrets of it ``<task>-<attempt>-c<n>``.
_RUN_OBJECT = re.compile(r"[a-z][a-z2-7]{0,25}-\d+(-c?\d+)?")
PLATFORM_PREFIX = "shiftwork"


def is_object_name(text: str) -> bool:
    """True if ``text`` can name a Secret, ConfigMap or claim (a DNS subdomain)."""
    return _NAME.fullmatch(text) is not None


DNS_LABEL_RULE = "1 to 63 of a-z, 0-9 and -, no - at the ends"


def is_dns_label(text: str) -> bool:
    """True if ``text`` can name a container or volume."""
    return _LABEL.fullmatch(text) is not None


def is_platforms_own(kind: str, name: str) -> bool:
    """True if the platform or a run may own an object of this name. Runs have no ``claim``."""
    of_a_run = kind != "claim" and _RUN_OBJECT.fullmatch(name) is not None
    return name.startswith(PLATFORM_PREFIX) or of_a_run


def is_qualified(text: str) -> bool:
    """True if ``text`` can be the key of a label or annotation, or a resource: ``rdma/hca``."""
    return _QUALIFIED.fullmatch(text) is not None


def is_capability(text: str) -> bool:
    """True if ``text`` has the form of a Linux capability as pods write it, without ``CAP_``."""
    return _CAPABILITY.fullmatch(text) is not None and not text.startswith("CAP_")


def is_image(text: str) -> bool:
    """True if ``text`` has the characters of an image reference."""
    return _IMAGE.fullmatch(text) is not None


def amount(text: str) -> Decimal | None:
    """Parse a quantity such as ``1500m`` or ``2Gi``; None if the text is not one."""
    found = _QUANTITY.fullmatch(text)
    if found is None:
        return None
    return Decimal(found[1]) * TIMES.get(found[2] or "", Decimal(1))


def under(path: str, roots: Sequence[str]) -> bool:
    """True if the path is absolute, normalized, and equal to or below one of the roots."""
    if not path.startswith("/") or posixpath.normpath(path) != path or path.startswith("//"):
        return False
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)
