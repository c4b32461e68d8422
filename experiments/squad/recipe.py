"""What is trained on questions: a recipe that all arms of a protocol share; the arms differ in rates and epochs."""

import re
from dataclasses import dataclass, field
from typing import Any

from qkdyn.errors import check_count, check_positive, reject
from qkdyn.metrics.checks import check_share
from qkdyn.text.prompts import ANSWER
from qkdyn.text.windows import CHOICES
from qkdyn.transformer_config import TransformerConfig

# One-cycle schedule as published: a cycle of twice the run's updates, of which only half is run; 1,000 updates of warm-up,
# 937 being an epoch.
CYCLE, WARMUP = 2.0, 1000 / 937
_SHA256 = re.compile(r"|[0-9a-f]{64}")


@dataclass(frozen=True)
class Recipe:
    """What all arms of a protocol share; the sizes are those of the published model.

    Attributes:
        vocabulary: entries of the byte-level vocabulary: the first ones, and the end of a text.
        n_layers: blocks of attention and MLP.
        d_model: width of the residual stream.
        n_heads: heads of a layer, of d_model / n_heads each.
        d_mlp: width of the MLP.
        n_ctx: tokens of prompt and answer together.
        dropout: share dropped in training.
        questions: training questions that are drawn; all there are where they are fewer.
        dev: dev questions that are measured, drawn likewise.
        selection: questions by which epochs are chosen.
        learned: training questions that are read beside these.
        chosen_by: "articles": questions on a tenth of the training articles, which are not trained on; "dev": the first dev
            questions, as published.
        windows: part of a paragraph that training shows, see `qkdyn.text.windows`.
        evaluated: that of evaluation.
        size: most characters of windows that are not centred.
        keep_cue: prompts that are too long are cut before their ` A:`; False cuts it, as published.
        drawn: seed of the draws of questions and windows, one for all runs.
        batch: questions of a micro-batch.
        micro: micro-batches of an update.
        clip: largest norm of the gradient.
        smoothing: of the labels.
        cycle: length of the schedule's cycle, in runs.
        warmup: epochs until the largest rate, whatever the length of the run.
        by_length: updates of questions of similar length; else a uniform shuffle, as published.
        shapes: widths of training batches at most, each compiled once.
        bfloat16: products in bfloat16, on accelerators.
        vectors: SHA-256 of the file of pretrained token vectors; empty for none.
        most: tokens of an answer that are written at most.
        residual: weight of attention in the rollout, the rest being the identity.
        share: share of tokens deleted or kept for faithfulness.
    """

    vocabulary: int = 50_257
    n_layers: int = 6
    d_model: int = 300
    n_heads: int = 6
    d_mlp: int = 1200
    n_ctx: int = 256
    dropout: float = 0.2
    questions: int = 60_000
    dev: int = 10_570
    selection: int = 300
    learned: int = 200
    chosen_by: str = "articles"
    windows: str = "random"
    evaluated: str = "question"
    size: int = 400
    keep_cue: bool = True
    drawn: int = 1
    batch: int = 32
    micro: int = 2
    clip: float = 0.5
    smoothing: float = 0.1
    cycle: float = CYCLE
    warmup: float = WARMUP
    by_length: bool = True
    shapes: int = 4
    bfloat16: bool = False
    vectors: str = ""
    most: int = ANSWER
    residual: float = 0.5
    share: float = 0.05

    def __post_init__(self) -> None:
        for name in ("questions", "dev", "selection", "learned", "batch", "micro", "size", "most", "shapes"):
            check_count(name, getattr(self, name))
        check_count("drawn", self.drawn, minimum=0)
        for name in ("residual", "share", "smoothing"):
            check_share(name, getattr(self, name))
        for name in ("clip", "share", "warmup"):
            check_positive(name, getattr(self, name))
        check_positive("cycle", self.cycle, least=1.0)
        if self.most > ANSWER:
            reject("most", self.most, f"at most {ANSWER}, for which prompts leave room")
        allowed = {"chosen_by": ("articles", "dev"), "windows": CHOICES, "evaluated": ("centred", "question")}
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                reject(name, getattr(self, name), "one of " + ", ".join(values))
        for name in ("keep_cue", "by_length", "bfloat16"):
            if not isinstance(getattr(self, name), bool):
                reject(name, getattr(self, name), "True or False")
        if self.d_model % check_count("n_heads", self.n_heads):
            reject("d_model", self.d_model, f"a multiple of n_heads, {self.n_heads}")
        if not _SHA256.fullmatch(self.vectors):
            reject("vectors", self.vectors, "a SHA-256, or empty")
        self.model()

    def model(self) -> TransformerConfig:
        """The model; raises InputError for sizes that are not allowed."""
        sizes: dict[str, Any] = {name: getattr(self, name) for name in ("n_layers", "d_model", "n_heads", "d_mlp")}
        return TransformerConfig(
            self.vocabulary,
            self.n_ctx,
            self.vocabulary,
            d_head=self.d_model // self.n_heads,
            activation="gelu",
            layer_norm="pre",
            mask_padding=False,
            dropout=self.dropout,
            readout="last",
            tied=True,
            **sizes,
        )


@dataclass(frozen=True)
class Run:
    """One run: an arm from one seed.

    Attributes:
        arm: its settings.
        seed: of its initial parameters, its batches and its dropout.
        name: of its record.
    """

    arm: Any
    seed: int
    name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", f"{self.arm.name}-{self.seed}")
