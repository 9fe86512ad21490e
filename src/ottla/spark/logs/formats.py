"""The formats of log lines, as a table of patterns.

Knows: what the beginning of a line looks like, up to its message. Does not know: Spark; the patterns are Java's (and,
as far as they go, Python's too). Each is anchored, looks at a line's head alone and has no nested repetition, so that
no line, however long or odd, makes it slow. Where two fit, the first of its group wins: the narrow ones stand first.
"""

from __future__ import annotations

from dataclasses import dataclass

HEAD_MAX = 2048
"""So many characters of a record are looked at for time, level and component."""

SEPARATOR = "\x01"
MATCHED = "\x02"
FIELDS = ("format", "year", "month", "day", "clock", "fraction", "zone", "level", "component")

MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
MONTH = "(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
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
"""What syslog says a message is of: `sshd(pam_unix)[19939]: `."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A format: its name, what its lines begin with (one of GROUPS), a pattern of their head, where the fields are."""

    name: str
    group: str
    regex: str
    fields: tuple[str, ...]
    """year to component, as text with groups ($1)."""

    @property
    def template(self) -> str:
        """What the head is replaced by: the fields, then what follows the head."""
        return SEPARATOR.join([MATCHED + self.name, *self.fields, ""])


def iso(name: str, regex: str, level: str = "", component: str = "", group: str = "digit", before: str = "") -> Pattern:
    """A format that begins with an ISO date; its own groups are numbered from 7."""
    return Pattern(name, group, f"^{before}{ISO}{regex}", ("$1", "$2", "$3", "$4", "$5", "$6", level, component))


PATTERNS = (
    iso("zookeeper", rf" - {LEVEL} +\[(?:[^@]{{0,300}}[^\w$@])?([\w$]+)@\d+\] - ", "$7", "$8"),
    iso("python", rf" ?- {LOGGER} - {LEVEL} - ", "$8", "$7"),
    iso("loguru", rf" \| {LEVEL} *\| ([^ :]{{1,200}}):[^ ]* - ", "$7", "$8"),
    iso("spring", rf" +{LEVEL} \d+ --- (?:{THREAD} ){{1,3}}{LOGGER} *: ", "$7", "$8"),
    iso("hadoop", rf" {LEVEL} +{THREAD} {LOGGER}: ", "$7", "$8"),
    iso("log4j", rf" {LEVEL} +{THREAD} {LOGGER}(?::\d+)? - ", "$7", "$8"),
    iso("logback", rf" {THREAD} {LEVEL} +{LOGGER}(?::\d+)? - ", "$7", "$8"),
    iso("log4j", rf" {LEVEL} +{LOGGER}(?::\d+)?(?: -|:) ", "$7", "$8"),
    iso("iso", rf" ?-? ?\[?{LEVEL}\]?[:,]? *(?:- )?", "$7"),
    iso("syslog-iso", r" ([A-Za-z0-9][\w.-]{0,254}) (?! )([^:\[\] ]{1,64})(?:\[[^\]\s]{0,32}\])?: ", "", "$8"),
    iso("iso", r"[ ,|-]*"),
    Pattern("hdfs", "digit", rf"^(\d\d)(\d\d)(\d\d) (\d\d)(\d\d)(\d\d) \d+ {LEVEL} ([^\s:]{{1,200}}): ",
            ("20$1", "$2", "$3", "$4:$5:$6", "", "", "$7", "$8")),
    Pattern("spark", "digit", rf"^(\d\d)/(\d\d)/(\d\d) {CLOCK} {LEVEL} +{LOGGER}: ",
            ("20$1", "$2", "$3", "$4", "", "", "$5", "$6")),
    Pattern("nginx-error", "digit", rf"^(\d{{4}})/(\d\d)/(\d\d) {CLOCK} \[{LEVEL}\] \d+#\d+: ",
            ("$1", "$2", "$3", "$4", "", "", "$5", "")),
    Pattern("go", "digit", rf"^(\d{{4}})/(\d\d)/(\d\d) {CLOCK}(?:\.(\d{{1,9}}))? ",
            ("$1", "$2", "$3", "$4", "$5", "", "", "")),
    Pattern("apache-error", "bracket",
            rf"^\[\w{{3}} {MONTH} +(\d{{1,2}}) {CLOCK}(?:\.(\d{{1,9}}))? (\d{{4}})\] \[(?:(\w*):)?(\w+)\] ?",
            ("$5", "$1", "$2", "$3", "$4", "", "$7", "$6")),
    iso("bracketed", rf"\](?: \{{([^}}]{{0,200}})\}})? \[?{LEVEL}\]? ?:? ?(?:- )?", "$8", "$7", "bracket", r"\["),
    iso("bracketed", r"\] ?", "", "", "bracket", r"\["),
    Pattern("rfc5424", "angle",
            r"^<(\d{1,3})>1 (?:(\d{4})-(\d{2})-(\d{2})T(\d{2}:\d{2}:\d{2})(?:\.(\d{1,9}))?(Z|[+-]\d{2}:\d{2})|-) "
            r"\S{1,255} (?:-|(\S{1,48})) \S{1,128} \S{1,32} (?:-|(?:\[(?:[^\]\\]|\\.){0,500}\]){1,8}) ?(?:\ufeff)?",
            ("$2", "$3", "$4", "$5", "$6", "$7", "pri$1", "$8")),
    Pattern("rfc3164", "angle", rf"^<(\d{{1,3}})>{MONTH} +(\d{{1,2}}) {CLOCK} (\S{{1,255}}) {TAG}",
            ("", "$2", "$3", "$4", "", "", "pri$1", "$6")),
    Pattern("rfc3164", "letter", rf"^{MONTH} +(\d{{1,2}}) {CLOCK} (\S{{1,255}}) {TAG}",
            ("", "$1", "$2", "$3", "", "", "", "$5")),
    Pattern("klog", "letter", rf"^([IWEF])(\d\d)(\d\d) {CLOCK}\.(\d{{1,9}}) +\d+ ([^\]\s]{{1,200}})\] ",
            ("", "$2", "$3", "$4", "$5", "", "$1", "$6")),
    Pattern("python", "letter", r"^(DEBUG|INFO|WARNING|ERROR|CRITICAL):([^:\s]{1,200}):",
            ("", "", "", "", "", "", "$1", "$2")),
)  # fmt: skip

