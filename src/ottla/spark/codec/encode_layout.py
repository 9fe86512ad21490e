"""Numbers what the encoder and its compiled loops share: positions of the columns, the topics' table, the plan of
batches.

Three tables of int64. `rows` is one line of addresses, 0 for a missing column. A column of bytes uses three slots:
`valid`, one byte a row, 0 if no value is null; `ends`, n + 1 positions in the bytes, 0 if the column is missing; the
bytes.
"""

from __future__ import annotations

TIMES = 0
"""Milliseconds, int64."""
GIVEN = 1
"""Partitions that the rows name, int32, 0 without such a column; behind it their `valid`."""
KEY = 3
VALUE = 6
HEADER_ENDS = 9
"""Of the rows' lists, 0 without headers. A null list looks like an empty one."""
HEADER_KEY = 10
HEADER_VALUE = 13
ROWS_WIDTH = 16

# A line of the topics' table; `place` counts TURN and TURN_BYTES on
FIRST_LANE = 0
"""Partitions of all topics, counted through, are lanes."""
PARTITIONS = 1
AVAILABLE = 2
"""Where its available partitions begin in the list of all topics' ones."""
AVAILABLE_COUNT = 3
TURN = 4
"""Counts the partitions that rows without a key went to."""
TURN_BYTES = 5
"""Bytes written to the current one of these partitions."""
TOPIC_WIDTH = 6

# A line of the plan: one batch
ROW = 0
"""The first row, in the order of lanes."""
COUNT = 1
BYTES = 2
"""Of the records."""
BASE_MS = 3
MAX_MS = 4
LANE = 5
PLAN_WIDTH = 6
