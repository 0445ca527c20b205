"""Where messages may be sent, and when again: pure."""

from __future__ import annotations

from datetime import timedelta
from ipaddress import ip_address, ip_network

import pytest

from services.monitor.domain.receivers import first_allowed, may_connect, problem_of
from services.monitor.domain.retries import Pauses, Result, pause_seconds, pauses_receiver
from services.monitor.domain.signature import headers_of, key_of, secret_of
from tests.kit.clock import at

SITE = (ip_network("10.1.0.0/16"),)
PAUSES = Pauses(first_seconds=5, most_seconds=600, tries_max=12, failing_seconds_max=86_400)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "0.0.0.0",
        "10.0.0.1",
        "10.2.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fd00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:0001::",
    ],
)
def test_no_message_goes_to_an_address_inside_the_site(address: str) -> None:
    assert not may_connect(ip_address(address), SITE, encrypted=True)


def test_messages_go_to_the_internet_encrypted_and_to_named_networks_also_without() -> None:
    public, named = ip_address("93.184.216.34"), ip_address("10.1.2.3")
    assert may_connect(public, SITE, encrypted=True)
    assert not may_connect(public, SITE, encrypted=False)
    assert may_connect(named, SITE, encrypted=False)
    assert may_connect(ip_address("::ffff:10.1.2.3"), SITE, encrypted=True)
    assert may_connect(ip_address("2606:2800:220:1::1"), SITE, encrypted=True)


def test_a_name_that_leads_into_the_site_as_well_is_no_receiver() -> None:
    public, inside = ip_address("93.184.216.34"), ip_address("169.254.169.254")
    assert first_allowed([public, inside], (), encrypted=True) is None
    assert first_allowed([], (), encrypted=True) is None
    assert first_allowed([public], (), encrypted=True) == public


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://example.org/x", "is not encrypted"),
        ("ftp://example.org/x", "is no address of a webhook"),
        ("https:///x", "is no address of a webhook"),
        ("https://ann:secret@example.org/", "has a user, a password or a fragment"),
        ("https://169.254.169.254/latest", "is an address inside the site"),
        ("https://[::1]:8642/", "is an address inside the site"),
        ("https://example.org:99999/", "is no URL"),
        ("https://example.org/ x", "is too long or has spaces"),
        ("https://example.org/" + "x" * 3000, "is too long or has spaces"),
    ],
)
def test_a_url_that_cannot_be_a_receiver_is_refused(url: str, problem: str) -> None:
    found = problem_of(url, ())
    assert found is not None
    assert problem in found.message


def test_pauses_grow_up_to_the_most() -> None:
    assert [pause_seconds(PAUSES, n) for n in (1, 2, 3, 4, 5, 6, 99)] == [
        5,
        15,
        45,
        135,
        405,
        600,
        600,
    ]


def test_a_receiver_is_paused_when_it_is_gone_or_has_failed_for_long() -> None:
    since = at(0)
    assert pauses_receiver(PAUSES, Result.GONE, None, at(1))
    assert not pauses_receiver(PAUSES, Result.UNREACHABLE, since, at(86_399))
    assert pauses_receiver(PAUSES, Result.UNREACHABLE, since, since + timedelta(days=1))


def test_the_signature_is_that_of_the_published_example() -> None:
    """The example of https://www.standardwebhooks.com's reference libraries."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    found = headers_of(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert found["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert secret_of(key_of(secret)) == secret
