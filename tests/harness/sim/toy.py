"""A toy node for the kernel's own tests: a file of numbered notes, each acknowledged once it is safe."""

import random
import zlib
from collections.abc import Mapping

from ottla.broker.channel import Channel
from ottla.broker.effects import Effect, Parked, Reply, Sync
from ottla.log.files import FileSlice
from ottla.sim.clients.client import Client
from ottla.sim.kernel.clock import MS
from ottla.sim.kernel.disk import Disk, SimFile
from ottla.sim.kernel.host import Host
from ottla.sim.kernel.network import Connection
from ottla.sim.kernel.trace import InvariantError

DIRECTORY = "/data"
PATH = "/data/notes"


class WorstCase(random.Random):
    """Luck at its worst: a power cut with it leaves nothing but what was promised."""

    def random(self) -> float:
        return 0.0

    def randrange(self, *args: int) -> int:  # type: ignore[override]
        return 0


def encode_note(number: int) -> bytes:
    body = number.to_bytes(8, "big") + bytes(number % 50)
    return len(body).to_bytes(4, "big") + zlib.crc32(body).to_bytes(4, "big") + body


def decode_notes(octets: bytes) -> tuple[list[int], int]:
    """The whole notes at the beginning of the file, and where they end."""
    found: list[int] = []
    at = 0
    while at + 8 <= len(octets):
        end = at + 8 + int.from_bytes(octets[at : at + 4], "big")
        body = octets[at + 8 : end]
        if len(body) < 8 or end > len(octets) or zlib.crc32(body) != int.from_bytes(octets[at + 4 : at + 8], "big"):
            break
        found.append(int.from_bytes(body[:8], "big"))
        at = end
    return found, at


class ToyNode:
    """Answers `number` with `number` when the note is on the disk. `hasty`: before that, which is the planted bug."""

    def __init__(self, disk: Disk, *, hasty: bool = False, names_synced: bool = True, cuts_tail: bool = True) -> None:
        self.disk = disk
        self.hasty = hasty
        self.names_synced = names_synced
        self.cuts_tail = cuts_tail
        self.effects: list[Effect] = []
        self.waiting: dict[int, list[tuple[int, int, bytes]]] = {}
        self.tickets = 0
        self.ticks = 0
        self.next_tick: int | None = None
        self.file: SimFile

    def introduction(self, node_id: int) -> None:
        """Toys need no proof of each other."""

    def start(self, now: int) -> None:
        self.disk.makedirs(DIRECTORY)
        self.file = self.disk.open(PATH, create=True)
        if self.names_synced:
            self.disk.sync_directory("/")
            self.disk.sync_directory(DIRECTORY)
        _, end = decode_notes(self.disk.read_bytes(PATH))
        if self.cuts_tail:
            self.file.truncate(end)
            self.file.sync()
        self.next_tick = now + 100

    def stop(self, now: int) -> None:
        self.file.sync()

    def receive(self, now: int, channel: Channel, frame: memoryview) -> list[bytes] | Parked:
        number = int.from_bytes(frame, "big")
        self.file.write(encode_note(number))
        self.tickets += 1
        self.waiting[self.tickets] = [(self.tickets, channel.identity.address.connection_id, bytes(frame))]
        self.effects.append(Sync(self.tickets, [self.file]))
        if self.hasty:
            del self.waiting[self.tickets]
            return [len(frame).to_bytes(4, "big"), bytes(frame)]
        return Parked(self.tickets)

    def disconnected(self, now: int, connection: int) -> None: ...

    def deadline(self) -> int | None:
        return self.next_tick

    def tick(self, now: int) -> None:
        assert self.next_tick is not None
        if now >= self.next_tick:
            self.ticks += 1
            self.next_tick = now + 100

    def take_effects(self, now: int) -> list[Effect]:
        effects, self.effects = self.effects, []
        return effects

    def answered(self, now: int, token: int, answer: object) -> None:
        raise AssertionError("it asks no node by an effect")

    def wall_clock_is(self, now: int, ahead_ms: int) -> None: ...

    def not_stored(self, path: str) -> None: ...

    def unreadable(self, part: FileSlice, error: OSError) -> None: ...

    def synced(self, now: int, token: int, failures: Mapping[int, str]) -> None:
        for ticket, identity, frame in self.waiting.pop(token, []):
            if not failures:
                self.effects.append(Reply(ticket, identity, [len(frame).to_bytes(4, "big"), frame]))


class ToyClient(Client):
    """Writes its own numbers, a few at a time, and remembers which were acknowledged."""

    def __init__(self, host: Host, name: str, first: int) -> None:
        super().__init__(host.world, name, host.endpoint)
        self.next = first
        self.acknowledged: list[int] = []
        self.asked: list[int] = []
        self.connect()

    def connected(self) -> None:
        for _ in range(3):
            self.ask()

    def ask(self) -> None:
        self.asked.append(self.next)
        self.send(self.next.to_bytes(8, "big"))
        self.next += 1

    def frame_arrived(self, connection: Connection, frame: memoryview) -> None:
        number = int.from_bytes(frame, "big")
        if number != self.asked.pop(0):
            raise InvariantError(f"{self.name} got an answer out of turn: {number}")
        self.acknowledged.append(number)
        self.world.trace.add(self.name, f"acknowledged {number}")
        self.after(self.rng.randrange(20 * MS), self.ask_again)

    def ask_again(self) -> None:
        if self.connection is not None:
            self.ask()

    def lost(self) -> None:
        self.asked.clear()
        self.after(10 * MS, self.connect)


def check_notes(host: Host, clients: list[ToyClient]) -> None:
    """Every acknowledged note is in the file, once, each client's in order."""
    notes, end = decode_notes(host.disk.read_bytes(PATH))
    if end != host.disk.size(PATH):
        raise InvariantError("there is something else behind the notes")
    for client in clients:
        mine = set(client.acknowledged)
        found = [number for number in notes if number in mine]
        if found != client.acknowledged:
            lost = sorted(mine - set(found))
            raise InvariantError(f"{client.name}: acknowledged and lost or reordered: {lost[:5]}")
