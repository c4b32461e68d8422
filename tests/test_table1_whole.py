"""Table 1 whole: printed numbers beside those of the records, wherever they were run, and nothing made up where not."""

import json

import numpy as np
import pandas as pd
import pytest

from experiments import table1
from qkdyn.config import main_guard
from qkdyn.errors import InputError, OutputError
from qkdyn.figures.published import draw_published, published_text

PUBLISHED = "Table 1, Table 4"


def write(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(path, index=False)


def write_record(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"data": data}))


def made(folder):
    """Two protocols of one data set: one as published, and one controlled."""
    line = {"source": PUBLISHED, "split": "test", "quantity": "mrta_all", "reading": "end"}
    ours = {"ours": 0.2, "ours_low": 0.1, "ours_high": 0.3}
    write(
        folder / "sva/as_coded/published.csv",
        line | {"arm": "baseline", "our_arm": "baseline"} | ours,
        line | {"arm": "faster", "our_arm": "faster"} | ours | {"ours": 0.25},
    )
    at = {"split": "test", "quantity": "mrta_all"}
    change = {"change_mean": 0.05, "change_low": 0.04, "change_high": 0.06}
    none = dict.fromkeys(change)
    write(folder / "sva/as_coded/summary.csv", at | {"arm": "faster", "reading": "end", "mean": 0.25} | change)
    rows = [
        at | {"arm": arm, "reading": reading, "mean": mean, "low": mean - 0.01, "high": mean + 0.01} | none
        for reading, shift in (("best", 1.0), ("end", 0.0))
        for arm, mean in (("baseline", 0.5 + shift), ("qk30", 0.6 + shift), ("qk100", 0.75 + shift))
    ]
    more = {"split": "test", "quantity": "ac_all", "arm": "baseline", "reading": "end", "mean": 12.0}
    write(folder / "sva/controlled/summary.csv", *rows, more)
    return table1.run(table1.Config(str(folder)))


def test_ours_stand_beside_what_was_printed(tmp_path):
    frame = made(tmp_path).set_index(["data", "source", "column", "arm"])["mean"]
    own = frame["Subject-verb agreement"]
    assert own["paper", "MRTA", "faster"] == 0.19 and own["paper", "test performance", "faster"] == 0.93412
    # The mean of the notebooks' five runs, as printed in `sva_published`.
    assert own["notebooks", "MRTA", "faster"] == pytest.approx(np.mean([0.2285, 0.1760, 0.1803, 0.1732, 0.1704]))
    assert own["as coded", "MRTA", "faster"] == 0.25 and own["as coded", "MRTA", "baseline"] == 0.2
    # QK x100 after the last epoch, not x30 and not the best epoch; AC of the mean of the heads for that of the first.
    assert own["controlled", "MRTA", "faster"] == 0.75 and own["controlled", "MRTA", "baseline"] == 0.5
    assert own["controlled", "AC", "baseline"] == 12.0
    assert np.isnan(own["as written", "MRTA", "faster"]) and np.isnan(own["controlled", "sufficiency", "faster"])
    assert frame["HateXplain, 4 layers"]["paper", "ACMC", "faster"] == 6.45


def test_changes_are_those_within_a_seed(tmp_path):
    frame = made(tmp_path).set_index(["data", "source", "column", "arm"])["change_mean"]["Subject-verb agreement"]
    assert frame["as coded", "MRTA", "faster"] == 0.05 and frame.notna().sum() == 1


def test_every_printed_number_of_the_tables_has_a_cell(tmp_path):
    frame = made(tmp_path)
    assert (
        len(frame[frame["source"] == "paper"]) == 5 * 2 * 7
        and frame.loc[frame["source"] == "paper", "mean"].notna().all()
    )
    text = published_text(frame)
    mrta = "| MRTA | test, all sentences | faster QK | 0.190 ± 0.030 | 0.186 ± 0.030 | 0.250 ± 0.100 | 0.750 ± 0.010 |"
    assert mrta in text
    # Performance is in percent.
    performance = "| test performance | accuracy, test, all sentences | faster QK | 93.4 ± 0.1 | 93.4 ± 0.2 | · | · |"
    assert performance in text
    assert draw_published(frame).get_suptitle().startswith("What a faster query-key circuit changes")


