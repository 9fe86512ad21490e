"""Lists the formats of log lines, as a table of patterns.

A pattern describes the beginning of a line, up to its message. It is tried at the beginning, reads only the head of the
line and has no nested repetition, so no line is slow to match. If two patterns match, the first of its group wins: the
narrow ones come first.
"""

from __future__ import annotations

from dataclasses import dataclass
from string import ascii_letters, ascii_uppercase

HEAD_MAX = 2048
"""Number of characters of a record that are searched for time, level and component."""

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
MONTH = f"({'|'.join(MONTHS)})"
ANY = r"[^\n\r\x85\u2028\u2029]"
END = r"(?:\r\n|(?<!\r)\n|[\r\x85\u2028\u2029])?\Z"
CLOCK = r"(\d{1,2}:\d{2}:\d{2})"
ISO = r"(\d{4})-(\d{2})-(\d{2})[T ](\d{2}:\d{2}:\d{2})(?:[.,](\d{1,9}))? ?(Z|[+-]\d{2}:?\d{2})?"
"""Groups 1 to 6: year, month, day, clock, fraction, zone."""
LEVEL = (
    "(TRACE|DEBUG|INFO|INFORMATION|NOTICE|WARN|WARNING|ERROR|ERR|SEVERE|CRIT|CRITICAL|ALERT|EMERG|FATAL|PANIC|FINE|FINER"
    "|FINEST|CONFIG|VERBOSE|trace|debug|info|notice|warn|warning|error|err|crit|critical|alert|emerg|fatal|panic"
    r"|Trace|Debug|Info|Information|Notice|Warn|Warning|Error|Critical|Fatal)(?![\w.])"
)
THREAD = r"\[[^\]]{0,200}\]{1,2}"
LOGGER = r"([A-Za-z_$][\w.$/-]{0,200})"
TAG = r"(?: ?([^:\[\]]{1,64}?) ?(?:\[[^\]\s]{0,32}\])?: )?"
"""The tag of a syslog message, which names its program: `sshd(pam_unix)[19939]: `."""
OSLO = rf" \d+ {LEVEL} {LOGGER} (?:\[[^\]]{{0,300}}\] ?)?"
"""OpenStack's, after the date: process, level, logger, request."""
ALERT = r"(?:-|[A-Z][A-Z0-9_]{0,31}) \d{9,10} "
"""Prefix of supercomputers' lines: an alert's name or "-", and the time in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A format: its name, the first character of its lines (one of GROUPS), and a regular expression for their head.
    `fields`: which groups are year, month, day, clock, fraction, zone, level and component; 0: none. A clock without a
    day is seconds since 1970."""

    name: str
    group: str
    regex: str
    fields: tuple[int, int, int, int, int, int, int, int]
    says: str = ""
    """Meaning of the level: `pri`, a syslog priority; `http`, a status; `redis`, one of its four signs; otherwise a
    word."""
    holds: str = ""
    """Text that every such line contains; it is searched before the expression is tried."""


def iso(
    name: str, regex: str, level: int = 0, component: int = 0, group: str = "digit", before: str = "", holds: str = ""
) -> Pattern:
    """A format that begins with an ISO date; its own groups are numbered from 7."""
    return Pattern(name, group, f"{before}{ISO}{regex}", (1, 2, 3, 4, 5, 6, level, component), holds=holds)


