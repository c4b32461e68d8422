"""Table 1 on subject-verb agreement: tables by attractors, published numbers, verdict, the command."""

import copy
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import made_records
from experiments import table1_sva as table1
from experiments.text import command, sva_arms, sva_closely, sva_published, sva_tables, sva_verdict
from experiments.text import said as said_of
from experiments.text.arms import Comparison, Protocol
from experiments.text.recipe import TextArm
from experiments.text.task import SVA
from qkdyn import results
from qkdyn.config import main_guard
from qkdyn.figures import sva as figures
from qkdyn.figures.sva import draw_agreement, draw_first_head, draw_heads
from qkdyn.figures.text_records import SENTENCES, value_of

SEEDS = (1, 2, 3)


def seeded(protocol):
    return replace(protocol, recipe=replace(protocol.recipe, seeds=SEEDS))


@pytest.fixture(scope="module")
def controlled():
    """Five of the arms."""
    protocol = seeded(sva_arms.controlled())
    names = ("baseline", "embed100", "qk100", "qk100+embed100", "qk10")
    protocol = replace(protocol, groups=(tuple(arm for arm in protocol.arms if arm.name in names),))
    return made_records.made(protocol), protocol


@pytest.fixture(scope="module")
def coded():
    protocol = seeded(sva_arms.as_coded())
    return made_records.made(protocol), protocol


# Tables.


def test_agreement_is_pooled_by_sentences_and_masses_by_those_whose_attractors_are_known(controlled):
    frame = sva_tables.agreement_frame(*controlled)
    own = (
        frame.loc[(frame["reading"] == "end") & (frame["split"] == "test")]
        .set_index(["arm", "quantity", "label", "attractors"])
        .sort_index()
    )
    line = own.loc[("baseline", "accuracy", "both", "1+")]
    # Four sentences of one attractor, one of two, two of four: 0.92 - 0.1 x (4 + 2 + 8) / 7 over seeds 1, 2, 3.
    assert line["sentences"] == 7 and line["mean"] == pytest.approx(0.92 - 0.1 * 14 / 7)
    assert line["rule_inverse"] == pytest.approx(0.2 + 0.15 * 2) and line["rule_subject"] == pytest.approx(
        0.9 - 0.05 * 2
    )
    mass = own.loc[("baseline", "attractor", "both", "1+")]
    assert mass["sentences"] == 3 and mass["mean"] == pytest.approx(0.3) and mass["uniform"] == pytest.approx(0.1)
    # Of two of one attractor and one of two it is known where they are.
    subject = own.loc[("baseline", "subject", "both", "1+"), "mean"]
    assert subject == pytest.approx(0.22 - 0.05 * (2 * 1 + 1 * 2) / 3)
    assert ("baseline", "attractor", "both", "4") not in own.index and (
        "baseline",
        "accuracy",
        "both",
        "5",
    ) not in own.index
    better = own.loc[("qk100", "accuracy", "both", "1+")]
    assert better["change_mean"] == pytest.approx(0.05 * 2) and better["change_low"] > 0.0999
    assert own.loc[("qk100", "accuracy", "VBP", "1"), "mean"] == pytest.approx(0.92 - 0.05 - 0.02)
    assert own.loc[("qk100", "accuracy", "both", "all"), "sentences"] == 15
    # VBZ: three of one attractor, two of four; VBP: one of one, one of two; as many sentences as the rarer has.
    balanced = own.loc[("baseline", "accuracy", "balanced", "1+")]
    assert balanced["mean"] == pytest.approx((0.92 - 0.1 * 11 / 5 + 0.9 - 0.1 * 3 / 2) / 2)
    assert balanced["sentences"] == 2
    assert balanced["rule_inverse"] == pytest.approx(0.2 + 0.15 * (11 / 5 + 3 / 2) / 2)
    assert ("baseline", "accuracy", "balanced", "2") not in own.index
    heads = sva_tables.heads_frame(controlled[0])
    heads = (
        heads.loc[(heads["reading"] == "end") & (heads["attractors"] == "1+")]
        .set_index(["arm", "place", "head"])
        .sort_index()
    )
    # In the order of their attention on the subject: the second, the third, the first, the fourth.
    assert heads.loc["qk100", "subject"]["mean"].tolist() == pytest.approx([0.7, 0.2, 0.1, 0.05])
    assert heads.loc["qk100", "attractor"]["mean"].tolist() == pytest.approx([0.1, 0.2, 0.3, 0.05])


