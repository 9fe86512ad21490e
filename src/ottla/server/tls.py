"""Encrypts connections: a transport (`transport.py`) between a connection and its socket.

The event loop reads ciphertext into one buffer, which all connections of a listener share. OpenSSL decrypts it directly
into the buffer that the connection reads into, and encrypts answers in chunks. A chunk that the socket does not accept
goes to the queue; until that has left, nothing more is encrypted. Handshakes run on the event loop: one takes about a
quarter of a millisecond with an elliptic-curve key, and half a millisecond with an RSA key of 2,048 bits.

A connection counts for the connection limits from its first byte, before the handshake. One that does not finish its
handshake is closed as idle.

Source: Kafka's SslTransportLayer.java.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from typing import Protocol, cast

from ottla.broker.client_identity import Principal
from ottla.broker.security.certificates import Rule, name_of, subject_of
from ottla.log.files import FileSlice
from ottla.server.transport import Octets, PlainTransport, Transport, read_slice

CHUNK_BYTES = 1 << 17
"""Bytes that are encrypted at a time, at most. A TLS record has 16 KiB of them."""
SCRATCH_BYTES = 1 << 17


class Receiver(Protocol):
    """The protocol that a transport serves: `connection.Connection`."""

    def opened(self, transport: Transport) -> None: ...

    def shakes_hands(self) -> None:
        """A part of the handshake has arrived."""
        ...

    def secured(self, certificate: bytes | None, binding: bytes) -> None:
        """The handshake is done. `certificate`: the client's, in DER; None if it has presented none. `binding`: that of
        the connection (`binding_of`)."""
        ...

    def get_buffer(self, sizehint: int) -> memoryview: ...

    def buffer_updated(self, nbytes: int) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...

    def close(self, why: str, *, expected: bool = False) -> None: ...


class Contexts(Protocol):
    """Where the certificates of a listener come from: `tls_settings.TlsSettings`."""

    listener: str

    @property
    def files(self) -> list[str]:
        """The files that the context is made from."""
        ...

    def context(self) -> ssl.SSLContext:
        """A new context. Raises SettingsRefusedError."""
        ...

    def outgoing_context(self) -> ssl.SSLContext:
        """A new context for connections to other nodes. Raises SettingsRefusedError."""
        ...

    def principal_rules(self) -> list[Rule]:
        """The rules that make principals of clients' certificates. Raises SettingsRefusedError."""
        ...

    def valid_until_ms(self) -> int | None:
        """When the node's certificate expires; None if that is unknown."""
        ...


class Tls:
    """The TLS of one listener: its certificate, protocols and ciphers are those of the context. Raises
    SettingsRefusedError."""

    def __init__(self, contexts: Contexts) -> None:
        self._contexts = contexts
        self.listener = contexts.listener
        self._seen = self._versions()
        self.context = contexts.context()
        self.valid_until_ms = contexts.valid_until_ms()
        self.outgoing: ssl.SSLContext | None = None
        """For connections of this node to others; None unless nodes use this listener."""
        self._rules = contexts.principal_rules()
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))

    def connect_nodes(self) -> None:
        """This listener is the one between nodes: make `outgoing`. Raises SettingsRefusedError."""
        self.outgoing = self._contexts.outgoing_context()

    def principal_of(self, certificate: bytes) -> Principal | None:
        """The principal of a client with this certificate; None if no rule matches its subject."""
        name = name_of(subject_of(certificate), self._rules)
        return None if name is None else Principal("User", name)

    def reload(self) -> bool:
        """Use the files as they are now for new connections; whether they had changed. Raises SettingsRefusedError if
        they can't be used: then the old ones stay in force."""
        seen = self._versions()
        if seen == self._seen:
            return False
        self._seen = seen
        outgoing = None if self.outgoing is None else self._contexts.outgoing_context()
        self.context, self.outgoing = self._contexts.context(), outgoing
        self.valid_until_ms = self._contexts.valid_until_ms()
        return True

    def _versions(self) -> list[tuple[int, int, int] | None]:
        """The present version of each file."""
        found: list[tuple[int, int, int] | None] = []
        for path in self._contexts.files:
            try:
                status = os.stat(path)
            except OSError:
                found.append(None)
            else:
                found.append((status.st_ino, status.st_mtime_ns, status.st_size))
        return found


def binding_of(tls: ssl.SSLObject) -> bytes:
    """The client's Finished message, which only the two ends of this connection know. A proof that covers it fits no
    other connection (RFC 5929, section 3). Both ends have shaken hands; they resume no sessions."""
    return tls.get_channel_binding("tls-unique") or b""


