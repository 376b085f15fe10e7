"""A slow process is named once, and only after it was slow for a while."""

import numpy as np
import pytest
from jax.experimental import multihost_utils

from lm import group
from lm.train import hosts
from lm.train.hosts import Hosts, slowness


def test_slowness_is_against_the_median():
    assert slowness(2.0, np.array([1.0, 2.0])) == 2
    assert slowness(1.0, np.array([1.0, 2.0])) == 1
    assert slowness(3.0, np.array([1.0, 1.1, 3.0, 1.2])) == pytest.approx(3 / 1.1)


def test_a_slow_process_is_named_once_after_several_looks(monkeypatch, capsys):
    monkeypatch.setattr(group, "size", lambda: 2)
    others = {"seconds": 1e-9}  # what the other process takes for the work, beside ours
    both = lambda own: np.array([own, others["seconds"]])
    monkeypatch.setattr(multihost_utils, "process_allgather", both)
    here = Hosts()
    here.look()
    here.look()
    others["seconds"] = 1e9  # once it is not the slow one, counting begins anew
    here.look()
    others["seconds"] = 1e-9
    for look in range(1, 6):
        here.look()
        said = capsys.readouterr().err
        assert ("(process 0) is slow" in said) == (look == hosts.IN_A_ROW)
        assert "the same work takes the processes 1e-09 to " in said


def test_a_process_alone_does_no_such_work(monkeypatch):
    measured = []
    monkeypatch.setattr(Hosts, "_seconds", measured.append)
    Hosts().look()
    assert not measured
