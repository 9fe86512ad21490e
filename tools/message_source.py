"""The text of a generated message class.

One class per struct for all its versions. `encode` and `decode` are straight lines: one block for the flexible
versions and one for the older, no loop over fields, adjacent fields of fixed width in one struct call. Where versions
differ, a field or a run of fixed fields becomes an if chain over the version.

A tagged field that is a struct and that Kafka defaults to a struct of defaults is None when absent: comparing and
building such structs for every partition of a Fetch response would cost more than the partition.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tools.message_schemas import NEVER, Field, Message, Struct

_FORMAT = {
    "bool": "?", "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q", "float64": "d", "uuid": "16s",
}  # fmt: skip
_SIZE = {"bool": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "int64": 8, "float64": 8, "uuid": 16}
_PYTHON = {"bool": "bool", "float64": "float", "string": "str", "bytes": "bytes", "records": "Buffer", "uuid": "bytes"}

Range = tuple[int, int]

_PYRIGHT = [
    "# A field that may be null in some versions is written as not null in the others: who builds the message knows.",
    "# pyright: basic, reportOptionalIterable=false, reportOptionalMemberAccess=false, reportArgumentType=false",
]


@dataclass(slots=True)
class Module:
    """What the module's classes turned out to need at its head."""

    wire: set[str] = field(default_factory=set[str])
    unpackers: set[str] = field(default_factory=set[str])
    packers: set[str] = field(default_factory=set[str])
    many: set[str] = field(default_factory=set[str])

    def use(self, name: str) -> str:
        self.wire.add(name)
        return name

    def unpack(self, fmt: str) -> str:
        self.unpackers.add(fmt)
        return f"_unpack_{_identifier(fmt)}"

    def pack(self, fmt: str) -> str:
        self.packers.add(fmt)
        return f"_pack_{_identifier(fmt)}"

    def unpack_many(self, fmt: str) -> str:
        self.many.add(f'_unpack_many_{fmt} = {self.use("unpackers_of")}("{fmt}")')
        return f"_unpack_many_{fmt}"

    def pack_many(self, fmt: str) -> str:
        self.many.add(f'_pack_many_{fmt} = {self.use("packers_of")}("{fmt}")')
        return f"_pack_many_{fmt}"


def _identifier(fmt: str) -> str:
    return fmt.replace("?", "o").replace("16s", "u").replace("H", "w")


@dataclass(slots=True)
class Block:
    """One of the two halves of a method: the versions it is for, and how they encode."""

    module: Module
    structs: dict[str, Struct]
    versions: Range
    flexible: bool

    def reader(self, kind: str, nullable: bool) -> str:
        return self.module.use(f"read_{'compact_' * self.flexible}{'nullable_' * nullable}{kind}")

    def writer(self, kind: str, nullable: bool) -> str:
        kind = "bytes" if kind == "records" else kind
        return self.module.use(f"write_{'compact_' * self.flexible}{'nullable_' * nullable}{kind}")


# ---- versions ------------------------------------------------------------------------------------------------------


def _overlap(a: Range, b: Range) -> Range | None:
    low, high = max(a[0], b[0]), min(a[1], b[1])
    return (low, high) if low <= high else None


def _pieces(fields: list[Field], versions: Range) -> list[tuple[Range, list[Field], list[bool]]]:
    """Cut `versions` where one of the fields appears, goes or changes its nullability, newest piece first."""
    pieces: list[tuple[Range, list[Field], list[bool]]] = []
    for version in range(versions[1], versions[0] - 1, -1):
        present = [f for f in fields if f.versions[0] <= version <= f.versions[1]]
        nullable = [f.nullable is not None and f.nullable[0] <= version <= f.nullable[1] for f in present]
        if pieces and pieces[-1][1] == present and pieces[-1][2] == nullable:
            pieces[-1] = ((version, pieces[-1][0][1]), present, nullable)
        else:
            pieces.append(((version, version), present, nullable))
    return pieces


def _chain(bodies: list[tuple[Range, list[str]]]) -> list[str]:
    """One test per piece of the versions, newest piece first; no test at all where all versions agree."""
    if len(bodies) == 1:
        return bodies[0][1]
    if bodies[0][1]:
        tested = [(f"version >= {low}", body) for (low, _), body in bodies]
    elif bodies[-1][1]:
        tested = [(f"version <= {high}", body) for (_, high), body in reversed(bodies)]
    else:
        tested = [(f"{low} <= version <= {high}", body) for (low, high), body in bodies if body]
    whole = bool(bodies[0][1] or bodies[-1][1]) and bool(tested[-1][1])
    while not tested[-1][1]:
        tested.pop()
    lines: list[str] = []
    for number, (test, body) in enumerate(tested):
        last = whole and number == len(tested) - 1
        lines.append("else:" if last else f"{'elif' if number else 'if'} {test}:")
        lines += _indent(body or ["pass"])
    return lines