def test_quantities_by_attractors_are_in_the_tables_and_in_the_factorial(controlled):
    frames = sva_tables.frames(*controlled)
    long = frames["summary"].set_index(["comparison", "arm", "reading", "split", "quantity"]).sort_index()
    line = long.loc[("dose", "qk100", "end", "test", "accuracy@1+")]
    assert line["change_mean"] == pytest.approx(0.1)
    assert long.loc[("dose", "qk100", "end", "test", "attractor@1+"), "uniform"] == pytest.approx(0.1)
    effects = frames["effects"].set_index(["reading", "split", "quantity", "kind", "factor"])["mean"]
    assert effects["end", "test", "accuracy@1+", "alone", "qk100"] == pytest.approx(0.1)
    assert effects["end", "test", "accuracy@1+", "alone", "embed100"] == pytest.approx(0)
    assert "accuracy@1+_change" in frames["table"] and "published" not in frames
    # Half of what QK adds to VBZ, of 11/5 attractors on average, and of what it adds to VBP, of 3/2.
    assert effects["end", "test", "accuracy@1+:balanced", "alone", "qk100"] == pytest.approx(0.05 * (2.2 + 1.5) / 2)
    for label, number in (("VBZ", 4), ("VBP", 2)):
        line = long.loc[("dose", "qk100", "end", "test", f"accuracy@{number}:{label}")]
        assert line["change_mean"] == pytest.approx(0.05 * number)
    assert ("dose", "qk100", "end", "test", "accuracy@2:balanced") not in long.index
    assert {"accuracy@0:balanced", "accuracy@1+:balanced", "accuracy@1+:VBZ"} <= set(frames["table"])


def test_a_diverged_run_is_left_out_everywhere(controlled):
    records = copy.deepcopy(controlled[0])
    gone = next(record for record in records if record["arm"]["name"] == "qk100")
    for own in gone["runs"]:
        own["diverged_at"] = 1
    protocol = replace(controlled[1], comparisons=(Comparison("dose", ("baseline", "qk100", "qk10")),))
    frame = sva_tables.agreement_frame(records, protocol)
    assert frame.loc[frame["arm"] == "qk100", "mean"].isna().all()
    assert "QK x100: not known" in sva_verdict.verdict(records, protocol, "controlled")
    shown = [records[0], gone]
    for figure in (draw_agreement([("dose", shown)]), draw_heads(shown)):
        assert figure.axes
    assert draw_first_head(shown) is None


def test_the_mean_of_two_labels_does_not_move_with_how_many_there_are_of_either():
    cells = [(0, "VBZ", 30, 0.9), (0, "VBP", 10, 0.5), (0, "both", 40, 0.8), (1, "VBZ", 10, 0.8), (1, "both", 10, 0.8)]
    lines = [{"attractors": k, "label": label, "n": n, "accuracy": own} for k, label, n, own in cells]
    known = {"agreement": lines, "accuracy": 0.1}
    assert value_of(known, "accuracy@0") == 0.8 and value_of(known, "accuracy") == 0.1
    assert value_of(known, "accuracy@0:VBP") == 0.5 and value_of(known, "accuracy@0:balanced") == pytest.approx(0.7)
    assert value_of(known, "accuracy@all:balanced") == pytest.approx((0.875 + 0.5) / 2)
    assert value_of(known, "accuracy@1:balanced") is None and value_of(known, "accuracy@1:VBZ") == 0.8


def test_curves_are_those_of_the_records(controlled, coded, monkeypatch):
    base = controlled[0][0]
    few = draw_agreement([("factorial", [base])])
    assert np.isnan(few.axes[0].lines[0].get_ydata()).all() and np.isnan(few.axes[1].lines[-1].get_ydata()).all()
    monkeypatch.setattr(figures, "FEWEST", 2)
    figure = draw_agreement([("factorial", [base])])
    balanced, singular, plural = (axes.lines[0].get_ydata() for axes in figure.axes[:3])
    # The mean of seeds 1, 2 and 3; VBP is 0.02 below VBZ, and of one attractor there is but one.
    assert balanced[0] == pytest.approx(0.91) and np.isnan(balanced[1:]).all()
    np.testing.assert_allclose(singular, [0.92, 0.82, np.nan, np.nan, 0.52, np.nan])
    np.testing.assert_allclose(plural, [0.9, *[np.nan] * 5])
    # The commonest label, the subject's own number and the last noun's opposite beside them, of the same sentences.
    rule = figure.axes[1].lines[-1].get_ydata()
    np.testing.assert_allclose(rule, [0.2, 0.35, np.nan, np.nan, 0.8, np.nan])
    np.testing.assert_allclose(figure.axes[4].lines[0].get_ydata()[:3], [0, 0.3, 0.3])
    first = draw_first_head(coded[0])
    assert first is not None and len(first.axes) == 2


