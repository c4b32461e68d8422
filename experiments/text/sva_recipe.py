"""What is trained on subject-verb agreement: a recipe of text, and what sentences have beside posts."""

from dataclasses import dataclass

from experiments.text.recipe import Recipe, check_switch
from qkdyn.errors import check_count, check_positive, reject
from qkdyn.metrics.checks import check_share


@dataclass(frozen=True)
class SvaRecipe(Recipe):
    """What all arms of a protocol share; by default the number of a verb that is not seen, read at a query token.

    Attributes:
        rows: whole sentences, or preambles: the words before the verb.
        mix: sentences to learn from: all, or natural, those of source `val` and all of the published file. Validation and
            test are of all sources; epochs are chosen by the validation sentences of the mix.
        relevant: the subject, or subject_and_verb (as published).
        split: by a hash of the sentence; or published, where the file is the published one (else by hash, and a note says so).
        outputs: of the head; the published one has a third class that never occurs.
        stream: add what attention computes to what it read, the residual stream; else replace it (as published).
        optimizer: adamw, or sgd, whose decay is added to the gradient.
        momentum: of sgd.
        clip: largest norm of the gradient of all groups together; None does not clip.
        edges: of the bins of heat maps, on both axes.
        confidence: attention mass from which an instance counts for AC and ACMC.
        sure: probability of the true class from which it counts for ACMC; None is `confidence`.
        ac_probability: probability that AC asks for (0.1 as published); None asks for none.
        epoch_size: sentences of an epoch, after which runs are measured: where there are fewer, they are passed over several
            times, so that as many updates are made as of the published file; None is one pass.
    """

    rows: str = "preambles"
    mix: str = "all"
    relevant: str = "subject"
    split: str = "hash"
    outputs: int = 2
    stream: bool = True
    optimizer: str = "adamw"
    momentum: float = 0.0
    edges: tuple[float, ...] = (0.0, 0.1, 0.5, 1.1)
    confidence: float = 0.5
    sure: float | None = 0.5
    ac_probability: float | None = None
    epoch_size: int | None = None
    d_mlp: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = {
            "rows": ("sentences", "preambles"),
            "mix": ("all", "natural"),
            "relevant": ("subject", "subject_and_verb"),
            "split": ("hash", "published"),
            "optimizer": ("adamw", "sgd"),
        }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                reject(name, getattr(self, name), "one of " + ", ".join(values))
        check_switch("stream", self.stream)
        if self.rows == "preambles" and (self.relevant, self.split) != ("subject", "hash"):
            found = f"{self.relevant}, split {self.split}"
            reject("relevant and split of preambles", found, "subject, split hash: a preamble has no verb")
        check_count("outputs", self.outputs, minimum=2)
        if self.epoch_size is not None:
            check_count("epoch_size", self.epoch_size)
        if self.optimizer == "sgd" and not 0 <= self.momentum < 1:
            reject("momentum", self.momentum, "at least 0 and below 1, under sgd")
        if self.optimizer == "adamw" and self.momentum:
            reject("momentum", self.momentum, "0 under adamw, whose moments are its own")
        for name in ("sure", "ac_probability"):
            if getattr(self, name) is not None:
                check_share(name, getattr(self, name))
        wanted = "four rising numbers, the first 0 and the last above 1"
        if not isinstance(self.edges, tuple) or len(self.edges) != 4:
            reject("edges", self.edges, wanted)
        for edge in self.edges:
            check_positive("each of edges", edge, zero=True)
        if self.edges[0] != 0 or self.edges[-1] <= 1 or sorted(set(self.edges)) != list(self.edges):
            reject("edges", self.edges, wanted)