def _indent(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]


# ---- shapes and defaults -------------------------------------------------------------------------------------------


def _is_fixed(f: Field) -> bool:
    return f.kind in _SIZE and not f.array


def _absent_is_none(f: Field) -> bool:
    return f.tag is not None and f.kind == "struct" and not f.array and f.nullable is None


def _annotation(f: Field) -> str:
    text = f.struct if f.struct is not None else _PYTHON.get(f.kind, "int")
    text = f"list[{text}]" if f.array else text
    assert text is not None
    return f"{text} | None" if f.nullable is not None or f.kind == "records" or _absent_is_none(f) else text


def _literal(f: Field, module: Module) -> str:
    """The default as an expression that makes a fresh value."""
    if f.default is None or _absent_is_none(f):
        return "None"
    if f.array:
        return "[]"
    if f.default == "struct" and f.kind == "struct":
        return f"{f.struct}()"
    if f.kind == "uuid":
        return module.use("ZERO_UUID")
    if f.kind == "string":
        return f'"{f.default}"'
    return repr(f.default)


def _minimum(block: Block, struct: Struct) -> int:
    """The fewest bytes a struct of this block can take: what an array's count is held against."""
    total = 1 if block.flexible else 0
    for f in struct.fields:
        if f.tag is not None or not (f.versions[0] <= block.versions[0] and f.versions[1] >= block.versions[1]):
            continue
        if f.array or f.kind in ("bytes", "records"):
            total += 1 if block.flexible else 4
        elif f.kind == "string":
            total += 1 if block.flexible else 2
        elif f.kind == "struct":
            total += 1 if f.nullable else _minimum(block, block.structs[f.struct or ""])
        else:
            total += _SIZE[f.kind]
    return max(total, 1)


def _runs(fields: list[Field]) -> list[list[Field]]:
    """Neighbours of fixed width together, every other field alone."""
    runs: list[list[Field]] = []
    for f in fields:
        if runs and _is_fixed(f) and _is_fixed(runs[-1][-1]):
            runs[-1].append(f)
        else:
            runs.append([f])
    return runs


# ---- decoding ------------------------------------------------------------------------------------------------------


def _decode_fixed(block: Block, fields: list[Field]) -> list[str]:
    if not fields:
        return []
    targets = ", ".join(f"self.{f.name}" for f in fields)
    unpack = block.module.unpack("".join(_FORMAT[f.kind] for f in fields))
    size = sum(_SIZE[f.kind] for f in fields)
    if len(fields) == 1:
        targets = f"({targets},)"
    line = f"{targets} = {unpack}(view, pos)"
    if len(line) > 100:
        return ["(", *[f"    self.{f.name}," for f in fields], f") = {unpack}(view, pos)", f"pos += {size}"]
    return [line, f"pos += {size}"]


def _decode_count(block: Block, element_size: int, checked: bool, null: list[str], body: list[str]) -> list[str]:
    """Read an array's count into `count`, then `null` or `body`.

    A count of one byte is read in place and needs no check: 126 elements claim nothing before they are read.
    `checked` says that the body relies on the elements being there.
    """
    use = block.module.use
    if not block.flexible or checked:
        read = use("read_compact_array_length" if block.flexible else "read_array_length")
        lines = [f"count, pos = {read}(view, pos, {element_size})"]
    else:
        read = use("read_compact_array_length")
        lines = [
            "count = view[pos] - 1",
            "pos += 1",
            "if count > 126:",
            f"    count, pos = {read}(view, pos - 1, {element_size})",
        ]
    if null[0].startswith("raise"):
        return [*lines, "if count < 0:", *_indent(null), *body]
    return [*lines, "if count < 0:", *_indent(null), "else:", *_indent(body)]


