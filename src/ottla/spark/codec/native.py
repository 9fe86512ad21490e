"""Compiles the loops of decoder and encoder to machine code: once per machine, kept in files, loaded without the
compiler.

numba needs two to four seconds to compile `decode_kernels.py` or `encode_kernels.py`. Loading them from numba's own
cache costs every Python worker 0.45 s of CPU more than numpy alone does. The machine code is therefore kept as one
object file per module. llvmlite loads such a file in 0.06 s, mostly for its own import.

The caller uses numba's calling convention: `status = loop(address of the result, address of the exception,
*arguments)`. The loops raise nothing.

A file is in the first writable cache directory (`platform/caches.py`). Its name has a digest of the loops' sources, the
processor and its features, and the versions of numba, llvmlite and Python. Its first bytes are a digest of the rest, so
a damaged file is replaced. A file that belongs to another user, or that others may write, is never loaded. The
compiling process holds a lock; other processes wait for the file instead of compiling it too. The file appears complete
(`os.replace`) or not at all.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias

import llvmlite.binding as llvm

from ottla.spark.platform.caches import directories, is_ours

Loop: TypeAlias = Callable[..., int]
"""Takes integers, addresses among them, and gives one. Runs without the GIL."""

ARGUMENTS: dict[str, dict[str, int]] = {
    "decode_kernels": {"scan": 6, "fill": 23},
    "encode_kernels": {"place": 6, "group": 5, "cut": 7, "write": 5},
}
"""By module, the number of arguments of each loop. The module has it too, but importing the module would import
numba."""
SOURCES = ("decode_kernels.py", "decode_layout.py", "encode_kernels.py", "encode_layout.py", "native.py")
_DIGEST_BYTES = 32


@cache
def loops(module: str = "decode_kernels") -> dict[str, Loop]:
    """The loops of a module by name; the first call in a process loads them, the first on a machine compiles them."""
    code = machine_code(module)
    target = _target()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _kept.append(engine)
    return {
        name: _callable(engine.get_function_address(_symbol(name)), count) for name, count in ARGUMENTS[module].items()
    }


_kept: list[llvm.ExecutionEngine] = []
"""Engines own the code they loaded."""


def machine_code(module: str, make: Callable[[str], bytes] | None = None) -> bytes:
    """Return a module's object file, from the cache or compiled now by `make` (default: `compile_loops`)."""
    make = make or compile_loops
    name = f"{module}-{_digest()}.o"
    for directory in directories():
        with contextlib.suppress(OSError):
            path = directory / name
            kept = _read(path)
            if kept is not None:
                return kept
            with _locked(directory / f"{name}.lock"):
                kept = _read(path)  # another process may have compiled it
                return kept if kept is not None else _write(path, make(module))
    return make(module)


def compile_loops(module: str) -> bytes:
    """Compile the loops, which takes seconds; numba is imported only here."""
    import numba

    kernels = import_module(f"ottla.spark.codec.{module}")
    assert ARGUMENTS[module] == {name: len(each.args) for name, each in kernels.SIGNATURES.items()}
    target = _target()
    whole = llvm.parse_assembly("")
    whole.triple = target.triple
    for name, signature in kernels.SIGNATURES.items():
        made = numba.cfunc(signature, error_model="numpy")(getattr(kernels, name))
        part = llvm.parse_assembly(made.inspect_llvm())
        _keep_only(part, made.native_name.removeprefix("cfunc."), _symbol(name), target)
        whole.link_in(part)
    return target.emit_object(whole)


def _symbol(name: str) -> str:
    """A loop's name in the object file; it must not be a C function's, which linker and optimiser treat specially."""
    return f"ottla_{name}"


def _keep_only(module: llvm.ModuleRef, function: str, symbol: str, target: llvm.TargetMachine) -> None:
    """Without numba's wrapper, whose way to raise exceptions needs symbols that only numba has."""
    module.get_function(function).name = symbol
    for each in (*module.functions, *module.global_variables):
        if not each.is_declaration and each.name != symbol:
            each.linkage = "internal"
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(speed_level=3)))


@cache
def _target() -> llvm.TargetMachine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    processor, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=processor, features=features, opt=3, jit=True)


def _callable(address: int, count: int) -> Loop:
    raw = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * count)(address)

    def loop(*arguments: int) -> int:
        result, exception = ctypes.c_int64(), ctypes.c_void_p()
        status = raw(ctypes.byref(result), ctypes.byref(exception), *arguments)
        assert status == 0, f"a loop that raises nothing ended with {status}"
        return result.value

    return loop


def _digest() -> str:
    """Return a digest of everything that the code depends on."""
    digest = hashlib.sha256()
    for part in (
        llvm.get_host_cpu_name(),
        llvm.get_host_cpu_features().flatten(),
        platform.machine(),
        version("numba"),
        version("llvmlite"),
        sys.version,
    ):
        digest.update(part.encode() + b"\0")
    for source in SOURCES:
        digest.update(Path(__file__).with_name(source).read_bytes())
    return digest.hexdigest()[:32]


def _read(path: Path) -> bytes | None:
    """Return the code in the file; None unless the file is complete and only this user may write to it."""
    try:
        with path.open("rb") as file:
            if not is_ours(os.fstat(file.fileno())):
                return None
            kept = file.read()
    except FileNotFoundError:
        return None
    digest, code = kept[:_DIGEST_BYTES], kept[_DIGEST_BYTES:]
    return code if hashlib.sha256(code).digest() == digest else None


def _write(path: Path, code: bytes) -> bytes:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(hashlib.sha256(code).digest() + code)
        os.replace(temporary, path)
    except OSError:  # a full disk: the code is usable without its file
        with contextlib.suppress(OSError):
            os.unlink(temporary)
    return code


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock, so that one process compiles at a time. The system releases the lock of a process that dies."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
