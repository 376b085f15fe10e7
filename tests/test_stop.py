"""A signal that comes while a run is starting is answered once it can save."""

import os
import signal
import threading

import pytest

from lm.train import stop
from lm.train.stop import StopSignals


@pytest.fixture
def held():
    before = signal.getsignal(signal.SIGUSR1)
    stop.hold()
    yield
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_during_the_start_is_answered_by_the_run(held):
    threading.Thread(target=threading.Event().wait, daemon=True).start()  # as libraries have
    for _ in range(20):
        os.kill(os.getpid(), signal.SIGUSR1)
    with StopSignals() as asked:
        assert asked.asked() == "SIGUSR1"
    with StopSignals() as later:
        assert later.asked() is None


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_during_the_run_is_answered(held, number):
    with StopSignals() as asked:
        assert asked.asked() is None
        os.kill(os.getpid(), number)
        assert asked.asked() == number.name
