"""The messages of Ottla's own requests, as a table.

`message_schemas` reads the table, `generate_messages` makes classes of it. docs/private-requests.md is for those who
write clients of these requests.

`api` begins a request: its name, its API key, its versions, its first flexible version. `request` and `response` begin
its two messages. Fields and structs are written as in `internal_records`. A field that a later version brings has the
versions that it exists in, as `owner string? 1+`. A published version never changes.
"""

PRIVATE_MESSAGES = """
api DescribeSharePartitions key=10900 versions=0-1 flexible=0
request
    group_id string
    topics []Topic? default=null
    runs_max int32 default=1000
    with_reasons bool 1+
  struct Topic
    name string
    partitions []Partition
  struct Partition
    partition_index int32
    from_offset int64 default=-1
response
    throttle_time_ms int32
    error_code int16
    error_message string? default=null
    paused bool
    paused_since_ms int64 default=-1
    paused_by string? default=null
    record_locks_max int32
    delivery_count_limit int32
    lock_duration_ms int32
    topics []Topic
  struct Topic
    name string
    topic_id uuid
    partitions []Partition
  struct Partition
    partition_index int32
    error_code int16
    error_message string? default=null
    is_loaded bool
    leader_epoch int32 default=-1
    start_offset int64 default=-1
    end_offset int64 default=-1
    readable_end_offset int64 default=-1
    lag int64 default=-1
    acquired_count int64
    archiving_count int64
    completed_count int64
    accepted_count int64
    released_count int64
    rejected_count int64
    renewed_count int64
    gap_count int64
    lock_timeout_count int64
    dead_letter_count int64
    next_offset int64 default=-1
    runs []Run
    reasons []Reason 1+
  struct Reason
    text string
    failure_count int64
    last_ms int64
  struct Run
    first_offset int64
    last_offset int64
    state int8
    delivery_count int16
    is_being_written bool
    is_rejected bool
    member_id string? default=null
    client_id string? default=null
    client_host string? default=null
    held_ms int64 default=-1
    lock_left_ms int64 default=-1
    next_try_ms int64 default=-1
    reason string? 1+ default=null
    reason_delivery_count int16 1+ default=-1
api DescribeObservations key=10901 versions=0-1 flexible=0
request
    group_id string? default=null
    resource_type int8 1+
    resource_name string? 1+ default=null
    lists int32 1+ default=-1
response
    throttle_time_ms int32
    error_code int16
    error_message string? default=null
    now_ms int64
    started_ms int64
    groups []Group
    errors []ClientError
    connections []Connection
    slow_requests []SlowRequest
    topics []Topic
    long_turns []LongTurn
    config_changes []ConfigChange 1+
    isr_changes []IsrChange 1+
    followers []Follower 1+
  struct Group
    group_id string
    changes []Change
  struct Change
    at_ms int64
    generation int32
    cause int8
    member_id string
    client_id string
    client_host string
    reason string
    rebalance_timeout_ms int32 default=-1
  struct ClientError
    client_id string
    principal string
    api_key int16
    code int16
    count int64
    first_ms int64
    last_ms int64
    subject string
    message string
  struct Connection
    id int64
    client_id string
    principal string
    client_host string
    listener string
    software string
    request_count int64
    received_bytes int64
    throttled_ms int64
    fetch_count int64
    wait_count int64
    held_back_count int64
    min_bytes int32
    max_wait_ms int32
  struct SlowRequest
    took_ms int64
    at_ms int64
    api_key int16
    client_id string
    principal string
    client_host string
    awaited int8
  struct Topic
    name string
    batch_count int64
    record_count int64
    byte_count int64
  struct LongTurn
    took_ms int64
    at_ms int64
    api_key int16
    client_id string
    principal string
    client_host string
    timer string 1+
  struct ConfigChange
    resource_type int8
    resource_name string
    name string
    at_ms int64
    old_value string? default=null
    new_value string? default=null
    principal string
    client_id string
    client_host string
  struct IsrChange
    at_ms int64
    node_id int32
    cause int8
    topic_name string
    partition_index int32
    partition_count int32
    records_behind int64 default=-1
    behind_ms int64 default=-1
    silent_ms int64 default=-1
  struct Follower
    topic_name string
    partition_index int32
    node_id int32
    is_in_sync bool
    records_behind int64 default=-1
    behind_ms int64 default=-1
    silent_ms int64 default=-1
api ReadTogether key=10902 versions=0-0 flexible=0
request
    requests []InnerRequest
  struct InnerRequest
    api_key int16
    version int16
    content bytes
response
    throttle_time_ms int32
    error_code int16
    error_message string? default=null
    answers []InnerAnswer
  struct InnerAnswer
    error_code int16
    content bytes
api ExplainShareRecords key=10903 versions=0-0 flexible=0
request
    group_id string
    member_id string? default=null
    topics []Topic
  struct Topic
    name string
    partitions []Partition
  struct Partition
    partition_index int32
    records []Record
  struct Record
    offset int64
    delivery_count int16
    reason string
response
    throttle_time_ms int32
    error_code int16
    error_message string? default=null
    topics []Topic
  struct Topic
    name string
    partitions []Partition
  struct Partition
    partition_index int32
    error_code int16
    error_message string? default=null
    records []Record
  struct Record
    offset int64
    error_code int16
    error_message string? default=null
"""
