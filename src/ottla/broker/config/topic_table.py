"""Lists the configuration properties of topics and of groups, as Kafka 4.3 has them.

Knows names, types, defaults, legal values, and which broker property stands in where a topic or group sets none.
Source: LogConfig.configDefCopy, GroupConfig.configDef and ServerTopicConfigSynonyms of Apache Kafka 4.3.1; the
sentences are ours.
"""

from typing import Final

from ottla.broker.config.key import LONG_MAX, ConfigKey, Kind

_BOOLEAN = Kind.BOOLEAN
_STRING = Kind.STRING
_INT = Kind.INT
_LONG = Kind.LONG
_DOUBLE = Kind.DOUBLE
_LIST = Kind.LIST
_key = ConfigKey

# One property a line (or two) reads better than what the formatter would make of it.
# fmt: off
_TOPIC_ROWS: Final = (
    _key("cleanup.policy", _LIST, ("delete",),
         "What happens to old segments: \"delete\" drops them by time and size, \"compact\" keeps the last value of "
         "each key, both do both; empty keeps all.",
         choices=("compact", "delete"), fallbacks=("log.cleanup.policy",)),
    _key("compression.gzip.level", _INT, -1,
         "Level where the broker itself compresses with gzip.", low=1, high=9, fallbacks=("compression.gzip.level",)),
    _key("compression.lz4.level", _INT, 9,
         "Level where the broker itself compresses with lz4.", low=1, high=17, fallbacks=("compression.lz4.level",)),
    _key("compression.type", _STRING, "producer",
         "Codec of stored batches: \"producer\" keeps what the producer chose.",
         choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), fallbacks=("compression.type",)),
    _key("compression.zstd.level", _INT, 3,
         "Level where the broker itself compresses with zstd.",
         low=-131_072, high=22, fallbacks=("compression.zstd.level",)),
    _key("delete.retention.ms", _LONG, 86_400_000,
         "How long a tombstone of a compacted topic stays readable, in milliseconds; longer where a replica is away.",
         low=0, fallbacks=("log.cleaner.delete.retention.ms",)),
    _key("errors.deadletterqueue.group.enable", _BOOLEAN, False,
         "Whether share groups may use this topic as their dead-letter topic."),
    _key("file.delete.delay.ms", _LONG, 60_000,
         "How long a removed segment's files stay on disk, in milliseconds.",
         low=0, fallbacks=("log.segment.delete.delay.ms",)),
    _key("flush.messages", _LONG, LONG_MAX,
         "fsync after this many records; the default leaves it to the operating system.",
         low=1, fallbacks=("log.flush.interval.messages",)),
    _key("flush.ms", _LONG, LONG_MAX,
         "fsync at least this often, in milliseconds; the default leaves it to the operating system.",
         low=0, fallbacks=("log.flush.interval.ms",)),
    _key("follower.replication.throttled.replicas", _LIST, (),
         "Replicas whose replication is throttled on the follower's side: partition:broker pairs, or * for all."),
    _key("index.interval.bytes", _INT, 4096,
         "Bytes of log between two entries of the offset index.", low=0, fallbacks=("log.index.interval.bytes",)),
    _key("leader.replication.throttled.replicas", _LIST, (),
         "Replicas whose replication is throttled on the leader's side: partition:broker pairs, or * for all."),
    _key("local.retention.bytes", _LONG, -2,
         "Local size limit under tiered storage, which this broker does not have; -2 means retention.bytes.",
         low=-2, fallbacks=("log.local.retention.bytes",)),
    _key("local.retention.ms", _LONG, -2,
         "Local time limit under tiered storage, which this broker does not have; -2 means retention.ms.",
         low=-2, fallbacks=("log.local.retention.ms",)),
    _key("max.compaction.lag.ms", _LONG, LONG_MAX,
         "A record is compacted at the latest after this time, in milliseconds.",
         low=1, fallbacks=("log.cleaner.max.compaction.lag.ms",)),
    _key("max.message.bytes", _INT, 1_048_588,
         "Largest record batch that is taken, after compression, in bytes.", low=0, fallbacks=("message.max.bytes",)),
    _key("message.timestamp.after.max.ms", _LONG, 3_600_000,
         "How far a record's timestamp may lie ahead of the broker's clock, in milliseconds.",
         low=0, fallbacks=("log.message.timestamp.after.max.ms",)),
    _key("message.timestamp.before.max.ms", _LONG, LONG_MAX,
         "How far a record's timestamp may lie behind the broker's clock, in milliseconds.",
         low=0, fallbacks=("log.message.timestamp.before.max.ms",)),
    _key("message.timestamp.type", _STRING, "CreateTime",
         "Whether a record carries its producer's time or the time of the append.",
         choices=("CreateTime", "LogAppendTime"), fallbacks=("log.message.timestamp.type",)),
    _key("min.cleanable.dirty.ratio", _DOUBLE, 0.5,
         "Share of uncompacted bytes from which on a log is compacted.",
         low=0, high=1, fallbacks=("log.cleaner.min.cleanable.ratio",)),
    _key("min.compaction.lag.ms", _LONG, 0,
         "A record stays uncompacted at least this long, in milliseconds.",
         low=0, fallbacks=("log.cleaner.min.compaction.lag.ms",)),
    _key("min.insync.replicas", _INT, 1,
         "Replicas that must be in sync for a produce with acks=all; counted up to the number of replicas there "
         "are.",
         low=1, fallbacks=("min.insync.replicas",)),
    _key("ottla.retention.hold", _BOOLEAN, False,
         "Whether retention and compaction leave the topic alone. Set by the node itself on topics whose configs are "
         "not known; a change of cleanup.policy, retention.bytes or retention.ms ends it."),
    _key("preallocate", _BOOLEAN, False,
         "Whether a new segment file takes its full size at once.", fallbacks=("log.preallocate",)),
    _key("remote.log.copy.disable", _BOOLEAN, False, "Tiered storage; this broker does not have it."),
    _key("remote.log.delete.on.disable", _BOOLEAN, False, "Tiered storage; this broker does not have it."),
    _key("remote.storage.enable", _BOOLEAN, False, "Tiered storage; this broker does not have it and refuses true."),
    _key("retention.bytes", _LONG, -1,
         "Size a partition may reach before its oldest segments go, in bytes; -1 is no limit.",
         fallbacks=("log.retention.bytes",)),
    _key("retention.ms", _LONG, 604_800_000,
         "Age at which segments go, in milliseconds; -1 is no limit.", low=-1, fallbacks=("log.retention.ms",)),
    _key("segment.bytes", _INT, 1_073_741_824,
         "Size at which a new segment is begun, in bytes.", low=1_048_576, fallbacks=("log.segment.bytes",)),
    _key("segment.index.bytes", _INT, 10_485_760,
         "Largest size of an offset index, in bytes; a full index begins a new segment.",
         low=4, fallbacks=("log.index.size.max.bytes",)),
    _key("segment.jitter.ms", _LONG, 0,
         "Up to this much is taken from segment.ms at random, so that partitions do not all roll together.",
         low=0, fallbacks=("log.roll.jitter.ms",)),
    _key("segment.ms", _LONG, 604_800_000,
         "Age at which a new segment is begun, in milliseconds.", low=1, fallbacks=("log.roll.ms",)),
    _key("unclean.leader.election.enable", _BOOLEAN, False,
         "Whether a replica that is not in sync may lead when no other is left, at the price of lost records.",
         fallbacks=("unclean.leader.election.enable",)),
)