class TlsTransport(asyncio.BufferedProtocol):
    """The TLS of one connection: the protocol object of its socket, and the transport of its receiver."""

    _socket: PlainTransport

    def __init__(self, tls: Tls, receiver: Receiver) -> None:
        self._receiver = receiver
        self._scratch = tls.scratch
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = tls.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._shook_hands = False
        self._reading = True
        self._closed = False

    # ---- from the socket -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = PlainTransport(cast(asyncio.Transport, transport))
        self._receiver.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        self._incoming.write(self._scratch[:nbytes])
        self._decrypt()

    def pause_writing(self) -> None:
        self._receiver.pause_writing()

    def resume_writing(self) -> None:
        self._receiver.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._receiver.connection_lost(exc)
        # Nothing calls the receiver from now on. Without the cycle, the 20 KiB of OpenSSL are freed at once, not by the
        # next garbage collection, which strangers' handshakes do not bring about.
        del self._receiver

    def _decrypt(self) -> None:
        """Continue the handshake, and give the receiver what has arrived."""
        try:
            if not self._shook_hands and not self._closed:
                self._receiver.shakes_hands()
                self._tls.do_handshake()
                self._shook_hands = True
                self._flush()
                self._receiver.secured(self._tls.getpeercert(binary_form=True), binding_of(self._tls))
            while self._reading and not self._closed and (self._incoming.pending or self._tls.pending()):
                self._fill(self._receiver.get_buffer(-1))
            if self._outgoing.pending:
                self._reply()
        except ssl.SSLWantReadError:
            self._reply()
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self._end("the client is gone", expected=True)
        except ssl.SSLError as error:
            self._end(f"TLS fails: {error.reason or error}")
        except ConnectionError:
            self._end("the client is gone", expected=True)

    def _fill(self, view: memoryview) -> None:
        """Decrypt as much as has arrived, or as fits. Raises SSLWantReadError if the last record is incomplete. After
        a complete one, OpenSSL is not asked again: its exception costs as much as decrypting a small request.
        """
        tls, incoming, size = self._tls, self._incoming, len(view)
        filled = 0
        try:
            while True:
                count = cast(int, tls.read(size - filled, cast(bytearray, view[filled:] if filled else view)))
                if count == 0:
                    raise ssl.SSLZeroReturnError
                filled += count
                if filled == size or not (incoming.pending or tls.pending()):
                    return
        finally:
            if filled:
                self._receiver.buffer_updated(filled)

    def _reply(self) -> None:
        """Send what the protocol itself has to say: a part of the handshake, a key update."""
        try:
            self._flush()
        except ConnectionError:
            self._end("the client is gone", expected=True)

    def _end(self, why: str, *, expected: bool = False) -> None:
        self._receiver.close(why, expected=expected)
        self.close()  # if the receiver was closing already

    # ---- from the receiver -----------------------------------------------------------------------------------------

    @property
    def peer(self) -> tuple[str, int]:
        return self._socket.peer

    @property
    def local(self) -> tuple[str, int]:
        return self._socket.local

    @property
    def is_queued(self) -> bool:
        return self._socket.is_queued

    def write(self, run: list[Octets], /) -> int:
        if self._socket.is_queued:
            raise BlockingIOError
        chunk = run[0]
        if len(run) > 1 or len(chunk) > CHUNK_BYTES:
            chunk = bytearray()
            for part in run:
                chunk += memoryview(part)[: CHUNK_BYTES - len(chunk)]
                if len(chunk) == CHUNK_BYTES:
                    break
        self._encrypt(chunk)
        return len(chunk)

    def send_file(self, part: FileSlice, offset: int) -> int:
        if self._socket.is_queued:
            raise BlockingIOError
        chunk = read_slice(part, offset, min(part.length - offset, CHUNK_BYTES))
        self._encrypt(chunk)
        return len(chunk)

    def queue(self, chunk: bytes, /) -> None:
        self._encrypt(chunk)

    def _encrypt(self, chunk: Octets) -> None:
        self._tls.write(cast(bytes, chunk))
        self._flush()

    def _flush(self) -> None:
        """Send what OpenSSL has encrypted; the socket's queue keeps what it does not accept."""
        octets = self._outgoing.read()
        if not octets:
            return
        sent = 0
        if not self._socket.is_queued:
            try:
                sent = self._socket.write([octets])
            except BlockingIOError:
                sent = 0
        if sent < len(octets):
            self._socket.queue(octets[sent:])

    def pause_reading(self) -> None:
        self._reading = False
        self._socket.pause_reading()

    def resume_reading(self) -> None:
        self._reading = True
        self._socket.resume_reading()
        if self._incoming.pending or self._tls.pending():
            asyncio.get_running_loop().call_soon(self._decrypt)

    def close(self) -> None:
        """Send the queue and the end of TLS, then close. The client's own end is not waited for."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(ssl.SSLError):  # the client has not sent its end, or the handshake has failed
            self._tls.unwrap()
        with contextlib.suppress(ConnectionError):
            self._flush()
        self._socket.close()

    def abort(self) -> None:
        self._closed = True
        self._socket.abort()
