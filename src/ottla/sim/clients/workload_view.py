"""Defines what a client asks of the workload that it belongs to."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from ottla.sim.clients.history import History, TopicPartition, TopicRule
from ottla.sim.clients.ownership import Ownership
from ottla.sim.clients.share_history import ShareHistory
from ottla.sim.clients.transaction_history import TransactionHistory
from ottla.sim.kernel.network import Endpoint
from ottla.sim.kernel.world import World


class WorkloadView(Protocol):
    """A workload, as its clients see it."""

    @property
    def world(self) -> World: ...

    @property
    def history(self) -> History: ...

    @property
    def bootstraps(self) -> Sequence[Endpoint]:
        """Where the nodes listen."""
        ...

    @property
    def lives(self) -> int:
        """The number of the node's current incarnation. With several nodes, a number that rises when one of them starts
        a new incarnation, or when a coordinator moves."""
        ...

    @property
    def deaf_ms(self) -> int:
        """How long a coordinator may continue after another node has taken its place, because it does not know."""
        ...

    @property
    def rules(self) -> Mapping[str, TopicRule]:
        """The workload's topics by name."""
        ...

    def configs_of(self, rule: TopicRule) -> list[tuple[str, str]]:
        """The configs that a topic is created with."""
        ...

    def topics_stand(self) -> None:
        """Called when the topics exist: the other clients may start."""
        ...

    def may_forget(self, topic: str) -> bool:
        """Whether a topic may have lost the batches that reveal a late duplicate."""
        ...

    def check_new_producer_id(self, producer_id: int) -> None:
        """Raises InvariantError where this id was handed out before."""
        ...


class ShareWorkloadView(WorkloadView, Protocol):
    """A workload with share groups, as its clients see it."""

    @property
    def shares(self) -> Mapping[str, ShareHistory]:
        """The histories of the share groups, by group."""
        ...

    @property
    def group_configs(self) -> Mapping[str, Mapping[str, str]]: ...

    @property
    def winding_down(self) -> bool:
        """Whether the run is ending: members finish their work and reject nothing."""
        ...

    def groups_stand(self) -> None:
        """Called when the groups are configured: the other clients may start."""
        ...

    def leadership(self, at: Endpoint | None, where: TopicPartition) -> int | None:
        """A number that rises with each leadership of the partition: that of this node, if it considers itself the
        leader."""
        ...

    def share_start_offset(self, group: str, where: TopicPartition, life: int) -> int | None:
        """Return the group's share-partition start offset, if the node is still in that incarnation and has loaded
        it."""
        ...


class TransactionWorkloadView(WorkloadView, Protocol):
    """A workload with transactions, as its clients see it."""

    @property
    def told(self) -> TransactionHistory:
        """The history of the transactional clients."""
        ...

    @property
    def aborts_at_once(self) -> bool:
        """Whether clients of the second version abort some transactions right after the last one, before they write."""
        ...


class GroupsWorkloadView(WorkloadView, Protocol):
    """A workload with groups of both protocols, as its clients see it."""

    def ownership(self, group: str) -> Ownership:
        """Return the history of this group's partition owners."""
        ...
