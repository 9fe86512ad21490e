"""Numbers what the decoder and its compiled loops share: columns of the batch table, slots of the state, error codes.

`scan` writes one row of int64 per batch, and `fill` reads them. In between, `decode` replaces each compressed body by
the decompressed one, and leaves out batches that readers may not see.
"""

from __future__ import annotations

POSITION = 0
"""Where the batch begins in the fetched bytes."""
END = 1
BODY = 2
"""The address of the records."""
BODY_BYTES = 3
BASE_OFFSET = 4
LAST_OFFSET = 5
BASE_TIMESTAMP = 6
MAX_TIMESTAMP = 7
ATTRIBUTES = 8
PRODUCER_ID = 9
RECORDS = 10
BATCH_WIDTH = 11

# Slots of the state of `scan`
NEXT_POSITION = 0
NEXT_OFFSET = 1
"""End of the last whole batch; `until` if the scan met a batch at or after it."""
AT_END = 2
"""1 if there is nothing left to scan."""
OFFSET = 3
"""The first offset of the last batch examined: the faulty one if there is an error."""
MAGIC = 4
SCAN_WIDTH = 5

# Slots of the state of `fill`
ROWS = 0
KEY_BYTES = 1
VALUE_BYTES = 2
HEADERS = 3
HEADER_KEY_BYTES = 4
HEADER_VALUE_BYTES = 5
BATCH = 6
"""The last batch read: the faulty one if there is an error."""
FILL_WIDTH = 7

# Errors of both
FINE = 0
CUT_SHORT = 1
LONG_VARINT = 2
LONG_BLOCK = 3
LONG_RECORD = 4
WRONG_OFFSET = 5
BYTES_BEHIND = 6
MANY_HEADERS = 7
NULL_HEADER_KEY = 8
HEADERS_FULL = 9
"""Not a fault of the bytes: more headers than the arrays can hold."""
WRONG_MAGIC = 10
SHORT_BATCH = 11
WRONG_RANGE = 12
OVERLAP = 13

SENTENCES = {
    CUT_SHORT: "a record is cut short",
    LONG_VARINT: "a number in a record is too long",
    LONG_BLOCK: "a key, a value or a header claims more bytes than its record has",
    LONG_RECORD: "a record does not end where it says",
    WRONG_OFFSET: "a record's offset does not follow the one before it or lies outside its batch",
    BYTES_BEHIND: "there are bytes behind the last record",
    MANY_HEADERS: "a record claims more headers than its bytes can hold",
    NULL_HEADER_KEY: "a header has no key",
    SHORT_BATCH: "the batch is shorter than its own header",
    WRONG_RANGE: "the batch claims a range of offsets that cannot be",
    OVERLAP: "the batch begins before the end of the one before it",
}