def _decode_array(block: Block, f: Field, nullable: bool) -> list[str]:
    module = block.module
    size, one, checked = _SIZE.get(f.kind, 0), "", False
    if f.kind == "struct":
        size = _minimum(block, block.structs[f.struct or ""])
        one = f"value, pos = {f.struct}.decode(view, pos, version)"
    elif not size:
        size = 1 if block.flexible else 2 if f.kind == "string" else 4
        one = f"value, pos = {block.reader(f.kind, False)}(view, pos)"
    if one:
        body = [
            "values = []",
            "for _ in range(count):",
            f"    {one}",
            "    values.append(value)",
            f"self.{f.name} = values",
        ]
    elif f.kind == "uuid":
        checked = True
        body = [f"self.{f.name} = {module.use('read_uuids')}(view, pos, count)", f"pos += {size} * count"]
    else:
        module.wire.add("unpack_from")
        fmt = _FORMAT[f.kind]
        body = [
            f"if count < {module.use('MANY')}:",
            f"    self.{f.name} = list({module.unpack_many(fmt)}[count](view, pos))",
            "else:",
            f'    self.{f.name} = list(unpack_from(f">{{count}}{fmt}", view, pos))',
            f"pos += {size} * count",
        ]
    null = [f"self.{f.name} = None"] if nullable else [f"raise {module.use('null_array')}(pos)"]
    return _decode_count(block, size, checked, null, body)


def _decode_compact_string(block: Block, f: Field, nullable: bool) -> list[str]:
    """A string of less than 127 bytes is read in place; anything else, also what is wrong, by the function."""
    return [
        "length = view[pos]",
        "end = pos + length",
        "if 0 < length < 128 and end <= len(view):",
        f"    self.{f.name} = view[pos + 1 : end].tobytes().decode()",
        "    pos = end",
        *(["elif length == 0:", f"    self.{f.name} = None", "    pos += 1"] if nullable else []),
        "else:",
        f"    self.{f.name}, pos = {block.reader('string', nullable)}(view, pos)",
    ]


def _decode_value(block: Block, f: Field, nullable: bool, in_tag: bool = False) -> list[str]:
    if f.array:
        return _decode_array(block, f, nullable)
    if f.kind == "struct":
        one = f"self.{f.name}, pos = {f.struct}.decode(view, pos, version)"
        if not nullable:
            return [one]
        # KIP-893: a byte before the struct; inside a tagged field Kafka writes it as an unsigned varint
        test = "view[pos] == 0" if in_tag else "view[pos] > 127"
        return [f"if {test}:", f"    self.{f.name} = None", "    pos += 1", "else:", "    pos += 1", f"    {one}"]
    if f.kind in _SIZE:
        return _decode_fixed(block, [f])
    if f.kind == "string" and block.flexible and not in_tag:
        return _decode_compact_string(block, f, nullable)
    return [f"self.{f.name}, pos = {block.reader(f.kind, nullable)}(view, pos)"]


def _decode_run(block: Block, run: list[Field]) -> list[str]:
    bodies: list[tuple[Range, list[str]]] = []
    for versions, present, nullable in _pieces(run, block.versions):
        absent = [f"self.{f.name} = {_literal(f, block.module)}" for f in run if f not in present]
        if _is_fixed(run[0]):
            body = _decode_fixed(block, present)
        else:
            body = _decode_value(block, run[0], nullable[0]) if present else []
        bodies.append((versions, body + absent))
    return _chain(bodies)


def _decode_tags(block: Block, struct: Struct) -> list[str]:
    tagged = [f for f in struct.fields if f.tag is not None and _overlap(f.versions, block.versions)]
    use = block.module.use
    if not tagged:
        return ["if view[pos]:", f"    pos = {use('skip_tags')}(view, pos)", "else:", "    pos += 1"]
    cases: list[str] = []
    for f in sorted(tagged, key=lambda f: f.tag or 0):
        since = "" if f.versions[0] <= block.versions[0] else f" and version >= {f.versions[0]}"
        cases.append(f"{'elif' if cases else 'if'} tag == {f.tag}{since}:")
        nullable = _overlap(f.nullable, block.versions) is not None if f.nullable else False
        cases += _indent(_decode_value(block, f, nullable, in_tag=True))
    loop = [
        f"tag, pos, end = {use('read_tag')}(view, pos)",
        *cases,
        "else:",
        "    pos = end",
        "if pos != end:",
        f"    raise {use('bad_tag')}(tag, end)",
    ]
    return [
        *[f"self.{f.name} = {_literal(f, block.module)}" for f in tagged],
        "if view[pos]:",
        f"    count, pos = {use('read_tag_count')}(view, pos)",
        "    for _ in range(count):",
        *_indent(_indent(loop)),
        "else:",
        "    pos += 1",
    ]


