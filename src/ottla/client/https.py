"""Reads one small answer over HTTPS, in bounded time: tokens and keys of an authorization server, schemas.

Only https:// is accepted, and http:// on this machine, or anywhere if the caller allows it. There are no redirects,
proxies or credentials in URLs, and an answer that is too long, or that takes too long as a whole, is an error. So a URL
in a setting reaches the server that it names, and nothing else (CVE-2025-27817).
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit

CONNECT_TIMEOUT_S = 5.0
TOTAL_TIMEOUT_S = 15.0
_CHUNK = 1 << 14


class UrlRefusedError(ValueError):
    """The URL may not be used; the text is one sentence."""


class FetchFailedError(Exception):
    """There is no usable answer. The text names the reason, and never the content. `status`: that of the answer, None
    without one."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


class Place(NamedTuple):
    """A URL that may be used. `path`: with the query."""

    is_secure: bool
    host: str
    port: int
    path: str


def place_of(url: str, *, any_http: bool = False) -> Place:
    """The parts of a URL. `any_http` accepts http:// for other machines too. Raises UrlRefusedError."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise UrlRefusedError("It is no URL.") from None
    if parts.scheme not in ("https", "http") or not host:
        raise UrlRefusedError("It has to begin with https:// and name a host.")
    if parts.username is not None or parts.fragment:
        raise UrlRefusedError("It may have neither a user nor a fragment.")
    if any(ord(each) <= 32 or ord(each) > 126 for each in url):
        raise UrlRefusedError("It may have only printable ASCII characters, and no spaces.")
    is_secure = parts.scheme == "https"
    if not is_secure and not any_http and not is_local(host):
        raise UrlRefusedError(
            "It has to begin with https://: over http://, everyone on the way could change the answer."
        )
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Place(is_secure, host, port or (443 if is_secure else 80), path)


def is_local(host: str) -> bool:
    """Whether the host is this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def fetch(
    url: str,
    *,
    bytes_max: int,
    ca_file: str | None = None,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = TOTAL_TIMEOUT_S,
    any_http: bool = False,
) -> bytes:
    """The content of an answer with status 200: to a GET, or to a POST with `body`. `ca_file`: the trusted authorities
    as PEM (default: the system's). Blocks for `timeout_s` at most. Raises UrlRefusedError and FetchFailedError."""
    place = place_of(url, any_http=any_http)
    connect_s = min(CONNECT_TIMEOUT_S, timeout_s)
    made = http.client.HTTPConnection(place.host, place.port, timeout=connect_s)
    if place.is_secure:
        made = http.client.HTTPSConnection(place.host, place.port, timeout=connect_s, context=context_of(ca_file))
    late = threading.Timer(timeout_s, _cut, (made,))
    late.start()
    try:
        method = "GET" if body is None else "POST"
        made.request(method, place.path, body, {"Accept": "application/json", "Connection": "close", **(headers or {})})
        answer = made.getresponse()
        content = b""
        while len(content) <= bytes_max and (chunk := answer.read1(_CHUNK)):
            content += chunk
    except (OSError, http.client.HTTPException) as error:
        why = "it takes too long" if late.finished.is_set() else str(error) or type(error).__name__
        raise FetchFailedError(f"{place.host}: {why}") from None
    except ValueError:  # its text may have a header, and so a login
        raise FetchFailedError(f"{place.host}: the host or a header has characters that cannot be sent") from None
    finally:
        late.cancel()
        made.close()
    if len(content) > bytes_max:
        raise FetchFailedError(f"{place.host}: the answer has more than {bytes_max} bytes")
    if answer.status != 200:
        raise FetchFailedError(f"{place.host}: HTTP status {answer.status}", answer.status)
    return content


def context_of(ca_file: str | None) -> ssl.SSLContext:
    """Trusts the authorities in a PEM file, or those of the system. Raises FetchFailedError if it can't be used."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise FetchFailedError(f"{ca_file} can't be used: {error.strerror or error}") from None


def _cut(made: http.client.HTTPConnection) -> None:
    with suppress(OSError):
        if made.sock is not None:
            made.sock.shutdown(socket.SHUT_RDWR)
