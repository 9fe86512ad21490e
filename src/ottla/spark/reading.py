"""The worker's side of reading: fetches a task's ranges and gives Arrow batches.

One client per worker process and set of properties, kept between tasks; a forked process makes its own.
Invariant: of every range each record comes once, in order, whatever breaks on the way.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pyarrow as pa

from ottla.client import Client

try:
    from ottla.spark.decode import decode
except ImportError:
    from ottla.spark.plain_decode import decode
from ottla.spark.options import SourceOptions
from ottla.spark.plan import Range
from ottla.spark.properties import ClientProperties

_clients: dict[ClientProperties, Client] = {}
_owner = 0


def client_of(properties: ClientProperties) -> Client:
    """This process's client."""
    global _owner
    if _owner != os.getpid():
        _clients.clear()
        _owner = os.getpid()
    if properties not in _clients:
        _clients[properties] = properties.connect()
    return _clients[properties]


def read(ranges: Sequence[Range], options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The records of all ranges."""
    client = client_of(options.client)
    for each in ranges:
        at = each.first
        while at < each.until:
            got = client.fetch_raw(
                each.topic,
                each.partition,
                at,
                max_bytes=options.client.fetch_max_bytes,
                isolation_level=options.client.isolation_level,
            )
            decoded = decode(
                got.records,
                topic=each.topic,
                partition=each.partition,
                first=at,
                until=each.until,
                include_headers=options.include_headers,
                aborted=got.aborted,
                check_crcs=options.client.check_crcs,
            )
            yield from decoded.batches
            at = decoded.next_offset
