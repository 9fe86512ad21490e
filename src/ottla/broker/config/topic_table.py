"""Lists the configuration properties of topics and of groups, as in Kafka 4.3.

The table has names, types, defaults, legal values, and the broker property that applies if a topic or group sets none.

Source: LogConfig.configDefCopy, GroupConfig.configDef and ServerTopicConfigSynonyms of Apache Kafka 4.3.1; the
sentences are ours.
"""

from functools import partial
from typing import Final

from ottla.broker.config.key import LONG_MAX, ConfigKey, Kind

_BOOLEAN = Kind.BOOLEAN
_STRING = Kind.STRING
_INT = Kind.INT
_LONG = Kind.LONG
_DOUBLE = Kind.DOUBLE
_LIST = Kind.LIST
_key = ConfigKey
_inert = partial(ConfigKey, has_effect=False)

# One property a line (or two) reads better than what the formatter would make of it.
# fmt: off
_TOPIC_ROWS: Final = (
    _key("cleanup.policy", _LIST, ("delete",),
         "How old records are removed: delete removes segments by age and size, compact keeps the last value of each "
         "key, both do both, and an empty list keeps everything.",
         choices=("compact", "delete"), fallbacks=("log.cleanup.policy",)),
    _key("compression.gzip.level", _INT, -1,
         "Compression level when the node compresses with gzip (compression.type=gzip); -1 is the codec's default.",
         low=1, high=9, fallbacks=("compression.gzip.level",)),
    _key("compression.lz4.level", _INT, 9,
         "Compression level when the node compresses with lz4 (compression.type=lz4).",
         low=1, high=17, fallbacks=("compression.lz4.level",)),
    _key("compression.type", _STRING, "producer",
         "Codec of stored batches; producer keeps the producer's codec.",
         choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), fallbacks=("compression.type",)),
    _key("compression.zstd.level", _INT, 3,
         "Compression level when the node compresses with zstd (compression.type=zstd).",
         low=-131_072, high=22, fallbacks=("compression.zstd.level",)),
    _key("delete.retention.ms", _LONG, 86_400_000,
         "Time for which a tombstone of a compacted topic stays readable, in milliseconds. It stays longer while a "
         "replica is not in sync.", low=0, fallbacks=("log.cleaner.delete.retention.ms",)),
    _key("errors.deadletterqueue.group.enable", _BOOLEAN, False,
         "Whether share groups may use this topic as their dead-letter topic."),
    _key("file.delete.delay.ms", _LONG, 60_000,
         "Time for which the files of a segment stay on the disk after retention or compaction removed it, in "
         "milliseconds. The files of a deleted topic are removed at once.",
         low=0, fallbacks=("log.segment.delete.delay.ms",)),
    _key("flush.messages", _LONG, LONG_MAX,
         "Number of records after which the log is flushed to the disk. The default leaves it to the operating "
         "system.", low=1, fallbacks=("log.flush.interval.messages",)),
    _key("flush.ms", _LONG, LONG_MAX,
         "Time after which the log is flushed to the disk, in milliseconds. The default leaves it to the operating "
         "system.", low=0, fallbacks=("log.flush.interval.ms",)),
    _key("follower.replication.throttled.replicas", _LIST, (),
         "Replicas whose replication is throttled at the follower, as PARTITION:NODE, separated by commas, or * for "
         "all. follower.replication.throttled.rate sets the rate."),
    _key("index.interval.bytes", _INT, 4096,
         "Number of bytes of the log between two entries of the offset index.",
         low=0, fallbacks=("log.index.interval.bytes",)),
    _key("leader.replication.throttled.replicas", _LIST, (),
         "Replicas whose replication is throttled at the leader, as PARTITION:NODE, separated by commas, or * for "
         "all. leader.replication.throttled.rate sets the rate."),
    _inert("local.retention.bytes", _LONG, -2,
         "No effect: tiered storage is not served.", low=-2, fallbacks=("log.local.retention.bytes",)),
    _inert("local.retention.ms", _LONG, -2,
         "No effect: tiered storage is not served.", low=-2, fallbacks=("log.local.retention.ms",)),
    _key("max.compaction.lag.ms", _LONG, LONG_MAX,
         "Time after which a record must be compacted, in milliseconds.",
         low=1, fallbacks=("log.cleaner.max.compaction.lag.ms",)),
    _key("max.message.bytes", _INT, 1_048_588,
         "Size limit of a record batch after compression, in bytes.", low=0, fallbacks=("message.max.bytes",)),
    _key("message.timestamp.after.max.ms", _LONG, 3_600_000,
         "Time by which a record's timestamp may be ahead of the node's clock, in milliseconds.",
         low=0, fallbacks=("log.message.timestamp.after.max.ms",)),
    _key("message.timestamp.before.max.ms", _LONG, LONG_MAX,
         "Time by which a record's timestamp may be behind the node's clock, in milliseconds.",
         low=0, fallbacks=("log.message.timestamp.before.max.ms",)),
    _key("message.timestamp.type", _STRING, "CreateTime",
         "Whether a record keeps its producer's timestamp (CreateTime) or gets the time of the append "
         "(LogAppendTime).", choices=("CreateTime", "LogAppendTime"), fallbacks=("log.message.timestamp.type",)),
    _key("min.cleanable.dirty.ratio", _DOUBLE, 0.5,
         "Ratio of uncompacted bytes to the bytes of the log above which the log is compacted.",
         low=0, high=1, fallbacks=("log.cleaner.min.cleanable.ratio",)),
    _key("min.compaction.lag.ms", _LONG, 0,
         "Time for which a record stays uncompacted, in milliseconds.",
         low=0, fallbacks=("log.cleaner.min.compaction.lag.ms",)),
    _key("min.insync.replicas", _INT, 1,
         "Number of replicas that must be in sync for a produce request with acks=all. A topic with fewer replicas "
         "needs all of them.", low=1, fallbacks=("min.insync.replicas",)),
    _key("ottla.retention.hold", _BOOLEAN, False,
         "Whether retention and compaction skip the topic. The node sets it on topics whose configs it does "
         "not know. A change of cleanup.policy, retention.bytes or retention.ms ends it."),
    _inert("preallocate", _BOOLEAN, False,
         "No effect: segment files grow as they are written.", fallbacks=("log.preallocate",)),
    _inert("remote.log.copy.disable", _BOOLEAN, False, "No effect: tiered storage is not served."),
    _inert("remote.log.delete.on.disable", _BOOLEAN, False, "No effect: tiered storage is not served."),
    _key("remote.storage.enable", _BOOLEAN, False,
         "Whether segments are copied to tiered storage. true is refused: tiered storage is not served."),
    _key("retention.bytes", _LONG, -1,
         "Size of a partition above which its oldest segments are deleted, in bytes; -1 sets no limit.",
         fallbacks=("log.retention.bytes",)),
    _key("retention.ms", _LONG, 604_800_000,
         "Age at which a segment is deleted, in milliseconds; -1 sets no limit.",
         low=-1, fallbacks=("log.retention.ms",)),
    _key("segment.bytes", _INT, 1_073_741_824,
         "Size at which a new segment begins, in bytes.", low=1_048_576, fallbacks=("log.segment.bytes",)),
    _key("segment.index.bytes", _INT, 10_485_760,
         "Size limit of an offset index, in bytes. When it is full, a new segment begins.",
         low=4, fallbacks=("log.index.size.max.bytes",)),
    _key("segment.jitter.ms", _LONG, 0,
         "Largest random time by which segment.ms is shortened, in milliseconds, so that partitions do not begin new "
         "segments together.", low=0, fallbacks=("log.roll.jitter.ms",)),
    _key("segment.ms", _LONG, 604_800_000,
         "Age at which a new segment begins, in milliseconds.", low=1, fallbacks=("log.roll.ms",)),
    _key("unclean.leader.election.enable", _BOOLEAN, False,
         "Whether a replica that is not in sync may lead when no other is left. Records may be lost then.",
         fallbacks=("unclean.leader.election.enable",)),
)

