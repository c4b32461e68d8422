"""Questions, models and arms of language models small enough to be followed by hand."""

import numpy as np

from qkdyn.text.prompts import LeftOut, Prompts
from qkdyn.train.language_engine import LanguageRun
from qkdyn.transformer import TransformerConfig

VOCABULARY, N_CTX = 20, 16


def made_prompts(questions=27, seed=0):
    """Prompts of 3 to 9 tokens and answers of 1 to 6, the end, here the last id, counted."""
    rng = np.random.default_rng(seed)
    prompt_length = rng.integers(3, 10, questions).astype(np.int32)
    answer_length = np.minimum(rng.geometric(0.5, questions), 6).astype(np.int32)
    end = VOCABULARY - 1
    prompt, answer = (
        np.where(np.arange(width) < length[:, None], rng.integers(0, end, (questions, width)), end).astype(np.int32)
        for width, length in ((16, prompt_length), (8, answer_length))
    )
    answer[np.arange(questions), answer_length - 1] = end
    return Prompts(
        ids=tuple(map(str, range(questions))),
        references=(("it",),) * questions,
        prompt=prompt,
        prompt_length=prompt_length,
        answer=answer,
        answer_length=answer_length,
        unspaced=answer,
        unspaced_length=answer_length,
        relevant=prompt < 3,
        shown=np.ones(questions, bool),
        pad=end,
        n_ctx=N_CTX,
        left_out=LeftOut((), (), (), 0, 0, 0),
    )


def model_of(**changed):
    sizes = {"n_layers": 1, "d_model": 6, "n_heads": 2, "d_head": 3, "d_mlp": 8}
    kind = {"activation": "gelu", "layer_norm": "pre", "mask_padding": False, "tied": True}
    return TransformerConfig(VOCABULARY, N_CTX, VOCABULARY, **(sizes | kind | changed))


def run_of(rate=0.02, qk=1.0, embed=1.0, decay=0.05):
    """An arm: another rate of QK and of the token embedding, which does not decay."""
    names = ("qk", "ov", "embed", "mlp", "head", "rest")
    multipliers = {**dict.fromkeys(names, 1.0), "qk": qk, "embed": embed}
    return LanguageRun(rate, multipliers, {name: decay * (name != "embed") for name in names})
