"""Hands tests to the workers of pytest-xdist as its own scheduler of groups does, in less CPU.

That one counts all tests that a worker has run, after each of them, and searches the list of all tests for each.
"""

from collections.abc import Sequence

from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController


class Scheduling(LoadGroupScheduling):
    """Forgets a test when it has run."""

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        super().add_node_collection(node, collection)
        self._index_of = {name: index for index, name in enumerate(collection)}  # in all workers the same

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        name = self.registered_collections[node][item_index]
        group, assigned = self._split_scope(name), self.assigned_work[node]
        del assigned[group][name]
        if not assigned[group]:
            del assigned[group]
        self._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        group, tests = self.workqueue.popitem(last=False)
        self.assigned_work[node][group] = tests
        node.send_runtest_some([self._index_of[name] for name in tests])
