"""Encodes rows of the metadata store for ZooKeeper: the path of a key, and the bytes of a value.

    topic/orders      ROOT/rows/topic/orders
    config/broker/1   ROOT/rows/config/broker%2F1
    producer-ids      ROOT/rows/==/producer-ids           no slash, no group

A key's first word is a separate znode, so that a reader of the topics reads no other rows. The rest is one name,
because a znode with children could not be deleted. Characters that a path can't contain are written as in a URL, and an
empty name as "=".

A value begins with a line that has the generation that wrote it, and its checksum. The value itself follows. If the
line ends with " z", the value is compressed with zlib: rows of topics with many partitions shrink to a tenth of their
size.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import quote, unquote

from ottla.metadata.store import Versioned

BYTES_MAX: Final = 900_000
"""Maximum bytes of one znode, or of one transaction. ZooKeeper's own limit for a whole request is 1 MiB less a byte."""
COMPRESSED_FROM: Final = 4096
"""Smaller values are not compressed, so that people can read them."""

_NOTHING: Final = "="
_NO_GROUP: Final = "=="
_FIRST_LINE = re.compile(rb"(\d+) ([0-9a-f]{8})( z)?")


def path_of(rows: str, key: str) -> str:
    """The znode of a key; `rows` is the parent of all of them."""
    group, slash, rest = key.partition("/")
    return f"{rows}/{name_of(group)}/{name_of(rest)}" if slash else f"{rows}/{_NO_GROUP}/{name_of(group)}"


def key_of(group: str, name: str) -> str:
    """The key whose znode has these last two names."""
    return text_of(name) if group == _NO_GROUP else f"{text_of(group)}/{text_of(name)}"


def name_of(text: str) -> str:
    """A text as the name of a znode."""
    name = quote(text, safe="")
    return name.replace(".", "%2E") if name in (".", "..") else name or _NOTHING


def text_of(name: str) -> str:
    """The text that such a name encodes."""
    return "" if name == _NOTHING else unquote(name)


def may_hold(group: str, prefix: str) -> bool:
    """Whether keys of the group that has this name may begin with `prefix`."""
    if group == _NO_GROUP:
        return "/" not in prefix
    first = f"{text_of(group)}/"
    return first.startswith(prefix) or prefix.startswith(first)


def encoded(key: str, value: bytes, generation: int) -> bytes:
    """The bytes of the znode."""
    crc = _crc(key, value, generation)
    if len(value) < COMPRESSED_FROM:
        return b"%d %08x\n%s" % (generation, crc, value)
    return b"%d %08x z\n%s" % (generation, crc, zlib.compress(value, 1))


def decoded(key: str, content: bytes) -> Versioned:
    """The value in a znode, and the generation that wrote it. Raises ValueError if the content is not as it was
    written."""
    first, _, value = content.partition(b"\n")
    match = _FIRST_LINE.fullmatch(first)
    if match is None:
        raise ValueError("its first line is none of ours")
    if match[3]:
        try:
            value = zlib.decompress(value)
        except zlib.error as error:
            raise ValueError(str(error)) from error
    generation = int(match[1])
    if int(match[2], 16) != _crc(key, value, generation):
        raise ValueError("it does not match its checksum")
    return Versioned(value, generation)


def pieces(sizes: Sequence[int], most: int) -> Iterator[range]:
    """Ranges of neighbours that together have at most `most` bytes, or of a single larger one."""
    begin, room = 0, most
    for at, size in enumerate(sizes):
        if at > begin and size > room:
            yield range(begin, at)
            begin, room = at, most
        room -= size
    if begin < len(sizes):
        yield range(begin, len(sizes))


def _crc(key: str, value: bytes, generation: int) -> int:
    return zlib.crc32(value, zlib.crc32(b"%d %s" % (generation, key.encode())))
