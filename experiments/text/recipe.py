"""What is trained on text: a recipe that all arms of a protocol share, and the arms, which differ in rates and decay."""

import math
import re
from dataclasses import dataclass, fields
from typing import Any

from qkdyn.errors import check_count, check_positive, reject
from qkdyn.metrics.checks import check_share
from qkdyn.readings.levels import EDGES, Levels
from qkdyn.transformer_config import TransformerConfig, parameter_names

# Parameter groups with a rate multiplier each; "rest" is what a recipe sets apart from its group.
GROUPS = ("qk", "ov", "embed", "mlp", "head", "rest")
# An arm's name is that of its record's file.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]{0,99}")
LARGEST_SEED, LARGEST_BATCH, MOST_EPOCHS = 2**32 - 1, 10**6, 10_000


class Fixed:
    """What recipes of HateXplain have no choice of, and those of other data sets may have: see `SvaRecipe`."""

    outputs: int = 3
    stream: bool = True
    optimizer: str = "adamw"
    momentum: float = 0.0
    edges: tuple[float, ...] = EDGES
    sure: float | None = None
    ac_probability: float | None = None
    epoch_size: int | None = None


def check_seeds(seeds: Any) -> None:
    """Raise InputError unless these are seeds, at least one and all different."""
    if not isinstance(seeds, tuple) or not seeds:
        reject("seeds", seeds, "a tuple of at least one seed, all different")
    for seed in seeds:
        if check_count("each of seeds", seed, minimum=0) > LARGEST_SEED:
            reject("each of seeds", seed, f"an integer from 0 to {LARGEST_SEED}")
    if len(set(seeds)) != len(seeds):
        reject("seeds", seeds, "at least one seed, all different")


@dataclass(frozen=True)
class Recipe(Fixed):
    """What all arms of a protocol share.

    Attributes:
        vocabulary: words of the training split, or BERT's word pieces.
        query_token: append a learned query token to every post.
        readout: position whose output is the prediction: query, last (real token), first_pad.
        measured: attention row that is measured: the readout row, or the last of `n_ctx` slots.
        causal: tokens attend to those before them and to themselves only.
        mask_padding: padding gets no attention.
        n_layers: attention layers.
        d_model: width of the residual stream.
        n_heads: heads of a layer.
        d_head: width of a head.
        d_mlp: width of the MLP; None for none.
        n_ctx: longest post in tokens; longer ones are cut.
        positions: rows of the position embedding.
        apart: names of parameters that are trained as group "rest", whatever their circuit.
        undecayed: groups without weight decay.
        agreement: how annotators' masks become one: majority, union, or mean3 (their sum over three, as published).
        batch: posts of an update.
        by_length: batches of posts of similar length; else a uniform shuffle.
        warmup: share of the updates over which the rate rises from 0; it falls to 0 along a cosine.
        clip: largest norm of the gradient of all groups together; None does not clip.
        share: share of tokens deleted or kept for faithfulness.
        share_of: of the content tokens, or of all `n_ctx` slots (padding included, as published).
        order: kept tokens in the order of the text, or of their attention (as published).
        residual: weight of attention in the rollout, the rest being the identity; 1 is attention alone.
        confidence: attention mass (and probability) from which an instance counts as confident.
        seeds: one run of each arm for each.
    """

    vocabulary: str = "words"
    query_token: bool = True
    readout: str = "query"
    measured: str = "readout"
    causal: bool = True
    mask_padding: bool = True
    n_layers: int = 1
    d_model: int = 64
    n_heads: int = 4
    d_head: int = 64
    d_mlp: int | None = 256
    n_ctx: int = 128
    positions: int = 256
    apart: tuple[str, ...] = ()
    undecayed: tuple[str, ...] = ()
    agreement: str = "union"
    batch: int = 32
    by_length: bool = True
    warmup: float = 0.1
    clip: float | None = 1.0
    share: float = 0.2
    share_of: str = "content"
    order: str = "text"
    residual: float = 1.0
    confidence: float = 0.33
    seeds: tuple[int, ...] = (1234, 1235, 1236, 1237, 1238)

    def __post_init__(self) -> None:
        allowed = {
            "vocabulary": ("words", "wordpiece"),
            "readout": ("query", "last", "first_pad"),
            "measured": ("readout", "last_slot"),
            "agreement": ("majority", "union", "mean3"),
            "share_of": ("content", "slots"),
            "order": ("text", "rank"),
        }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                reject(name, getattr(self, name), "one of " + ", ".join(values))
        for name in ("query_token", "causal", "mask_padding", "by_length"):
            check_switch(name, getattr(self, name))
        for name in ("n_layers", "d_model", "n_heads", "d_head", "n_ctx", "batch", "positions"):
            check_count(name, getattr(self, name))
        if self.d_mlp is not None:
            check_count("d_mlp", self.d_mlp, do="for a model without MLP write None")
        if self.batch > LARGEST_BATCH:
            reject("batch", self.batch, f"at most {LARGEST_BATCH:,} posts")
        if self.positions < self.n_ctx + self.query_token:
            reject(
                "positions", self.positions, f"at least {self.n_ctx + self.query_token}, one for every token of a post"
            )
        if (self.readout == "query") != self.query_token:
            reject("readout", self.readout, "query exactly where a query token is appended")
        for name in ("share", "confidence", "warmup", "residual"):
            check_share(name, getattr(self, name))
        check_positive("share", self.share)
        if self.clip is not None:
            check_positive("clip", self.clip)
        _check_names("undecayed", self.undecayed, GROUPS)
        _check_names("apart", self.apart, self._parameters())
        check_seeds(self.seeds)

    def passes(self, posts: int) -> int:
        """Passes over so many training posts in an epoch: about as many updates as `epoch_size` posts would give."""
        if self.epoch_size is None:
            return 1
        return max(1, round(math.ceil(self.epoch_size / self.batch) / math.ceil(posts / self.batch)))

    @property
    def levels(self) -> Levels:
        """From where on an instance counts as confident."""
        sure = self.confidence if self.sure is None else self.sure
        return Levels(self.confidence, sure, self.ac_probability, self.edges)

    def _parameters(self) -> list[str]:
        """Names of the model's parameters but for the token embedding, whose rows are trained in a way of their own."""
        sizes = {name: getattr(self, name) for name in ("n_layers", "d_model", "n_heads", "d_head", "d_mlp")}
        return [name for name in parameter_names(TransformerConfig(1, self.positions, 1, **sizes)) if name != "W_E"]