# What was published.


def test_printed_cells_sum_to_the_tables_and_to_the_margins():
    lines = {(x.source, x.arm, x.split, x.quantity): x for x in sva_published.printed()}
    assert len(lines) == 14 + 16 + 18 + 10
    for arm, ac, acmc in (("baseline", 41.67, 40.4), ("faster", 76.85, 74.47)):
        for name, mean in (("head_0_ac", ac), ("head_0_acmc", acmc)):
            assert lines[sva_published.TABLE, arm, "test", name].values == (mean,)
            assert lines[sva_published.OWN, arm, "test", name].interval[0] == pytest.approx(mean, abs=5e-3)
        each = [
            lines[sva_published.NOTEBOOK, arm, "test", f"dtap_first_head.{i}.{j}"].values
            for i in range(3)
            for j in range(3)
        ]
        np.testing.assert_allclose(np.sum(each, 0), 100, atol=0.05)
    assert lines[sva_published.NOTEBOOK, "baseline", "test", "accuracy"].interval[0] == pytest.approx(0.92434)
    assert lines[sva_published.NOTEBOOK, "faster", "test", "accuracy"].interval[0] == pytest.approx(0.93412)
    assert lines[sva_published.NOTEBOOK, "faster", "test", "mrta_all"].interval[0] == pytest.approx(0.18568)


def test_printed_numbers_stand_beside_ours_of_other_sentences(coded):
    records, protocol = coded
    frame = sva_published.compared_frame(records)
    assert np.isfinite(frame["ours"]).all() and frame["note"].str.startswith("not comparable: other data").all()
    own = frame.set_index(["source", "arm", "split", "quantity"])["ours"]
    assert own[sva_published.NOTEBOOK, "faster", "test", "dtap_first_head.2.1"] == 15
    assert own[sva_published.TABLE, "baseline", "test", "head_0_acmc"] == 40
    said = sva_verdict.verdict(records, protocol, "as_coded")
    assert (
        "baseline, test, all sentences: accuracy" in said
        and "printed 0.924" in said
        and "15 updates for their 73,935" in said
    )
    whole = [record | {"data": record["data"] | {"train": sva_published.PUBLISHED_TRAIN}} for record in records]
    assert not sva_published.compared_frame(whole)["note"].str.contains("not comparable").any()
    written = [records[0], {**records[1], "arm": {**records[1]["arm"], "name": "qk100"}}]
    assert set(sva_published.compared_frame(written)["our_arm"]) == {"baseline", "qk100"}


# The verdict.


def test_answering_one_label_more_often_is_not_being_right_more_often(controlled):
    base = next(record for record in controlled[0] if record["arm"]["name"] == "baseline")
    biased = copy.deepcopy(base)
    for own, more in zip(biased["runs"], (0.09, 0.1, 0.11), strict=True):
        for line in own["end"]["test"]["agreement"]:
            if line["attractors"] and line["accuracy"] is not None:
                # Pooled, they are right more often: there are more of VBP.
                line["accuracy"] += {"VBZ": -more, "VBP": 0.2 - more, "both": 0.05}[line["label"]]
    said = sva_verdict.helped(biased, base)
    assert "no more or less often right that could be told" in said
    assert "but VBZ less often right and VBP more often: VBP is answered more" in said
    assert "pooled +0.0500 [0.0500, 0.0500]" in said and "VBZ -0.100 [-0.125, -0.075], VBP +0.100" in said
    assert "VBP less often right and" not in said and "VBZ is answered more" in sva_verdict.helped(base, biased)


