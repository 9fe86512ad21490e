"""One node on a simulated disk whose store fails with it: for tests that say themselves when it dies."""

from dataclasses import replace

from ottla.sim.clients.batches import decode_batches, encode_batch
from ottla.sim.kernel.host import Host
from ottla.sim.kernel.store import FarStore, SimStore
from ottla.sim.kernel.world import World
from ottla.sim.workloads.run import make_node
from ottla.sim.workloads.workload import draw_plan
from tests.harness.node_stage import DiskStage


class Stage(DiskStage):
    """`written` are the acknowledged values of each topic id."""

    def __init__(self, seed: int, durability: str = "fsync") -> None:
        self.written: dict[bytes, list[bytes]] = {}
        super().__init__(seed=seed, make_store=SimStore, ottla_durability=durability)

    def put(self, name: str, index: int, value: bytes) -> None:
        topic = self.node.replicas.by_name[name]
        batch = bytearray(encode_batch([(b"k", value)], self.now))
        topic.partitions[index].append(self.now, memoryview(batch))
        self.settle()
        self.written.setdefault(topic.id, []).append(value)

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


def make_host(settings: dict[str, str] | None = None) -> Host:
    """A host whose node is not started yet; the settings of some plan, or these."""
    world = World(1)
    host = Host(world, "node", lambda host, same_boot: make_node(host, store, plan, same_boot))
    store = SimStore(host.disk)
    plan = draw_plan(world.stream("plan"))
    if settings is not None:
        plan = replace(plan, settings=settings)
    host.store = FarStore(store, host.stream("store"))
    return host