def _decode_block(block: Block, struct: Struct) -> list[str]:
    lines: list[str] = []
    for f in struct.fields:
        if _overlap(f.versions, block.versions) is None:
            lines.append(f"self.{f.name} = {_literal(f, block.module)}")
    here = [f for f in struct.fields if f.tag is None and _overlap(f.versions, block.versions)]
    for run in _runs(here):
        lines += _decode_run(block, run)
    return lines + (_decode_tags(block, struct) if block.flexible else [])


# ---- encoding ------------------------------------------------------------------------------------------------------


def _encode_fixed(block: Block, fields: list[Field], out: str = "out") -> list[str]:
    if not fields:
        return []
    if [f.kind for f in fields] == ["bool"]:
        return [f"{out}.append(1 if self.{fields[0].name} else 0)"]
    if [f.kind for f in fields] == ["uuid"]:
        return [f"{out} += self.{fields[0].name}"]
    pack = block.module.pack("".join(_FORMAT[f.kind] for f in fields))
    line = f"{out} += {pack}({', '.join(f'self.{f.name}' for f in fields)})"
    if len(line) > 100:
        return [f"{out} += {pack}(", *[f"    self.{f.name}," for f in fields], ")"]
    return [line]


def _encode_count(block: Block, name: str, out: str) -> list[str]:
    if not block.flexible:
        return [f"{block.module.use('write_array_length')}({out}, len(self.{name}))"]
    return [
        f"count = len(self.{name}) + 1",
        "if count < 128:",
        f"    {out}.append(count)",
        "else:",
        f"    {block.module.use('write_uvarint')}({out}, count)",
    ]


def _encode_value(block: Block, f: Field, nullable: bool, out: str = "out", in_tag: bool = False) -> list[str]:
    name = f.name
    if f.array:
        if f.kind == "struct":
            body = [f"for value in self.{name}:", f"    value.encode({out}, version)"]
        elif f.kind == "uuid":
            body = [f'{out} += b"".join(self.{name})']
        elif f.kind in _SIZE:
            block.module.wire.add("pack")
            fmt = _FORMAT[f.kind]
            body = [
                f"if len(self.{name}) < {block.module.use('MANY')}:",
                f"    {out} += {block.module.pack_many(fmt)}[len(self.{name})](*self.{name})",
                "else:",
                f'    {out} += pack(f">{{len(self.{name})}}{fmt}", *self.{name})',
            ]
        else:
            body = [f"for value in self.{name}:", f"    {block.writer(f.kind, False)}({out}, value)"]
        body = [*_encode_count(block, name, out), *body]
        null = f"{out}.append(0)" if block.flexible else f'{out} += b"\\xff\\xff\\xff\\xff"'
        return [f"if self.{name} is None:", f"    {null}", "else:", *_indent(body)] if nullable else body
    if f.kind == "struct":
        one = f"self.{name}.encode({out}, version)"
        if not nullable:
            return [one]
        null = "0" if in_tag else "255"
        return [f"if self.{name} is None:", f"    {out}.append({null})", "else:", f"    {out}.append(1)", f"    {one}"]
    if f.kind in _SIZE:
        return _encode_fixed(block, [f], out)
    write = f"{block.writer(f.kind, nullable)}({out}, self.{name})"
    if f.kind == "string" and block.flexible and not nullable and not in_tag:
        return [
            f"text = self.{name}.encode()",
            "if len(text) < 127:",
            "    out.append(len(text) + 1)",
            "    out += text",
            "else:",
            f"    {write}",
        ]
    return [write]


def _encode_run(block: Block, run: list[Field]) -> list[str]:
    bodies: list[tuple[Range, list[str]]] = []
    for versions, present, nullable in _pieces(run, block.versions):
        if _is_fixed(run[0]):
            body = _encode_fixed(block, present)
        else:
            body = _encode_value(block, run[0], nullable[0]) if present else []
        bodies.append((versions, body))
    return _chain(bodies)


def _has_value(block: Block, f: Field) -> str:
    """The test whether a tagged field differs from its default."""
    name = f"self.{f.name}"
    if _absent_is_none(f):
        inner = block.structs[f.struct or ""].fields
        parts = [f"{name}.{g.name} != {_literal(g, block.module)}" for g in inner]
        return f"{name} is not None and ({' or '.join(parts)})"
    if f.kind == "struct" and not f.array:
        return f"{name} != {_literal(f, block.module)}"
    if f.default is None:
        return f"{name} is not None"
    if f.array:
        return f"{name} is None or {name}" if f.nullable else name
    if f.kind == "bool":
        return f"not {name}" if f.default else name
    return f"{name} != {_literal(f, block.module)}"


