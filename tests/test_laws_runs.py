"""Tables of runs: every source, every exclusion with its reason, every mistake in one sentence."""

import json

import numpy as np
import pandas as pd
import pytest

from lm.errors import BadInput
from lm.laws.forms import LAWS
from lm.laws.runs import read_runs
from tests.published_tables import TRUE, cloud, path_of

CHINCHILLA = LAWS["chinchilla"]


def frame(rows=8):
    x = cloud(rows)
    loss = CHINCHILLA.predict(TRUE, x)
    return pd.DataFrame({"n_params": x["n"], "n_tokens": x["d"], "flops": x["flops"], "loss": loss})


def write(table, path):
    if path.suffix == ".csv":
        table.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        table.to_parquet(path)
    else:
        path.write_text("".join(json.dumps(r) + "\n" for r in table.to_dict("records")))
    return path


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_files_and_frames_give_the_same_doubles(tmp_path, kind):
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    table = frame()
    runs = read_runs(write(table, tmp_path / f"runs.{kind}"), CHINCHILLA)
    direct = read_runs(table, CHINCHILLA)
    for found in (runs, direct):
        np.testing.assert_array_equal(found.y, table["loss"])
        np.testing.assert_array_equal(found.x["n"], table["n_params"])
        np.testing.assert_array_equal(found.x["d"], table["n_tokens"])
        assert list(found.rows) == list(range(1, 9)) and not found.excluded
        assert not found.warnings


def test_columns_can_have_any_name_and_numbers_any_spelling():
    table = frame().rename(columns={"n_params": "size", "loss": "eval"})
    table["eval"] = [f" {v!r}" for v in table["eval"]]
    table["n_tokens"] = table["n_tokens"].round().astype("int64")
    runs = read_runs(table, CHINCHILLA, {"n": "size", "loss": "eval"})
    np.testing.assert_array_equal(runs.y, frame()["loss"])
    assert runs.columns["n"] == "size" and runs.x["d"].dtype == np.float64


def test_missing_infinite_and_unfinished_rows_are_listed():
    table = frame()
    table.loc[1, "loss"] = np.nan
    table.loc[2, "loss"] = np.inf
    table.loc[4, "n_tokens"] = None
    table["status"] = ["finished"] * 6 + ["diverged", "finished"]
    runs = read_runs(table, CHINCHILLA)
    assert list(runs.rows) == [1, 4, 6, 8]
    assert runs.excluded == [
        {"row": 2, "reason": "loss is missing"},
        {"row": 3, "reason": "loss is infinite"},
        {"row": 5, "reason": "n_tokens is missing"},
        {"row": 7, "reason": "status is diverged"},
    ]


def test_where_keeps_row_numbers_and_says_what_it_left_out():
    table = frame()
    table["kind"] = list("aabbaabb")
    runs = read_runs(table, CHINCHILLA, where="kind == 'a' and n_params > 0")
    assert list(runs.rows) == [1, 2, 5, 6]
    assert [e["row"] for e in runs.excluded] == [3, 4, 7, 8]
    assert "kind == 'a'" in runs.excluded[0]["reason"]


def test_dropping_rows_lists_them():
    runs = read_runs(frame(), CHINCHILLA)
    fewer = runs.take(np.arange(8) < 6, "outlier")
    assert len(fewer) == 6 and [e["row"] for e in fewer.excluded] == [7, 8]


def test_flops_far_from_6nd_are_warned_about():
    """Fault: parameters with and without embeddings, FLOPs without the head or attention."""
    table = frame()
    table["flops"] *= 1.1
    assert not read_runs(table, CHINCHILLA).warnings
    table["flops"] *= 1.4
    (warning,) = read_runs(table, CHINCHILLA).warnings
    assert "1.54" in warning and "conventions" in warning


def test_one_variable_laws_choose_their_column():
    law = LAWS["power_floor"]
    with pytest.raises(BadInput, match="--x"):
        read_runs(frame(), law)
    np.testing.assert_array_equal(
        read_runs(frame(), law, {"d": "n_tokens"}).x["x"], frame()["n_tokens"]
    )
    np.testing.assert_array_equal(
        read_runs(frame(), law, {"x": "n_params"}).x["x"], frame()["n_params"]
    )
    only = frame()[["n_tokens", "loss"]]
    np.testing.assert_array_equal(read_runs(only, law).x["x"], only["n_tokens"])


def test_accuracy_laws_read_loss_and_accuracy():
    table = frame()
    table["accuracy"] = 0.4
    runs = read_runs(table, LAWS["accuracy_sigmoid"])
    np.testing.assert_array_equal(runs.x["loss"], table["loss"])
    assert np.all(runs.y == 0.4)


def spoil(column, row, value):
    table = frame().astype({column: object})
    table.loc[row, column] = value
    return table


