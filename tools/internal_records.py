"""The records of Kafka's internal topics, which kio does not describe, as a table.

Source: the schemas of Apache Kafka 4.3.1 (group-coordinator, transaction-coordinator and share-coordinator,
`src/main/resources/common/message/*.json`). `message_schemas` reads the table, `generate_messages` makes classes of it.

A record starts at the margin: its name, the number of its type in the key, its versions, its first flexible version.
A field is a name and a type; `?` means nullable (in all its versions), `[]` an array, `3+` or `1` the versions it
exists in when not all, `tag=` a tagged field, `default=` a default other than the zero of the type.
"""

INTERNAL_RECORDS = """
topic __consumer_offsets
LegacyOffsetCommitKey type=0 versions=0-0 flexible=never
    group string
    topic string
    partition int32
LegacyOffsetCommitValue type=0 versions=0-0 flexible=never
    offset int64
    metadata string
    commit_timestamp int64
OffsetCommitKey type=1 versions=0-0 flexible=never
    group string
    topic string
    partition int32
OffsetCommitValue type=1 versions=0-4 flexible=4
    offset int64
    leader_epoch int32 3+ default=-1
    metadata string
    commit_timestamp int64
    expire_timestamp int64 1 default=-1
    topic_id uuid 4+ tag=0
GroupMetadataKey type=2 versions=0-0 flexible=never
    group string
GroupMetadataValue type=2 versions=0-4 flexible=4
    protocol_type string
    generation int32
    protocol string?
    leader string?
    current_state_timestamp int64 2+ default=-1
    members []MemberMetadata
  struct MemberMetadata
    member_id string
    group_instance_id string? 3+ default=null
    client_id string
    client_host string
    rebalance_timeout int32 1+ default=-1
    session_timeout int32
    subscription bytes
    assignment bytes
ConsumerGroupMetadataKey type=3 versions=0-0 flexible=never
    group_id string
ConsumerGroupMetadataValue type=3 versions=0-0 flexible=0
    epoch int32
    metadata_hash int64 tag=0
ConsumerGroupPartitionMetadataKey type=4 versions=0-0 flexible=never
    group_id string
ConsumerGroupPartitionMetadataValue type=4 versions=0-0 flexible=0
    topics []TopicMetadata
  struct TopicMetadata
    topic_id uuid
    topic_name string
    num_partitions int32
    partition_metadata []PartitionMetadata
  struct PartitionMetadata
    partition int32
    racks []string
ConsumerGroupMemberMetadataKey type=5 versions=0-0 flexible=never
    group_id string
    member_id string
ConsumerGroupMemberMetadataValue type=5 versions=0-0 flexible=0
    instance_id string?
    rack_id string?
    client_id string
    client_host string
    subscribed_topic_names []string
    subscribed_topic_regex string?
    rebalance_timeout_ms int32 default=-1
    server_assignor string?
    classic_member_metadata ClassicMemberMetadata? tag=0 default=struct
  struct ClassicMemberMetadata
    session_timeout_ms int32
    supported_protocols []ClassicProtocol
  struct ClassicProtocol
    name string
    metadata bytes
ConsumerGroupTargetAssignmentMetadataKey type=6 versions=0-0 flexible=never
    group_id string
ConsumerGroupTargetAssignmentMetadataValue type=6 versions=0-0 flexible=0
    assignment_epoch int32
    assignment_timestamp int64 tag=0
ConsumerGroupTargetAssignmentMemberKey type=7 versions=0-0 flexible=never
    group_id string
    member_id string
ConsumerGroupTargetAssignmentMemberValue type=7 versions=0-0 flexible=0
    topic_partitions []TopicPartition
  struct TopicPartition
    topic_id uuid
    partitions []int32
ConsumerGroupCurrentMemberAssignmentKey type=8 versions=0-0 flexible=never
    group_id string
    member_id string
ConsumerGroupCurrentMemberAssignmentValue type=8 versions=0-0 flexible=0
    member_epoch int32
    previous_member_epoch int32
    state int8
    assigned_partitions []TopicPartitions
    partitions_pending_revocation []TopicPartitions
  struct TopicPartitions
    topic_id uuid
    partitions []int32
    assignment_epochs []int32? tag=0
ShareGroupMemberMetadataKey type=10 versions=0-0 flexible=never
    group_id string
    member_id string
ShareGroupMemberMetadataValue type=10 versions=0-0 flexible=0
    rack_id string?
    client_id string
    client_host string
    subscribed_topic_names []string
ShareGroupMetadataKey type=11 versions=0-0 flexible=never
    group_id string
ShareGroupMetadataValue type=11 versions=0-0 flexible=0
    epoch int32
    metadata_hash int64
ShareGroupTargetAssignmentMetadataKey type=12 versions=0-0 flexible=never
    group_id string
ShareGroupTargetAssignmentMetadataValue type=12 versions=0-0 flexible=0
    assignment_epoch int32
    assignment_timestamp int64 tag=0
ShareGroupTargetAssignmentMemberKey type=13 versions=0-0 flexible=never
    group_id string
    member_id string
ShareGroupTargetAssignmentMemberValue type=13 versions=0-0 flexible=0
    topic_partitions []TopicPartition
  struct TopicPartition
    topic_id uuid
    partitions []int32
ShareGroupCurrentMemberAssignmentKey type=14 versions=0-0 flexible=never
    group_id string
    member_id string
ShareGroupCurrentMemberAssignmentValue type=14 versions=0-0 flexible=0
    member_epoch int32
    previous_member_epoch int32
    state int8
    assigned_partitions []TopicPartitions
  struct TopicPartitions
    topic_id uuid
    partitions []int32
ShareGroupStatePartitionMetadataKey type=15 versions=0-0 flexible=never
    group_id string
ShareGroupStatePartitionMetadataValue type=15 versions=0-0 flexible=0
    initializing_topics []TopicPartitionsInfo
    initialized_topics []TopicPartitionsInfo
    deleting_topics []TopicInfo
  struct TopicPartitionsInfo
    topic_id uuid
    topic_name string
    partitions []int32
  struct TopicInfo
    topic_id uuid
    topic_name string
ConsumerGroupRegularExpressionKey type=16 versions=0-0 flexible=never
    group_id string
    regular_expression string
ConsumerGroupRegularExpressionValue type=16 versions=0-0 flexible=0
    topics []string
    version int64
    timestamp int64
StreamsGroupMetadataKey type=17 versions=0-0 flexible=never
    group_id string
StreamsGroupMetadataValue type=17 versions=0-0 flexible=0
    epoch int32
    metadata_hash int64
    validated_topology_epoch int32 tag=0 default=-1
    last_assignment_configs []LastAssignmentConfig? tag=1
  struct LastAssignmentConfig
    key string
    value string
StreamsGroupMemberMetadataKey type=19 versions=0-0 flexible=never
    group_id string
    member_id string
StreamsGroupMemberMetadataValue type=19 versions=0-0 flexible=0
    instance_id string?
    rack_id string?
    client_id string
    client_host string
    rebalance_timeout_ms int32 default=-1
    topology_epoch int32
    process_id string
    user_endpoint Endpoint? default=null
    client_tags []KeyValue
  struct Endpoint
    host string
    port uint16
  struct KeyValue
    key string
    value string
StreamsGroupTargetAssignmentMetadataKey type=20 versions=0-0 flexible=never
    group_id string
StreamsGroupTargetAssignmentMetadataValue type=20 versions=0-0 flexible=0
    assignment_epoch int32
    assignment_timestamp int64 tag=0
StreamsGroupTargetAssignmentMemberKey type=21 versions=0-0 flexible=never
    group_id string
    member_id string
StreamsGroupTargetAssignmentMemberValue type=21 versions=0-0 flexible=0
    active_tasks []TaskIds
    standby_tasks []TaskIds
    warmup_tasks []TaskIds
  struct TaskIds
    subtopology_id string
    partitions []int32
StreamsGroupCurrentMemberAssignmentKey type=22 versions=0-0 flexible=never
    group_id string
    member_id string
StreamsGroupCurrentMemberAssignmentValue type=22 versions=0-0 flexible=0
    member_epoch int32
    previous_member_epoch int32
    state int8
    active_tasks []TaskIds
    standby_tasks []TaskIds
    warmup_tasks []TaskIds
    active_tasks_pending_revocation []TaskIds
    standby_tasks_pending_revocation []TaskIds
    warmup_tasks_pending_revocation []TaskIds
  struct TaskIds
    subtopology_id string
    partitions []int32
    assignment_epochs []int32? tag=0
StreamsGroupTopologyKey type=23 versions=0-0 flexible=never
    group_id string
StreamsGroupTopologyValue type=23 versions=0-0 flexible=0
    epoch int32
    subtopologies []Subtopology
  struct Subtopology
    subtopology_id string
    source_topics []string
    source_topic_regex []string
    state_changelog_topics []TopicInfo
    repartition_sink_topics []string
    repartition_source_topics []TopicInfo
    copartition_groups []CopartitionGroup
  struct TopicInfo
    name string
    partitions int32
    replication_factor int16
    topic_configs []TopicConfig
  struct TopicConfig
    key string
    value string
  struct CopartitionGroup
    source_topics []int16
    source_topic_regex []int16
    repartition_source_topics []int16
topic __transaction_state
TransactionLogKey type=0 versions=0-0 flexible=never
    transactional_id string
TransactionLogValue type=0 versions=0-1 flexible=1
    producer_id int64
    previous_producer_id int64 1+ tag=0 default=-1
    next_producer_id int64 1+ tag=1 default=-1
    producer_epoch int16
    next_producer_epoch int16 1+ tag=3 default=-1
    transaction_timeout_ms int32
    transaction_status int8
    transaction_partitions []PartitionsSchema?
    transaction_last_update_timestamp_ms int64
    transaction_start_timestamp_ms int64
    client_transaction_version int16 1+ tag=2
  struct PartitionsSchema
    topic string
    partition_ids []int32
topic __share_group_state
ShareSnapshotKey type=0 versions=0-0 flexible=never
    group_id string
    topic_id uuid
    partition int32
ShareSnapshotValue type=0 versions=0-0 flexible=0
    snapshot_epoch int32
    state_epoch int32
    leader_epoch int32
    start_offset int64
    delivery_complete_count int32 tag=0 default=-1
    create_timestamp int64
    write_timestamp int64
    state_batches []StateBatch
  struct StateBatch
    first_offset int64
    last_offset int64
    delivery_state int8
    delivery_count int16
ShareUpdateKey type=1 versions=0-0 flexible=never
    group_id string
    topic_id uuid
    partition int32
ShareUpdateValue type=1 versions=0-0 flexible=0
    snapshot_epoch int32
    leader_epoch int32
    start_offset int64
    delivery_complete_count int32 tag=0 default=-1
    state_batches []StateBatch
  struct StateBatch
    first_offset int64
    last_offset int64
    delivery_state int8
    delivery_count int16
"""
