"""Runs a consumer group: its member processes, the partitions that each owns, and the tally of what the group has
read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from array import array
from multiprocessing.connection import Connection

from ottla.client import TopicPartition
from ottla.demo.tally import Tally

STOP_TIMEOUT_S = 10.0


class Member:
    """One member process, and the pipe through which it reports."""

    def __init__(self, bootstrap: str, group: str, name: str, topics: list[str]) -> None:
        self.name = name
        self.owns: list[TopicPartition] = []
        read, write = os.pipe()
        self.pipe = Connection(read, writable=False)
        command = [sys.executable, "-m", "ottla.demo.member", bootstrap, group, name, str(write), *topics]
        self.process = subprocess.Popen(command, pass_fds=(write,), stderr=subprocess.DEVNULL)
        os.close(write)


class Group:
    """A consumer group of member processes. `changed` is set when partitions have moved; the code that shows them
    resets it."""

    def __init__(self, name: str, bootstrap: str, topics: list[str]) -> None:
        self.name = name
        self.tally = Tally()
        self.members: list[Member] = []
        self.changed = False
        self._bootstrap = bootstrap
        self._topics = topics

    def join(self, name: str) -> None:
        """Start another member."""
        self.members.append(Member(self._bootstrap, self.name, name, self._topics))

    def listen(self, pipe: Connection) -> bool:
        """Receive one report of a member; False if it will send no more."""
        member = next(each for each in self.members if each.pipe is pipe)
        try:
            told = pipe.recv()
        except (EOFError, OSError):  # end of the pipe, or a message cut off by the member's death
            return False
        if told[0] == "owns":
            member.owns = told[1]
            self.changed = True
        else:
            _, place, first_offset, digests = told
            self.tally.add(place, first_offset, array("Q", digests))
        return True

    def kill(self, name: str) -> list[TopicPartition]:
        """kill -9 a member; returns the partitions that then have no owner. Its remaining reports are received
        first."""
        member = next(each for each in self.members if each.name == name)
        member.process.send_signal(signal.SIGKILL)
        member.process.wait()
        while self.listen(member.pipe):
            pass
        orphaned = member.owns
        self._forget(member)
        self.changed = True
        return orphaned

    def owned(self) -> set[TopicPartition]:
        return {place for member in self.members for place in member.owns}

    def stop(self) -> None:
        """Stop every member; each leaves the group."""
        for member in self.members:
            member.process.terminate()
        for member in list(self.members):
            try:
                member.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()
            self._forget(member)

    def _forget(self, member: Member) -> None:
        member.pipe.close()
        self.members.remove(member)


def shown(places: list[TopicPartition]) -> str:
    """Partitions in a short form: page-views 0 1 4, errors 2."""
    by_topic: dict[str, list[str]] = {}
    for topic, partition in places:
        by_topic.setdefault(topic, []).append(str(partition))
    return ", ".join(f"{topic} {' '.join(numbers)}" for topic, numbers in sorted(by_topic.items())) or "nothing yet"
