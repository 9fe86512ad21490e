"""Share groups (KIP-932): which member has acquired which record, how it was acknowledged, and how this state is kept.

    runs.py        a map from offsets to values, kept as sorted runs
    deadlines.py   times by ranges of offsets, many millions of them, without a timer
    partition.py   one group's delivery of one partition: acquire, acknowledge, expire, archive
    state.py       the share coordinator's shard over `__share_group_state`

Pure: imports `machine` and `protocol` only.
"""