_GROUP_ROWS: Final = (
    _key("consumer.assignment.interval.ms", _INT, 100,
         "Least time between two assignments of a consumer group, in milliseconds.",
         low=0, fallbacks=("group.consumer.assignment.interval.ms",)),
    _key("consumer.heartbeat.interval.ms", _INT, 5000,
         "How often members of a consumer group send heartbeats, in milliseconds.",
         low=1, fallbacks=("group.consumer.heartbeat.interval.ms",)),
    _key("consumer.session.timeout.ms", _INT, 45_000,
         "A member of a consumer group silent for this long is dropped, in milliseconds.",
         low=1, fallbacks=("group.consumer.session.timeout.ms",)),
    _key("errors.deadletterqueue.copy.record.enable", _BOOLEAN, True,
         "Whether a dead letter carries the record's key, value, headers and timestamp, or only where it stood; false "
         "in Kafka."),
    _key("errors.deadletterqueue.topic.name", _STRING, "",
         "Topic that takes the records a share group rejects or fails to process too often; empty: they are dropped. "
         "The name begins with errors.deadletterqueue.topic.name.prefix and the topic has "
         "errors.deadletterqueue.group.enable=true."),
    _key("share.assignment.interval.ms", _INT, 1000,
         "Least time between two assignments of a share group, in milliseconds.",
         low=0, fallbacks=("group.share.assignment.interval.ms",)),
    _key("share.auto.offset.reset", _STRING, "latest",
         "Where a share group begins on a partition it has never read: earliest, latest or by_duration:<ISO 8601 "
         "duration>."),
    _key("share.delayed.delivery.enable", _BOOLEAN, False,
         "Whether the headers ottla-deliver-at (epoch milliseconds) and ottla-delay-ms (after the record's timestamp) "
         "hold a record back. Only Ottla has this."),
    _key("share.delivery.count.limit", _INT, 5,
         "How often a record is delivered at most.", low=2, fallbacks=("group.share.delivery.count.limit",)),
    _key("share.delivery.fair.enable", _BOOLEAN, True,
         "Whether a fetch takes no more than its share of the backlog where the group has several members; else one "
         "may take whole batches while others have nothing to do, as in Kafka. Only Ottla has this."),
    _key("share.delivery.paused", _BOOLEAN, False,
         "Whether the group is given no records for now; what its members hold they may acknowledge. Only Ottla has "
         "this."),
    _key("share.delivery.paused.above.dead.letters.per.minute", _INT, 0,
         "Dead letters within a minute beyond which the group pauses itself (share.delivery.paused=true); 0: never. "
         "Only Ottla has this."),
    _key("share.delivery.paused.by", _STRING, "",
         "Who paused the group: a client, or the circuit breaker. The broker writes and removes it; only Ottla has "
         "this."),
    _key("share.delivery.paused.since.ms", _LONG, -1,
         "When the group was paused, in milliseconds since 1970. The broker writes and removes it; only Ottla has "
         "this."),
    _key("share.heartbeat.interval.ms", _INT, 5000,
         "How often members of a share group send heartbeats, in milliseconds.",
         low=1, fallbacks=("group.share.heartbeat.interval.ms",)),
    _key("share.isolation.level", _STRING, "read_uncommitted",
         "Whether a share group sees records of transactions that are open or were aborted.",
         choices=("read_committed", "read_uncommitted")),
    _key("share.partition.max.record.locks", _INT, 2000,
         "Records that members may hold per partition. Kafka limits the span from the first to the last of them.",
         low=100, fallbacks=("group.share.partition.max.record.locks",)),
    _key("share.record.lock.duration.ms", _INT, 30_000,
         "How long an acquired record stays locked, in milliseconds.",
         low=1000, fallbacks=("group.share.record.lock.duration.ms",)),
    _key("share.renew.acknowledge.enable", _BOOLEAN, True, "Whether members may renew the lock of a record."),
    _key("share.retry.backoff.max.ms", _INT, 60_000,
         "Longest delay before a released or timed-out record is delivered again, in milliseconds. Only Ottla has "
         "this.", low=0),
    _key("share.retry.backoff.ms", _INT, 0,
         "Delay before a released or timed-out record is delivered again the first time, in milliseconds; 0: none. "
         "Only Ottla has this.", low=0),
    _key("share.retry.backoff.multiplier", _DOUBLE, 2.0,
         "What the delay is multiplied with at every further delivery. Only Ottla has this.", low=1),
    _key("share.session.timeout.ms", _INT, 45_000,
         "A member of a share group silent for this long is dropped, in milliseconds.",
         low=1, fallbacks=("group.share.session.timeout.ms",)),
    _key("streams.assignment.interval.ms", _INT, 1000,
         "Streams groups; this broker does not serve them.",
         low=0, fallbacks=("group.streams.assignment.interval.ms",)),
    _key("streams.heartbeat.interval.ms", _INT, 5000,
         "Streams groups; this broker does not serve them.", low=1, fallbacks=("group.streams.heartbeat.interval.ms",)),
    _key("streams.initial.rebalance.delay.ms", _INT, 3000,
         "Streams groups; this broker does not serve them.",
         low=0, fallbacks=("group.streams.initial.rebalance.delay.ms",)),
    _key("streams.num.standby.replicas", _INT, 0,
         "Streams groups; this broker does not serve them.", low=0, fallbacks=("group.streams.num.standby.replicas",)),
    _key("streams.session.timeout.ms", _INT, 45_000,
         "Streams groups; this broker does not serve them.", low=1, fallbacks=("group.streams.session.timeout.ms",)),
)
# fmt: on

TOPIC_CONFIGS: Final = {key.name: key for key in _TOPIC_ROWS}
GROUP_CONFIGS: Final = {key.name: key for key in _GROUP_ROWS}
