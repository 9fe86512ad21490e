"""Share groups (KIP-932): which member has acquired which record, how it was acknowledged, and how this state is kept.

    partition.py   one group's delivery of one partition: acquire, acknowledge, expire, archive
    standing.py    the delivery state of a record, and the types of a share partition's interface
    runs.py        a map from offsets to values, kept as sorted runs
    deadlines.py   times by ranges of offsets, many millions of them, without a timer
    failures.py    when records failed first, for their dead letters
    state.py       the share coordinator's shard over `__share_group_state`
    records.py     the records of `__share_group_state`, byte for byte Kafka's
    settings.py    the configuration that both read

Pure: imports `machine` and `protocol` only.
"""
