"""The gateway's settings: its address, the files of its two secrets, and every limit."""

from __future__ import annotations

import contextlib
import hmac
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from libs.contracts.limits import CREATE_TASKS_MAX
from libs.contracts.tcp_ports import GATEWAY_PORT
from libs.service.settings import BaseServiceSettings
from services.gateway.permissions import RoleWord, Visibility


def _address(text: str) -> str:
    """A URL of a site, without a slash at its end. ValueError for one that passwords and codes
    must not be sent to."""
    if not text:
        return text
    parts = urlsplit(text)
    is_local = parts.hostname in {"localhost", "127.0.0.1", "::1"}
    if parts.scheme != "https" and not (parts.scheme == "http" and is_local):
        raise ValueError(f"{text!r} is not https://HOST; http is for this machine alone")
    if not parts.hostname or parts.query or parts.fragment or parts.username:
        raise ValueError(f"{text!r} is not of the form https://HOST[:PORT][/PATH]")
    return text


def _site(text: str) -> str:
    """The address of this site: an origin, because the API stands at its root. Plain http is
    allowed for a site without TLS."""
    parts = urlsplit(text)
    if text and (parts.scheme not in {"http", "https"} or not parts.hostname):
        raise ValueError(f"{text!r} is not of the form https://HOST[:PORT]")
    if parts.path.strip("/") or parts.query or parts.fragment or parts.username:
        raise ValueError(f"{text!r} has more than https://HOST[:PORT]; leave the rest out")
    return text.rstrip("/").lower()


def _key_file(path: Path | None) -> Path | None:
    """A file with a key. ValueError if it is empty: what is signed with nothing, everybody signs.
    One that is not there yet is read later."""
    with contextlib.suppress(OSError):
        if path is not None and not path.read_text().strip():
            raise ValueError(f"{path} is empty")
    return path


