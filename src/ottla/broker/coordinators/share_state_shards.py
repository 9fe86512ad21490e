"""Makes the share coordinator's shards with the settings of their node."""

from __future__ import annotations

from collections.abc import Callable

from ottla.broker.config.machines import share_state_settings
from ottla.broker.config.values import Settings
from ottla.machine import Call, Entropy, WallClock
from ottla.protocol.errors import ErrorCode
from ottla.share.state import ShareStateShard, refuse


class ShareStateShards:
    """A `coordinators.shards.ShardClass`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def of(self, entropy: Entropy, notes: Callable[[str], None], wall: WallClock, leader_epoch: int) -> ShareStateShard:
        return ShareStateShard(share_state_settings(self._settings), notes, wall)

    def refuse(self, call: Call, error: ErrorCode) -> object:
        return refuse(call.body, error)

    def topics_deleted(self, names: tuple[str, ...]) -> Call | None:
        """Names have no effect here: topics are identified by id, see `share.state.TopicGone`."""
        return None
