"""A process that has imported torch, but not goflat, and forks a child for each piece of code.

`import torch` takes seconds; a fork of a process that has done it takes none. Run as a program it
answers lines of JSON on stdin: {"code", "timeout_s"} with {"status", "output"}.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from typing import IO, Any


class Zygote:
    """The parent's end."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore::DeprecationWarning", __file__],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str, timeout_s: float) -> tuple[int, str]:
        """Run `code` in a child; return its exit status, -signal if it was killed, and output."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"code": code, "timeout_s": timeout_s}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return answer["status"], answer["output"]

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def serve() -> None:
    """Answer requests until stdin ends."""
    import torch  # noqa: F401 - what the children are spared

    for line in sys.stdin:
        print(json.dumps(answer(**json.loads(line))), flush=True)


def answer(code: str, timeout_s: float) -> dict[str, Any]:
    """Fork a child for `code` and wait for it."""
    with tempfile.TemporaryFile("w+") as output:
        pid = os.fork()
        if pid == 0:
            become(code, output)
        status = wait(pid, timeout_s)
        output.seek(0)
        return {"status": os.waitstatus_to_exitcode(status), "output": output.read()}


def become(code: str, output: IO[str]) -> None:
    """Run `code` and end this process, output and all, without the parent's exit handlers."""
    os.setsid()  # a group of its own, so that its children can be ended with it
    for stream in 1, 2:
        os.dup2(output.fileno(), stream)
    os.close(0)
    status = 0
    try:
        exec(compile(code, "<child>", "exec"), {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def wait(pid: int, timeout_s: float) -> int:
    """Wait for `pid`, and end its whole group when time is up."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.005)
    os.killpg(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


if __name__ == "__main__":
    serve()