class GatewaySettings(BaseServiceSettings):
    """Environment variables ``SHIFTWORK_GATEWAY_…``."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_prefix="SHIFTWORK_GATEWAY_")

    http_port: int | None = Field(default=GATEWAY_PORT, ge=0, le=65535)
    # The first administrator's token, alone in a file; without it no one can log in.
    admin_token_file: Path | None = None
    # The key that run tokens are signed with; the launcher reads the same file.
    run_token_key_file: Annotated[Path | None, AfterValidator(_key_file)] = None

    # Whose tasks, output, specifications and events users and viewers see: their own, those of
    # their team as well, or all. Operators and administrators see all.
    visibility: Visibility = Visibility.TEAM

    # The user that tasks run as on this machine: a name, a number or a range of numbers. `submit`
    # on the same machine refuses files that this user cannot read.
    tasks_run_as: str = ""

    # What comes within so short a time is projected in one transaction.
    batch_gap_seconds: float = Field(default=0.01, ge=0, le=1)

    # Requests and answers.
    body_bytes_max: int = Field(default=1_048_576, ge=1024)
    batch_bytes_max: int = Field(default=8_388_608, ge=1024)
    # Keys and values together that one body may have, and how long it may take to arrive.
    body_values_max: int = Field(default=150_000, ge=100)
    batch_values_max: int = Field(default=400_000, ge=100)
    body_seconds_max: float = Field(default=30.0, gt=0, le=600)
    # Requests with a body above 16 KiB: how many of one caller (a user or a task) are handled at
    # once, and how many bodies are parsed at a time in all; one of each caller.
    large_bodies_per_caller_max: int = Field(default=32, ge=1)
    large_bodies_parsed_max: int = Field(default=2, ge=1, le=64)
    # The bytes of a path, and of a query; and the parameters of a query.
    url_bytes_max: int = Field(default=16_384, ge=1024, le=65_536)
    query_parameters_max: int = Field(default=500, ge=10, le=10_000)
    # What somebody without a token may send to log in.
    login_bytes_max: int = Field(default=16_384, ge=1024)
    batch_tasks_max: int = Field(default=1000, ge=1, le=10_000)
    # A batch goes to submit in pieces, so many at once, each below the bus's payload limit.
    batch_piece_tasks: int = Field(default=250, ge=1, le=CREATE_TASKS_MAX)
    batch_piece_bytes: int = Field(default=262_144, ge=1024, le=400_000)
    batch_in_flight_max: int = Field(default=4, ge=1, le=1000)
    page_default: int = Field(default=100, ge=1, le=1000)
    page_max: int = Field(default=1000, ge=1, le=1000)
    retry_after_seconds: int = Field(default=1, ge=1, le=60)

    # Streams and long-polls.
    wait_seconds_max: float = Field(default=60.0, gt=0, le=300)
    streams_max: int = Field(default=4096, ge=1)
    # Beyond these, for administrators alone.
    streams_reserved: int = Field(default=128, ge=0)
    # A followed task takes two.
    streams_per_user_max: int = Field(default=512, ge=1)
    # How many streams read the event log at a time, in all and of one user: fewer than there are
    # connections to the database.
    catch_ups_max: int = Field(default=2, ge=1)
    catch_ups_per_user_max: int = Field(default=1, ge=1)
    waits_max: int = Field(default=20_000, ge=1)
    # Long-polls of one task's processes. Further requests are answered without waiting.
    waits_per_task_max: int = Field(default=2_000, ge=1)
    # How long a process that may not wait pauses before its next request.
    ask_again_seconds: float = Field(default=5.0, gt=0, le=60)
    stream_pending_max: int = Field(default=512, ge=1)
    stream_page: int = Field(default=500, ge=1, le=1000)
    stream_send_seconds_max: float = Field(default=30.0, gt=0)
    heartbeat_seconds: float = Field(default=15.0, gt=0)
    # Seconds between polls for new events, in a process that does not project: it reads them at
    # each hint of the process that does, and this often in case a hint was lost.
    poll_seconds: float = Field(default=2.0, gt=0, le=10)
    # Hints of one process are at least so far apart.
    hint_gap_seconds: float = Field(default=0.02, ge=0, le=1)
    poll_leading_seconds: float = Field(default=2.0, gt=0, le=60)

    # Checkpoints of one task: so many at once, then so many each second.
    checkpoints_burst: int = Field(default=60, ge=1)
    checkpoints_per_second: float = Field(default=2.0, gt=0)
    # Life states, wishes to yield and priorities that one task sends, of each kind: so many at
    # once, then so many each second. And how often it reads its life state: each rank may do so.
    run_writes_burst: int = Field(default=60, ge=1)
    run_writes_per_second: float = Field(default=2.0, gt=0)
    state_reads_burst: int = Field(default=200, ge=1)
    state_reads_per_second: float = Field(default=50.0, gt=0)
    # Requests with one token: so many at once, then so many each second, at each gateway process.
    requests_burst: int = Field(default=5000, ge=1)
    requests_per_second: float = Field(default=500.0, gt=0)
    # Requests of one task's processes, in the same way.
    run_requests_burst: int = Field(default=20_000, ge=1)
    run_requests_per_second: float = Field(default=1000.0, gt=0)
    # Questions to the usage ledger that are answered at a time, and of one user; and how many of
    # one user may be there at once.
    usage_questions_max: int = Field(default=2, ge=1)
    usage_questions_per_user_max: int = Field(default=1, ge=1)
    usage_waiting_max: int = Field(default=8, ge=1)
    # The same for pages of the queue, which the scheduler answers between its decisions.
    queue_questions_max: int = Field(default=4, ge=1)
    queue_questions_per_user_max: int = Field(default=2, ge=1)
    queue_waiting_max: int = Field(default=16, ge=1)
    # Dry runs of one user: so many at once, then so many each second.
    dry_runs_burst: int = Field(default=20, ge=1)
    dry_runs_per_second: float = Field(default=5.0, gt=0)

    # Output of tasks.
    log_range_bytes_max: int = Field(default=1_048_576, ge=1024)
    log_range_bytes_default: int = Field(default=262_144, ge=1024)
    # One answer over the bus, below the payload limit after base64.
    log_piece_bytes: int = Field(default=262_144, ge=1024, le=700_000)
    log_tail_lines_max: int = Field(default=10_000, ge=1)
    log_list_seconds: float = Field(default=1.0, gt=0, le=60)
    log_missing_rounds_max: int = Field(default=10, ge=0, le=1000)
    # The same for pages of lines and searches, which log-collector answers.
    log_questions_max: int = Field(default=4, ge=1)
    log_questions_per_user_max: int = Field(default=2, ge=1)
    log_waiting_max: int = Field(default=16, ge=1)

    # Terminals and commands in running ranks: how many at once, in all and of one user.
    exec_sessions_max: int = Field(default=64, ge=0)
    exec_sessions_per_user_max: int = Field(default=8, ge=1)
    # A session in which nothing is typed or written for so long ends, and so does one that has
    # lasted so long in all.
    exec_idle_seconds: float = Field(default=3600.0, gt=0)
    exec_seconds_max: float = Field(default=86_400.0, gt=0)
    # The command's words and their bytes together.
    exec_words_max: int = Field(default=1000, ge=1, le=10_000)
    exec_words_bytes_max: int = Field(default=32_768, ge=1, le=60_000)
    # How long the message with the command may take.
    exec_command_seconds: float = Field(default=10.0, gt=0, le=600)
    # Each side of a session breaks its silence after this time, and ends the session if it hears
    # nothing for the other.
    exec_heartbeat_seconds: float = Field(default=5.0, gt=0, le=60)
    exec_silence_seconds: float = Field(default=20.0, gt=0, le=600)

    # What is kept.
    events_kept_max: int = Field(default=1_000_000, ge=1000)
    # As texts; in the database they take less or more.
    events_bytes_max: int = Field(default=2_147_483_648, ge=1_048_576)
    events_keep_seconds: float = Field(default=400 * 86_400.0, gt=0)
    audit_keep_seconds: float = Field(default=400 * 86_400.0, gt=0)
    # A token is listed for so long after it was revoked or has expired.
    tokens_keep_seconds: float = Field(default=90 * 86_400.0, gt=0)
    # The last uses of tokens are written so often, all in one transaction.
    token_uses_seconds: float = Field(default=60.0, gt=0, le=86_400)
    # How often the tasks of disabled users are looked for.
    disabled_tick_seconds: float = Field(default=5.0, gt=0, le=3600)
    # After its end a task is listed so long, with its runs and metrics.
    tasks_keep_seconds: float = Field(default=365 * 86_400.0, gt=0)
    # The usage ledger keeps an attempt so long after its end: some 300 bytes each.
    usage_keep_seconds: float = Field(default=1095 * 86_400.0, gt=0)
    # How many groups an answer about usage has at most.
    usage_groups_max: int = Field(default=10_000, ge=1, le=100_000)
    # A range that is added up day by day has so many days at most.
    usage_days_max: int = Field(default=400, ge=1, le=4000)
    accepted_keep_seconds: float = Field(default=600.0, gt=0)
    # Seconds between checks of how full the event stream is.
    stream_watch_seconds: float = Field(default=30.0, gt=0, le=3600)
    rebuild_tick_seconds: float = Field(default=2.0, gt=0)
    metric_points_max: int = Field(default=240, ge=10, le=10_000)
    metric_samples_max: int = Field(default=1000, ge=1)
    metric_names_max: int = Field(default=64, ge=1)
    metric_values_max: int = Field(default=8192, ge=100)
    # How many processes of a replica may report metrics; its GPUs, if it has more.
    metric_ranks_per_replica_max: int = Field(default=8, ge=1, le=1024)

    # People.
    auth_cache_seconds: float = Field(default=5.0, ge=0, le=300)
    auth_cache_max: int = Field(default=10_000, ge=1)
    # Concurrent token lookups in the database, in all and for one address.
    lookups_max: int = Field(default=3, ge=1)
    lookups_per_address_max: int = Field(default=2, ge=1)
    # How many of one address wait for theirs; further ones are to try again.
    lookups_waiting_max: int = Field(default=500, ge=1)
    # Requests of one address without a right token: so many at once, then so many each second, are
    # answered and audited. Right tokens do not count.
    wrong_tokens_burst: int = Field(default=30, ge=1)
    wrong_tokens_per_second: float = Field(default=1.0, gt=0)
    # Refused requests are entered in the audit trail summed up, one round in so long.
    refusals_seconds: float = Field(default=10.0, gt=0, le=3600)
    # Audit entries about refusals of one user, or without a user: so many at once, then so many
    # each second.
    refusal_entries_burst: int = Field(default=60, ge=1)
    refusal_entries_per_second: float = Field(default=0.1, gt=0)
    tokens_per_user_max: int = Field(default=100, ge=1)

    # Login. The address at which browsers reach this site, such as https://shiftwork.example.org;
    # needed for OIDC. If it is unset, a request's own scheme and host count.
    public_url: Annotated[str, AfterValidator(_site)] = ""
    # A browser's session ends after so long, or if it is not used for so long.
    session_seconds: float = Field(default=14 * 86_400.0, gt=0, le=400 * 86_400.0)
    session_idle_seconds: float = Field(default=2 * 86_400.0, gt=0, le=400 * 86_400.0)
    # A further session of a user ends the oldest one.
    sessions_per_user_max: int = Field(default=20, ge=1, le=1000)
    # Tokens that a browser's session or `shiftwork login` makes last at most so long.
    login_token_seconds: float = Field(default=90 * 86_400.0, gt=0, le=3.2e9)
    # How long a login at the provider may take, and how long a code for `shiftwork login` is good.
    login_seconds: float = Field(default=600.0, gt=0, le=3600)
    # Logins that one address begins: so many at once, then so many each second.
    logins_burst: int = Field(default=60, ge=1)
    logins_per_second: float = Field(default=1.0, gt=0)

    # Login with OpenID Connect. The provider's issuer, such as https://login.example.org/realms/lab;
    # unset: no such login.
    oidc_issuer: Annotated[str, AfterValidator(_address)] = ""
    oidc_client_id: str = ""
    # The client's secret, alone in a file; or in the environment. Neither: a public client.
    oidc_client_secret_file: Annotated[Path | None, AfterValidator(_key_file)] = None
    oidc_client_secret: SecretStr = SecretStr("")
    oidc_scopes: str = "openid profile email"
    # The claim that names a user here. It must be a valid user name.
    oidc_username_claim: str = "preferred_username"
    oidc_groups_claim: str = "groups"
    # Which of the provider's groups give which role and which team, as JSON:
    # {"ml-admins": "admin"}. With roles, each login sets the role (the highest that applies, else
    # user); with teams, each login sets the team (the first that applies).
    oidc_roles: dict[str, RoleWord] = Field(default_factory=dict)
    oidc_teams: dict[str, str] = Field(default_factory=dict)
    # Make a user of whoever logs in for the first time. If false, an administrator adds the user
    # first, and oidc_link_by_name must be true.
    oidc_create_users: bool = True
    # Bind a user that exists here, and is bound to no account yet, to the account of that name.
    # True only where names at the provider are not chosen by people themselves.
    oidc_link_by_name: bool = False
    # Only accounts with a verified e-mail address of these domains, or with one of these groups, as
    # JSON lists; empty: all.
    oidc_email_domains: tuple[str, ...] = ()
    oidc_groups: tuple[str, ...] = ()
    # What the button for this login says.
    oidc_label: str = Field(default="Log in", max_length=80)
    # How long one request to the provider may take.
    oidc_timeout_seconds: float = Field(default=5.0, gt=0, le=60)
    # How long the provider's description and keys are remembered. Unknown keys are fetched earlier.
    oidc_cache_seconds: float = Field(default=3600.0, gt=0, le=86_400)

    # Login with a password that is kept here, for sites without a provider. A password goes on
    # working when the provider removes its user, so both together need the second setting.
    passwords: bool = False
    passwords_beside_provider: bool = False
    password_characters_min: int = Field(default=12, ge=8, le=128)
    # Passwords hashed at a time, each on a core with 64 MiB of memory; how many logins wait that
    # come from where their account has not logged in before; and how many of one address, or of an
    # account where it has.
    password_hashes_max: int = Field(default=2, ge=1, le=64)
    password_waiting_max: int = Field(default=64, ge=1)
    password_waiting_per_address_max: int = Field(default=16, ge=1)
    # Wrong passwords that cost no delay; then each one doubles it, up to the longest: for an
    # account at one address and for an address, and for an account at addresses that are new to it.
    password_tries_free: int = Field(default=5, ge=1)
    password_delay_seconds_max: float = Field(default=900.0, gt=0)
    password_account_delay_seconds_max: float = Field(default=30.0, gt=0)
    users_max: int = Field(default=100_000, ge=1)

    @model_validator(mode="after")
    def _complete_oidc(self) -> Self:
        """OIDC needs all of its parts, and fails at the start instead of at the first login."""
        if not self.oidc_issuer:
            return self
        missing = [
            f"{{{name}}}"
            for name in ("oidc_client_id", "public_url", "run_token_key_file")
            if not getattr(self, name)
        ]
        if missing:
            needed = " and ".join(missing)
            raise self.conflict(f"{{oidc_issuer}} needs {needed} too", f"set {needed}")
        if "openid" not in self.oidc_scopes.split():
            raise self.conflict(
                "{oidc_scopes} is {given!r}, without openid",
                "add openid to {oidc_scopes}",
                given=self.oidc_scopes,
            )
        if self.passwords and not self.passwords_beside_provider:
            raise self.conflict(
                "passwords are for sites without a login provider, and {oidc_issuer} is set",
                "unset {passwords}, or set {passwords_beside_provider}",
            )
        return self

    def client_secret(self) -> str:
        """The secret that the login provider knows this site by, read now; empty for none."""
        return _read(self.oidc_client_secret_file) or self.oidc_client_secret.get_secret_value()

    def login_state_key(self) -> bytes:
        """Signs logins that have begun. Raises ValueError without a key of the run tokens."""
        key = self._derived_key(b"shiftwork login state")
        if key is None:
            raise ValueError("there is no key of the run tokens; set run_token_key_file")
        return key

    def queue_cursor_key(self) -> bytes | None:
        """Seals the cursors of the queue; None without a key of the run tokens."""
        return self._derived_key(b"shiftwork queue cursor")

    def _derived_key(self, purpose: bytes) -> bytes | None:
        """Of the key of the run tokens, so that every gateway has the same one, also after a
        restart."""
        key = self.run_token_key()
        return hmac.digest(key, purpose, "sha256") if key else None

    def admin_token(self) -> str | None:
        """The first administrator's token, read now; None if none is configured."""
        return _read(self.admin_token_file)

    def run_token_key(self) -> bytes | None:
        """The key of the run tokens, read now; None refuses every run token."""
        text = _read(self.run_token_key_file)
        return text.encode() if text else None


def _read(path: Path | None) -> str | None:
    return path.read_text().strip() or None if path else None