PATTERNS = (
    iso("zookeeper", rf" - {LEVEL} +\[(?:[^@]{{0,300}}[^\w$@])?([\w$]+)@\d+\] - ", 7, 8, holds="] - "),
    iso("python", rf" ?- {LOGGER} - {LEVEL} - ", 8, 7, holds=" - "),
    iso("loguru", rf" \| {LEVEL} *\| ([^ :]{{1,200}}):[^ ]* - ", 7, 8, holds=" | "),
    iso("spring", rf" +{LEVEL} \d+ --- (?:{THREAD} ){{1,3}}{LOGGER} *: ", 7, 8, holds=" --- "),
    iso("hadoop", rf" {LEVEL} +{THREAD} {LOGGER}: ", 7, 8, holds="] "),
    iso("log4j", rf" {LEVEL} +{THREAD} {LOGGER}(?::\d+)? - ", 7, 8, holds="] "),
    iso("logback", rf" {THREAD} {LEVEL} +{LOGGER}(?::\d+)? - ", 7, 8, holds="] "),
    iso("log4j", rf" {LEVEL} +{LOGGER}(?::\d+)?(?: -|:) ", 7, 8),
    iso("oslo", OSLO, 7, 8),
    iso("postgresql",
        r"(?: (?:UTC|GMT))? \[\d+(?:-\d+)?\](?: \S{1,128}@\S{1,128})? "
        r"(LOG|DEBUG[1-5]?|INFO|NOTICE|WARNING|ERROR|FATAL|PANIC|STATEMENT|DETAIL|HINT|CONTEXT|QUERY): +", 7,
        holds="] "),
    iso("mysql", r" \d+ \[(System|Note|Warning|ERROR|Error)\] (?:\[MY-\d+\] )?(?:\[(\w{1,64})\] )?", 7, 8,
        holds=" ["),
    iso("windows", rf", {LEVEL} +(\w{{1,32}}) +", 7, 8, holds=", "),
    iso("iso", rf" ?-? ?\[?{LEVEL}\]?[:,]? *(?:- )?", 7),
    iso("syslog-iso", r" ([A-Za-z0-9][\w.-]{0,254}) (?! )([^:\[\] ]{1,64})(?:\[[^\]\s]{0,32}\])?: ", 0, 8),
    iso("iso", r"[ ,|-]*"),
    Pattern("hdfs", "digit", rf"(\d\d)(\d\d)(\d\d) (\d{{6}}) \d+ {LEVEL} ([^\s:]{{1,200}}): ",
            (1, 2, 3, 4, 0, 0, 5, 6)),
    Pattern("spark", "digit", rf"(\d\d)/(\d\d)/(\d\d) {CLOCK} {LEVEL} +{LOGGER}: ",
            (1, 2, 3, 4, 0, 0, 5, 6)),
    Pattern("nginx-error", "digit", rf"(\d{{4}})/(\d\d)/(\d\d) {CLOCK} \[{LEVEL}\] \d+#\d+: ",
            (1, 2, 3, 4, 0, 0, 5, 0)),
    Pattern("go", "digit", rf"(\d{{4}})/(\d\d)/(\d\d) {CLOCK}(?:\.(\d{{1,9}}))? ",
            (1, 2, 3, 4, 5, 0, 0, 0)),
    Pattern("logcat", "digit", rf"(\d\d)-(\d\d) {CLOCK}\.(\d{{1,9}}) +\d+ +\d+ ([VDIWEFA]) ([^:]{{0,200}}?) *: ?",
            (0, 1, 2, 3, 4, 0, 5, 6)),
    Pattern("redis", "digit", rf"\d+:[MCSX] (\d\d) {MONTH} (\d{{4}}) {CLOCK}(?:\.(\d{{1,9}}))? ([.*#-]) ",
            (3, 2, 1, 4, 5, 0, 6, 0), "redis"),
    Pattern("healthapp", "digit",  # its milliseconds are not padded, so two digits of them are no fraction
            r"(\d{4})(\d\d)(\d\d)-(\d{1,2}:\d{1,2}:\d{1,2}):(?:(\d{3})|\d{1,2})\|([^|]{1,200})\|\d+\|",
            (1, 2, 3, 4, 5, 0, 0, 6)),
    Pattern("squid", "digit", r"(\d{9,10}\.\d{3}) +\d+ \S{1,255} [A-Z_]{1,64}/(\d{3}) (?=\d)",
            (0, 0, 0, 1, 0, 0, 2, 0), "http"),
    Pattern("hpc", "digit", r"\d{1,9} \S{1,64} (\S{1,64}) \S{1,64} (\d{9,10}) \d ",
            (0, 0, 0, 2, 0, 0, 0, 1)),
    iso("oslo", OSLO, 7, 8, "letter", r"[\w.-]{1,64}\.log\S{0,64} ", holds=".log"),
    iso("ruby", rf" #\d+\] +{LEVEL} -- ([^:]{{0,100}}): ", 7, 8, "letter", r"[DIWEFA], \[", holds="] "),
    Pattern("bgl", "alert",
            rf"{ALERT}\d{{4}}\.\d\d\.\d\d \S{{1,64}} (\d{{4}})-(\d\d)-(\d\d)-(\d\d\.\d\d\.\d\d)\.(\d{{1,9}}) "
            r"\S{1,64} \S{1,32} (\S{1,64}) (INFO|WARNING|ERROR|SEVERE|FAILURE|FATAL) ",
            (1, 2, 3, 4, 5, 0, 7, 6)),
    Pattern("thunderbird", "alert",
            rf"{ALERT}(\d{{4}})\.\d\d\.\d\d \S{{1,64}} {MONTH} +(\d{{1,2}}) {CLOCK} \S{{1,255}} {TAG}",
            (1, 2, 3, 4, 0, 0, 0, 5)),
    Pattern("proxifier", "bracket", rf"\[(\d\d)\.(\d\d) {CLOCK}\] (\S{{1,128}})(?: \*64)? - ",
            (0, 1, 2, 3, 0, 0, 0, 4)),
    iso("elasticsearch", rf"\]\[{LEVEL} *\]\[([^\]\s]{{1,200}}) *\] ?", 7, 8, "bracket", r"\[", holds="]["),
    iso("celery", rf": {LEVEL}/([^\]]{{1,100}})\] ?", 7, 8, "bracket", r"\["),
    iso("gunicorn", rf"\] \[\d+\] \[{LEVEL}\] ", 7, 0, "bracket", r"\[", holds="] ["),
    Pattern("apache-error", "bracket",
            rf"\[\w{{3}} {MONTH} +(\d{{1,2}}) {CLOCK}(?:\.(\d{{1,9}}))? (\d{{4}})\] \[(?:(\w*):)?(\w+)\] ?",
            (5, 1, 2, 3, 4, 0, 7, 6)),
    iso("bracketed", rf"\](?: \{{([^}}]{{0,200}})\}})? \[?{LEVEL}\]? ?:? ?(?:- )?", 8, 7, "bracket", r"\["),
    iso("bracketed", r"\] ?", 0, 0, "bracket", r"\["),
    Pattern("rfc5424", "angle",
            r"<(\d{1,3})>1 (?:(\d{4})-(\d{2})-(\d{2})T(\d{2}:\d{2}:\d{2})(?:\.(\d{1,9}))?(Z|[+-]\d{2}:\d{2})|-) "
            r"\S{1,255} (?:-|(\S{1,48})) \S{1,128} \S{1,32} "
            rf"(?:-|(?:\[(?:[^\]\\]|\\{ANY}){{0,500}}\]){{1,8}}) ?(?:\ufeff)?",
            (2, 3, 4, 5, 6, 7, 1, 8), "pri"),
    Pattern("rfc3164", "angle", rf"<(\d{{1,3}})>{MONTH} +(\d{{1,2}}) {CLOCK} (\S{{1,255}}) {TAG}",
            (0, 2, 3, 4, 0, 0, 1, 6), "pri"),
    Pattern("rfc3164", "letter", rf"{MONTH} +(\d{{1,2}}) {CLOCK} (\S{{1,255}}) {TAG}",
            (0, 1, 2, 3, 0, 0, 0, 5)),
    Pattern("klog", "letter", rf"([IWEF])(\d\d)(\d\d) {CLOCK}\.(\d{{1,9}}) +\d+ ([^\]\s]{{1,200}})\] ",
            (0, 2, 3, 4, 5, 0, 1, 6)),
    Pattern("python", "letter", r"(DEBUG|INFO|WARNING|ERROR|CRITICAL):([^:\s]{1,200}):",
            (0, 0, 0, 0, 0, 0, 1, 2)),
    Pattern("uvicorn", "letter", r"(TRACE|DEBUG|INFO|WARNING|ERROR|CRITICAL): {2,}",
            (0, 0, 0, 0, 0, 0, 1, 0)),
)  # fmt: skip

