"""One process at a time trains in a work folder."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_trunk import config

from lm.errors import BadInput
from lm.train.lock import locked
from lm.train.run import train

HOLD = """
import pathlib, subprocess, sys
from lm.train.lock import locked
with locked(pathlib.Path(sys.argv[1])):
    child = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, close_fds=False)
    print(child.pid, flush=True)
    sys.stdin.read()
"""


def test_a_folder_that_another_process_trains_is_refused_until_that_is_killed(tmp_path):
    pipe = subprocess.PIPE
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path],
        cwd=Path(__file__).parents[1],
        stdin=pipe,
        stdout=pipe,
        text=True,
    )
    try:
        child = int(holder.stdout.readline())
        with pytest.raises(BadInput, match="is being trained by another process: wait for it"):
            train(config(8), tmp_path)
        assert [p.name for p in tmp_path.iterdir()] == [".lock"]
    finally:
        holder.kill()
        holder.wait()
        holder.stdin.close()
        holder.stdout.close()
    try:
        with locked(tmp_path):  # though what that process had started still runs
            pass
    finally:
        os.kill(child, signal.SIGKILL)


def test_where_there_are_no_locks_training_goes_on_and_says_so(tmp_path, monkeypatch, capsys):
    def refused(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    with locked(tmp_path):
        pass
    assert "cannot be locked (No locks available)" in capsys.readouterr().err
