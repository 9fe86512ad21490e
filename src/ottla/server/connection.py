"""Serves one client connection: bytes in, frames to the node, answers out in order.

The connection's `Channel` decides which frame may be served next and which answers may leave.

Input: all connections of a server read into one scratch buffer, because the loop runs one callback at a time. Whole
frames are served from that buffer. Only an incomplete frame moves to a buffer of its own, and the rest of it is then
read directly into that. So an idle connection needs no buffer, and only the beginning of a large frame is copied.

Output: answers go straight to the transport (`transport.py`) while it accepts them, and the rest is queued. While a
connection has a queue, it is neither read nor served. So a slow reader uses no more of the broker's memory than one
answer and one chunk.

Sharing of the loop: frames that arrived together are served together until a turn is used up (`turns.py`). The rest
waits, undecoded, until the other connections have had their turns.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from struct import Struct
from time import perf_counter_ns
from typing import Protocol, cast

from ottla.broker.channel import PRODUCE, Channel, Owed
from ottla.broker.client_identity import Address, Identity
from ottla.broker.effects import Parked, Part
from ottla.broker.requests import Decoded, RequestRefusedError
from ottla.log.files import FileSlice
from ottla.machine import Millis, Ticket
from ottla.protocol.apis import ApiKey
from ottla.server.buffers import Buffers
from ottla.server.clocks import moment
from ottla.server.decoding import Decoding
from ottla.server.listeners import Listener
from ottla.server.protocol_sniffer import stranger
from ottla.server.transport import INLINE_BYTES, Octets, PlainTransport, SliceUnreadableError, Transport, read_slice
from ottla.server.turns import COSTLY_NS, LONG_TURN_NS, TURN_NS, Turns

CHUNK_BYTES = 1 << 18
"""Bytes handed to the transport at a time when the socket is full."""
RUN_PARTS_MAX = 512
UNSENT_BYTES_MAX = 1 << 16
"""Maximum total size of one turn's answers that are sent together."""

REQUEST_BYTES_MIN = 2
"""A shorter request does not even name its API. (A token without a header is not shorter either.)"""
LONG_FRAME_BYTES = 1 << 16
"""A longer request is decoded on a separate thread, unless it is a Produce."""
BY_CERTIFICATE = "SSL"
"""The mechanism of clients that have authenticated by a certificate."""
HEAVY_TURNS = 4
"""Number of turns that wait in the queue after a turn that used up its time: expensive requests alternate with cheap
ones."""

_SIZE = Struct(">i")
log = logging.getLogger("ottla.connection")


class RequestMetrics(Protocol):
    """Counts answered requests; see `broker.metrics`."""

    def request_done(self, api_key: int, micros: int) -> None: ...


class NodePort(Protocol):
    """The methods of the node that a connection needs; `broker.node.Node` describes each method."""

    @property
    def metrics(self) -> RequestMetrics: ...

    def receive(
        self, now: Millis, channel: Channel, frame: memoryview, decoded: Decoded = None
    ) -> list[Part] | Parked | None: ...

    def spent(self, now: Millis, channel: Channel, micros: int) -> None: ...

    def disconnected(self, now: Millis, connection: int) -> None: ...

    def stood_still(self, now: Millis, took_ms: int, api_key: int, channel: Channel) -> None: ...

    def unreadable(self, part: FileSlice, error: OSError) -> None: ...

    def logged_in(self, identity: Identity, mechanism: str, user: str = "", why: str | None = None) -> None: ...

    def stranger(self, now: Millis, identity: Identity, why: str) -> None: ...


class Shell(Protocol):
    """The interface of the server that a connection belongs to, `main.Server`."""

    @property
    def node(self) -> NodePort: ...

    turns: Turns
    decoding: Decoding
    buffers: Buffers
    scratch: memoryview
    request_bytes_max: int
    unauthenticated_bytes_max: int
    authentication_s: float

    def address_of(self, transport: Transport, listener: Listener) -> Address: ...

    def admit(self, connection: Connection) -> bool: ...

    def release(self, connection: Connection) -> None: ...

    def now(self) -> Millis: ...

    def settle(self) -> None: ...