def test_each_block_says_what_its_numbers_are_of(tmp_path):
    write_record(tmp_path / "sva/controlled/arms/baseline.json", {"train": 10707, "test": 7141, "vocabulary": 6934})
    text = published_text(made(tmp_path))
    block = text[text.index("| Subject-verb agreement") : text.index("| HateXplain |")]
    head, _, faster, read, of = ([cell.strip() for cell in line.split("|")[4:-1]] for line in block.splitlines()[:5])
    assert head == ["paper", "notebooks", "as coded", "controlled"] and read == ["last epoch"] * 4
    assert faster == ["QK x100", "QK and embeddings x100", "QK and embeddings x100", "QK x100"]
    assert of[0] == "train 157,721, test 1,419,490" and of[2:] == ["", "train 10,707, test 7,141"]
    # What ours reads otherwise, and only where there is a number; what the printed one is of.
    assert "- controlled (AC): ac_all (mean of the heads), printed: head_0_ac." in block and "acmc_all" not in block
    assert "- paper and notebooks (MRTA, sufficiency, comprehensiveness): of the first 480,000 test sentences." in block
    # What was not run is said once.
    assert block.count("Not run") == 1 and "- Not run: as written, as written, SGD, controlled, all." in block
    assert "| MRTA | dev, all questions |" in text and "| MRTA | test, all posts |" in text
    assert "| AC | validation, all posts |" in text


def test_another_reading_than_the_printed_one_is_said(tmp_path):
    line = {"arm": "base", "reading": "end", "split": "dev", "quantity": "mass", "mean": 0.1, "low": 0.0, "high": 0.2}
    write(tmp_path / "squad/controlled/summary.csv", line | dict.fromkeys(table1.CHANGES))
    text = published_text(table1.run(table1.Config(str(tmp_path))))
    assert "- controlled, 5e-4: after the last epoch, printed: of each run's best." in text
    assert "| best epoch of each run | best epoch of each run | last epoch |" in text


def test_the_figure_names_what_is_faster_and_has_no_panel_without_ours(tmp_path):
    axes = draw_published(made(tmp_path)).axes
    assert [own.get_title(loc="left") for own in axes if own.get_title(loc="left")] == ["Subject-verb agreement"]
    shown = [label.get_text() for label in axes[0].get_yticklabels()]
    assert shown[0] == "paper: QK x100" and shown[-1] == "controlled: QK x100" and len(shown) == 4
    assert not [text for own in axes for text in own.texts if text.get_text() == "nothing to compare"]
    frame = made(tmp_path)
    with pytest.raises(InputError, match="nothing of ours"):
        draw_published(frame[frame["source"].isin(["paper", "notebooks"])])


def test_one_seed_of_four_layers_has_its_panel_without_intervals(tmp_path):
    line = {"source": "Tables 5, 6", "split": "test", "quantity": "mrta_all", "reading": "end"}
    rows = [
        line | {"arm": arm, "our_arm": arm, "ours": mean, "ours_low": None, "ours_high": None}
        for arm, mean in (("baseline", 0.1), ("faster", 0.15))
    ]
    write(tmp_path / "hatexplain/as_coded-4layers/published.csv", *rows)
    change = dict.fromkeys(table1.CHANGES) | {"change_mean": 0.05}
    at = {"arm": "faster", "reading": "end", "split": "test", "quantity": "mrta_all"}
    write(tmp_path / "hatexplain/as_coded-4layers/summary.csv", at | change)
    frame = table1.run(table1.Config(str(tmp_path)))
    text = published_text(frame)
    assert "| MRTA | test, all posts | faster QK | 0.160 ± 0.025 | 0.150 |" in text
    assert draw_published(frame).axes[0].get_title(loc="left") == "HateXplain, 4 layers"


def test_a_quick_form_is_not_offered_where_there_is_none(capsys, unchecked):
    for arguments in (["--help"], ["--quick"]):
        with pytest.raises(SystemExit):
            table1.main(arguments)
    told = capsys.readouterr()
    assert "--quick" not in told.out and "Unrecognized options: --quick" in " ".join(told.err.split())


def test_the_command_writes_what_it_vouches_for_and_draws_again(tmp_path, capsys):
    made(tmp_path)
    out = tmp_path / "out"
    arguments = ["--results", str(tmp_path), "--out", str(out)]
    assert table1.main(arguments) == 0
    first = {path.name: path.read_bytes() for path in out.iterdir() if path.suffix in (".md", ".png", ".csv")}
    assert set(first) == {"summary.csv", "table1.md", "table1.png"}
    assert table1.main(["--draw-only", "--out", str(out)]) == 0
    assert first == {name: (out / name).read_bytes() for name in first}
    assert "Subject-verb agreement" in capsys.readouterr().out


def test_without_results_or_with_another_table_it_says_so(tmp_path, capsys):
    with pytest.raises(OutputError, match="has no results of HateXplain"):
        table1.run(table1.Config(str(tmp_path / "none")))
    assert main_guard(lambda: table1.main(["--results", str(tmp_path), "--out", str(tmp_path / "out")])) == 2
    assert "run make hatexplain" in capsys.readouterr().err
    with pytest.raises(InputError, match="lacks the columns"):
        draw_published(pd.DataFrame({"data": ["x"]}))
    write(tmp_path / "sva/controlled/summary.csv", {"arm": "baseline"})
    with pytest.raises(InputError, match=r"controlled/summary.csv lacks the columns"):
        table1.run(table1.Config(str(tmp_path)))
