"""Forks the workers of a whole run from one process that has collected every test.

Each worker needs all test files, what they import, and a list of all tests, which takes seconds of CPU. The nursery
makes these once, and the workers share its memory (tests/harness/worker.py). pytest-xdist starts what it takes for a
Python; that is a stand-in, which hands its standard files to the nursery and waits until the worker that got them has
ended.

    python -m tests.harness.nursery LISTENER ARGUMENTS...     # the nursery; it ends when its standard input does
    python nursery.py NAME -u -c CODE                         # a stand-in

Invariant: no thread is lost in a fork that anyone needs. OpenBLAS stops its threads before a fork, and starts them
again. jemalloc, in deltalake, has one that returns memory; its forks have none.
"""

import os
import secrets
import select
import shlex
import signal
import socket
import sys
import warnings

CODE_MAX = 4096


class Nursery:
    """Starts the nursery's process. `command`: what pytest-xdist runs in place of Python."""

    def __init__(self, arguments: list[str]) -> None:
        import subprocess

        name = f"ottla-tests-{secrets.token_hex(8)}"
        self.command = shlex.join([sys.executable, "-I", "-S", __file__, name])
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"\0{name}")
            listener.listen(100)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.harness.nursery", str(listener.fileno()), *arguments],
                stdin=subprocess.PIPE,
                pass_fds=[listener.fileno()],
            )

    def pytest_xdist_getremotemodule(self) -> str:
        """What pytest-xdist executes in a worker: a hook of it, to which this is a plugin."""
        return "from tests.harness.worker import work; work(channel)"

    def close(self) -> None:
        """Return when the nursery and all workers have ended; those that still run are killed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


# ---- the nursery ---------------------------------------------------------------------------------------------------


def nurse(listener: socket.socket) -> str | None:
    """Fork a worker for each stand-in until standard input ends. Returns the code that a worker runs, in the worker."""
    workers: list[int] = []
    while True:
        ready, _, _ = select.select([listener, 0], [], [])
        if 0 in ready:
            break
        stand_in, _ = listener.accept()
        code, files, _, _ = socket.recv_fds(stand_in, CODE_MAX, 3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which OpenBLAS takes care of
            worker = os.fork()
        if not worker:
            listener.close()
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            stand_in.detach()  # stays open as long as this process lives
            return code.decode()
        workers.append(worker)
        stand_in.close()
        for file in files:
            os.close(file)
    for worker in workers:
        os.kill(worker, signal.SIGKILL)  # not yet waited for, so that it is still this process
        os.waitpid(worker, 0)
    return None


def main(listener: socket.socket, arguments: list[str]) -> None:
    import contextlib
    import gc
    import subprocess
    import types

    from tests.harness.collected import collect, warm_up

    archive = subprocess.Popen(
        [sys.executable, "-m", "tests.harness.java_archive"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    gc.disable()
    collect(arguments)
    warm_up()
    archive.wait()  # it has made what is missing, on another core; Spark starts without it too, in more CPU
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = nurse(listener)
    if code is None:
        os._exit(0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv[:] = ["-c"]
    sys.modules["__main__"] = run = types.ModuleType("__main__")
    with contextlib.suppress(SystemExit):
        exec(code, run.__dict__)
    end()


def end() -> None:
    """End as Python does, but free nothing: that would copy all of the memory that the workers share."""
    import atexit
    import threading

    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


# ---- a stand-in ----------------------------------------------------------------------------------------------------


def stand_in(name: str, code: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with its worker
    with socket.socket(socket.AF_UNIX) as nursery:
        nursery.connect(f"\0{name}")
        socket.send_fds(nursery, [code.encode()], [0, 1, 2])
        for file in (0, 1):
            os.close(file)  # whoever reads them learns at once when the worker has ended
        nursery.recv(1)


if __name__ == "__main__":
    if sys.argv[1].isdigit():
        main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
    else:
        stand_in(sys.argv[1], sys.argv[-1])
