"""Computes the partition into which Kafka's clients put a key, so that a search for the key reads one partition.

Source: Kafka's Utils.murmur2 and BuiltInPartitioner.partitionForKey.
"""

from __future__ import annotations

from typing import Final

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_BITS: Final = 0xFFFFFFFF


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key by Kafka's default partitioner."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """The 32-bit hash, unsigned."""
    length = len(data)
    hashed = _SEED ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _BITS
        k = (k ^ k >> 24) * _M & _BITS
        hashed = hashed * _M & _BITS ^ k
    if whole < length:
        hashed = (hashed ^ int.from_bytes(data[whole:], "little")) * _M & _BITS
    hashed = (hashed ^ hashed >> 13) * _M & _BITS
    return hashed ^ hashed >> 15
