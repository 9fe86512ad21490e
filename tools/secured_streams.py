"""Runs a Kafka Streams application on a secured node, with the ACLs that it needs and with all but one of them.

The application is the word count of `crash_streams`, with `processing.guarantee=exactly_once_v2`: it reads `lines`,
regroups the words through a topic of its own, keeps a state store with a changelog topic, and writes to `counts`. With
`RIGHTS`, each word is counted exactly once. Without any one of them, or with a wrong password, the application ends.
"""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer

from tools.crash_streams import SOURCE, counts_of, failures_in

APPLICATION, TOPICS = "word-count", ("lines", "counts")
LINES, WORDS = 300, 17
RIGHTS: dict[str, tuple[str, ...]] = {
    "read the input": ("--operation", "read", "--topic", "lines"),
    "write the output": ("--operation", "write", "--topic", "counts"),
    "be a member of the group": ("--operation", "read", "--group", APPLICATION, "--prefix"),
    "use transactions": ("--operation", "write", "--transactional-id", APPLICATION, "--prefix"),
    "create internal topics": ("--operation", "create", "--topic", APPLICATION, "--prefix"),
    "write internal topics": ("--operation", "write", "--topic", APPLICATION, "--prefix"),
    "read internal topics": ("--operation", "read", "--topic", APPLICATION, "--prefix"),
    "delete from internal topics": ("--operation", "delete", "--topic", APPLICATION, "--prefix"),
}
"""The ACLs of the application, as options of `ottla acls`. Its group, its transactional ids and its own topics have
names that begin with its id."""
NEEDED = tuple(name for name in RIGHTS if name != "delete from internal topics")
"""Those without which the application ends. Without the last one, its internal topics keep records that it has read."""
ENDS_WITHIN_S = 120.0


class WordCount:
    """The compiled application. `admin`: properties of librdkafka, for the topics outside of it."""

    def __init__(self, libs: str, directory: Path, admin: Mapping[str, str]) -> None:
        self._directory, self._admin = directory, dict(admin)
        classes = directory / "streams-classes"
        subprocess.run(["javac", "-cp", f"{libs}/*", "-d", str(classes), str(SOURCE)], check=True)
        self._java = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{classes}:{libs}/*", "WordCount"]
        self._words: Counter[str] = Counter()

    def write_lines(self) -> None:
        producer = Producer({**self._admin, "log_level": 0})
        for index in range(LINES):
            line = [f"word-{index * step % WORDS}" for step in (1, 2, 5)]
            producer.produce("lines", " ".join(line))
            self._words.update(line)
        if producer.flush(60):
            raise RuntimeError("lines could not be written")

    def counts_all(self, login: Path) -> bool:
        """Whether it counts every word exactly once, as the client of these Java properties."""
        until = time.monotonic() + ENDS_WITHIN_S
        with self._running(APPLICATION, login) as process:
            while process.poll() is None and time.monotonic() < until:
                if not failures_in(counts_of(self._admin["bootstrap.servers"], self._admin), self._words):
                    return True
                time.sleep(1)
        return False

    def code(self, application: str, login: Path) -> int | None:
        """The code with which it ends, as the client of these Java properties; None if it does not end."""
        with self._running(application, login) as process:
            try:
                return process.wait(ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                return None

    def log_of(self, application: str) -> str:
        return (self._directory / f"{application}.log").read_text(errors="replace")

    @contextmanager
    def _running(self, application: str, login: Path) -> Iterator[subprocess.Popen[bytes]]:
        state, log = self._directory / f"state-{application}", self._directory / f"{application}.log"
        words = [self._admin["bootstrap.servers"], str(state), application, str(login)]
        with log.open("wb") as output, subprocess.Popen([*self._java, *words], stdout=output, stderr=output) as process:
            try:
                yield process
            finally:
                process.kill()
