"""A line of every format that is known, and what must be made of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

RECORDED = datetime(2026, 11, 21, tzinfo=UTC)
"""When the records of these lines were made; it gives those without a year theirs."""


@dataclass(frozen=True, slots=True)
class Case:
    """A line and (format, time, level, level_text, component, message)."""

    line: str
    expected: tuple[str | None, ...]


def case(line: str, *expected: str | None) -> Case:
    return Case(line, expected)


NOTHING = (None,) * 6
JAN = "2023-01-02T10:00:00"

CASES = [
    case("2023-01-02 10:00:00,123 - app.module - WARNING - hello - x",
         "python", f"{JAN}.123000", "WARN", "WARNING", "app.module", "hello - x"),
    case("ERROR:root:failed", "python", None, "ERROR", "ERROR", "root", "failed"),
    case("2023-01-02 10:00:00.123 | INFO     | pkg.mod:func:12 - hi",
         "loguru", f"{JAN}.123000", "INFO", "INFO", "pkg.mod", "hi"),
    case("2023-01-02T10:00:00.123+02:00 ERROR 1 --- [svc] [main] c.e.App   : started",
         "spring", "2023-01-02T08:00:00.123000", "ERROR", "ERROR", "c.e.App", "started"),
    case("2023-01-02 10:00:00.123 [main] DEBUG com.foo.Bar - logback",
         "logback", f"{JAN}.123000", "DEBUG", "DEBUG", "com.foo.Bar", "logback"),
    case("2023-01-02 10:00:00,123 WARN  [pool-1] com.foo.Bar - log4j",
         "log4j", f"{JAN}.123000", "WARN", "WARN", "com.foo.Bar", "log4j"),
    case("2023-01-02 10:00:00,123 FATAL [main] a.b.C: gone\njava.lang.X: y\n\tat a.b(C.java:1)",
         "hadoop", f"{JAN}.123000", "FATAL", "FATAL", "a.b.C", "gone\njava.lang.X: y\n\tat a.b(C.java:1)"),
    case("2015-07-29 17:41:44,747 - INFO  [QuorumPeer[myid=1]/0:0:0:2181:FastLeaderElection@774] - Notification",
         "zookeeper", "2015-07-29T17:41:44.747000", "INFO", "INFO", "FastLeaderElection", "Notification"),
    case("2015-07-29 17:41:44,747 - WARN  [SendWorker:1:QuorumCnxManager$SendWorker@688] - left",
         "zookeeper", "2015-07-29T17:41:44.747000", "WARN", "WARN", "QuorumCnxManager$SendWorker", "left"),
    case("081109 203615 148 INFO dfs.DataNode$PacketResponder: PacketResponder 1",
         "hdfs", "2008-11-09T20:36:15", "INFO", "INFO", "dfs.DataNode$PacketResponder", "PacketResponder 1"),
    case("17/06/09 20:10:40 INFO executor.Executor: Running task",
         "spark", "2017-06-09T20:10:40", "INFO", "INFO", "executor.Executor", "Running task"),
    case("2023-01-02 10:00:00 ERROR something broke", "iso", JAN, "ERROR", "ERROR", None, "something broke"),
    case("2023-01-02T10:00:00Z nothing known", "iso", JAN, None, None, None, "nothing known"),
    case("2023-02-30T10:00:00Z no such day", "iso", None, None, None, None, "no such day"),
    case("2023-01-02T10:00:00+0000 myhost sshd[12]: Accepted", "syslog-iso", JAN, None, None, "sshd", "Accepted"),
    case("2023/01/02 10:00:00 [error] 123#0: *1 open()", "nginx-error", JAN, "ERROR", "error", None, "*1 open()"),
    case("2023/01/02 10:00:00 http: closed", "go", JAN, None, None, None, "http: closed"),
    case("[Sun Dec 04 04:47:44 2005] [notice] workerEnv.init() ok",
         "apache-error", "2005-12-04T04:47:44", "INFO", "notice", None, "workerEnv.init() ok"),
    case("[Wed Oct 11 14:32:52.123456 2023] [core:crit] [pid 3:tid 4] File",
         "apache-error", "2023-10-11T14:32:52.123456", "FATAL", "crit", "core", "[pid 3:tid 4] File"),
    case("[2023-01-02 10:00:00,123] INFO [KafkaServer id=0] started (kafka.server.KafkaServer)",
         "bracketed", f"{JAN}.123000", "INFO", "INFO", None, "[KafkaServer id=0] started (kafka.server.KafkaServer)"),
    case("[2023-01-02T10:00:00.123+0000] {dag.py:12} INFO - done",
         "bracketed", f"{JAN}.123000", "INFO", "INFO", "dag.py:12", "done"),
    case("<34>1 2003-10-11T22:14:15.003Z mymachine su - ID47 - 'su root' failed",
         "rfc5424", "2003-10-11T22:14:15.003000", "FATAL", "crit", "su", "'su root' failed"),
    case('<165>1 2003-08-24T05:14:15.000003-07:00 192.0.2.1 myproc 8710 - [a b="c\\]d"][x] %% time',
         "rfc5424", "2003-08-24T12:14:15.000003", "INFO", "notice", "myproc", "%% time"),
    case("<34>1 - - - - - - nothing", "rfc5424", None, "FATAL", "crit", None, "nothing"),
    case("<13>Feb  5 17:32:18 10.0.0.99 Use the BFG!",
         "rfc3164", "2026-02-05T17:32:18", "INFO", "notice", None, "Use the BFG!"),
    case("Jun 14 15:16:01 combo sshd(pam_unix)[19939]: authentication failure; logname=",
         "rfc3164", "2026-06-14T15:16:01", None, None, "sshd(pam_unix)", "authentication failure; logname="),
    case("Jul  7 08:06:15 combo  -- root[2421]: ROOT LOGIN ON tty2",
         "rfc3164", "2026-07-07T08:06:15", None, None, "-- root", "ROOT LOGIN ON tty2"),
    case("Jun 19 04:09:11 combo syslogd 1.4.1: restart.",
         "rfc3164", "2026-06-19T04:09:11", None, None, "syslogd 1.4.1", "restart."),
    case("Feb 30 04:09:11 combo x: no such day", "rfc3164", None, None, None, "x", "no such day"),
    case("Nov 22 04:09:11 combo x: tomorrow", "rfc3164", "2026-11-22T04:09:11", None, None, "x", "tomorrow"),
    case("Nov 23 04:09:11 combo x: last year", "rfc3164", "2025-11-23T04:09:11", None, None, "x", "last year"),
    case("I0102 10:00:00.123456       1 server.go:12] klog line",
         "klog", "2026-01-02T10:00:00.123456", "INFO", "I", "server.go:12", "klog line"),
    case('127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /a.gif HTTP/1.0" 200 2326 "http://x" "Mozilla"',
         "access", "2000-10-10T20:55:36", "INFO", None, None, '"GET /a.gif HTTP/1.0" 200 2326 "http://x" "Mozilla"'),
    case('host.example.com - - [10/Oct/2000:13:55:36 -0700] "GET /a.gif HTTP/1.0" 503 -',
         "access", "2000-10-10T20:55:36", "ERROR", None, None, '"GET /a.gif HTTP/1.0" 503 -'),
    case('::1 - - [10/Oct/2000:13:55:36 -0700] "\\x16\\x03" 400 226',
         "access", "2000-10-10T20:55:36", "WARN", None, None, '"\\x16\\x03" 400 226'),
    case('{"time":"2023-01-02T10:00:00.5Z","level":"error","msg":"boom","logger":"a.b","n":{"x":1}}',
         "json", f"{JAN}.500000", "ERROR", "error", "a.b", "boom"),
    case('{"level":30,"time":1531171074631,"msg":"hello world","pid":657}',
         "json", "2018-07-09T21:17:54.631000", "INFO", "30", None, "hello world"),
    case('{"ts":1672653600.25,"lvl":"warn","message":"zap"}', "json", f"{JAN}.250000", "WARN", "warn", None, "zap"),
    case('{"@timestamp":"2023-01-02 12:00:00,123 +0200","severity":"Critical","event":"e","name":"n"}',
         "json", f"{JAN}.123000", "FATAL", "Critical", "n", "e"),
    case('{"a":1}', "json", None, None, None, None, '{"a":1}'),
    case('time=2023-01-02T10:00:00Z level=info msg="a b" component=api x=1',
         "logfmt", JAN, "INFO", "info", "api", "a b"),
    case("level=warn ts=2023-01-02T10:00:00.123Z caller=main.go:1 msg=plain",
         "logfmt", f"{JAN}.123000", "WARN", "warn", "main.go:1", "plain"),
    *(Case(line, NOTHING) for line in (
        "some random text", "", " ", "{}", '{"a":1', "a=b c=d", "[12", "<34>", "java.lang.RuntimeException: x",
        "2023-13", "12:00", "Jun 14", "1 2 3 4 5 6 7",
    )),
]  # fmt: skip
