"""A command as processes forked from one that has imported it: each has flags of its own and starts
at once. Run as a program with a module's name, this file is that one: it reads a line of JSON for
each process and answers with one."""

import json
import os
import resource
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Ended(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    stdout: str
    stderr: str


class ForkedCommand:
    """A context in which `experiments.NAME` is started by calling this with its flags."""

    def __init__(self, name: str):
        self._module = f"experiments.{name}"

    def __enter__(self) -> "ForkedCommand":
        pipe = subprocess.PIPE
        self._server = subprocess.Popen(
            [sys.executable, __file__, self._module], cwd=ROOT, stdin=pipe, stdout=pipe, text=True
        )
        return self

    def __exit__(self, *_) -> None:
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()

    def __call__(self, *flags: object, largest: int = -1, stdout: str = "") -> Ended:
        """Runs it. largest: bytes of a file that can be written, as if the disk were full then;
        stdout: a file to print to instead."""
        question = {"flags": [str(f) for f in flags], "largest": largest, "stdout": stdout}
        self._server.stdin.write(json.dumps(question) + "\n")
        self._server.stdin.flush()
        return Ended(*json.loads(self._server.stdout.readline()))


def imported(name: str) -> ModuleType:
    """Returns a command's module, with what takes it long to import."""
    sys.path.insert(0, str(ROOT))
    module = import_module(name)
    if name == "experiments.train":
        from lm import platform

        platform.prepare()
        import orbax.checkpoint  # noqa: F401

        import lm.train.run  # noqa: F401
    return module


def serve(name: str) -> None:
    module = imported(name)
    answers = os.dup(1)
    for line in sys.stdin:
        question = json.loads(line)
        out, err = os.pipe(), os.pipe()
        child = os.fork()
        if not child:
            os.close(answers)
            os.dup2(os.open(question["stdout"], os.O_WRONLY) if question["stdout"] else out[1], 1)
            os.dup2(err[1], 2)
            for end in (*out, *err):
                os.close(end)
            resource.setrlimit(resource.RLIMIT_FSIZE, (question["largest"],) * 2)
            sys.argv = [name, *question["flags"]]
            sys.modules["__main__"] = module
            module.run()
        said = []
        for ours, theirs in (out, err):
            os.close(theirs)
            said.append(os.fdopen(ours))
        stdout, stderr = (pipe.read() for pipe in said)  # less than a pipe holds
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        for pipe in said:
            pipe.close()
        os.write(answers, (json.dumps([code, stdout, stderr]) + "\n").encode())


if __name__ == "__main__":
    serve(sys.argv[1])
