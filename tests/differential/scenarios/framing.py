"""ApiVersions, its fallback, and frames that are not what they claim."""

from __future__ import annotations

import struct

from ..stage import Stage

HEARTBEAT = struct.pack(">hih", 0, 1, 0)
"""A Heartbeat v0 with empty names."""


def header(key: int, version: int, correlation: int = 7, client: bytes | None = b"c", flexible: bool = False) -> bytes:
    text = struct.pack(">h", -1) if client is None else struct.pack(">h", len(client)) + client
    return struct.pack(">hhi", key, version, correlation) + text + (b"\x00" if flexible else b"")


def api_versions(s: Stage) -> None:
    """Every version; the table itself differs from broker to broker, so only what this project serves is compared."""

    def own(answer: dict) -> dict:
        answer = dict(answer)
        answer["api_keys"] = [k for k in answer.get("api_keys", []) if k.get("api_key", 0) in SERVED]
        for name in ("supported_features", "finalized_features", "finalized_features_epoch"):
            answer.pop(name, None)
        return answer

    software = {"client_software_name": "differential", "client_software_version": "1.0"}
    s.ask("table", "ApiVersions", "all", keep=own, **software)
    s.ask("illegal software name", "ApiVersions", "3-4", keep=own, **software | {"client_software_name": "-bad-"})
    s.ask("empty software name", "ApiVersions", "3-4", keep=own, **software | {"client_software_name": ""})
    s.ask("illegal software version", "ApiVersions", "3-4", keep=own, **software | {"client_software_version": "1 0"})


SERVED = {*range(4), *range(8, 17), *range(18, 24), 32, 33, 35, 37, 42, 44, 47, 60, 61, 74, 75}
"""The API keys whose ranges are compared."""


def fallback(s: Stage) -> None:
    """A version of ApiVersions that nobody knows is answered with version 0 and UNSUPPORTED_VERSION."""
    for version in (5, 99, 32767):
        s.raw(
            f"ApiVersions v{version}", header(18, version, flexible=True) + b"\x02a\x02b\x00", read=("ApiVersions", 0)
        )


def fallback_table(s: Stage) -> None:
    """The connection stays good after a fallback."""
    s.raw("too new", header(18, 77, flexible=True) + b"\x02a\x02b\x00", on="x", read=("ApiVersions", 0))
    s.ask("then a good one", "Heartbeat", 4, on="x", group_id=s.group(), generation_id=1, member_id="nobody")


def frames_that_close(s: Stage) -> None:
    """What makes a broker hang up."""
    s.raw("unknown api key", header(999, 0))
    s.raw("negative api key", header(-1, 0))
    s.raw("unsupported version of Metadata", header(3, 99, flexible=True) + b"\x00\x00")
    s.raw("version below the lowest (Fetch 3)", header(1, 3) + b"\x00" * 40)
    s.raw("version below the lowest (Produce 2)", header(0, 2) + b"\x00" * 40)
    s.raw("negative version", header(3, -1))
    s.raw("negative version of ApiVersions", header(18, -1))
    s.raw("empty frame", b"")
    s.raw("header cut short", b"\x00\x03\x00\x01")
    s.raw("no client id at all", struct.pack(">hhi", 3, 1, 7))
    s.raw("body cut short", header(3, 1) + b"\x00\x00")
    s.raw("array longer than the frame", header(3, 1) + struct.pack(">i", 1_000_000))
    s.raw("string longer than the frame", header(12, 0) + struct.pack(">h", 3000) + b"abc")
    s.raw("negative length of a string that may not be null", header(12, 0) + struct.pack(">hih", -1, 1, 0))
    s.raw("client id longer than the frame", struct.pack(">hhih", 3, 1, 7, 500) + b"abc")
    s.raw("client id not UTF-8", header(12, 0, client=b"\xff\xfe") + HEARTBEAT, read=("Heartbeat", 0))


def frames_that_pass(s: Stage) -> None:
    """Oddities that are accepted."""
    s.raw("null client id", header(12, 0, client=None) + HEARTBEAT, read=("Heartbeat", 0))
    s.raw("empty client id", header(12, 0, client=b"") + HEARTBEAT, read=("Heartbeat", 0))
    s.raw("bytes after the body", header(12, 0) + HEARTBEAT + b"trailing", read=("Heartbeat", 0))
    tags = b"\x02" + b"\x07\x01x" + b"\x63\x00"
    body = b"\x02g" + struct.pack(">i", 1) + b"\x02m" + b"\x00"
    s.raw("unknown tags in header and body", header(12, 4) + tags + body + b"\x01\x05\x02yz", read=None)


def pipelining(s: Stage) -> None:
    """Answers come in the order of the requests, even when a later one is ready first."""
    topic = s.create()
    slow = s.post(
        "Fetch",
        12,
        max_wait_ms=400,
        min_bytes=1,
        max_bytes=1000,
        topics=[{"topic": topic, "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}]}],
    )
    quick = s.post("ApiVersions", 0)
    s.take("first the fetch that waits", slow)
    s.take("then the quick one", quick, keep=lambda a: a["error_code"])
