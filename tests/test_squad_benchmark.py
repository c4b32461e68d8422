"""What the benchmark of SQuAD compares is the same: the head everywhere, PyTorch, writing in both ways."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from benchmarks import squad, squad_cost
from benchmarks.squad_runs import loss_everywhere, made_questions, start, without_b_K
from experiments.squad.recipe import Recipe
from helpers import QUICK, max_difference
from qkdyn.errors import OutputError
from qkdyn.text.answer_batches import AnswerBatch
from qkdyn.train import language_engine
from qkdyn.train.language import language_loss
from qkdyn.train.language_batches import epoch_batches
from qkdyn.transformer_init import init_language

TINY = replace(Recipe(), vocabulary=60, n_layers=1, d_model=8, n_heads=2, d_mlp=8, batch=4, dropout=0.0)
JOB = squad.job_of(TINY, 16)


advance = jax.jit(language_engine.advance.__wrapped__, static_argnums=0, donate_argnums=2, compiler_options=QUICK)
PROMPTS = made_questions(np.random.default_rng(0), 8, TINY.vocabulary, 16)


def batches():
    return epoch_batches(PROMPTS, JOB.shapes, seed=0, epoch=0, batch=TINY.batch, micro=JOB.micro)


def begun():
    return start(JOB, squad.run_of(squad.LARGER * squad.RATE), PROMPTS, TINY.batch, advance)


def test_the_head_everywhere_is_no_other_loss():
    """Also where some labels are none."""
    posts = AnswerBatch(*(np.array(leaf)[0, 0] for leaf in batches().posts))
    posts.weight[3:9] = 0
    both = jax.jit(
        lambda p, posts: [loss(p, JOB.model, *posts, smoothing=0.1) for loss in (language_loss, loss_everywhere)],
        compiler_options=QUICK,
    )
    ours, other = both(init_language(jax.random.key(1), JOB.model), posts)
    assert ours > 3 and other == pytest.approx(float(ours), rel=1e-6)


def test_pytorch_learns_as_the_engine_does(monkeypatch):
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    from benchmarks import squad_torch

    ours = begun()
    rates, updates = squad.rates_of(ours.run), squad_torch.updates_of(ours.batches, JOB)
    first = ours.params()
    twins = [squad_torch.Trainer(JOB, first, *rates, at_labels) for at_labels in (True, False)]
    for _ in range(3):
        losses = ours.train()
        for twin in twins:
            np.testing.assert_allclose(twin(updates), losses, rtol=0, atol=1e-5)
    moved = max_difference(without_b_K(first), without_b_K(ours.params()))
    for twin in twins:
        assert max_difference(without_b_K(twin.params()), without_b_K(ours.params())) < 0.02 * moved
    told = squad._compared(begun())
    assert told.count("are within") == 6 and "gradients (head at labels)" in told
    monkeypatch.setattr(squad, "rates_of", lambda run: ({n: 1.5 * rate for n, rate in rates[0].items()}, rates[1]))
    with pytest.raises(OutputError, match=r"PyTorch's weights \(head everywhere\) are .* from the engine's"):
        squad._compared(begun())


def test_writing_with_and_without_keys_kept():
    write, again = squad._writers(TINY, 3, 8, 5)
    kept, again = write(), again(5)
    np.testing.assert_array_equal(kept, again)
    assert kept.shape == (3, 5) and len(np.unique(kept)) > 2 and not (kept == TINY.vocabulary - 1).any()


def test_the_cost_of_the_published_runs_is_that_of_its_parameters():
    recipe = Recipe()
    # Every parameter but positions, biases and norms takes part in a product at each of 256 slots; then the attention.
    weights = 6 * (4 * 300 * 300 + 2 * 300 * 1200) + 50_257 * 300
    attention = 6 * 2 * 256 * 300
    assert squad_cost.operations(recipe, 256, 256) == 3 * 2 * 256 * (weights + attention)
    assert squad_cost.hours(3.6e18, 1e15, 0.5) == 2
    here, published = squad_cost.lines(recipe, 70)
    assert "19.5 PFLOP a run" in here and "145 PFLOP a run; 0.1 h at 40%" in published
