"""Share groups on this node: the share partitions of the partitions it leads, their sessions, their memory.

What other rooms use (`node.share`, a ShareHost, and `node.share_state`, the ShardHost of `__share_group_state`):

    ShareFetch does not ask the group coordinator for membership (Kafka's does not either): a session is enough.
    A share partition nobody initialized starts where `share.auto.offset.reset` says at the first fetch, so nothing has
    to be initialized before members may fetch.

    state_call(now, InitializeShareGroupState | ReadShareGroupStateSummary | DeleteShareGroupState, group_id, topic_id,
               partition, start_offset=-1, state_epoch=0) -> (shard index, Call)
        For the `calls` of an Errand submitted to `node.share_state` (one call a partition; replies are those messages
        with one result). Makes `__share_group_state` where there is none.
        AlterShareGroupOffsets = initialize with the next state epoch, then `forget`.
    forget(now, group_id, topic_id=None, partition=None)
        The state of these share partitions was altered or deleted: what is loaded of them is dropped, held records come
        back INVALID_RECORD_STATE when they are acknowledged, the next fetch loads anew.
    group_configured(group_id)      the group's dynamic configs changed
    lag(group_id, topic_id, partition, start_offset, delivery_complete_count) -> int
        log end - start_offset - delivery_complete_count (KIP-1226), -1 where that is not known.
    in_sight(now, group_id=None) -> list[PartitionInSight]
        Who holds what, for the CLI and the metrics port.
"""
