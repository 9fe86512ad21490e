"""The index files beside a segment, in Kafka's formats: offsets, timestamps, aborted transactions.

    comparing.py     compares the entries of a segment's offset and time index with its batches
    file.py          what they have in common: entries of one size, buffered, written, cut, synced
    offsets.py       `.index`: offsets to positions, and which of them are in memory
    times.py         `.timeindex`: timestamps to offsets
    transactions.py  `.txnindex`: the transactions that were aborted in the segment

Source: Kafka's AbstractIndex.java, OffsetIndex.java, TimeIndex.java, TransactionIndex.java.
"""