class Connection(asyncio.BufferedProtocol):
    """One accepted socket: the protocol object of a plain one, and the receiver of any other transport.

    Until `opened` it has neither a transport nor an address.
    """

    _transport: Transport
    _channel: Channel

    def __init__(self, server: Shell, listener: Listener) -> None:
        self._server = server
        self._node = server.node
        self._listener = listener
        self.is_admitted = False
        self.last_active_ms = 0
        self._is_silent = True  # nothing has arrived
        self._partial: memoryview | None = None  # an incomplete frame with its length prefix
        self._partial_size = 0  # what it will be
        self._filled = 0  # how many of its bytes have arrived
        self._blocked = bytearray()  # frames that wait for an answer before them
        self._outgoing: deque[Part] = deque()
        self._outgoing_offset = 0  # how much of the first part is already sent
        self._reading = True
        self._muted: asyncio.TimerHandle | None = None
        self._turn_asked = False  # it is in the server's queue of turns
        self._heavy = 0  # how many of its next turns wait in the queue, because an earlier one was used up
        self._light = False  # its last turn took little
        self._is_secured = listener.tls is None  # its TLS handshake is done
        self._authentication: asyncio.TimerHandle | None = None  # ends the wait for it

    # ---- life ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.opened(PlainTransport(cast(asyncio.Transport, transport)))

    def opened(self, transport: Transport) -> None:
        """Begin to serve the client at the other end of this transport, if the connection limits allow it."""
        self._transport = transport
        self._channel = Channel(Identity(self._server.address_of(transport, self._listener)))
        self.is_admitted = self._server.admit(self)
        if not self.is_admitted and not self._channel.closing:
            self._channel.close()
            transport.abort()
        elif not (self._is_secured and self._channel.authenticated):
            loop = asyncio.get_running_loop()
            self._authentication = loop.call_later(self._server.authentication_s, self._require_authentication)

    def _require_authentication(self) -> None:
        """The client has had its time to shake hands and to authenticate. A client that has sent nothing only checks
        whether the node is alive; other nodes do that too (`port_probe.py`)."""
        self._authentication = None
        if not (self._is_secured and self._channel.authenticated):
            why = f"it has not authenticated within {self._server.authentication_s:g} s"
            self.close(why, expected=self._is_silent)
            self._transport.abort()

    def shakes_hands(self) -> None:
        """A part of the TLS handshake has arrived."""
        self.last_active_ms = moment()
        self._is_silent = False

    def secured(self, certificate: bytes | None, binding: bytes) -> None:
        """The TLS handshake is done. A certificate says who the client is, unless SASL is going to."""
        self._is_secured = True
        self._channel.binding = binding
        tls = self._listener.tls
        if certificate is None or self._listener.sasl or tls is None:
            return
        principal = tls.principal_of(certificate)
        if principal is None:
            why = "no rule of ssl.principal.mapping.rules matches its certificate"
            self._node.logged_in(self._channel.identity, BY_CERTIFICATE, why=why)
            self.close(why)
        else:
            self._channel.authenticate(principal, BY_CERTIFICATE)
            self._node.logged_in(self._channel.identity, BY_CERTIFICATE)

    @property
    def _size_max(self) -> int:
        """The longest request that is accepted now, in bytes."""
        server = self._server
        return server.request_bytes_max if self._channel.authenticated else server.unauthenticated_bytes_max

    @property
    def address(self) -> Address:
        return self._channel.identity.address

    def connection_lost(self, exc: Exception | None) -> None:
        self._channel.close()
        if self._authentication is not None:
            self._authentication.cancel()
        self._partial = None
        self._outgoing.clear()
        self._server.release(self)
        if self.is_admitted:
            self._node.disconnected(self._server.now(), self.address.connection_id)
            self._server.settle()

    def eof_received(self) -> bool:
        return False

    def close(self, why: str, *, expected: bool = False) -> None:
        """Close after the socket's buffer is sent; other answers are dropped."""
        if not self._channel.closing:
            if not (self._is_secured or expected):
                self._node.logged_in(self._channel.identity, BY_CERTIFICATE, why=why)
                self._node.stranger(self._server.now(), self._channel.identity, why)
            self._channel.close()
            log.log(
                logging.DEBUG if expected else logging.INFO,
                "closing the connection of %s: %s",
                self.address.client_host,
                why,
            )
            self._transport.close()

    def close_later(self, seconds: float) -> None:
        """Stop reading, and close after this time. A client that connects too often then can't reconnect at once."""
        self._channel.close()
        self._pause_reading()
        asyncio.get_running_loop().call_later(seconds, self._transport.abort)

    def end_if_idle(self, since_ms: int) -> None:
        """Close if no byte has moved since then, in either direction. A client that waits for an answer is not idle.

        Bytes that the client does not read are dropped: the close does not wait for them.
        """
        if self.last_active_ms >= since_ms or self._turn_asked:
            return
        if self._channel.unsent or self._channel.closing:
            self.close("idle: it does not read its answers")
            self._transport.abort()
        elif not self._channel.owed:
            self.close("idle", expected=True)

    def mute(self, seconds: float) -> None:
        """Stop reading for this time (KIP-219), unless the connection is already muted for longer."""
        loop = asyncio.get_running_loop()
        if self._muted is not None:
            if self._muted.when() >= loop.time() + seconds:
                return
            self._muted.cancel()
        self._channel.mute(True)
        self._pause_reading()
        self._muted = loop.call_later(seconds, self._unmute)

    def _unmute(self) -> None:
        self._muted = None
        self._channel.mute(False)
        self._go_on()
        self._server.settle()

    # ---- bytes in --------------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._partial is not None:
            return self._partial[self._filled :]
        return self._server.scratch

    def buffer_updated(self, nbytes: int) -> None:
        if self._channel.closing:
            return
        if self._partial is None:
            self._receive(self._server.scratch, nbytes)
        else:
            self._filled += nbytes
            if self._filled < len(self._partial):
                return
            if self._filled < self._partial_size:
                self._grow_partial()
                return
            view, self._partial = self._partial, None
            self._receive(view, self._filled)
            self._server.buffers.give_back(view)
        self._server.settle()

    def _receive(self, view: memoryview, end: int) -> None:
        """Serve the frames in view[:end], and keep those that can't be served yet."""
        if self._blocked:
            self._blocked += view[:end]
            return
        if (self._heavy or self._server.turns.is_spent) and end >= 4:
            is_light = self._light and not self._heavy
            self._heavy = max(0, self._heavy - 1)
            self._blocked += view[:end]
            self._ask_turn(is_light=is_light)
            return
        position = self._serve(view, 0, end)
        if position < end and not self._channel.closing:
            self._keep(view, position, end)

    def _keep(self, view: memoryview, position: int, end: int) -> None:
        """Keep view[position:end], which could not be served: its frame is incomplete, or an earlier answer is
        outstanding."""
        if end - position >= 4 and (self._channel.waits or self._turn_asked):
            self._blocked += view[position:end]
            self._pause_reading()
        else:
            self._keep_partial(view, position, end)

    def _keep_partial(self, view: memoryview, position: int, end: int) -> None:
        """Give the frame that begins at `position` a buffer of its own, into which the rest is read."""
        have = end - position
        self._partial_size = 4 if have < 4 else 4 + _SIZE.unpack_from(view, position)[0]
        self._partial = self._server.buffers.take(self._partial_size, have)
        self._partial[:have] = view[position:end]
        self._filled = have

    def _grow_partial(self) -> None:
        partial = self._partial
        assert partial is not None
        larger = self._server.buffers.take(self._partial_size, self._filled)
        larger[: self._filled] = partial[: self._filled]
        self._partial = larger
        self._server.buffers.give_back(partial)

    def _serve(self, view: memoryview, position: int, end: int) -> int:
        """Serve the whole frames in view[position:end]. Returns the position of the first frame that was not served."""
        node, channel, outgoing = self._node, self._channel, self._outgoing
        metrics, bytes_max = node.metrics, self._server.request_bytes_max
        now = self._server.now()
        self.last_active_ms = now
        self._is_silent = False
        began = perf_counter_ns()
        turn_ends = began + TURN_NS
        unsent = api_key = 0
        while end - position >= 4:
            size = _SIZE.unpack_from(view, position)[0]
            if not REQUEST_BYTES_MIN <= size <= (bytes_max if channel.authenticated else self._size_max):
                self._refuse_size(view, position, size)
                break
            start = position + 4
            if end - start < size:
                break
            frame = view[start : start + size]
            if channel.waits and not channel.may_serve(frame):
                break
            if began >= turn_ends:
                self._ask_turn()
                break
            if size > LONG_FRAME_BYTES and frame[:2] != PRODUCE and channel.authenticated:
                position = start + size
                self._decode_beside(frame, began)
                continue
            api_key = ApiKey.SASL_AUTHENTICATE if channel.bare_tokens else frame[1]
            try:
                answer = node.receive(now, channel, frame)
            except Exception as error:
                self._failed(error)
                break
            position = start + size
            ended = perf_counter_ns()
            if channel.charged_as is not None:
                node.spent(now, channel, (ended - began) // 1000)
            if type(answer) is list and not channel.owed:
                outgoing.extend(answer)
                metrics.request_done(api_key, (ended - began) // 1000)
                began = ended
                unsent += len(answer[0])
                if unsent > UNSENT_BYTES_MAX or len(answer) > 1:
                    unsent = 0
                    self._send()
                    if channel.closing:
                        break
            else:
                channel.served(api_key, answer, began)  # it is owed, or held until those before it have left
                began = ended
        took_ns = began - turn_ends + TURN_NS
        self._light = took_ns < COSTLY_NS
        if not self._light:
            self._had_costly_turn(now, took_ns, api_key)
        if outgoing and not channel.unsent:
            self._send(unsent)
        return position

    def _failed(self, error: Exception) -> None:
        """A request could not be served."""
        if isinstance(error, RequestRefusedError):
            if self._outgoing and not self._channel.unsent:
                self._send()
            self.close(str(error))
        else:
            log.error("a request of %s failed", self.address.client_host, exc_info=error)
            self.close("an error of the broker")

    def _had_costly_turn(self, now: Millis, took_ns: int, api_key: int) -> None:
        """A turn that took long is over. `api_key`: the last request, which took most of it: those before it left
        time."""
        self._server.turns.spend(took_ns)
        if took_ns >= TURN_NS:
            self._heavy = HEAVY_TURNS
        if took_ns >= LONG_TURN_NS:
            self._node.stood_still(now, took_ns // 1_000_000, api_key, self._channel)

    def _decode_beside(self, frame: memoryview, began_ns: int) -> None:
        """Decode a long request on a separate thread: one of a megabyte may have a million elements."""
        owed = self._channel.owe(frame[1], began_ns)
        self._server.decoding.decode(memoryview(bytearray(frame)), partial(self._decoded, owed))

    def _decoded(self, owed: Owed, frame: memoryview, decoded: Decoded | Exception) -> None:
        """Serve the long request that has been decoded, and then the bytes that waited behind it."""
        if self._channel.closing:
            return
        node, channel, began = self._node, self._channel, perf_counter_ns()
        try:
            if isinstance(decoded, Exception):
                raise decoded
            now = self._server.now()
            answer = node.receive(now, channel, frame, decoded)
        except Exception as error:
            self._failed(error)
        else:
            took_ns = perf_counter_ns() - began
            if channel.charged_as is not None:
                node.spent(now, channel, took_ns // 1000)
            if took_ns >= LONG_TURN_NS:
                node.stood_still(now, took_ns // 1_000_000, frame[1], channel)
            self._release(channel.read(owed, answer))
        self._server.settle()

    def _refuse_size(self, view: memoryview, position: int, size: int) -> None:
        if 0 <= size < REQUEST_BYTES_MIN:
            return self.close(f"a request of {size} bytes names no API")
        known = stranger(bytes(view[position : position + 4]))
        if known is not None:
            self._node.stranger(self._server.now(), self._channel.identity, known)
        self.close(known or f"a request claims {size} bytes, the limit is {self._size_max}")

    def _ask_turn(self, *, is_light: bool = False) -> None:
        if not self._turn_asked:
            self._turn_asked = True
            self._pause_reading()
            self._server.turns.ask(self, is_light=is_light)

    def take_turn(self) -> None:
        """Continue to send the present answer, or serve the waiting frames. Read again once nothing is left."""
        self._turn_asked = False
        if self._channel.closing:
            return
        if not self._channel.unsent:
            self._go_on()
            self._server.settle()
        elif not self._transport.is_queued:  # otherwise the transport reports when it has sent that
            self.resume_writing()

    def _pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._transport.pause_reading()

    # ---- answers out -----------------------------------------------------------------------------------------------

    def answer(self, ticket: Ticket, parts: list[Part]) -> None:
        """Accept the answer to `ticket`. It is sent after all answers before it."""
        leaving = self._channel.answered(ticket, parts)
        if leaving:
            try:
                self._release(leaving)
            except Exception as error:  # the server has answers for other connections in its hands
                self._failed(error)

    def _release(self, leaving: Sequence[Owed]) -> None:
        """Send the answers whose turn has come, and serve the frames that waited for them."""
        if not leaving:
            return
        ended = perf_counter_ns()
        self.last_active_ms = moment()
        for done in leaving:
            assert done.parts is not None
            self._outgoing.extend(done.parts)
            self._node.metrics.request_done(done.api_key, (ended - done.began) // 1000)
        if not self._channel.unsent:
            self._send()
        self._go_on()

    def _go_on(self) -> None:
        """Serve the frames that waited, and read again once none is left."""
        if self._turn_asked or self._channel.halted:
            return
        if self._blocked:
            blocked, self._blocked = self._blocked, bytearray()
            view = memoryview(blocked)
            position = self._serve(view, 0, len(blocked))
            if self._channel.closing:
                return
            if position < len(blocked):
                self._keep(view, position, len(blocked))
                if self._blocked:
                    return
        if not self._reading and not self._channel.halted:
            self._reading = True
            self._transport.resume_reading()

    def _send(self, size: int = 0) -> None:
        """Send as much as the socket accepts; the rest waits for `resume_writing`. `size`: the bytes of all that is
        queued, if all of it is in memory and none of it is sent."""
        if self._channel.closing:
            self._outgoing.clear()
            return
        outgoing = self._outgoing
        try:
            if size and self._send_at_once(size):
                return
            turn_ends = perf_counter_ns() + TURN_NS
            while outgoing:
                if type(outgoing[0]) is FileSlice:
                    sent_all = self._send_slice(cast(FileSlice, outgoing[0]))
                else:
                    sent_all = self._send_bytes()
                if not sent_all:
                    self._wait_for_socket()
                    return
                if outgoing and perf_counter_ns() >= turn_ends:
                    self._send_later()
                    return
        except ConnectionError:
            self.close("the client is gone", expected=True)
        except SliceUnreadableError as unreadable:
            # The head of the answer has left, or covers other partitions too. The client asks again, and gets the error
            # then.
            self._node.unreadable(unreadable.part, unreadable)
            self.close(f"the answer could not be read: {unreadable}")
        except OSError as error:
            self.close(f"the answer could not be sent: {error}")

    def _send_at_once(self, size: int) -> bool:
        """Send all that is queued, `size` bytes, with one call, as nearly every turn can. False if something is left
        of it."""
        outgoing = self._outgoing
        if len(outgoing) > RUN_PARTS_MAX:
            return False
        run: list[Octets] = list(outgoing)  # type: ignore[assignment]  # without a slice of a file
        try:
            sent = self._transport.write(run)
        except BlockingIOError:
            return False
        if sent == size:
            outgoing.clear()
            return True
        self._drop_sent(run, sent)
        return False

    def _send_bytes(self) -> bool:
        """Send the run of in-memory parts and small slices at the head of the queue with one call."""
        outgoing = self._outgoing
        run: list[Octets] = []
        for part in outgoing:
            if isinstance(part, FileSlice):
                if part.length > INLINE_BYTES or not run:
                    break
                part = read_slice(part, 0, part.length)
            elif len(run) == RUN_PARTS_MAX:
                break
            run.append(part)
        if self._outgoing_offset:
            run[0] = memoryview(run[0])[self._outgoing_offset :]
        try:
            sent = self._transport.write(run)
        except BlockingIOError:
            return False
        if sent < sum(map(len, run)):
            self._drop_sent(run, sent)
            return False
        for _ in run:
            outgoing.popleft()
        self._outgoing_offset = 0
        return True

    def _drop_sent(self, run: list[Octets], sent: int) -> None:
        """Take `sent` bytes of this run, which is longer, out of the queue, at whose head it is."""
        for part in run:
            length = len(part)
            if sent < length:
                if part is run[0]:
                    self._outgoing_offset += sent
                else:
                    self._outgoing_offset = sent
                return
            sent -= length
            self._outgoing.popleft()
            self._outgoing_offset = 0

    def _send_slice(self, part: FileSlice) -> bool:
        """Send file content: as much as one call accepts."""
        try:
            self._outgoing_offset += self._transport.send_file(part, self._outgoing_offset)
        except BlockingIOError:
            return False
        if self._outgoing_offset == part.length:
            self._outgoing.popleft()
            self._outgoing_offset = 0
        return True

    def _send_later(self) -> None:
        """Let other connections have their turn: this client reads as fast as the node sends, and has used up its
        turn."""
        self._channel.note_unsent(True)
        self._ask_turn()

    def _wait_for_socket(self) -> None:
        """The socket is full: pass one chunk to the transport, which reports when it is sent."""
        part = self._outgoing[0]
        if type(part) is FileSlice:
            length = min(CHUNK_BYTES, part.length - self._outgoing_offset)
            chunk = read_slice(part, self._outgoing_offset, length)
            total = part.length
        else:
            whole = memoryview(cast(bytes, part))
            chunk = bytes(whole[self._outgoing_offset : self._outgoing_offset + CHUNK_BYTES])
            total = len(whole)
        self._outgoing_offset += len(chunk)
        if self._outgoing_offset >= total:
            self._outgoing.popleft()
            self._outgoing_offset = 0
        self._channel.note_unsent(True)
        self._pause_reading()
        self._transport.queue(chunk)
        if self._channel.unsent and not self._transport.is_queued:
            self._send_later()

    def pause_writing(self) -> None:
        self._channel.note_unsent(True)

    def resume_writing(self) -> None:
        channel = self._channel
        if not channel.unsent:
            return
        channel.note_unsent(False)
        if channel.closing:
            return
        self.last_active_ms = moment()
        self._send()
        if not channel.unsent:
            self._go_on()
            self._server.settle()
