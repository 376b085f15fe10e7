"""A full disk, and a full output: one sentence, exit code 1, and nothing half-written."""

import errno
import json
import os
import resource

import pytest
from forked_commands import ForkedCommand

from experiments import cli, report_file
from lm import whole_file
from lm.data import token_folder
from lm.errors import BadInput, CannotFinish, CannotSave
from lm.laws.figures import gallery
from lm.laws.forms import LAWS
from lm.train import workdir
from tests import fake_sweep

FULL = 200  # bytes: smaller than any file that is written


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rows = [row for row in fake_sweep.rows() if row["status"] == "finished"]
    path = tmp_path_factory.mktemp("table") / "runs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def fit():
    with ForkedCommand("fit") as command:
        yield command


@pytest.fixture(scope="module")
def plan():
    with ForkedCommand("plan") as command:
        yield command


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()} if folder.exists() else {}


def refused(ended, words):
    assert ended.code == 1, ended
    told = ended.stderr.splitlines()[-1]  # after the progress of a slow machine
    assert words in told and "Traceback" not in ended.stderr, ended.stderr
    return True


def test_a_full_disk_leaves_the_fit_before(fit, table, tmp_path):
    flags = (f"--runs={table}", f"--out={tmp_path}/out", "--noprofile")
    assert refused(fit(*flags, "--bootstrap=30", largest=FULL), "cannot be written")
    assert not contents(tmp_path / "out")
    assert fit(*flags, "--bootstrap=30").code == 0
    whole = contents(tmp_path / "out")
    assert whole.keys() == {"law.json", "bootstrap.csv"}
    room = len(whole["law.json"]) + 200  # for the law, and not for its samples
    assert 200 * 60 > room
    for largest in (FULL, room):
        assert refused(fit(*flags, "--bootstrap=200", largest=largest), "make room")
        assert contents(tmp_path / "out") == whole
    assert refused(fit(*flags, stdout="/dev/full"), "No space left")


def test_who_is_at_fault_for_a_path_is_decided_alike(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    writers = (
        lambda path: workdir.write_json(path, {}),
        lambda path: token_folder.write(path, b""),
        lambda path: whole_file.write(path, b"", "choose another"),
    )
    for write in writers:
        with pytest.raises(BadInput, match="file/below cannot be written .*choose another"):
            write(tmp_path / "file" / "below")
    with pytest.raises(CannotSave, match="file/below cannot be written"):  # it could be before
        workdir.write_while_training(tmp_path / "file" / "below", {})

    codes = [errno.ENOSPC]

    def failing(*_):
        raise OSError(codes[-1], os.strerror(codes[-1]))

    monkeypatch.setattr(os, "replace", failing)
    for code in (errno.ENOSPC, errno.ENOMEM, errno.EMFILE):
        codes.append(code)
        for write in writers:
            with pytest.raises(CannotSave, match="whole cannot be written .*make room"):
                write(tmp_path / "whole")
        with pytest.raises(CannotFinish, match="make room"), cli._one_sentence():
            failing()
    assert contents(tmp_path).keys() == {"file"}


def test_a_full_disk_leaves_the_plan_before(plan, tmp_path):
    flags = ("--law=chinchilla_2022", f"--out={tmp_path}")
    assert plan(*flags, "--flops=1e20").code == 0
    whole = contents(tmp_path)
    assert refused(plan(*flags, "--flops=1e21", largest=FULL), "cannot be written")
    assert contents(tmp_path) == whole
    assert refused(plan(*flags, "--flops=1e21", stdout="/dev/full"), "No space left")


@pytest.mark.parametrize("flags, words", [
    (["--flops=1e300"], "more than can be planned for"),
    (["--flops=1e308"], "more than can be planned for"),
    (["--flops=0"], "not a positive number"),
    (["--flops=-1"], "not a positive number"),
    (["--flops=nan"], "--flops"),
    (["--loss=nan"], "--loss"),
    (["--n=1e300", "--d=1e9"], "more than can be planned for"),
    (["--flops=1e20", "--budgets=1e18,1e19", "--half_width=1e-300"], "would take more than 1e+09"),
    (["--flops=1e20", "--budgets=1e18,1e19", "--half_width=0.1", "--noise=1e300"], "at most 10"),
    (["--flops=1e20", "--budgets=1e18,1e300", "--half_width=0.1"], "--budgets=1e+300 is more"),
])  # fmt: skip
def test_a_plan_ends_with_a_sentence_whatever_the_number(flags, words, plan, tmp_path):
    ended = plan("--law=chinchilla_2022", f"--out={tmp_path}", *flags)
    assert ended.code == 2 and words in ended.stderr, ended
    assert len(ended.stderr.splitlines()) == 1 and not contents(tmp_path)


@pytest.mark.parametrize("flags", [["--flops=1"], ["--flops=1e40"], ["--n=1e25", "--d=1e25"]])
def test_a_plan_at_the_edges_has_an_answer(flags, plan, tmp_path):
    ended = plan("--law=chinchilla_2022", f"--out={tmp_path}", *flags)
    assert ended.code == 0 and not ended.stderr, ended
    made = json.loads((tmp_path / "plan.json").read_text())
    assert made["n"]["value"] > 0
    beyond = [w for w in made["warnings"] if "no shape of more than 1e+18" in w]
    assert len(beyond) == ("--n=1e25" in flags)  # listing its heads would take for ever


def test_fit_lists_its_laws_and_looks_at_the_law_first(fit):
    said = fit("--help").stdout
    for name, law in LAWS.items():
        (line,) = [s for s in said.splitlines() if s.split()[:1] == [name]]
        assert law.source in line
        assert "=" in law.source.split(", ")[0] or "=" in law.source, "no formula"
    assert "did you mean chinchilla" in fit("--law=chinchila").stderr
    assert "two methods" in fit("--law=isoflop", "--method=envelope").stderr


def test_a_full_disk_stops_a_report_and_its_figures(tmp_path, monkeypatch):
    few = {"predicted_measured": gallery.FITTED["predicted_measured"]}
    monkeypatch.setattr(gallery, "FITTED", few)
    folder = fake_sweep.make(tmp_path / "fake", bootstrap=0)
    figures = folder / "figures"
    page = report_file.write(folder)
    room = page.stat().st_size - 1  # for the figures, and not for the page
    assert len(list(figures.iterdir())) == 2 and all(
        p.stat().st_size < room for p in figures.iterdir()
    )
    svg = (figures / "predicted_measured.svg").stat().st_size
    assert svg < (figures / "predicted_measured.png").stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for largest, left in ((room, 2), (svg, 1), (FULL, 0)):
        for path in (page, *figures.iterdir()):
            path.unlink(missing_ok=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, limits[1]))
        try:
            with pytest.raises(CannotSave, match="cannot be written .* make room"):
                report_file.write(folder)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert not list(folder.glob("*report.html*")) and len(list(figures.iterdir())) == left