@pytest.mark.parametrize(
    "table, settings, words",
    [
        (frame().drop(columns="loss"), {}, r"column 'loss' is not in the table"),
        (frame(), {"columns": {"n": "params"}}, r"column 'params' \(--n\)"),
        (spoil("loss", 3, "two"), {}, r"loss is 'two' in row 4, which is not a number"),
        (spoil("n_tokens", 0, "1_000"), {}, r"n_tokens is '1_000' in row 1"),
        (spoil("loss", 5, -0.1), {}, r"loss is -0.1 in row 6, but must be positive"),
        (spoil("n_params", 2, 0), {}, r"n_params is 0 in row 3, but must be positive"),
        (frame(), {"where": "size > 1"}, "where 'size > 1' cannot be evaluated"),
        (frame(), {"where": "n_params + 1"}, "not a yes or no"),
        (frame(), {"where": "loss > 100"}, "no usable row .* row 1, for one: left out by where"),
        (frame().assign(status="done"), {}, "no usable row .* row 1, for one: status is done"),
        (frame()[:0], {}, "no usable row is left: the table is empty"),
        ("missing.csv", {}, "is not a file"),
    ],
)
def test_mistakes_are_one_sentence(table, settings, words):
    with pytest.raises(BadInput, match=words) as error:
        read_runs(table, CHINCHILLA, **settings)
    assert "\n" not in str(error.value)


def test_files_of_another_kind_are_refused(tmp_path):
    (tmp_path / "runs.xls").write_text("x")
    (tmp_path / "runs.jsonl").write_text('{"loss": 1}\n{"loss": }\n')
    (tmp_path / "runs.csv").write_text("")
    for name in ("runs.xls", "runs.jsonl", "runs.csv"):
        with pytest.raises(BadInput, match=name):
            read_runs(tmp_path / name, CHINCHILLA)


HEADER = "n_params,n_tokens,loss"
ROWS = [f"{n}e6,{d}e9,{5 / n}" for n, d in ((1, 2), (2, 3), (4, 5))]


@pytest.mark.parametrize("text, words", [
    ([HEADER, *(r + ",9" for r in ROWS)], "row 1 has 4 values and the header 3 columns; repair"),
    ([HEADER, ROWS[0], ROWS[1] + ",9", ROWS[2]], "row 2 has 4 values and the header 3 columns"),
    ([HEADER, "", ROWS[0], "1e6"], "row 2 has 1 value and the header 3 columns; repair the table"),
    ([HEADER + ",", *ROWS], r"row 1 has 3 values .* 4 columns \(the header ends in a comma\)"),
    ([HEADER, *(r + "," for r in ROWS)], r"3 columns \(the row ends in a comma\)"),
    (["loss,n_params,loss", *ROWS], "its header names 'loss' twice"),
    ([HEADER, *ROWS, "\x89PNG\udcff"], "it is not UTF-8 text"),
    (["\x00\x01\x02"], "column 'n_params' is not in the table"),
])  # fmt: skip
def test_a_csv_file_has_rows_as_wide_as_its_header(text, words, tmp_path):
    path = tmp_path / "runs.csv"
    path.write_bytes("\n".join(text).encode("utf-8", "surrogateescape"))
    with pytest.raises(BadInput, match=words) as error:
        read_runs(path, CHINCHILLA)
    assert "\n" not in str(error.value)


def test_columns_without_a_name_and_empty_lines_do_no_harm(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(["," + HEADER, "", *(f"{i},{r}" for i, r in enumerate(ROWS)), " "]))
    np.testing.assert_array_equal(read_runs(path, CHINCHILLA).x["n"], [1e6, 2e6, 4e6])


@pytest.mark.parametrize("line, words", [
    ("[1, 2]", "in line 2, it is a list, not an object"),
    ("{half", "in line 2, it is not whole JSON"),
    ("[" * 200_000, "in line 2, its brackets are nested too deeply"),
    ('{"loss": {"a": 1}}', "loss is .* in row 2, which is not a number"),
])  # fmt: skip
def test_a_jsonl_file_has_an_object_a_line(line, words, tmp_path):
    good = '{"n_params": 1e6, "n_tokens": 1e9, "loss": NaN}'
    (tmp_path / "runs.jsonl").write_text(f"{good}\n{line}\n{good.replace('NaN', '3')}\n")
    with pytest.raises(BadInput, match=words):
        read_runs(tmp_path / "runs.jsonl", CHINCHILLA)


def test_published_table():
    runs = read_runs(
        path_of("chinchilla_epoch.csv"), CHINCHILLA, where="excluded_in_replication == 0"
    )
    assert len(runs) == 240 and len(runs.excluded) == 5 and not runs.warnings