def _encode_tags(block: Block, struct: Struct) -> list[str]:
    tagged = [f for f in struct.fields if f.tag is not None and _overlap(f.versions, block.versions)]
    if not tagged:
        return ["out.append(0)"]
    lines = ["tagged: list[tuple[int, bytearray]] = []"]
    for f in sorted(tagged, key=lambda f: f.tag or 0):
        test = _has_value(block, f)
        if f.versions[0] > block.versions[0]:
            test = f"version >= {f.versions[0]} and ({test})"
        nullable = f.nullable is not None
        body = ["part = bytearray()", *_encode_value(block, f, nullable, "part", in_tag=True)]
        lines += [f"if {test}:", *_indent([*body, f"tagged.append(({f.tag}, part))"])]
    return [
        *lines,
        "if tagged:",
        f"    {block.module.use('write_tags')}(out, tagged)",
        "else:",
        "    out.append(0)",
    ]


def _encode_block(block: Block, struct: Struct) -> list[str]:
    lines: list[str] = []
    here = [f for f in struct.fields if f.tag is None and _overlap(f.versions, block.versions)]
    for run in _runs(here):
        lines += _encode_run(block, run)
    return lines + (_encode_tags(block, struct) if block.flexible else [])


# ---- a class and a module ------------------------------------------------------------------------------------------


def _blocks(module: Module, message: Message) -> list[Block]:
    structs = {s.name: s for s in message.structs}
    low, high = message.versions
    since = message.flexible_since
    blocks: list[Block] = []
    if since <= high:
        blocks.append(Block(module, structs, (max(low, since), high), True))
    if low < since:
        blocks.append(Block(module, structs, (low, min(high, since - 1)), False))
    return blocks


def _reach(message: Message) -> dict[str, Range]:
    """The versions in which each struct can be met."""
    reach: dict[str, Range] = {message.top.name: message.versions}
    for struct in reversed(message.structs):
        for f in struct.fields:
            if f.struct is not None:
                met = _overlap(f.versions, reach[struct.name])
                if met is not None:
                    known = reach.get(f.struct, met)
                    reach[f.struct] = (min(known[0], met[0]), max(known[1], met[1]))
    return reach


def _by_block(blocks: list[Block], reach: Range, bodies: list[list[str]]) -> list[str]:
    """The two halves of a method, or the one that this struct's versions need."""
    halves = [(b, body) for b, body in zip(blocks, bodies, strict=True) if _overlap(b.versions, reach)]
    if len(halves) == 1:
        return halves[0][1]
    (new, first), (_, second) = halves
    return [f"if version >= {new.versions[0]}:", *_indent(first or ["pass"]), "else:", *_indent(second or ["pass"])]


def _narrow(blocks: list[Block], reach: Range) -> list[Block]:
    """The blocks cut to the versions of one struct."""
    return [
        Block(b.module, b.structs, _overlap(b.versions, reach) or b.versions, b.flexible)
        for b in blocks
    ]  # fmt: skip


def _init(struct: Struct, module: Module) -> list[str]:
    if not struct.fields:
        return ["def __init__(self) -> None:", "    pass"]
    lines = ["def __init__(", "    self,"]
    body: list[str] = []
    for f in struct.fields:
        literal = _literal(f, module)
        kind = _annotation(f)
        if literal == "[]":
            literal = module.use("EMPTY")
            body.append(f"self.{f.name} = [] if {f.name} is EMPTY else {f.name}")
        elif literal.endswith("()") and f.nullable is None:
            literal, kind = "None", f"{kind} | None"
            body.append(f"self.{f.name} = {f.struct}() if {f.name} is None else {f.name}")
        elif literal.endswith("()"):
            literal = module.use("UNSET")
            body.append(f"self.{f.name} = {f.struct}() if {f.name} is UNSET else {f.name}")
        else:
            body.append(f"self.{f.name} = {f.name}")
        lines.append(f"    {f.name}: {kind} = {literal},")
    return [*lines, ") -> None:", *_indent(body)]


