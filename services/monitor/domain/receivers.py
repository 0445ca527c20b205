"""Where messages may be sent: the form of a URL, and which addresses of the network.

A webhook makes this service a client of whatever its owner names. So it connects only to addresses
of the public internet, and to networks that the site has named.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

URL_MAX = 2048


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a URL, and the fix."""

    message: str
    fix: str


def problem_of(url: str, networks: Collection[Network]) -> Problem | None:
    """Return what is wrong with a notification's URL; None: nothing."""
    if len(url) > URL_MAX or not url.isascii() or any(c.isspace() or c < "!" for c in url):
        return Problem("is too long or has spaces", f"give at most {URL_MAX} printable characters")
    return _problem_of_webhook(url, networks)


def _problem_of_webhook(url: str, networks: Collection[Network]) -> Problem | None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as problem:
        return Problem(f"is no URL ({problem})", "write https://HOST/PATH")
    if parts.scheme not in ("https", "http") or not parts.hostname or port == 0:
        return Problem("is no address of a webhook", "write https://HOST/PATH; for mail: mail")
    if parts.username or parts.password or parts.fragment:
        return Problem("has a user, a password or a fragment", "leave them out")
    if parts.scheme == "http" and not networks:
        return Problem("is not encrypted", "write https://HOST/PATH")
    literal = literal_address(parts.hostname)
    if literal is not None and not may_connect(literal, networks, encrypted=True):
        return Problem("is an address inside the site", "ask whoever runs the site to allow it")
    return None


def literal_address(host: str) -> Address | None:
    """The address that a host is written as; None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def may_connect(address: Address, networks: Collection[Network], *, encrypted: bool) -> bool:
    """True for an address that messages may go to. Without encryption: only inside the networks
    that the site has named."""
    if isinstance(address, IPv6Address):
        # These reach an IPv4 address, which is the one that counts.
        inner = address.ipv4_mapped or address.sixtofour
        inner = inner or (address.teredo[1] if address.teredo else None)
        if inner is not None:
            return may_connect(inner, networks, encrypted=encrypted)
        if address in _NAT64:
            return False
    if any(address.version == network.version and address in network for network in networks):
        return not address.is_multicast and not address.is_unspecified
    return encrypted and address.is_global and not address.is_multicast


_NAT64 = IPv6Network("64:ff9b::/96")


def first_allowed(
    addresses: Sequence[Address], networks: Collection[Network], *, encrypted: bool
) -> Address | None:
    """The address to connect to; None if one of them must not be reached: a name that leads into
    the site as well is no receiver."""
    if not addresses:
        return None
    if all(may_connect(each, networks, encrypted=encrypted) for each in addresses):
        return addresses[0]
    return None