def test_arms_that_differ_in_no_digit_are_said_not_to_differ_in_a_sentence(controlled):
    base = next(record for record in controlled[0] if record["arm"]["name"] == "baseline")
    other = copy.deepcopy(base) | {"arm": base["arm"] | {"name": "qk100"}}
    said = [*said_of.pair(base, other, SENTENCES), sva_closely._by_label(other, base, ["0", "1"])]
    assert not any("0.0000 [" in line for line in said)
    assert "attention of QK x100 does not differ to four decimals in entropy, mass of the top 20%" in said[0]
    assert "do not differ to four decimals" in said[3] and "VBP do not differ to four decimals" in said[-1]
    # One that does differ is told, by its number.
    for own in other["runs"]:
        own["end"]["test"]["auprc"] += 0.0002
    assert "and MRTA (AUPRC +0.0002 [0.0002, 0.0002])" in said_of.pair(base, other, SENTENCES)[0]


def test_accuracy_by_attractors_is_balanced_and_by_label(controlled, monkeypatch):
    records, protocol = controlled
    text = sva_verdict.verdict(records, protocol, "controlled")
    # Ten sentences of a label are too many to ask of these.
    assert "fewer than" not in text and "by label, from none up: pooled 0.920" in text
    monkeypatch.setattr(sva_closely, "FEWEST", 2)
    text = sva_verdict.verdict(records, protocol, "controlled")
    assert "between subject and verb (0; of 1, 2 and 4 one label has fewer than 2 sentences): 0.910" in text
    assert (
        "VBZ 0.920 [0.895, 0.945], 0.820 [0.795, 0.845], 0.520 [0.495, 0.545] (of 6, 3, 2 sentences); VBP 0.900" in text
    )
    assert "QK x100 beside the baseline, accuracy for 0: balanced, VBZ, VBP do not differ to four decimals." in text


def test_masses_are_said_to_be_of_the_sentences_whose_nouns_have_known_places(controlled):
    records, protocol = controlled
    text = sva_verdict.verdict(records, protocol, "controlled")
    # Of two of one attractor and of one of two it is known, of seven.
    short = text.splitlines()[2]
    assert "in these sentences (3 of 7: those of which it is known where the nouns stand)?" in short
    assert "entropy of all sentences" in short and "single heads in sentences with attractors (3 of 7:" in text


def test_the_verdict_says_what_the_intervals_say(controlled, monkeypatch):
    monkeypatch.setattr(sva_closely, "FEWEST", 1)
    records, protocol = controlled
    found = {record["arm"]["name"]: record for record in records}
    base, qk = found["baseline"], found["qk100"]
    assert "more often right, gaining more with them than without" in sva_verdict.helped(qk, base)
    assert "less often right, gaining less with them than without" in sva_verdict.helped(base, qk)
    easy = copy.deepcopy(qk)
    for own in easy["runs"]:
        for line in own["end"]["test"]["agreement"][:3]:
            line["accuracy"] += 0.3
    assert "more often right, gaining less with them than without" in sva_verdict.helped(easy, base)
    same = sva_verdict.helped(base, base)
    assert same.startswith("does not differ from the baseline to four decimals") and "0.0000" not in same
    assert sva_verdict.where_to(base).endswith("favours attractors over the subject")
    assert sva_verdict.where_to(qk).endswith("favours the subject over attractors")
    assert "0.100 [0.100, 0.100] on attractors (uniform 0.100)" in sva_verdict.where_to(qk)
    said = sva_verdict.verdict(records, protocol, "controlled")
    assert "With one or more it is 0.725" in said
    assert re.search(r"above inverting the last noun \(0.47.\), below the subject's own number \(0.80.\)", said)
    assert "that most on the subject has 0.700" in said and "QK x100 and nothing else" in said
    assert "embeddings x100" in said and "posts" not in said.replace("made posts", "")
    one = [record | {"runs": record["runs"][:1]} for record in (base, qk)]
    assert "not to be told without an interval" in sva_verdict.helped(one[1], one[0])
    assert "not to be told without an interval" in sva_verdict.where_to(one[0])


# The command.


