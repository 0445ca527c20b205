"""``shiftwork login`` and ``logout``: a token of one's own for this command line, kept in a file.

Where the site has a login provider, people log in with a browser, here or on another machine: the
browser's page shows a code, which they type here. A secret that never leaves this process makes the
code useless to others. Where the site has passwords instead, they type theirs.
"""

from __future__ import annotations

import base64
import contextlib
import getpass
import hashlib
import os
import platform
import secrets
import sys
import webbrowser
from pathlib import Path
from typing import Any, Mapping
from urllib.parse import quote, urlencode, urlsplit

import typer

from shiftwork.cli import contexts, homes, render, session
from shiftwork.cli.client import Api
from shiftwork.cli.failures import Failure, usage
from shiftwork.client.paths import part

LENGTH_MAX = 300


def register(app: session.App) -> None:
    """Add the commands."""
    app.command("login")(login)
    app.command("logout")(logout)


def login(
    user: str = typer.Option("", "--user", help="Log in with this user's password."),
    browser: bool = typer.Option(
        True, "--browser/--no-browser", help="Open the browser of this machine, if it has one."
    ),
) -> None:
    """Log in at the site's login provider, and keep the token for every later command."""
    now = session.current()
    path = contexts.default_path()
    choice = contexts.choose(url=now.url, context=now.context, environ=os.environ, path=path)
    if choice is None:
        raise contexts.unknown(path)
    if choice.named is not None and choice.named.data:
        fix = "every command here uses the administrator's token; give --url for another server"
        what = f"{choice.name} runs on this machine and needs no login"
        raise usage(what, where="--url", fix=fix)
    api = Api(choice.url, "", choice.because)
    with contextlib.closing(api):
        ways = api.get("/v1/login")
        if ways["oidc"] and not user:
            made = _by_browser(api, open_it=browser)
        elif ways["password"]:
            made = _by_password(api, user)
        else:
            lacks = "passwords" if user else "login provider and no passwords"
            fix = "ask an administrator for a token: shiftwork token create --user NAME"
            raise Failure(f"the site has no {lacks}", where=choice.url, fix=fix)
    former = _former(choice)
    file = _keep(choice, made["token"], path)
    if former:
        _revoke_former(choice, former)
    if now.json:
        shown = {name: made[name] for name in ("user", "id", "expires_at")}
        render.document({"url": choice.url, **shown, "token_file": str(file)})
    else:
        until = render.timestamp(made["expires_at"])
        render.note(f"you are {made['user']} at {choice.url} until {until}")


def _by_browser(api: Api, *, open_it: bool) -> Mapping[str, Any]:
    verifier = secrets.token_urlsafe(32)
    digest = hashlib.sha256(verifier.encode()).digest()
    challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    query = urlencode({"challenge": challenge, "name": platform.node()[:60]}, quote_via=quote)
    address = f"{api.url}/v1/login/cli?{query}"
    sys.stderr.write(f"Open this address in a browser:\n\n  {address}\n\n")
    if open_it and sys.stderr.isatty() and (os.environ.get("DISPLAY") or sys.platform == "darwin"):
        with contextlib.suppress(webbrowser.Error):
            webbrowser.open(address)
    code = _asked("Code that it shows: ", hidden=False)
    return api.create("/v1/login/token", {"code": code, "verifier": verifier})


def _by_password(api: Api, user: str) -> Mapping[str, Any]:
    if not user and not sys.stdin.isatty():
        fix = "give --user NAME; standard input has the password alone"
        raise usage("nobody is named who logs in", where="--user", fix=fix)
    user = user or _asked("User: ", hidden=False)
    password = _asked("Password: ", hidden=True)
    return api.token_by_password(user, password, f"login {platform.node()[:60]}".strip())


def _asked(prompt: str, *, hidden: bool, may_be_empty: bool = False) -> str:
    """What is typed, or the next line of standard input. Raises Failure for none."""
    if sys.stdin.isatty() and hidden:
        text = getpass.getpass(prompt)
    else:
        if sys.stdin.isatty():
            sys.stderr.write(prompt)
            sys.stderr.flush()
        text = sys.stdin.readline(LENGTH_MAX).rstrip("\r\n")
    if not text and not may_be_empty:
        raise usage("nothing was given", where="standard input", fix="type it, or pipe it in")
    return text


def new_password() -> str:
    """A new password, typed twice on a terminal; else the next line of standard input."""
    text = _asked("New password: ", hidden=True)
    if sys.stdin.isatty() and _asked("Again: ", hidden=True) != text:
        raise usage("the two passwords differ", where="standard input", fix="try again")
    return text


def old_password() -> str:
    """The present password; empty for somebody who has none yet."""
    return _asked("Present password (empty if there is none): ", hidden=True, may_be_empty=True)


def _keep(choice: contexts.Choice, token: str, path: Path) -> Path:
    """Write the token to a file of its own (0600), and make its context the current one."""
    host = urlsplit(choice.url)
    name = choice.name or f"{host.hostname}{f'-{host.port}' if host.port else ''}"
    folder = homes.config().make(contexts.FOLDER, contexts.TOKENS)
    file = folder / part(name)
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(f"{token}\n")
        fresh.replace(file)
        remote = choice.named.remote if choice.named else False
        contexts.save(path, lambda _: name, contexts.Named(choice.url, str(file), remote))
    except OSError as error:
        raise Failure(
            f"the token cannot be kept: {error.strerror}",
            where=str(file),
            fix="make room, or correct the rights of this folder",
        ) from error
    return file


def _former(choice: contexts.Choice) -> str:
    """The token of an earlier login at this server, which the new one replaces; empty: none."""
    named = choice.named
    if named is None or named.url.rstrip("/") != choice.url.rstrip("/"):
        # A token goes to its own server only.
        return ""
    file = Path(named.token_file)
    if file.parent != contexts.logins():
        return ""
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def _revoke_former(choice: contexts.Choice, token: str) -> None:
    """Revoke a token that no file has any more; a warning if that fails, as the login is done."""
    with contextlib.closing(Api(choice.url, token, choice.because)) as api:
        try:
            _revoke(api)
        except Failure as failure:
            if failure.problem.get("status") != 401:  # noqa: PLR2004 - it has expired, or is revoked
                render.warning(
                    f"the token of your former login is still valid ({failure.what});"
                    " `shiftwork token ls` shows it, `shiftwork token revoke ID` revokes it"
                )


def _revoke(api: Api) -> str:
    """Revoke the token with which this is requested; its id."""
    token = str(api.get("/v1/whoami")["token"]["id"])
    api.delete(f"/v1/tokens/{part(token)}")
    return token


def logout() -> None:
    """Revoke the token that `login` has made, and remove its file."""
    now = session.current()
    path = contexts.default_path()
    choice = contexts.choose(url=now.url, context=now.context, environ=os.environ, path=path)
    file = Path(choice.named.token_file) if choice and choice.named else Path()
    if file.parent != contexts.logins() or not file.exists():
        fix = "`shiftwork token revoke ID` revokes other tokens"
        raise usage("there is no token of `shiftwork login` here", where=str(path), fix=fix)
    token = _revoke(now.api())
    file.unlink()
    if now.json:
        render.document({"id": token, "revoked": True})
    else:
        render.note("you are logged out: the token is revoked")