ACCESS = Pattern(
    "access",
    "any",
    rf"^\S{{1,255}} \S{{1,255}} [^\[\x22]{{1,255}}\[(\d\d)/{MONTH}/(\d{{4}}):{CLOCK} ([+-]\d{{4}})\] "
    r"(?=\x22(?:[^\x22\\]|\\.){0,1800}\x22 (\d{3})(?: |$))",
    ("$3", "$2", "$1", "$4", "", "$5", "http$6", ""),
)
"""Common and combined access logs. What follows the head is the request, its status and the rest."""

GROUPS = {"digit": "[0-9]", "bracket": r"\[", "angle": "<", "letter": "[A-Za-z]"}
"""What the first character of a line says: only patterns of its group are tried."""

JSON, LOGFMT = "json", "logfmt"

LOGFMT_REGEX = (
    r"^(?=.{0,1500}?\b(?:level|lvl|severity|msg|message)=)[\w.@/-]{1,100}=(?:\x22[^\x22]{0,500}\x22|\S{0,500})(?: |$)"
)

NAMES = (*dict.fromkeys(each.name for each in PATTERNS), ACCESS.name, JSON, LOGFMT)
"""Every value that the column `format` can have, null apart."""

TIME_KEYS = ("time", "timestamp", "ts", "@timestamp", "datetime", "date", "asctime", "t", "eventTime")
LEVEL_KEYS = ("level", "severity", "lvl", "levelname", "log.level", "loglevel", "log_level", "l")
MESSAGE_KEYS = ("message", "msg", "event", "text", "short_message", "log")
COMPONENT_KEYS = ("logger", "logger_name", "log.logger", "component", "name", "module", "caller", "source")

LEVELS = {
    "TRACE": ("trace", "finest", "finer", "all", "10"),
    "DEBUG": ("debug", "fine", "config", "verbose", "20", "d", "debug1", "debug2", "debug3"),
    "INFO": ("info", "information", "informational", "notice", "30", "i", "log"),
    "WARN": ("warn", "warning", "40", "w"),
    "ERROR": ("error", "err", "severe", "50", "e"),
    "FATAL": ("fatal", "crit", "critical", "alert", "emerg", "emergency", "panic", "60", "f", "dpanic"),
}
"""Levels and what they are called elsewhere, in lower case; the numbers are bunyan's and pino's."""

ERRORS = ("ERROR", "FATAL")
SEVERITIES = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
"""Syslog's, by their number (RFC 5424, 6.2.1)."""
