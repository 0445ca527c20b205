"""Sends one mail to one person through the site's SMTP server. The only module that speaks SMTP."""

from __future__ import annotations

import asyncio
import email.policy
import ssl
from dataclasses import dataclass
from datetime import datetime
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime

import aiosmtplib

from libs.bus.trust import trust
from services.monitor.domain.mail_texts import MailText, one_line
from services.monitor.domain.retries import Result
from services.monitor.messages.webhook import Outcome
from services.monitor.settings import MonitorSettings

# Of a server's answer.
ANSWER_MAX = 200
_PERMANENT = 500
# The server closes the connection; the mail is not at fault.
_CLOSING = 421


@dataclass(frozen=True, slots=True)
class Mail:
    """One mail. The same ``id`` and the same text at every try."""

    id: str
    text: MailText


@dataclass(frozen=True, slots=True)
class MailServer:
    """The site's SMTP server."""

    settings: MonitorSettings

    def message(self, mail: Mail, address: str, now: datetime) -> EmailMessage:
        """The mail as it is sent, plain text."""
        sender = self.settings.mail_from
        message = EmailMessage(policy=email.policy.SMTP)
        message["From"] = Address(self.settings.mail_from_name, addr_spec=sender)
        message["To"] = Address(addr_spec=address)
        if self.settings.mail_reply_to:
            message["Reply-To"] = Address(addr_spec=self.settings.mail_reply_to)
        message["Subject"] = mail.text.subject
        message["Date"] = format_datetime(now)
        message["Message-ID"] = f"<{mail.id}@{sender.rpartition('@')[2]}>"
        # No answers of absent people, and no loops between programs.
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(mail.text.body, charset="utf-8", cte="quoted-printable")
        return message

    async def send(self, mail: Mail, address: str, now: datetime) -> Outcome:
        """Send a mail once, within the settings' time."""
        seconds = self.settings.mail_seconds_max
        try:
            message = self.message(mail, address, now)
        except (ValueError, MessageError) as problem:
            return Result.UNREACHABLE, _shown(f"the mail cannot be written: {problem}")
        try:
            async with asyncio.timeout(seconds):
                await self._send(message, address)
        except TimeoutError:
            return Result.NO_WAY, f"the mail server did not take it within {seconds:g} s"
        except aiosmtplib.SMTPException as problem:
            return _outcome(problem)
        except (OSError, ssl.SSLError, ValueError) as problem:
            return Result.NO_WAY, _shown(f"{type(problem).__name__}: {problem}")
        return Result.DELIVERED, ""

    async def _send(self, message: EmailMessage, address: str) -> None:
        settings = self.settings
        security = settings.mail_security
        client = aiosmtplib.SMTP(
            hostname=settings.mail_host,
            port=settings.mail_port,
            username=settings.mail_user or None,
            password=settings.mail_password(),
            timeout=settings.mail_seconds_max,
            use_tls=security == "tls",
            start_tls=security == "starttls",
            tls_context=None if security == "none" else trust(settings.mail_ca_file),
        )
        await client.connect()
        try:
            await client.send_message(message, sender=settings.mail_from, recipients=[address])
        except BaseException:
            client.close()
            raise
        # The server has taken the mail: what happens at the goodbye changes nothing.
        try:
            await client.quit()
        except (aiosmtplib.SMTPException, OSError):
            client.close()


def _outcome(problem: aiosmtplib.SMTPException) -> Outcome:
    if isinstance(problem, aiosmtplib.SMTPRecipientsRefused):
        return _refused(problem.recipients[0], Result.GONE)
    if isinstance(problem, aiosmtplib.SMTPDataError):
        return _refused(problem, Result.REFUSED)
    return Result.NO_WAY, _shown(f"{type(problem).__name__}: {problem}")


def _refused(problem: aiosmtplib.SMTPResponseException, for_good: Result) -> Outcome:
    """The server answers, and does not take this mail: now, or for good."""
    shown = _shown(f"the mail server answered {problem.code} {problem.message}")
    if problem.code == _CLOSING:
        return Result.NO_WAY, shown
    return (for_good if problem.code >= _PERMANENT else Result.UNREACHABLE), shown


def _shown(text: str) -> str:
    return one_line(text, ANSWER_MAX)
