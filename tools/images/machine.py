"""How this machine reaches its package registries, handed to builds as secrets of theirs.

A build's own container knows nothing of the machine's proxy, mirror or certificates. The settings
of pip and apt on this machine are written to files that a build may read and that no layer keeps.
"""

from __future__ import annotations

import configparser
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

# pip's options for the network; no other personal settings concern a build.
PIP_OPTIONS = (
    "index-url",
    "extra-index-url",
    "trusted-host",
    "proxy",
    "timeout",
    "default-timeout",
    "retries",
)
# Where certificates lie within a build; the Dockerfiles mount them there.
CERTIFICATES_INSIDE = "/run/secrets/certificates"
CERTIFICATE_VARIABLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
CERTIFICATES_USUAL = Path("/etc/ssl/certs/ca-certificates.crt")
APT_OPTIONS = re.compile(r"Acquire::(http|https|Check-Valid-Until|Check-Date|Retries)\b")
APT_SOURCES = Path("/etc/apt")
SUITE = "bookworm"
PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy")


def output_of(*command: str) -> str:
    """What a program prints; empty if it is not there or fails."""
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own words
    return done.stdout if done.returncode == 0 else ""


def certificates() -> Path | None:
    """The bundle of certificate authorities that this machine trusts."""
    named = (os.environ.get(variable) for variable in CERTIFICATE_VARIABLES)
    for path in (*(Path(name) for name in named if name), CERTIFICATES_USUAL):
        if path.is_file():
            return path
    return None


def pip_files() -> list[Path]:
    """Where pip's settings lie, the stronger later."""
    home, named = Path.home(), os.environ.get("PIP_CONFIG_FILE")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    usual = [Path("/etc/pip.conf"), home / ".pip" / "pip.conf", config / "pip" / "pip.conf"]
    return [*usual, Path(sys.prefix) / "pip.conf", *([Path(named)] if named else [])]


def pip_settings() -> str:
    """This machine's network settings for pip, as a pip.conf for a build."""
    options: dict[str, str] = {}
    for path in pip_files():
        parser = configparser.RawConfigParser()
        parser.read(path)
        for section in ("global", "install"):
            if parser.has_section(section):
                options.update(parser.items(section))
    for option in PIP_OPTIONS:
        value = os.environ.get(f"PIP_{option.upper().replace('-', '_')}")
        if value:
            options[option] = value
    lines = [f"{option} = {options[option]}" for option in PIP_OPTIONS if options.get(option)]
    if certificates() is not None:
        lines.append(f"cert = {CERTIFICATES_INSIDE}")
    return "\n".join(["[global]", *lines, "disable-pip-version-check = true", ""])


def apt_settings() -> str:
    """This machine's network settings for apt, as a file for apt.conf.d."""
    options = [
        line for line in output_of("apt-config", "dump").splitlines() if APT_OPTIONS.match(line)
    ]
    # A build is root alone; apt's own user could not read the certificates.
    options.append('APT::Sandbox::User "root";')
    if certificates() is not None:
        options.append(f'Acquire::https::CaInfo "{CERTIFICATES_INSIDE}";')
    return "\n".join([*options, ""])


def mirrors(folder: Path = APT_SOURCES) -> list[tuple[str, str]]:
    """(address, suite) of every source of the base's Debian release that this machine uses."""
    found: list[tuple[str, str]] = []
    for path in sorted([folder / "sources.list", *(folder / "sources.list.d").glob("*")]):
        if path.suffix not in {".list", ".sources"} or not path.is_file():
            continue
        text = path.read_text()
        pairs = _deb822(text) if path.suffix == ".sources" else _one_line(text)
        found += [
            (address, suite)
            for address, suite, components in pairs
            if suite.partition("-")[0] == SUITE and "main" in components
        ]
    return list(dict.fromkeys(found))


def _deb822(text: str) -> Iterator[tuple[str, str, list[str]]]:
    for stanza in re.split(r"\n\s*\n", text):
        lines = [line for line in stanza.splitlines() if not line.startswith("#")]
        fields = {
            name.strip().lower(): value.split()
            for name, _, value in (line.partition(":") for line in lines)
        }
        if "deb" in fields.get("types", ()) and fields.get("enabled") != ["no"]:
            for address in fields.get("uris", ()):
                for suite in fields.get("suites", ()):
                    yield address, suite, fields.get("components", [])


def _one_line(text: str) -> Iterator[tuple[str, str, list[str]]]:
    for line in text.splitlines():
        parts = re.sub(r"\[[^\]]*\]", "", line.partition("#")[0]).split()
        if parts[:1] == ["deb"] and parts[3:]:
            yield parts[1], parts[2], parts[3:]


def apt_sources() -> str:
    """The sources of Debian packages as this machine has them, for sources.list.d of a build."""
    return "".join(f"deb {address} {suite} main\n" for address, suite in mirrors())


@contextlib.contextmanager
def secrets() -> Generator[dict[str, Path]]:
    """Files for the builds' secret mounts, by the ids that the Dockerfiles use; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="shiftwork-images-") as name:
        folder = Path(name)
        texts = {"pip": pip_settings(), "apt": apt_settings(), "apt-sources": apt_sources()}
        files: dict[str, Path] = {}
        for identity, text in texts.items():
            path = folder / identity
            path.touch(0o600)
            path.write_text(text)
            files[identity] = path
        bundle = certificates()
        if bundle is not None:
            # A copy: what lies below /etc may be a link that leads nowhere in a build.
            files["certificates"] = Path(shutil.copy(bundle, folder / "certificates"))
        yield files


def proxies() -> dict[str, str]:
    """Proxies of the environment: predefined build arguments, which no image keeps."""
    return {
        name: value
        for variable in PROXY_VARIABLES
        for name in (variable, variable.upper())
        if (value := os.environ.get(name))
    }
