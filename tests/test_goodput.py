"""Where the time went: every second in one part, over restarts too."""

import time

import pytest

from lm.process import age_seconds
from lm.train import goodput
from lm.train.goodput import PARTS, Clock
from lm.train.workdir import read_json


def test_every_second_is_in_one_part():
    began = time.monotonic()
    clock = Clock(began - 5, {})
    clock.turn("steps")

    def batches():
        for wait in (0.02, 0.0):
            time.sleep(wait)
            yield wait

    for _ in clock.waiting(batches()):
        time.sleep(0.03)
        with clock.spent("saving"):
            time.sleep(0.01)
            with clock.spent("evaluating"):
                time.sleep(0.005)
    seconds = clock.seconds()
    assert tuple(seconds) == PARTS
    assert sum(seconds.values()) == pytest.approx(time.monotonic() - began + 5, abs=0.02)
    least = {"starting": 5, "steps": 0.06, "waiting_for_data": 0.02, "saving": 0.02,
             "evaluating": 0.01, "lost": 0}  # fmt: skip
    assert all(seconds[part] >= s for part, s in least.items()) and seconds["lost"] == 0
    assert 0.1 < clock.data_share() < 0.6


def test_what_a_kill_threw_away_is_lost_and_counted_once(tmp_path):
    assert goodput.lost_since(tmp_path, {}) == 0
    kept = dict.fromkeys(PARTS, 1.0)  # in the checkpoint
    first = Clock(time.monotonic() - 7, kept)
    first.write(tmp_path)  # then it was killed, 7 seconds after the checkpoint
    for n in range(2):  # twice, with nothing saved in between
        lost = goodput.lost_since(tmp_path, kept)
        clock = Clock(time.monotonic(), kept, lost)
        assert clock.seconds()["lost"] == pytest.approx(8, abs=0.5), n
        clock.write(tmp_path)
    found = read_json(tmp_path / goodput.NAME)
    assert sum(found["seconds"].values()) == pytest.approx(6 + 7, abs=0.5)
    assert found["goodput"] == pytest.approx(1 / 13, abs=0.01)
    assert sum(found["shares"].values()) == pytest.approx(1)


def test_a_damaged_file_is_said_and_costs_only_its_count(tmp_path, capsys):
    for content in ("", "[]", "{}", '{"seconds": 3}'):
        (tmp_path / goodput.NAME).write_text(content)
        assert goodput.lost_since(tmp_path, {}) == 0
        assert "is not counted" in capsys.readouterr().err


def test_only_the_first_run_of_a_process_is_as_old_as_the_process(monkeypatch):
    monkeypatch.setattr(goodput, "_first_run", True)  # other tests have trained here
    first, second = (time.monotonic() - goodput.start_time() for _ in range(2))
    assert first == pytest.approx(age_seconds(), abs=0.1) and abs(second) < 0.1 < first
