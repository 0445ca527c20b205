"""A gateway at a known address, a browser that fills in forms, and the command line beside them."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx

CALLBACK = "/v1/login/oidc/callback"
CLIENT, OTHER_CLIENT, SECRET = "shiftwork", "another-program", "the-clients-secret"
STEPS_MAX = 12


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Form:
    """The first form of a page."""

    action: str
    fields: dict[str, str]
    # What can be pressed to send it.
    buttons: dict[str, str]


class _Forms(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self.shown: list[str] = []

    def handle_data(self, data: str) -> None:
        if data.strip() and self.lasttag not in {"script", "style"}:
            self.shown.append(data.strip()[:300])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.forms.append(Form(named.get("action", ""), {}, {}))
        elif tag in {"input", "button"} and self.forms and "name" in named:
            is_button = tag == "button" or named.get("type") == "submit"
            form = self.forms[-1]
            fields = form.buttons if is_button else form.fields
            fields[named["name"]] = named.get("value", "")


def browser() -> httpx.AsyncClient:
    async def take_this_machine_for_safe(_: httpx.Response) -> None:
        """As browsers do: secure cookies go to its own addresses without TLS, too."""
        for cookie in client.cookies.jar:
            cookie.secure = False

    hooks = {"response": [take_this_machine_for_safe]}
    client = httpx.AsyncClient(
        trust_env=False, timeout=30, follow_redirects=False, event_hooks=hooks
    )
    return client


async def follow(
    client: httpx.AsyncClient, url: str, until: str, *, press: str = "", **typed: str
) -> httpx.Response:
    """What a person does: follow redirects, fill in what forms ask for, press the button ``press``
    where there is one, else the first. Ends at the first answer whose address has ``until`` in it
    and that is no redirect."""
    reply = await client.get(url)
    for _ in range(STEPS_MAX):
        here = str(reply.request.url)
        if reply.is_redirect:
            reply = await client.get(urljoin(here, reply.headers["location"]))
        elif until in here:
            return reply
        else:
            parser = _Forms()
            parser.feed(reply.text)
            assert parser.forms, f"{here}: {reply.status_code} {' '.join(parser.shown)[:2000]}"
            form = parser.forms[0]
            known = {name: typed.get(name, value) for name, value in form.fields.items()}
            pressed = press if press in form.buttons else next(iter(form.buttons), "")
            if pressed:
                known[pressed] = form.buttons[pressed]
            reply = await client.post(urljoin(here, form.action), data=known)
    raise AssertionError(f"no end at {reply.request.url}")


async def confirm(client: httpx.AsyncClient, url: str) -> None:
    """Open a page and send its form by its first button."""
    reply = await client.get(url)
    while reply.is_redirect:
        reply = await client.get(urljoin(str(reply.request.url), reply.headers["location"]))
    parser = _Forms()
    parser.feed(reply.text)
    assert parser.forms, f"{url}: {reply.status_code} {' '.join(parser.shown)[:2000]}"
    form = parser.forms[0]
    data = {**form.fields, **dict(list(form.buttons.items())[:1])}
    reply = await client.post(urljoin(str(reply.request.url), form.action), data=data)
    assert not reply.is_error, reply.text[:2000]


@contextmanager
def command(url: str, home: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """``shiftwork --url URL ...`` in a home of its own."""
    program = Path(sys.executable).parent / "shiftwork"
    home.mkdir(exist_ok=True)
    running = subprocess.Popen(
        [str(program), *(["--url", url] if url else []), *arguments],
        env={"PATH": os.environ["PATH"], "HOME": str(home)},
        cwd=home,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield running
    finally:
        running.kill()
        running.wait()
        for pipe in (running.stdin, running.stdout, running.stderr):
            assert pipe is not None
            pipe.close()


def code_in(page: str) -> str:
    found = re.search(r"<code>([A-Z-]+)</code>", page)
    assert found, page
    return found[1]


def settings_of(issuer: str, port: int, **more: Any) -> dict[str, Any]:
    return {
        "public_url": f"http://127.0.0.1:{port}",
        "oidc_issuer": issuer,
        "oidc_client_id": CLIENT,
        "oidc_client_secret": SECRET,
        **more,
    }
