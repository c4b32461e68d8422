"""SQuAD's tables, printed numbers, verdicts and figures, of made records."""

from dataclasses import replace

import numpy as np
import pytest

import made_squad_records as made
from experiments.squad import arms, published, readings, tables, verdict
from experiments.text.arms import Comparison
from qkdyn.errors import InputError
from qkdyn.figures.squad import draw_squad, draw_squad_tuning, label
from qkdyn.metrics.intervals import confidence_interval
from test_squad_parts import TINY

# Printed numbers.


def test_printed_runs_give_the_printed_means():
    """The paper's AC, ACMC, their intervals, and MRTA follow from the notebooks' runs; and these from their heat maps."""
    lines = published.printed()
    table = {(p.arm, p.quantity): p for p in lines if p.source == published.TABLE and p.split == "dev"}
    runs = {(p.arm, p.quantity): p for p in lines if p.source == published.NOTEBOOK and p.split == "dev"}
    for arm in ("baseline", "faster"):
        for name, digits in (("ac", 0.02), ("acmc_unspaced", 0.06), ("mass", 0.006), ("comprehensiveness", 0.006)):
            mean, low, high = (float(part) for part in confidence_interval(np.array(runs[arm, name].values)))
            assert table[arm, name].values[0] == pytest.approx(mean, abs=digits)
            assert table[arm, name].half == pytest.approx((high - low) / 2, rel=0.2, abs=0.006)
        cells = np.zeros((5, 4, 4))
        for p in lines:
            if p.arm == arm and p.quantity.startswith("dtap_unspaced."):
                row, column = map(int, p.quantity.split(".")[1:])
                cells[:, row, column] = p.values
        np.testing.assert_allclose(cells.sum((1, 2)), 100, atol=0.05)
        np.testing.assert_allclose(cells[:, :, 2:].sum((1, 2)), runs[arm, "ac"].values, atol=0.03)
        np.testing.assert_allclose(cells[:, 2:, 2:].sum((1, 2)), runs[arm, "acmc_unspaced"].values, atol=0.03)


# Tables, verdicts, figures of made records.


@pytest.fixture(scope="module")
def protocol():
    own = arms.protocol("controlled")
    return replace(own, recipe=TINY, arms=tuple(replace(arm, epochs=3) for arm in own.arms))


def test_joined_runs_and_their_table(protocol):
    records = made.made(protocol)
    joined = readings.by_arm(records[:-1], protocol)
    assert [record["arm"]["name"] for record in joined] == [arm.name for arm in protocol.arms]
    assert "seed" not in joined[0]["arm"] and [run["seed"] for run in joined[-1]["runs"]] == [1234, 1235, 1236]
    long = tables.summary_frame(joined, protocol)
    line = long.query("comparison == 'slow' and arm == 'slow-qk20' and reading == 'best' and split == 'dev'")
    mass = line.loc[line["quantity"] == "mass"].iloc[0]
    # QK x20 adds 0.1 log10(20), of every seed alike.
    assert mass["change_mean"] == pytest.approx(0.1 * np.log10(20), abs=1e-4) and mass["uniform"] == 0.25
    assert mass["seeds"] == 3 and mass["change_low"] == pytest.approx(mass["change_high"], abs=1e-4)
    # The last run is missing: its arm has two seeds.
    assert set(long.loc[long["arm"] == "slow-even", "seeds"]) == {2}
    assert {"end", "best", "matched"} == set(long["reading"])
    short = tables.short_frame(long)
    assert {"mass", "mass_ci", "mass_uniform", "mass_change"} <= set(short)
    assert len(tables.costs_frame(records)) == 18 and len(tables.baselines_frame(joined)) == 3


