"""Training commands as processes forked from one that has imported everything: each is a process of
its own, which may be killed, and starts in a fraction of the time. Run as a program, this file is
that one: it reads a line of JSON for each process to start or to wait for, and answers with one."""

import json
import os
import subprocess
import sys
from pathlib import Path

from forked_commands import imported

ROOT = Path(__file__).parents[1]


class ForkedRuns:
    """A context that starts training commands."""

    def __init__(self, log: Path):
        self._log = log

    def __enter__(self) -> "ForkedRuns":
        pipe = subprocess.PIPE
        self._server = subprocess.Popen(
            [sys.executable, __file__], cwd=ROOT, stdin=pipe, stdout=pipe, text=True
        )
        return self

    def __exit__(self, *_) -> None:
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()

    def start(self, *flags: str) -> int:
        """Returns the process's id."""
        return self._ask({"flags": flags, "log": str(self._log)})

    def ended(self, pid: int, wait: bool = True) -> int | None:
        """Returns the exit code, negative for a signal; None where it runs and wait is false."""
        return self._ask({"pid": pid, "wait": wait})

    def _ask(self, question: dict) -> int:
        self._server.stdin.write(json.dumps(question) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())


def serve() -> None:
    module = imported("experiments.train")
    answers = os.dup(1)
    for line in sys.stdin:
        question = json.loads(line)
        if "pid" in question:
            options = 0 if question["wait"] else os.WNOHANG
            pid, status = os.waitpid(question["pid"], options)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if not answer:
                os.close(answers)
                log = os.open(question["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                for stream in (1, 2):
                    os.dup2(log, stream)
                sys.argv = ["experiments.train", *question["flags"]]
                sys.modules["__main__"] = module
                module.run()
        os.write(answers, (json.dumps(answer) + "\n").encode())


if __name__ == "__main__":
    serve()
