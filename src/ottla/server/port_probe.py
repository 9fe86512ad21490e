"""Detects by their ports that processes have ended: a refused connection means that no process listens any more.

It keeps a connection open to the address of each incarnation. When a process ends, its system closes the connection and
refuses the next one. That takes milliseconds after a kill, whereas a ZooKeeper session takes seconds to expire. A
stopped process keeps its connections, and a machine without power does not answer. This module detects neither.

If a process listens at the address again, the incarnation counts as alive until its znode says otherwise.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

AGAIN_S: Final = 0.1
"""Seconds before the next attempt at an address that refuses connections, or whose connections end at once."""


class Life(NamedTuple):
    """One incarnation of a node: its name, and the listener for other nodes. `directory`: the id of the data directory
    that it has locked, which no copy of the directory shares; empty if unknown."""

    node_id: int
    incarnation: str
    host: str
    port: int
    directory: str = ""

    def encode(self) -> bytes:
        fields = self._asdict()
        del fields["node_id"]
        return json.dumps(fields).encode()

    @staticmethod
    def decode(node_id: int, content: bytes) -> Life:
        """Raises ValueError, KeyError or TypeError if the content is not valid."""
        fields = json.loads(content)
        directory = str(fields.get("directory", ""))
        return Life(node_id, str(fields["incarnation"]), str(fields["host"]), int(fields["port"]), directory)


class Doors:
    """See the module's docstring. Belongs to the running event loop. `patience_s`: how long to wait for an answer;
    `changed` is called when `gone` has changed."""

    def __init__(self, patience_s: float, changed: Callable[[], None]) -> None:
        self._patience_s = patience_s
        self._changed = changed
        self._watched: dict[Life, asyncio.Task[None]] = {}
        self.gone: set[Life] = set()

    def watch(self, lives: Iterable[Life]) -> None:
        """Watch exactly these incarnations from now on."""
        wanted = set(lives)
        for life in self._watched.keys() - wanted:
            self._watched.pop(life).cancel()
            self.gone.discard(life)
        for life in wanted - self._watched.keys():
            self._watched[life] = asyncio.create_task(self._attend(life))

    def close(self) -> None:
        self.watch(())

    async def _attend(self, life: Life) -> None:
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            try:
                async with asyncio.timeout(self._patience_s):
                    reader, writer = await asyncio.open_connection(life.host, life.port)
            except ConnectionRefusedError:
                self._note(life, is_gone=True)
            except OSError:
                pass  # it may be the way there
            else:
                self._note(life, is_gone=False)
                try:
                    await reader.read(1)
                except OSError:
                    pass  # a process that was killed resets its connections
                finally:
                    writer.close()
            if loop.time() - begun < AGAIN_S or life in self.gone:
                await asyncio.sleep(AGAIN_S)

    def _note(self, life: Life, *, is_gone: bool) -> None:
        if is_gone != (life in self.gone):
            (self.gone.add if is_gone else self.gone.discard)(life)
            self._changed()