@pytest.fixture
def calls(monkeypatch):
    """A made trainer that draws nothing; what it was asked for."""
    heard = []
    made = made_records.trainer(heard)
    monkeypatch.setattr(command, "train_group", made.train_group)
    made_records.load_by(monkeypatch, made.load, table1, "SVA")
    monkeypatch.setattr(table1, "draw_sva", lambda groups, frames, folder: [])
    draw = lambda rates, multipliers, path, called, by, chosen: results.write_text(path, by)  # noqa: E731
    monkeypatch.setattr(command, "draw_tuning", draw)
    arms = (TextArm("baseline", 2), TextArm("qk30", 2, qk=30.0))
    own = Protocol(seeded(sva_arms.quick()).recipe, (arms,), (Comparison("quick", ("baseline", "qk30")),), limit=9)
    monkeypatch.setitem(table1.PROTOCOLS, "quick", command.Config(own))
    return heard


def run(folder, *arguments):
    return table1.main(["--quick", "--out", str(folder), *arguments])


def test_arms_are_trained_once_and_drawn_again_the_same(calls, tmp_path, capsys):
    assert run(tmp_path) == 0 and calls == ["load", ["baseline", "qk30"]]
    names = ("agreement.csv", "heads.csv", "summary.csv", "verdict.md")
    before = {name: (tmp_path / name).read_bytes() for name in names}
    assert run(tmp_path, "--draw-only") == 0 and len(calls) == 2
    assert before == {name: (tmp_path / name).read_bytes() for name in names} and results.verify(tmp_path) == []
    told = capsys.readouterr()
    assert "attractor, some" in told.out.replace("\n", " ") or "attractor" in told.out
    assert "note: train: of its sentences 2 cut" in told.err


def test_tuning_is_by_the_validation_sentences_of_the_mix(calls, tmp_path, monkeypatch):
    whole = command.train_group

    def train_group(task, recipe, group, *rest):
        found = whole(task, recipe, group, *rest)
        for arm in group:
            for own in found[arm.name]["runs"]:
                own["end"]["validation"] |= {"accuracy": 0.9 - 100 * arm.rate, "accuracy_chosen": 0.5 + 10 * arm.rate}
        return found

    monkeypatch.setattr(command, "train_group", train_group)
    assert run(tmp_path, "--tune") == 0 and calls[-1][0] == "rate-0.01-qk5"
    frame = pd.read_csv(tmp_path / "tuned.csv").set_index("arm")
    assert frame.loc["rate-0.01", "chosen"] and frame.loc["rate-1e-05", "published"]
    assert "**Subject-verb agreement, tuning (quick)**" in (tmp_path / "verdict.md").read_text()
    assert (tmp_path / "tuned.png").read_text() == "accuracy_chosen"


ROW = "the {} of the NN run\t{}\t2\t6\tval"


@pytest.mark.parametrize(
    "rows, told",
    [
        ([ROW.format("da", "VBD")], "line 2: verb_pos must be VBZ or VBP, got 'VBD'"),
        ([ROW.format("da", "VBZ"), ROW.format("ba", "VBP").replace("\t2\t", "\t9\t")], "line 3: subj_index must be"),
    ],
)
def test_wrong_sentences_are_told_of_before_any_training(calls, tmp_path, monkeypatch, capsys, rows, told):
    made_records.load_by(monkeypatch, SVA.load, table1, "SVA")
    header = "sentence\tverb_pos\tsubj_index\tverb_index\tsource"
    (tmp_path / "sentences.tsv").write_text("\n".join([header, *rows]) + "\n")
    assert main_guard(lambda: run(tmp_path / "out", "--data", str(tmp_path))) == 2
    error = capsys.readouterr().err.strip()
    assert told in error and len(error.splitlines()) == 1 and calls == [] and not list(tmp_path.glob("out/arms/*"))


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["--protocol", "natural"], "protocol must be one of controlled, controlled_all, as_coded"),
        (["--quick", "--arms", "qk31"], "each of arms must be one of baseline, qk30, got 'qk31'"),
    ],
)
def test_unknown_names_are_told_of_before_any_work(calls, tmp_path, capsys, arguments, told):
    assert main_guard(lambda: table1.main([*arguments, "--out", str(tmp_path / "x")])) == 2
    assert told in capsys.readouterr().err and calls == []


def test_where_results_go(tmp_path):
    def folder(**options):
        return table1.Options(**options).folder.relative_to(tmp_path.cwd()).as_posix()

    assert folder() == "results/sva/controlled" and folder(quick=True) == "results/quick/sva"
    assert folder(tune=True) == "results/sva/tune" and folder(tune=True, protocol="controlled_all") == (
        "results/sva/controlled_all-tune"
    )
