"""Reads what Ottla's nodes remember into a snapshot."""

from __future__ import annotations

from ottla.doctor.observed import (
    ClientErrors,
    ConfigChange,
    ConnectionFigures,
    GroupChange,
    IsrChange,
    LongTurn,
    Observed,
    SlowRequest,
    TopicBatches,
)
from ottla.protocol.messages.describe_observations import DescribeObservationsResponse


def observed(node: int, answer: DescribeObservationsResponse) -> Observed:
    """The memory of a node, from its answer."""
    return Observed(
        node,
        answer.now_ms,
        answer.started_ms,
        {
            group.group_id: tuple(
                GroupChange(
                    each.at_ms,
                    each.generation,
                    each.cause,
                    each.member_id,
                    each.client_id,
                    each.client_host,
                    each.reason,
                    each.rebalance_timeout_ms,
                )
                for each in group.changes
            )
            for group in answer.groups
        },
        tuple(
            ClientErrors(
                each.client_id,
                each.principal,
                each.api_key,
                each.code,
                each.count,
                each.first_ms,
                each.last_ms,
                each.subject,
                each.message,
            )
            for each in answer.errors
        ),
        tuple(
            ConnectionFigures(
                each.id,
                each.client_id,
                each.principal,
                each.client_host,
                each.software,
                each.request_count,
                each.received_bytes,
                each.throttled_ms,
                each.fetch_count,
                each.wait_count,
                each.held_back_count,
                each.min_bytes,
                each.max_wait_ms,
            )
            for each in answer.connections
        ),
        _slow(answer),
        tuple(TopicBatches(each.name, each.batch_count, each.record_count, each.byte_count) for each in answer.topics),
        _long_turns(answer),
        _config_changes(answer),
        isr_changes(answer),
    )


def _slow(answer: DescribeObservationsResponse) -> tuple[SlowRequest, ...]:
    return tuple(
        SlowRequest(
            each.took_ms,
            each.at_ms,
            each.api_key,
            each.client_id,
            each.principal,
            each.client_host,
            each.awaited,
        )
        for each in answer.slow_requests
    )


def _long_turns(answer: DescribeObservationsResponse) -> tuple[LongTurn, ...]:
    return tuple(
        LongTurn(each.took_ms, each.at_ms, each.api_key, each.client_id, each.principal, each.client_host, each.timer)
        for each in answer.long_turns
    )


def _config_changes(answer: DescribeObservationsResponse) -> tuple[ConfigChange, ...]:
    return tuple(
        ConfigChange(
            each.resource_type,
            each.resource_name,
            each.name,
            each.at_ms,
            each.old_value,
            each.new_value,
            each.principal,
            each.client_id,
            each.client_host,
        )
        for each in answer.config_changes
    )


def isr_changes(answer: DescribeObservationsResponse) -> tuple[IsrChange, ...]:
    """The changes of in-sync replicas that a node remembers, oldest first."""
    return tuple(
        IsrChange(
            each.at_ms,
            each.node_id,
            each.cause,
            each.topic_name,
            each.partition_index,
            each.partition_count,
            each.records_behind,
            each.behind_ms,
            each.silent_ms,
        )
        for each in answer.isr_changes
    )
