"""A cluster's only node with something of every kind on it, and requests of every API that find it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from ottla.broker.channel import Channel
from ottla.broker.client_identity import Address, Identity, Principal
from ottla.broker.cluster.envelopes import wrapped
from ottla.broker.cluster.membership import Joining
from ottla.broker.requests import Request
from ottla.protocol.apis import APIS, ApiKey
from ottla.protocol.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    add_raft_voter,
    alter_client_quotas,
    alter_configs,
    alter_partition,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_share_group_offsets,
    alter_user_scram_credentials,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_delegation_token,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_share_group_offsets,
    delete_share_group_state,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_delegation_token,
    describe_groups,
    describe_log_dirs,
    describe_observations,
    describe_producers,
    describe_quorum,
    describe_share_group_offsets,
    describe_share_partitions,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    expire_delegation_token,
    explain_share_records,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    initialize_share_group_state,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    read_share_group_state,
    read_share_group_state_summary,
    read_together,
    remove_raft_voter,
    renew_delegation_token,
    sasl_authenticate,
    sasl_handshake,
    share_acknowledge,
    share_fetch,
    share_group_describe,
    share_group_heartbeat,
    streams_group_describe,
    streams_group_heartbeat,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    update_features,
    write_share_group_state,
    write_txn_markers,
)
from ottla.protocol.private_requests import READABLE
from ottla.protocol.records.record import Record, build_batch
from tests.harness.node_stage import Client, NodeStage

Asking: TypeAlias = tuple[Any, int | None]
"""A request and its version, None for the newest."""

LEASE_MS = 6_000
INTERNAL_PARTITIONS = (
    "offsets.topic.num.partitions",
    "transaction.state.log.num.partitions",
    "share.coordinator.state.topic.num.partitions",
)
TOPIC, BROKER, GROUP = 2, 4, 32
MEMBER, SHARE_MEMBER = "AAAAAAAAAAAAAAAAAAAAAA", "BBBBBBBBBBBBBBBBBBBBBB"


def errors(message: Any) -> set[int]:
    """Every error code anywhere in a message."""
    found: set[int] = set()
    for name in message.__slots__:
        value = getattr(message, name)
        if name.endswith("error_code"):
            found.add(value)
        for inner in value if isinstance(value, list) else (value,):
            if hasattr(inner, "__slots__") and hasattr(inner, "encode"):
                found |= errors(inner)
    return found - {0}


class EachApi:
    """The node. Topic `t` has a record; groups `classic`, `consumer` and `share`, the last two with a member that reads
    `t`; `tx` has a transaction open in `t`."""

    def __init__(self, directory: Path) -> None:
        few = {name.replace(".", "_"): "1" for name in INTERNAL_PARTITIONS}
        few["connection_failed_authentication_delay_ms"] = "0"
        self.stage = NodeStage(directory, joining=Joining("127.0.0.1", 9092, "life", LEASE_MS), **few)
        self.hear()
        self.topic_id: bytes = self.stage.create("t").id
        self.stage.append("t")
        for kind, key in enumerate(("classic", "tx")):
            self.ask((find_coordinator.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]), None))
        committed = offset_commit.OffsetCommitRequestPartition(0, 1)
        topics = [offset_commit.OffsetCommitRequestTopic("t", partitions=[committed])]
        self.ask((offset_commit.OffsetCommitRequest("classic", -1, topics=topics), 8))
        self.begun = self.ask((init_producer_id.InitProducerIdRequest("tx", 60_000), 4))
        self.ask(self._partitions_added())
        self.ask(self._consumer_heartbeat(0))
        self.ask(self._share_heartbeat(0))
        self.ask((initialize_share_group_state.InitializeShareGroupStateRequest("share", self._states()[0]), None))

    def hear(self) -> None:
        """The node hears of its cluster: its lease begins."""
        membership = self.stage.node.membership
        assert membership is not None
        membership.confirmed(self.stage.now)
        membership.seen(self.stage.now, {1: "life"})
        self.stage.settle()

    def ask(self, asking: Asking) -> Any:
        """The answer, on a connection of its own to a listener where clients say who they are."""
        return self.stage.ask(*asking, self.connect())

    def errors(self, asking: Asking, connection: int | None = None) -> set[int]:
        """Every error code anywhere in the answer, and in what it holds encoded."""
        request, _ = asking
        answer = self.stage.ask(*asking, self.connect() if connection is None else connection)
        found = errors(answer)
        if isinstance(request, read_together.ReadTogetherRequest):
            for asked, inner in zip(request.requests, answer.answers, strict=True):
                if not inner.error_code:
                    found |= errors(APIS[asked.api_key].response.decode(inner.content, 0, asked.version)[0])
        return found

    def connect(self) -> int:
        stage = self.stage
        connection = stage.connect()
        channel = Channel(Identity(Address(connection, "127.0.0.1", security_protocol="SASL_SSL")))
        channel.authenticate(Principal("User", "ada"), "PLAIN")
        stage.clients[connection] = Client(channel)
        return connection

    def requests(self, key: ApiKey) -> Iterator[Asking]:
        """Requests of this API that are in order."""
        found = getattr(self, f"_{key.name.lower()}")()
        yield from found if isinstance(found, list) else [found if isinstance(found, tuple) else (found, None)]

    # ---- records ---------------------------------------------------------------------------------------------------

    def _produce(self) -> list[Asking]:
        def of(transactional_id: str | None, **how: Any) -> Asking:
            batch = build_batch([Record(0, self.stage.now, b"k", b"v")], **how)
            topics = [produce.TopicProduceData("t", partition_data=[produce.PartitionProduceData(0, batch)])]
            return produce.ProduceRequest(transactional_id, -1, 1_000, topics), 11

        producer = {"producer_id": self.begun.producer_id, "producer_epoch": self.begun.producer_epoch}
        return [of(None), of("tx", transactional=True, base_sequence=0, **producer)]

    def of_nodes(self, key: ApiKey) -> Iterator[Asking]:
        """Requests of clients that say they are nodes, where those need other permissions."""
        if key is ApiKey.FETCH:
            request, version = self._fetch()
            request.replica_id = 7
            yield request, version

    def _fetch(self) -> Asking:
        wanted = fetch.FetchTopic("t", partitions=[fetch.FetchPartition(0, -1, 0, partition_max_bytes=1_000)])
        return fetch.FetchRequest(max_wait_ms=0, topics=[wanted]), 12

    def _list_offsets(self) -> Any:
        topics = [list_offsets.ListOffsetsTopic("t", [list_offsets.ListOffsetsPartition(0, -1, -1)])]
        return list_offsets.ListOffsetsRequest(-1, 0, topics)

    def _offset_for_leader_epoch(self) -> Any:
        wanted = offset_for_leader_epoch.OffsetForLeaderPartition(0, -1, 0)
        topics = [offset_for_leader_epoch.OffsetForLeaderTopic("t", [wanted])]
        return offset_for_leader_epoch.OffsetForLeaderEpochRequest(-1, topics)

    def _delete_records(self) -> Any:
        topics = [delete_records.DeleteRecordsTopic("t", [delete_records.DeleteRecordsPartition(0, 1)])]
        return delete_records.DeleteRecordsRequest(topics)

    def _describe_producers(self) -> Any:
        return describe_producers.DescribeProducersRequest([describe_producers.TopicRequest("t", [0])])

    # ---- the cluster -----------------------------------------------------------------------------------------------

    def _metadata(self) -> list[Asking]:
        def of(*names: str) -> Any:
            topics = [metadata.MetadataRequestTopic(name=name) for name in names]
            return metadata.MetadataRequest(topics, True, True, True)

        return [(of("t", "not.there"), 10), (of("t"), None)]

    def _describe_topic_partitions(self) -> Any:
        asked = describe_topic_partitions.TopicRequest("t")
        return describe_topic_partitions.DescribeTopicPartitionsRequest([asked])

    def _describe_cluster(self) -> Any:
        return describe_cluster.DescribeClusterRequest(True)

    def _describe_quorum(self) -> Any:
        return describe_quorum.DescribeQuorumRequest()

    def _describe_log_dirs(self) -> Any:
        return describe_log_dirs.DescribeLogDirsRequest(None)

    def _alter_replica_log_dirs(self) -> Any:
        topics = [alter_replica_log_dirs.AlterReplicaLogDirTopic("t", [0])]
        moves = [alter_replica_log_dirs.AlterReplicaLogDir("/elsewhere", topics)]
        return alter_replica_log_dirs.AlterReplicaLogDirsRequest(moves)

    def _unregister_broker(self) -> Any:
        return unregister_broker.UnregisterBrokerRequest(99)

    def _update_features(self) -> Any:
        changes = [update_features.FeatureUpdateKey("group.version", 1, upgrade_type=1)]
        return update_features.UpdateFeaturesRequest(feature_updates=changes)

    def _add_raft_voter(self) -> Any:
        return add_raft_voter.AddRaftVoterRequest()

    def _remove_raft_voter(self) -> Any:
        return remove_raft_voter.RemoveRaftVoterRequest()

    def _alter_partition(self) -> Any:
        return alter_partition.AlterPartitionRequest(1, 0)

    def _envelope(self) -> Any:
        message = self._create_topics()
        channel = Channel(Identity(Address(9, "127.0.0.1")))
        inside = Request(channel, message.API_KEY, message.MAX_VERSION, 7, "client", self.stage.now, message)
        return wrapped(inside, ["once"])

    # ---- topics and configurations ---------------------------------------------------------------------------------

    def _create_topics(self) -> Any:
        return create_topics.CreateTopicsRequest([create_topics.CreatableTopic("new", 1, 1)])

    def _delete_topics(self) -> Any:
        return delete_topics.DeleteTopicsRequest(topics=[delete_topics.DeleteTopicState("t")])

    def _create_partitions(self) -> Any:
        return create_partitions.CreatePartitionsRequest([create_partitions.CreatePartitionsTopic("t", 2, None)])

    def _elect_leaders(self) -> Any:
        return elect_leaders.ElectLeadersRequest(0, [elect_leaders.TopicPartitions("t", [0])], 1_000)

    def _alter_partition_reassignments(self) -> Any:
        moved = alter_partition_reassignments.ReassignablePartition(0, [1])
        topics = [alter_partition_reassignments.ReassignableTopic("t", [moved])]
        return alter_partition_reassignments.AlterPartitionReassignmentsRequest(1_000, topics=topics)

    def _list_partition_reassignments(self) -> Any:
        return list_partition_reassignments.ListPartitionReassignmentsRequest(1_000, None)

    def _describe_configs(self) -> Any:
        asked = ((TOPIC, "t"), (BROKER, "1"), (GROUP, "consumer"))
        resources = [describe_configs.DescribeConfigsResource(kind, name, None) for kind, name in asked]
        return describe_configs.DescribeConfigsRequest(resources)

    def _alter_configs(self) -> Any:
        changed = ((TOPIC, "t", "flush.ms"), (BROKER, "1", "x"), (GROUP, "consumer", "consumer.session.timeout.ms"))
        resources = [
            alter_configs.AlterConfigsResource(kind, name, [alter_configs.AlterableConfig(config, "45000")])
            for kind, name, config in changed
        ]
        return alter_configs.AlterConfigsRequest(resources)

    def _incremental_alter_configs(self) -> Any:
        changed = ((TOPIC, "t", "flush.ms"), (BROKER, "1", "x"), (GROUP, "consumer", "consumer.session.timeout.ms"))
        resources = [
            incremental_alter_configs.AlterConfigsResource(
                kind, name, [incremental_alter_configs.AlterableConfig(config, 0, "45000")]
            )
            for kind, name, config in changed
        ]
        return incremental_alter_configs.IncrementalAlterConfigsRequest(resources)

    def _list_config_resources(self) -> Any:
        return list_config_resources.ListConfigResourcesRequest()

    # ---- groups ----------------------------------------------------------------------------------------------------

    def _find_coordinator(self) -> list[Asking]:
        shared = "share:AAAAAAAAAAAAAAAAAAAAAA:0"
        return [
            (find_coordinator.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]), None)
            for kind, key in enumerate(("classic", "tx", shared))
        ]

    def _offset_commit(self) -> Asking:
        committed = offset_commit.OffsetCommitRequestPartition(0, 1)
        topics = [offset_commit.OffsetCommitRequestTopic("t", partitions=[committed])]
        return offset_commit.OffsetCommitRequest("classic", -1, topics=topics), 8

    def _offset_fetch(self) -> Asking:
        topics = [offset_fetch.OffsetFetchRequestTopics("t", partition_indexes=[0])]
        groups = [offset_fetch.OffsetFetchRequestGroup("classic", topics=topics)]
        return offset_fetch.OffsetFetchRequest(groups=groups), 9

    def _join_group(self) -> Any:
        protocols = [join_group.JoinGroupRequestProtocol("range", b"")]
        return join_group.JoinGroupRequest("new", 10_000, 10_000, "", None, "consumer", protocols)

    def _heartbeat(self) -> Any:
        return heartbeat.HeartbeatRequest("classic", 1, "m")

    def _sync_group(self) -> Any:
        return sync_group.SyncGroupRequest("classic", 1, "m", None, "consumer", "range")

    def _leave_group(self) -> Any:
        return leave_group.LeaveGroupRequest("classic", members=[leave_group.MemberIdentity("m")])

    def _describe_groups(self) -> Any:
        return describe_groups.DescribeGroupsRequest(["classic"], True)

    def _list_groups(self) -> Any:
        return list_groups.ListGroupsRequest()

    def _delete_groups(self) -> Any:
        return delete_groups.DeleteGroupsRequest(["classic"])

    def _offset_delete(self) -> Any:
        topics = [offset_delete.OffsetDeleteRequestTopic("t", [offset_delete.OffsetDeleteRequestPartition(0)])]
        return offset_delete.OffsetDeleteRequest("classic", topics)

    def _consumer_heartbeat(self, epoch: int) -> Asking:
        return consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
            "consumer", MEMBER, epoch, rebalance_timeout_ms=60_000, subscribed_topic_names=["t"], topic_partitions=[]
        ), None

    def _consumer_group_heartbeat(self) -> Asking:
        return self._consumer_heartbeat(1)

    def _consumer_group_describe(self) -> Any:
        return consumer_group_describe.ConsumerGroupDescribeRequest(["consumer"], True)

    def _share_heartbeat(self, epoch: int) -> Asking:
        return share_group_heartbeat.ShareGroupHeartbeatRequest("share", SHARE_MEMBER, epoch, None, ["t"]), None

    def _share_group_heartbeat(self) -> Asking:
        return self._share_heartbeat(1)

    def _share_group_describe(self) -> Any:
        return share_group_describe.ShareGroupDescribeRequest(["share"], True)

    def _share_fetch(self) -> Any:
        topics = [share_fetch.FetchTopic(self.topic_id, [share_fetch.FetchPartition(0)])]
        return share_fetch.ShareFetchRequest("share", SHARE_MEMBER, 0, 0, 1, 1_000, 10, 10, topics=topics)

    def _share_acknowledge(self) -> list[Asking]:
        batch = share_acknowledge.AcknowledgementBatch(0, 0, [1])
        topics = [
            share_acknowledge.AcknowledgeTopic(self.topic_id, [share_acknowledge.AcknowledgePartition(0, [batch])])
        ]
        return [
            (self._share_fetch(), None),
            (share_acknowledge.ShareAcknowledgeRequest("share", SHARE_MEMBER, 1, topics=topics), None),
        ]

    def _describe_share_group_offsets(self) -> Any:
        topics = [describe_share_group_offsets.DescribeShareGroupOffsetsRequestTopic("t", [0])]
        groups = [describe_share_group_offsets.DescribeShareGroupOffsetsRequestGroup("share", topics)]
        return describe_share_group_offsets.DescribeShareGroupOffsetsRequest(groups)

    def _describe_observations(self) -> list[Asking]:
        of = describe_observations.DescribeObservationsRequest
        resources = [of(None, kind, name) for kind, name in ((2, "t"), (4, "1"), (32, "g"))]
        return [(each, None) for each in (of("g"), of(None), *resources)]

    def _read_together(self) -> Any:
        """Every request that may be asked together, in one."""
        inner = []
        for key in sorted(READABLE):
            for request, version in self.requests(key):
                version = APIS[key].max_version if version is None else version
                content = bytearray()
                request.encode(content, version)
                inner.append(read_together.InnerRequest(key, version, bytes(content)))
        return read_together.ReadTogetherRequest(inner)

    def _describe_share_partitions(self) -> Any:
        of = describe_share_partitions
        topics = [of.RequestTopic("t", [of.RequestPartition(0)])]
        return of.DescribeSharePartitionsRequest("share", topics, with_reasons=True)

    def _explain_share_records(self) -> Any:
        of = explain_share_records
        part = of.RequestPartition(0, [of.RequestRecord(0, 1, "broken")])
        return of.ExplainShareRecordsRequest("share", None, [of.RequestTopic("t", [part])])

    def _alter_share_group_offsets(self) -> Any:
        of = alter_share_group_offsets
        topics = [of.AlterShareGroupOffsetsRequestTopic("t", [of.AlterShareGroupOffsetsRequestPartition(0, 0)])]
        return of.AlterShareGroupOffsetsRequest("share", topics)

    def _delete_share_group_offsets(self) -> Any:
        topics = [delete_share_group_offsets.DeleteShareGroupOffsetsRequestTopic("t")]
        return delete_share_group_offsets.DeleteShareGroupOffsetsRequest("share", topics)

    def _streams_group_heartbeat(self) -> Any:
        return streams_group_heartbeat.StreamsGroupHeartbeatRequest("streams", MEMBER)

    def _streams_group_describe(self) -> Any:
        return streams_group_describe.StreamsGroupDescribeRequest(["streams"])

    # ---- states of share groups ------------------------------------------------------------------------------------

    def _states(self) -> tuple[Any, ...]:
        """The topics of requests for state, by API."""
        begun, read = initialize_share_group_state, read_share_group_state
        written, deleted = write_share_group_state, delete_share_group_state
        told = read_share_group_state_summary
        return (
            [begun.InitializeStateData(self.topic_id, [begun.PartitionData(0, 1, 0)])],
            [read.ReadStateData(self.topic_id, [read.PartitionData(0, 0)])],
            [written.WriteStateData(self.topic_id, [written.PartitionData(0, 1, 0, 0)])],
            [deleted.DeleteStateData(self.topic_id, [deleted.PartitionData(0)])],
            [told.ReadStateSummaryData(self.topic_id, [told.PartitionData(0, 0)])],
        )

    def _initialize_share_group_state(self) -> Any:
        return initialize_share_group_state.InitializeShareGroupStateRequest("share", self._states()[0])

    def _read_share_group_state(self) -> Any:
        return read_share_group_state.ReadShareGroupStateRequest("share", self._states()[1])

    def _write_share_group_state(self) -> Any:
        return write_share_group_state.WriteShareGroupStateRequest("share", self._states()[2])

    def _delete_share_group_state(self) -> Any:
        return delete_share_group_state.DeleteShareGroupStateRequest("share", self._states()[3])

    def _read_share_group_state_summary(self) -> Any:
        return read_share_group_state_summary.ReadShareGroupStateSummaryRequest("share", self._states()[4])

    # ---- transactions ----------------------------------------------------------------------------------------------

    def _partitions_added(self) -> Asking:
        topics = [add_partitions_to_txn.AddPartitionsToTxnTopic("t", [0])]
        begun = self.begun
        return add_partitions_to_txn.AddPartitionsToTxnRequest("tx", begun.producer_id, begun.producer_epoch, topics), 3

    def _init_producer_id(self) -> list[Asking]:
        return [(init_producer_id.InitProducerIdRequest(name, 60_000), 4) for name in ("tx", None)]

    def _add_partitions_to_txn(self) -> list[Asking]:
        topics = [add_partitions_to_txn.AddPartitionsToTxnTopic("t", [0])]
        begun = self.begun
        verified = add_partitions_to_txn.AddPartitionsToTxnTransaction(
            "tx", begun.producer_id, begun.producer_epoch, verify_only=True, topics=topics
        )
        return [
            self._partitions_added(),
            (add_partitions_to_txn.AddPartitionsToTxnRequest(transactions=[verified]), None),
        ]

    def _add_offsets_to_txn(self) -> Any:
        begun = self.begun
        return add_offsets_to_txn.AddOffsetsToTxnRequest("tx", begun.producer_id, begun.producer_epoch, "classic")

    def _txn_offset_commit(self) -> Asking:
        begun, of = self.begun, txn_offset_commit
        topics = [of.TxnOffsetCommitRequestTopic("t", [of.TxnOffsetCommitRequestPartition(0, 1, -1, None)])]
        return of.TxnOffsetCommitRequest("tx", "classic", begun.producer_id, begun.producer_epoch, topics=topics), 4

    def _end_txn(self) -> Asking:
        return end_txn.EndTxnRequest("tx", self.begun.producer_id, self.begun.producer_epoch, True), 4

    def _write_txn_markers(self) -> Any:
        topics = [write_txn_markers.WritableTxnMarkerTopic("t", [0])]
        begun = self.begun
        marker = write_txn_markers.WritableTxnMarker(begun.producer_id, begun.producer_epoch, False, topics, 0)
        return write_txn_markers.WriteTxnMarkersRequest([marker])

    def _describe_transactions(self) -> Any:
        return describe_transactions.DescribeTransactionsRequest(["tx"])

    def _list_transactions(self) -> Any:
        return list_transactions.ListTransactionsRequest()

    # ---- access, quotas, passwords ---------------------------------------------------------------------------------

    def _api_versions(self) -> Any:
        return api_versions.ApiVersionsRequest("client", "1.0")

    def _sasl_handshake(self) -> Any:
        return sasl_handshake.SaslHandshakeRequest("SCRAM-SHA-512")

    def _sasl_authenticate(self) -> Any:
        return sasl_authenticate.SaslAuthenticateRequest(b"")

    def _describe_acls(self) -> Any:
        return describe_acls.DescribeAclsRequest(1, None, 1, None, None, 1, 1)

    def _create_acls(self) -> Any:
        return create_acls.CreateAclsRequest([create_acls.AclCreation(2, "t", 3, "User:bob", "*", 3, 3)])

    def _delete_acls(self) -> Any:
        return delete_acls.DeleteAclsRequest([delete_acls.DeleteAclsFilter(1, None, 1, None, None, 1, 1)])

    def _create_delegation_token(self) -> Any:
        return create_delegation_token.CreateDelegationTokenRequest("User", "bob")

    def _renew_delegation_token(self) -> Any:
        return renew_delegation_token.RenewDelegationTokenRequest()

    def _expire_delegation_token(self) -> Any:
        return expire_delegation_token.ExpireDelegationTokenRequest()

    def _describe_delegation_token(self) -> Any:
        return describe_delegation_token.DescribeDelegationTokenRequest()

    def _describe_client_quotas(self) -> Any:
        return describe_client_quotas.DescribeClientQuotasRequest()

    def _alter_client_quotas(self) -> Any:
        entity = [alter_client_quotas.RequestEntityData("user", "bob")]
        entry = alter_client_quotas.RequestEntryData(entity, [alter_client_quotas.OpData("producer_byte_rate", 1e6)])
        return alter_client_quotas.AlterClientQuotasRequest([entry])

    def _describe_user_scram_credentials(self) -> Any:
        return describe_user_scram_credentials.DescribeUserScramCredentialsRequest(None)

    def _alter_user_scram_credentials(self) -> Any:
        deletion = alter_user_scram_credentials.ScramCredentialDeletion("bob", 1)
        return alter_user_scram_credentials.AlterUserScramCredentialsRequest([deletion])
