"""How a client reaches its server: address, TLS, token, deadlines and retries. Shared by both clients."""
from __future__ import annotations

import ipaddress
import os
import pathlib
from dataclasses import dataclass, field

import grpc

from nibble_client.errors import field_error

# The server's default of --max_send_bytes; gRPC's default limit is 4 MiB.
_MAX_RECEIVE_BYTES = 16 << 20
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", _MAX_RECEIVE_BYTES),
    # Detects a dead peer during a call without a deadline. The server accepts pings that are at least 10 s apart
    # (--min_ping_interval_s).
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # By default gRPC stops after two pings until the client sends data, and a watch never sends any.
    ("grpc.http2.max_pings_without_data", 0),
    # Reconnects to a restarted server within a second, not after two minutes. The minimum backoff is also the time
    # that each attempt may take.
    ("grpc.min_reconnect_backoff_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Ignores proxy settings of the environment: the user gave the server's address.
    ("grpc.enable_http_proxy", 0),
)

PemSource = bytes | str | os.PathLike[str]


@dataclass(frozen=True)
class Tls:
    """TLS to the server. PEM data is given as bytes, or as the path of a file."""

    # Certificates of authorities that may sign the server's certificate. None: the certificates that gRPC brings.
    ca: PemSource | None = None
    # Certificate and key of this client, for a server that asks for one (mTLS).
    certificate: PemSource | None = None
    key: PemSource | None = field(default=None, repr=False)
    # The name that the server's certificate must have. None: the host of the address.
    server_name: str | None = None


@dataclass(frozen=True)
class Retry:
    """When a client repeats a call. Only UNAVAILABLE is repeated; a watch or an upload also continues after its
    connection was lost."""

    # Maximum attempts of a call; for an upload, consecutive attempts without progress.
    attempts: int = 4
    # The wait before the second attempt, which then doubles. The server's own estimate replaces it.
    first_wait: float = 0.2
    # The longest wait, in seconds.
    longest_wait: float = 5.0
    # Seconds after which a watch that lost its connection gives up.
    reconnect_for: float = 120.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            field_error("retry.attempts", self.attempts, "at least 1")
        for name in ("first_wait", "longest_wait", "reconnect_for"):
            if not getattr(self, name) >= 0:
                field_error(f"retry.{name}", getattr(self, name), "at least 0 seconds")


@dataclass(frozen=True)
class Connection:
    """Everything that a client needs to open its channel and to call."""

    target: str
    tls: Tls | None = None
    token: str | None = field(default=None, repr=False)
    insecure: bool = False
    # Deadline of a call that answers at once, in seconds.
    timeout: float = 60.0
    # Deadline of streams, generations, uploads and waits, in seconds. None: no deadline.
    long_timeout: float | None = None
    retry: Retry = field(default_factory=Retry)

    def __post_init__(self) -> None:
        if not self.target:
            field_error("target", "an empty text", "HOST:PORT")
        for name in ("timeout", "long_timeout"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds > 0:
                field_error(name, seconds, "more than 0 seconds")
        if self.token is None:
            return
        if not self.token or not all(" " < letter < "\x7f" for letter in self.token):
            field_error("token", "a text with other characters, or none", "visible ASCII characters without spaces")
        if self.tls is None and not self.insecure and not is_local(self.target):
            field_error("tls", "None", f"TLS, because the token would go to {self.target} in plaintext (or "
                        "insecure=True, if you trust the network)")

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The token. gRPC's call credentials refuse plaintext, which nibbled uses on loopback."""
        return () if self.token is None else (("authorization", f"Bearer {self.token}"),)

    def credentials(self) -> grpc.ChannelCredentials | None:
        if self.tls is None:
            return None
        if (self.tls.certificate is None) != (self.tls.key is None):
            field_error("tls.certificate", "only one of certificate and key", "both or none")
        return grpc.ssl_channel_credentials(*(
            _pem(f"tls.{name}", getattr(self.tls, name)) for name in ("ca", "key", "certificate")))

    def options(self) -> list[tuple[str, str | int]]:
        options: list[tuple[str, str | int]] = list(CHANNEL_OPTIONS)
        if self.tls is not None and self.tls.server_name is not None:
            options.append(("grpc.ssl_target_name_override", self.tls.server_name))
        return options

    def blocking_channel(self, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
        if credentials is None:
            return grpc.insecure_channel(self.target, options=self.options())
        return grpc.secure_channel(self.target, credentials, options=self.options())


def connection(target: str, token: str | None, tls: Tls | bool | None, insecure: bool, timeout: float,
               long_timeout: float | None, retry: Retry | None) -> Connection:
    """The arguments of a client. `tls=True` means the certificates that gRPC brings."""
    return Connection(target, tls=(Tls() if tls else None) if isinstance(tls, bool) else tls,
                      token=None if token is None else token.strip(),  # a token file ends with a line end
                      insecure=insecure, timeout=timeout, long_timeout=long_timeout, retry=retry or Retry())


def is_local(target: str) -> bool:
    """Whether what is sent to this address stays on this machine."""
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    host = target.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _pem(name: str, source: PemSource | None) -> bytes | None:
    if source is None or isinstance(source, bytes):
        return source
    path = pathlib.Path(source)
    try:
        data = path.read_bytes()
    except OSError as error:
        field_error(name, f"{path} ({error.strerror})", "a readable PEM file")
    if b"-----BEGIN " not in data:
        field_error(name, f"{path}, which has no PEM block", "a PEM file")
    return data
