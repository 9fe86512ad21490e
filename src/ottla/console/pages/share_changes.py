"""Changes of a share group that only Ottla has: pause and resume."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ottla.client.errors import ClientError, check
from ottla.client.share_groups import PAUSED, pauses_of
from ottla.client.share_partitions import describe_share_partitions
from ottla.console.failures_since import Counters, counters_of
from ottla.console.group_reading import group_of
from ottla.console.page import Context, Done, InputError, Preview, url
from ottla.console.reading import configs
from ottla.doctor.words import count
from ottla.escaping import visible
from ottla.protocol.config_resources import ConfigResourceType
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

BREAKER: Final = "share.delivery.paused.above.dead.letters.per.minute"
SET, DELETE = 0, 1
"""Operations of IncrementalAlterConfigs."""


def pause_preview(context: Context) -> Preview:
    """The members that will get no records. Raises InputError."""
    group, _ = group_of(context, context.need("name"))
    if group.name in pauses_of(context.client, [group.name]):
        raise InputError("The group is paused already.")
    members = count(len(group.members), "member")
    return Preview(
        group.name,
        (
            f"Pauses {visible(group.name)}: its {members} get no more records until it is resumed. They may finish the "
            "records that they have.",
        ),
        command=context.command("share-groups", "pause", group.name),
    )


def pause(context: Context) -> Done:
    """Pause the group."""
    return _set(context, AlterableConfig(PAUSED, SET, "true"), "Paused")


def resume_preview(context: Context) -> Preview:
    """The members that will get records again. Raises InputError."""
    group, _ = group_of(context, context.need("name"))
    if group.name not in pauses_of(context.client, [group.name]):
        raise InputError("The group is not paused.")
    lag = sum(each.lag or 0 for each in group.committed.values())
    found = {each.name: each.value for each in configs(context, ConfigResourceType.GROUP, group.name)}
    limit = found.get(BREAKER)
    breaker = f"The group pauses itself again after more than {limit} dead letters within a minute."
    return Preview(
        group.name,
        (
            f"Resumes {visible(group.name)}: its {count(len(group.members), 'member')} get records again. "
            f"{count(lag, 'record')} {'waits' if lag == 1 else 'wait'}.",
            "This sends no dead letters back: Send back, on their page, does.",
            *([breaker] if limit and limit != "0" else []),
        ),
        command=context.command("share-groups", "resume", group.name),
    )


def resume(context: Context) -> Done:
    """Resume the group. The page that comes next counts failures from now on."""
    counters = counters_now(context)
    done = _set(context, AlterableConfig(PAUSED, DELETE, None), "Resumed")
    return done if counters is None else replace(done, next=f"{done.next}&since={counters}")


def counters_now(context: Context) -> Counters | None:
    """The group's counters, None if its leaders do not report them."""
    try:
        group = describe_share_partitions(context.client, context.need("name"), runs_max=0, with_reasons=False)
    except ClientError:
        return None
    return counters_of(group, context.now_ms)


def _set(context: Context, config: AlterableConfig, done: str) -> Done:
    name = context.need("name")
    request = IncrementalAlterConfigsRequest([AlterConfigsResource(ConfigResourceType.GROUP, name, [config])])
    (result,) = context.client.send(request).responses
    check(result.error_code, f"the configs of {visible(name)}", result.error_message)
    return Done(f"{done} {visible(name)}.", url("/share-group", name=name), {"group": name})