_GROUP_ROWS: Final = (
    _key("consumer.assignment.interval.ms", _INT, 100,
         "Time between two assignments of a consumer group, in milliseconds, and at least 1 ms per member.",
         low=0, fallbacks=("group.consumer.assignment.interval.ms",)),
    _key("consumer.heartbeat.interval.ms", _INT, 5000,
         "Time between two heartbeats of a member of a consumer group, in milliseconds. A node asks for more frequent "
         "heartbeats while few members send them, and while a member's assignment changes.",
         low=1, fallbacks=("group.consumer.heartbeat.interval.ms",)),
    _key("consumer.session.timeout.ms", _INT, 45_000,
         "Time without a heartbeat after which a member of a consumer group is removed, in milliseconds.",
         low=1, fallbacks=("group.consumer.session.timeout.ms",)),
    _key("errors.deadletterqueue.copy.record.enable", _BOOLEAN, True,
         "Whether a dead letter has the key, value, headers and timestamp of the record, or only its position. "
         "Kafka's default is false."),
    _key("errors.deadletterqueue.topic.name", _STRING, "",
         "Topic for the records that a share group rejects or fails to process too often. If empty, they are dropped."
         " The name must begin with errors.deadletterqueue.topic.name.prefix, and the topic needs "
         "errors.deadletterqueue.group.enable=true."),
    _key("share.assignment.interval.ms", _INT, 1000,
         "Time between two assignments of a share group, in milliseconds.",
         low=0, fallbacks=("group.share.assignment.interval.ms",)),
    _key("share.auto.offset.reset", _STRING, "latest",
         "Where a share group begins in a partition that it has never read: earliest, latest or by_duration:DURATION,"
         " for example by_duration:PT1H."),
    _key("share.delayed.delivery.enable", _BOOLEAN, False,
         "Whether a record is held back until the time in its header ottla-deliver-at (milliseconds since 1970), or "
         "for the time in its header ottla-delay-ms (milliseconds after its timestamp). Only Ottla has this."),
    _key("share.delivery.count.limit", _INT, 5,
         "Number of deliveries after which a record is archived, or becomes a dead letter.",
         low=2, fallbacks=("group.share.delivery.count.limit",)),
    _key("share.delivery.fair.enable", _BOOLEAN, True,
         "Whether a fetch returns no more than its member's share of the backlog. If false, one member may get whole "
         "batches while others get nothing, as in Kafka. Only Ottla has this."),
    _key("share.delivery.paused", _BOOLEAN, False,
         "Whether the group gets no records. Members may still acknowledge the records that they have. Only Ottla has"
         " this."),
    _key("share.delivery.paused.above.dead.letters.per.minute", _INT, 0,
         "Number of dead letters within a minute above which the group pauses itself (share.delivery.paused=true); 0 "
         "switches this off. Only Ottla has this."),
    _key("share.delivery.paused.by", _STRING, "",
         "Client that paused the group, or the circuit breaker. The node writes and removes it. Only Ottla has this."),
    _key("share.delivery.paused.since.ms", _LONG, -1,
         "Time at which the group was paused, in milliseconds since 1970. The node writes and removes it. Only Ottla "
         "has this."),
    _key("share.heartbeat.interval.ms", _INT, 5000,
         "Time between two heartbeats of a member of a share group, in milliseconds.",
         low=1, fallbacks=("group.share.heartbeat.interval.ms",)),
    _key("share.isolation.level", _STRING, "read_uncommitted",
         "Whether a share group gets records of transactions that are open or were aborted (read_uncommitted).",
         choices=("read_committed", "read_uncommitted")),
    _key("share.partition.max.record.locks", _INT, 2000,
         "Number of records of a partition that the group's members may have acquired. Kafka limits the span between "
         "the first and the last of them.", low=100, fallbacks=("group.share.partition.max.record.locks",)),
    _key("share.record.lock.duration.ms", _INT, 30_000,
         "Time for which an acquired record stays locked, in milliseconds.",
         low=1000, fallbacks=("group.share.record.lock.duration.ms",)),
    _key("share.renew.acknowledge.enable", _BOOLEAN, True, "Whether members may renew the lock of a record."),
    _key("share.retry.backoff.max.ms", _INT, 60_000,
         "Longest delay before a released or timed-out record is delivered again, in milliseconds. Only Ottla has "
         "this.", low=0),
    _key("share.retry.backoff.ms", _INT, 0,
         "Delay before a released or timed-out record is delivered the second time, in milliseconds; 0 means no "
         "delay. Only Ottla has this.", low=0),
    _key("share.retry.backoff.multiplier", _DOUBLE, 2.0,
         "Factor by which share.retry.backoff.ms grows with each redelivery. Only Ottla has this.", low=1),
    _key("share.session.timeout.ms", _INT, 45_000,
         "Time without a heartbeat after which a member of a share group is removed, in milliseconds.",
         low=1, fallbacks=("group.share.session.timeout.ms",)),
    _inert("streams.assignment.interval.ms", _INT, 1000,
         "No effect: streams groups are not served.", low=0, fallbacks=("group.streams.assignment.interval.ms",)),
    _inert("streams.heartbeat.interval.ms", _INT, 5000,
         "No effect: streams groups are not served.", low=1, fallbacks=("group.streams.heartbeat.interval.ms",)),
    _inert("streams.initial.rebalance.delay.ms", _INT, 3000,
         "No effect: streams groups are not served.", low=0, fallbacks=("group.streams.initial.rebalance.delay.ms",)),
    _inert("streams.num.standby.replicas", _INT, 0,
         "No effect: streams groups are not served.", low=0, fallbacks=("group.streams.num.standby.replicas",)),
    _inert("streams.session.timeout.ms", _INT, 45_000,
         "No effect: streams groups are not served.", low=1, fallbacks=("group.streams.session.timeout.ms",)),
)
# fmt: on

TOPIC_CONFIGS: Final = {key.name: key for key in _TOPIC_ROWS}
GROUP_CONFIGS: Final = {key.name: key for key in _GROUP_ROWS}
