"""The protocols on subject-verb agreement: what the arms differ in."""

from dataclasses import replace

import pytest

from experiments.text import sva_arms


def test_as_coded_has_every_confound_and_as_written_none_but_the_rate_of_qk():
    coded, written, sgd = sva_arms.as_coded(), sva_arms.as_written(), sva_arms.as_written_sgd()
    baseline, faster = coded.arms
    assert faster == replace(baseline, name="faster", qk=100.0, embed=100.0)
    assert (baseline.rate, baseline.epochs, baseline.decay) == (5e-4, 15, 1e-5)
    for protocol in (written, sgd):
        assert protocol.arms[1] == replace(protocol.arms[0], name="qk100", qk=100.0)
    assert written.arms[0].rate == 1e-5 and sgd.arms[0].rate == 5e-4
    assert written.recipe == replace(coded.recipe, optimizer="adamw", momentum=0.0)
    assert sgd.recipe == replace(coded.recipe, batch=256)
    own = coded.recipe
    assert (own.rows, own.relevant, own.split, own.vocabulary) == (
        "sentences",
        "subject_and_verb",
        "published",
        "wordpiece",
    )
    assert (own.readout, own.measured, own.share_of, own.order) == ("last", "last_slot", "slots", "rank")
    assert (own.optimizer, own.momentum, own.clip, own.outputs, own.stream) == ("sgd", 0.99, None, 3, False)
    assert (own.confidence, own.sure, own.ac_probability, own.share) == (0.1, 0.5, 0.1, 0.05)
    assert own.mask_padding and not own.query_token and not own.by_length and own.d_mlp is None


@pytest.mark.parametrize("make, mix", [(sva_arms.controlled, "natural"), (sva_arms.controlled_all, "all")])
def test_controlled_crosses_qk_with_embeddings_and_doses_qk(make, mix):
    protocol = make()
    named, first = {arm.name: arm for arm in protocol.arms}, protocol.arms[0]
    assert protocol.recipe.mix == mix and protocol.recipe.rows == "preambles" and protocol.recipe.relevant == "subject"
    assert all(
        arm == replace(first, name=arm.name, qk=arm.qk, ov=arm.ov, embed=arm.embed, rate=arm.rate)
        for arm in named.values()
    )
    crossed = [named[name] for name in protocol.comparisons[0].arms]
    assert [(arm.qk, arm.embed) for arm in crossed] == [(1, 1), (1, 100), (100, 1), (100, 100)]
    assert protocol.comparisons[0].factors == ("qk100", "embed100")
    assert [named[name].qk for name in protocol.comparisons[1].arms[:5]] == [1, 5, 10, 30, 100]
    assert named["ov30"].ov == 30 and named["all30"].rate == pytest.approx(30 * first.rate)
    assert {name for own in protocol.comparisons for name in own.arms} == set(named)
