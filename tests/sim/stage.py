"""One node on a simulated disk, whose syncs are carried out at once: for tests that say themselves when it dies."""

import random
from dataclasses import dataclass, field

from ottla.broker.config.values import BrokerSettings
from ottla.broker.effects import Store, Sync
from ottla.broker.node import Node
from ottla.sim.clients.batches import decode_batches, encode_batch
from ottla.sim.kernel.disk import Disk
from ottla.sim.workloads.run import DIRECTORY, SimStore

NOW = 1_800_000_000_000


@dataclass
class Stage:
    """A node on a simulated disk. `written` are the acknowledged values of each topic id."""

    seed: int
    durability: str = "fsync"
    notes: list[str] = field(default_factory=list)
    written: dict[bytes, list[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.now = NOW
        self.disk = Disk(random.Random(self.seed))
        self.store = SimStore(self.disk)
        self.start()

    def start(self, *, same_boot: bool = True) -> None:
        settings = BrokerSettings.load({"ottla.durability": self.durability}, {})
        self.node = Node(
            settings,
            self.disk,
            DIRECTORY,
            self.store,
            entropy=random.Random(self.now),
            same_boot=same_boot,
            notes=self.notes.append,
        )
        self.node.start(self.now)

    def end(self, *, power_cut: bool) -> None:
        if power_cut:
            self.disk.crash()
        else:
            self.disk.kill()
        self.now += 1000
        self.start(same_boot=not power_cut)

    def stop(self) -> None:
        """A clean stop."""
        self.node.stop(self.now)
        self.disk.kill()
        self.now += 1000

    def append(self, name: str, index: int, value: bytes) -> None:
        topic = self.node.replicas.by_name[name]
        batch = bytearray(encode_batch([(b"k", value)], self.now))
        topic.partitions[index].append(self.now, memoryview(batch))
        self.settle()
        self.written.setdefault(topic.id, []).append(value)

    def settle(self) -> None:
        while effects := self.node.take_effects(self.now):
            for effect in effects:
                if isinstance(effect, Sync):
                    for file in effect.files:
                        file.sync()
                    self.node.synced(self.now, effect.token, {})
                elif isinstance(effect, Store):
                    self.disk.write_atomically(effect.path, effect.content)

    def tick(self, ms: int = 0) -> None:
        self.now += ms
        for _ in range(10):
            self.node.tick(self.now)
            self.settle()

    def stored(self, name: str, index: int | None = None) -> list[bytes]:
        """The values that stand in a topic, or in one partition of it."""
        topic = self.node.replicas.by_name.get(name)
        values: list[bytes] = []
        partitions = {} if topic is None else topic.partitions
        for partition in partitions.values() if index is None else [partitions[index]]:
            log = partition.log
            offset = log.log_start_offset
            while offset < log.high_watermark:
                found = log.read(offset, 1 << 20)
                assert found.slice is not None
                for batch in decode_batches(found.slice.read()):
                    values += [note.value or b"" for note in batch.notes if note.offset >= offset]
                    offset = batch.last_offset + 1
        return values