def test_the_verdict_follows_the_numbers(protocol):
    records = made.made(protocol)
    said = verdict.verdict(records, protocol, "controlled")
    assert "it shows that the pipeline runs" in said and "without a model, the first sentence gives 0.050" in said
    # Made entropy rises with QK: flatter, and more of it on the answer.
    assert "5e-4, QK x20 beside 5e-4: attention is flatter" in said and "puts more on the answer (MRTA +0.130" in said
    assert "MRTA +0.0801 [0.0801, 0.0801]: every rate a tenth -0.0500 [-0.0500, -0.0500], QK x20 +0.130 [0.130" in said
    assert "MRTA by +0.0801 [0.0801, 0.0801]: +0.130 [0.130, 0.130] by QK x20, -0.0500" in said
    assert "**In short.** 6 of 6 arms answer better than the first sentence (F1 0.050)." in said
    assert "MRTA: QK x20 +0.130" in said and "At an equal QK rate (1e-3)" in said
    for record in records:
        record["runs"][0]["end"]["dev"]["f1"] = 0.01
        if record["arm"]["qk"] == 20:
            record["runs"][0]["end"]["dev"]["entropy"] = 0.1 + 0.01 * (record["arm"]["seed"] == 1235)
    records[0]["runs"][0]["diverged_at"] = 2
    said = verdict.verdict(records, protocol, "controlled")
    assert "5e-5, QK x20 beside 5e-5: attention is sharper" in said and "no arm answers better than that" in said
    assert "that have hardly learned to answer. 5e-4, QK x2 beside" in said
    assert "so that chance chose them" not in said
    for record in records:
        record["runs"][0]["best"]["selection"]["f1"] = 0.01
    assert "so that chance chose them" in verdict.verdict(records, protocol, "controlled")
    assert "5e-4: 1 of 3 runs diverged" in said and "on 2 of 3 seeds" in said
    alone = verdict.verdict(records[1:2], protocol, "controlled")
    assert "no difference can be told from chance" in alone


def test_published_protocols_stand_beside_the_printed_numbers():
    own = arms.protocol("as_coded")
    records = made.made(own)
    frame = published.compared_frame(readings.by_arm(records, own))
    assert set(frame["our_arm"]) == {"same", "fast"} and len(frame) == len(published.printed())
    ac = frame.query("arm == 'faster' and quantity == 'ac' and source == 'notebook'").iloc[0]
    assert (
        ac["printed"] == pytest.approx(42.95, abs=0.01) and np.isfinite(ac["ours"]) and ac["intervals_overlap"] is None
    )
    said = verdict.verdict(records, own, "as_coded")
    assert "distinct printed numbers" not in said
    more = replace(own, seeds=(1, 2, 3))
    three = made.made(more)
    frame = published.compared_frame(readings.by_arm(three, more))
    known = frame[frame["intervals_overlap"].notna()]
    distinct = known.drop_duplicates(["arm", "split", "quantity", "reading"])
    assert 0 < len(distinct) < len(known)
    assert f"of {len(distinct)} distinct printed numbers" in verdict.verdict(three, more, "as_coded")
    assert "The printed faster arm beside ours: f1_first" in said and "without the space before it" in said
    assert "published" in tables.frames(records, own)


def test_figures_draw_what_is_there(protocol, tmp_path):
    records = made.made(protocol)
    records[1]["runs"][0] |= {"diverged_at": 1, "end": {"dev": {}}, "best": {"epoch": 0, "dev": {}}}
    joined = readings.by_arm(records[:7], replace(protocol, arms=protocol.arms[:2]))
    files = draw_squad(joined, "a title", "end", tmp_path)
    assert [file.name for file in files] == ["dtap.png", "learning.png", "attention.png", "curves.png"]
    assert all(file.stat().st_size > 10_000 for file in files)
    draw_squad_tuning(joined[:2], [], tmp_path / "tuned.png")
    with pytest.raises(InputError, match="at least one"):
        draw_squad([], "a title", "end", tmp_path)
    assert label({"rate": 5e-4, "qk": 20.0, "embed": 0.1}) == "5e-4, QK x20"
    assert label({"rate": 0.01, "qk": 1.0, "embed": 1.0}) == "1e-2, W_E too"


def test_comparisons_name_their_own_arms():
    for name in ("controlled", "as_coded", "as_written", "quick"):
        own = arms.protocol(name)
        assert {n for c in own.comparisons for n in c.arms} <= {arm.name for arm in own.arms}
    with pytest.raises(InputError, match="arms must be at least one, all different"):
        replace(arms.protocol("quick"), arms=(), comparisons=(Comparison("x", ()),))