ACCESS = Pattern(
    "access",
    "any",
    rf"\S{{1,255}} \S{{1,255}} [^\[\x22]{{1,255}}\[(\d\d)/{MONTH}/(\d{{4}}):{CLOCK} ([+-]\d{{4}})\] "
    rf"(?=\x22(?:[^\x22\\]|\\{ANY}){{0,1800}}\x22 (\d{{3}})(?: |{END}))",
    (3, 2, 1, 4, 0, 5, 6, 0),
    "http",
    '] "',
)
"""Common and combined access logs. After the head come the request, its status and the rest."""

GROUPS = {"digit": "0123456789", "bracket": "[", "angle": "<", "letter": ascii_letters, "alert": f"-{ascii_uppercase}"}
"""Groups by the first character of a line: only patterns of its group are tried."""

JSON, LOGFMT = "json", "logfmt"

LOGFMT_REGEX = (
    rf"(?={ANY}{{0,1500}}?\b(?:level|lvl|severity|msg|message)=)"
    rf"[\w.@/-]{{1,100}}=(?:\x22[^\x22]{{0,500}}\x22|\S{{0,500}})(?: |{END})"
)

NAMES = (*dict.fromkeys(each.name for each in PATTERNS), ACCESS.name, JSON, LOGFMT)
"""Every value that the column `format` can have, null apart."""

TIME_KEYS = ("time", "timestamp", "ts", "@timestamp", "datetime", "date", "asctime", "t", "eventTime")
LEVEL_KEYS = ("level", "severity", "lvl", "levelname", "log.level", "loglevel", "log_level", "l")
MESSAGE_KEYS = ("message", "msg", "event", "text", "short_message", "log")
COMPONENT_KEYS = ("logger", "logger_name", "log.logger", "component", "name", "module", "caller", "source")

LEVELS = {
    "TRACE": ("trace", "finest", "finer", "all", "10"),
    "DEBUG": ("debug", "fine", "config", "verbose", "20", "d", "debug1", "debug2", "debug3", "v"),
    "INFO": ("info", "information", "informational", "notice", "30", "i", "log", "note", "system"),
    "WARN": ("warn", "warning", "40", "w"),
    "ERROR": ("error", "err", "severe", "failure", "50", "e"),
    "FATAL": ("fatal", "crit", "critical", "alert", "emerg", "emergency", "panic", "60", "f", "a", "dpanic"),
}
"""Levels and what they are called elsewhere, in lower case; the numbers are bunyan's and pino's."""

ERRORS = ("ERROR", "FATAL")
REDIS = {".": "debug", "-": "verbose", "*": "notice", "#": "warning"}
SEVERITIES = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
"""Syslog's, by their number (RFC 5424, 6.2.1)."""