def check_switch(name: str, value: Any) -> None:
    """Raise InputError unless `value` is True or False."""
    if not isinstance(value, bool):
        reject(name, value, "True or False")


def _check_names(name: str, values: Any, known: Any) -> None:
    """Raise InputError unless `values` are a tuple of different names, all of them known."""
    if not isinstance(values, tuple) or len(set(map(repr, values))) < len(values):
        reject(name, values, "a tuple of different names")
    for value in values:
        if value not in known:
            reject(f"each of {name}", value, "one of " + ", ".join(known))


@dataclass(frozen=True)
class TextArm:
    """How one arm is trained: AdamW at `rate`, times a multiplier for each group.

    Attributes:
        name: of its record.
        epochs: passes over the training posts, or of more than one of these where the recipe says so.
        rate: base learning rate.
        qk: multiplier of W_Q, W_K and their biases, the paper's r where ov is 1.
        ov: of W_V, W_O and their biases.
        embed: of token and position embeddings.
        mlp: of the MLP; 0 leaves it as it was initialized.
        head: of the readout.
        rest: of what the recipe sets apart.
        decay: weight decay of every group, times its rate (AdamW).
        stale: the gradients of frozen parameters add up and take part in clipping (as published).
    """

    name: str
    epochs: int = 10
    rate: float = 5e-5
    qk: float = 1.0
    ov: float = 1.0
    embed: float = 1.0
    mlp: float = 1.0
    head: float = 1.0
    rest: float = 1.0
    decay: float = 1e-4
    stale: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            reject("name", self.name, "a word of up to 100 letters, digits and + . _ -, as the name of a file")
        if check_count("epochs", self.epochs) > MOST_EPOCHS:
            reject("epochs", self.epochs, f"at most {MOST_EPOCHS:,}")
        check_switch("stale", self.stale)
        check_positive("rate", self.rate, most=1.0)
        for name in (*GROUPS, "decay"):
            check_positive(name, getattr(self, name), zero=True, most=1e6)
        for group, factor in self.multipliers.items():
            # An update takes rate x multiplier x decay of every parameter away.
            if self.rate * factor * self.decay >= 1:
                said = f"{self.rate:g} x {factor:g} x {self.decay:g}"
                reject(
                    f"arm {self.name}, group {group}: rate x multiplier x decay", said, "below 1", "lower one of them"
                )

    @property
    def multipliers(self) -> dict[str, float]:
        """The multiplier of each group."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name in GROUPS}