def _ranges(f: Field, message: Message) -> str:
    def text(versions: Range) -> str:
        low, high = versions
        return f"{low}+" if high == message.versions[1] else f"{low}" if low == high else f"{low}-{high}"

    notes: list[str] = []
    if f.versions != message.versions:
        notes.append(text(f.versions))
    if f.nullable is not None and f.nullable != f.versions:
        notes.append(f"null {text(f.nullable)}")
    if f.tag is not None:
        notes.append(f"tag {f.tag}")
    return f"  # {', '.join(notes)}" if notes else ""


def class_source(message: Message, struct: Struct, module: Module) -> list[str]:
    top = struct is message.top
    reach = _reach(message).get(struct.name, message.versions)
    blocks = _narrow(_blocks(module, message), reach)
    decode = _by_block(blocks, reach, [_decode_block(b, struct) for b in blocks])
    encode = _by_block(blocks, reach, [_encode_block(b, struct) for b in blocks])
    body: list[str] = []
    if top:
        since = module.use("NEVER_FLEXIBLE") if message.flexible_since >= NEVER else message.flexible_since
        body += [
            f"{'RECORD_TYPE' if message.topic else 'API_KEY'} = {-1 if message.key is None else message.key}",
            f"MIN_VERSION = {message.versions[0]}",
            f"MAX_VERSION = {message.versions[1]}",
            f"FLEXIBLE_SINCE = {since}",
        ]
    names = ", ".join(f'"{f.name}"' for f in struct.fields) + ("," if len(struct.fields) == 1 else "")
    slots = f"__slots__ = ({names})"
    if len(slots) > 112:
        body += ["__slots__ = (", *[f'    "{f.name}",' for f in struct.fields], ")"]
    else:
        body.append(slots)
    body += [f"{f.name}: {_annotation(f)}{_ranges(f, message)}" for f in struct.fields]
    body += ["", *_init(struct, module), ""]
    body += ["def encode(self, out: bytearray, version: int) -> None:", *_indent(encode or ["pass"]), ""]
    read = [f"self = _new({struct.name})", *decode, "return self, pos"]
    if top:
        error = module.use("MalformedFrameError")
        short = module.use("SHORT_INPUT")
        read = [
            "if type(view) is not memoryview:",
            "    view = memoryview(view)",
            "try:",
            *_indent(read),
            f"except {short} as error:",
            f'    raise {error}(f"{message.name} v{{version}} is cut short or holds bad text") from error',
        ]
    view = module.use("Buffer") if top else "memoryview"
    body += [
        "@staticmethod",
        f"def decode(view: {view}, pos: int, version: int) -> tuple[{struct.name}, int]:",
        *_indent(read),
    ]
    base = module.use("Message" if top else "Struct")
    return [f"class {struct.name}({base}):", *[line.rstrip() for line in _indent(body)]]


def _docstring(messages: list[Message]) -> list[str]:
    names = " and ".join(m.name for m in messages)
    low, high = messages[-1].versions
    lines = [f'"""{names}, versions {low} to {high}.', "", "GENERATED by tools/generate_messages.py; do not edit."]
    if messages[0].renamed:
        lines.append("Request... and Response... stand before the names of structs that both messages have.")
    return [*lines, '"""']


def module_source(messages: list[Message]) -> str:
    """The text of one module: its messages and all structs inside them."""
    module = Module()
    classes = [class_source(m, s, module) for m in messages for s in m.structs]
    lines = [*_docstring(messages), "", *_PYRIGHT, "", "from __future__ import annotations", ""]
    names = sorted(name for name in ("pack", "unpack_from") if name in module.wire)
    if module.packers or module.unpackers:
        names.insert(0, "Struct as Format")
    if names:
        lines += [f"from struct import {', '.join(names)}", ""]
    imported = sorted(module.wire - {"pack", "unpack_from", "MalformedFrameError"}, key=lambda n: (not n.isupper(), n))
    imported.sort(key=lambda n: (0 if n.isupper() else 1 if n[0].isupper() else 2, n))
    if "MalformedFrameError" in module.wire:
        lines.append("from ottla.protocol.errors import MalformedFrameError")
    lines += ["from ottla.protocol.wire import (", *[f"    {name}," for name in imported], ")", ""]
    lines.append("_new = object.__new__")
    lines += [f'_unpack_{_identifier(fmt)} = Format(">{fmt}").unpack_from' for fmt in sorted(module.unpackers)]
    lines += [f'_pack_{_identifier(fmt)} = Format(">{fmt}").pack' for fmt in sorted(module.packers)]
    lines += sorted(module.many)
    for text in classes:
        lines += ["", "", *text]
    return "\n".join(lines) + "\n"
