"""Records out of bytes, held to a plain reader; marks over what the topic holds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.ship.follow import Bounds, Follower, Mark, advance
from ottla.ship.lines import Assembler, Record
from ottla.ship.rules import Rule, Starts, Traces

LINES = st.lists(
    st.one_of(
        st.sampled_from(
            [
                b"2015-10-18 18:01:47,978 INFO [main] a.B: c",
                b"\tat com.example.Job.run(Job.java:12)",
                b"Caused by: java.io.IOException: gone",
                b"java.lang.RuntimeException: boom",
                b"Traceback (most recent call last):",
                b'  File "a.py", line 1, in <module>',
                b"ValueError: no",
                b"",
                b"\r",
                b"plain\r",
                "größer als 日本".encode(),
                b"\0\xff\xfe",
                b" ",
                b"y" * 150,
                b"\t" + "ü".encode() * 70,
            ]
        ),
        st.binary(max_size=40).map(lambda raw: raw.replace(b"\n", b"")),
    ),
    max_size=30,
)
BOUNDS = Bounds(record_max=16, lines_max=3)


def cut(content: bytes, sizes: list[int]) -> list[bytes]:
    pieces: list[bytes] = []
    for size in sizes:
        pieces.append(content[:size])
        content = content[size:]
    return [*pieces, content]


def assembled(pieces: list[bytes], rule: Rule | None, record_max: int, lines_max: int) -> list[Record]:
    assembler = Assembler(rule, record_max=record_max, lines_max=lines_max)
    records = [record for piece in pieces for record in assembler.feed(piece)]
    return records + assembler.flush(partial=False) + assembler.flush(partial=True)


def plain_lines(content: bytes) -> list[bytes]:
    lines = content.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def ended(line: bytes, last: bool) -> bytes:
    return line if last else line.removesuffix(b"\r")


@given(LINES, st.booleans(), st.lists(st.integers(0, 60), max_size=20))
def test_each_line_is_a_record_without_a_rule(lines: list[bytes], closed: bool, sizes: list[int]) -> None:
    content = b"\n".join(lines) + (b"\n" if closed and lines else b"")
    records = assembled(cut(content, sizes), None, 1_000, 1_000)
    expected = plain_lines(content)
    assert [record.value for record in records] == [
        ended(line, not content.endswith(b"\n") and number == len(expected)) for number, line in enumerate(expected, 1)
    ]
    assert b"".join(content[record.start : record.end] for record in records) == content
    assert [record.lines for record in records] == [1] * len(expected)


@given(LINES, st.booleans(), st.lists(st.integers(0, 60), max_size=20), st.booleans())
def test_no_byte_is_lost_and_records_are_bounded(
    lines: list[bytes], closed: bool, sizes: list[int], ruled: bool
) -> None:
    content = b"\n".join(lines) + (b"\n" if closed and lines else b"")
    records = assembled(cut(content, sizes), Traces() if ruled else None, 64, 3)
    assert b"".join(content[record.start : record.end] for record in records) == content
    assert all(record.end - record.start <= 64 for record in records)
    assert sum(record.lines for record in records) == len(plain_lines(content))
    joined: list[bytes] = []
    parted = False
    for record in records:
        raw = content[record.start : record.end]
        joined = [*joined[:-1], joined[-1] + raw] if parted else [*joined, raw]
        parted = record.more
    whole = assembled([content], Traces() if ruled else None, 10_000, 10_000)
    last = [content[record.start : record.end] for record in whole]
    assert joined == last or (not content.endswith(b"\n") and b"".join(joined) == b"".join(last))


def values(content: bytes, rule: Rule) -> list[bytes]:
    return [record.value for record in assembled([content], rule, 10_000, 1_000)]


def test_traces_stay_together() -> None:
    java = b"ERROR b\njava.io.IOException: x\n\tat a.b(C.java:1)\nCaused by: d.E\n\t... 3 more\nERROR c\n"
    assert values(java, Traces()) == [java.removesuffix(b"\nERROR c\n"), b"ERROR c"]
    python = (
        b"ERROR:root:failed\nTraceback (most recent call last):\n  File \"a.py\", line 1\n    x()\nKeyError: 'x'\n\n"
        b"During handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n"
        b'  File "a.py", line 3\nmine.Wrong: y\nINFO:root:next\n'
    )
    first, second = values(python, Traces())
    assert first.startswith(b"ERROR:root:failed\nTraceback")
    assert first.endswith(b"mine.Wrong: y")
    assert second == b"INFO:root:next"


def test_records_begin_where_the_pattern_says() -> None:
    assert values(b"> a\nb\n\n> c\n", Starts(b"^>")) == [b"> a\nb\n", b"> c"]


def test_the_end_of_a_line_given_out_before_is_no_record() -> None:
    assembler = Assembler(None, record_max=100, lines_max=10)
    (first,) = assembler.feed(b"half") + assembler.flush(partial=True)
    (second,) = assembler.feed(b"\nnext\n")
    assert (first.value, second.value, second.start) == (b"half", b"next", 5)


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.booleans()), max_size=12), st.data())
def test_what_the_topic_holds_is_not_given_out_again(cuts: list[tuple[int, bool, bool]], choice: st.DataObject) -> None:
    """Any records of a file may be there already: the others are given out, each byte once."""
    content = b"".join(b"%d\n" % 10**size for size, _, _ in cuts)
    ranges, start = [], 0
    for size, there, _ in cuts:
        end = start + size + 2
        if there:
            ranges.append((start, end, False))
        start = end
    mark, islands, _ = advance(Mark("id", "p", "p", 1, 1, 0), ranges)
    follower = Follower(mark, None, Bounds(), islands=islands)
    given_out: list[Record] = []
    while follower.position < len(content):
        size = choice.draw(st.integers(1, 9))
        read = content[follower.position : follower.position + follower.span(size)]
        assert read
        given_out += follower.take(0, read)
    given_out += follower.finish(partial=True)
    assert sorted([(each.start, each.end) for each in given_out] + [each[:2] for each in ranges]) == [
        (at, at + size + 2) for at, (size, _, _) in zip(starts(cuts), cuts, strict=True)
    ]
    for record in given_out:
        follower.acknowledged(record)
    assert follower.mark().offset == len(content)
    assert not follower.scattered


def starts(cuts: list[tuple[int, bool, bool]]) -> list[int]:
    at, found = 0, []
    for size, _, _ in cuts:
        found.append(at)
        at += size + 2
    return found
