"""From a recipe and one run of an arm to its record: train, read the selection questions each epoch, all splits at the end."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from experiments.squad.data import SPLITS, QuestionData
from experiments.squad.recipe import Recipe, Run
from experiments.text.recipe import GROUPS
from qkdyn.config import as_dict
from qkdyn.metrics.curves import THRESHOLDS
from qkdyn.readings.question_baselines import baselines
from qkdyn.readings.question_summary import EDGES, summary
from qkdyn.readings.questions import QuestionReading, read
from qkdyn.text.batches import bucket_widths
from qkdyn.text.prompts import Prompts
from qkdyn.train.interrupt import Asked, Request
from qkdyn.train.keeping import keep
from qkdyn.train.language_batches import batch_shapes, updates_of
from qkdyn.train.language_campaign import LanguageCampaign, Records
from qkdyn.train.language_engine import LanguageJob, LanguageRun
from qkdyn.train.store import Store, key_of

# Raised when the bits of a run change: checkpoints of another engine are not taken up.
ENGINE = 1
# Questions read at once, and the widths of such batches.
READ, WIDTHS = 64, 2
# Measured after each epoch on the selection questions.
EPOCH = (
    "f1",
    "em",
    "f1_first",
    "em_first",
    "loss",
    "probability",
    "entropy",
    "head_entropy",
    "mass",
    "mass_layers",
    "head_mass",
    "ac",
    "acmc",
)
Update = Callable[[float, str], Any]


def job_of(recipe: Recipe, data: QuestionData, epochs: int) -> LanguageJob:
    """What all runs of so many epochs share."""
    steps = epochs * updates_of(len(data.train.ids), recipe.batch, recipe.micro)
    return LanguageJob(
        recipe.model(),
        batch_shapes(data.train, recipe.batch, recipe.shapes),
        steps=steps,
        cycle=round(recipe.cycle * steps),
        warmup=max(1, round(recipe.warmup * steps / epochs)),
        micro=recipe.micro,
        clip=recipe.clip,
        smoothing=recipe.smoothing,
        # A CPU has no faster way to multiply them.
        bfloat16=recipe.bfloat16 and jax.default_backend() != "cpu",
    )


def run_of(run: Run) -> LanguageRun:
    """Settings of a run as the engine takes them: no decay of the token embedding, as published."""
    decay = {name: run.arm.decay * (name != "embed") for name in GROUPS}
    return LanguageRun(run.arm.rate, dict(run.arm.multipliers), decay)


def train_run(
    recipe: Recipe,
    run: Run,
    data: QuestionData,
    store: Store | None,
    request: Request | None,
    update: Update,
) -> dict[str, Any]:
    """Train one run and return its record.

    Args:
        recipe: what all runs share.
        run: arm and seed.
        data: the questions.
        store: keeps checkpoints; None keeps nothing.
        request: noted signals.
        update: shows progress.

    Raises:
        Interrupted: a signal was noted; what was done is saved.
    """
    update(0.0, "compiling")
    reader = Reader(recipe, data, request)
    job = job_of(recipe, data, run.arm.epochs)

    def heard(step: int, records: Records) -> None:
        f1 = records.get("selection/f1")
        said = f", loss {records['losses'][-16:].mean():.2f}" + (f", F1 {f1[-1]:.3f}" if f1 is not None else "")
        update(0.85 * step / job.steps, f"update {step} of {job.steps}{said}")

    campaign = LanguageCampaign(
        job,
        run.seed,
        data.train,
        recipe.batch,
        run.arm.epochs,
        reader.epoch,
        store,
        request,
        by_length=recipe.by_length,
        vectors=data.vectors,
    )
    key = key_of(ENGINE, as_dict(recipe), as_dict(run.arm), run.seed, data.sha256, len(data.train.ids))
    state, best, records = campaign.finish(run_of(run), key, heard)
    found = _written(run, records, job.steps // run.arm.epochs)
    if found["diverged_at"] is not None:
        # Saved now it would go on training: what is left to read is read.
        reader.request = None
    readings: dict[str, Any] = {"end": {}, "best": {"epoch": int(records["best/epoch"])}}
    for number, (reading, params) in enumerate((("end", state.params), ("best", best))):
        update(0.86 + 0.07 * number, "measuring")
        known = found["diverged_at"] is None if reading == "end" else int(records["best/epoch"]) > 0
        same = reading == "best" and found["diverged_at"] is None and int(records["best/epoch"]) == run.arm.epochs
        for split in SPLITS:
            if same or not known:
                readings[reading][split] = readings["end"][split] if same else {}
                continue
            try:
                readings[reading][split] = reader.whole(params, split)
            except Asked:
                keep((state, best), records, key, store, request)
                raise
    speed = campaign.tokens / campaign.seconds if campaign.seconds else None
    return plain(
        {
            "data": data.counts,
            "notes": list(data.notes),
            "thresholds": list(THRESHOLDS),
            "edges": list(EDGES),
            "tokens_per_second": None if speed is None else round(speed),
            "training_seconds": round(campaign.seconds, 1),
            "baselines": reader.baselines(),
            "runs": [{"seed": run.seed, **found, **readings}],
        }
    )


class Reader:
    """How the runs of a recipe are measured."""

    def __init__(self, recipe: Recipe, data: QuestionData, request: Request | None = None) -> None:
        self.recipe, self.data, self.request = recipe, data, request
        self.how = QuestionReading(recipe.model(), most=recipe.most, residual=recipe.residual, share=recipe.share)
        # The same for all sets of questions: each is compiled once.
        lengths = [prompts.prompt_length for prompts in (data.selection, data.dev, data.learned)]
        self.widths = bucket_widths(np.concatenate(lengths), min(WIDTHS, recipe.shapes))

    def read(self, params: Any, prompts: Prompts, *, faithful: bool) -> dict[str, Any]:
        """Means and distributions over some questions; of heads their own numbers too."""
        if self.request:
            self.request.check()
        vocabulary = self.data.vocabulary
        found = summary(
            read(self.how, params, prompts, vocabulary, batch=READ, widths=self.widths, faithful=faithful), EDGES
        )
        heads = {name: found[f"head_{name}"] for name in ("mass", "entropy")}
        each = [dict(zip(heads, own, strict=True)) for own in zip(*heads.values(), strict=True)]
        return found | {f"head_{name}": float(np.mean(own)) for name, own in heads.items()} | {"heads": each}

    def epoch(self, state: Any, epoch: int, records: Records) -> Records:
        """The records with what is measured after an epoch; epochs are chosen as published where that is so."""
        found = self.read(state.params, self.data.selection, faithful=False)
        chosen = "f1_first" if self.recipe.chosen_by == "dev" else "f1"
        # An epoch that cannot be read is never the best.
        score = found[chosen] if np.isfinite(found[chosen]) else -1.0
        lines = {f"read/{name}": found[name] for name in EPOCH} | {"selection/f1": score}
        for name, value in lines.items():
            records[name] = np.append(records.get(name, np.zeros(0)), value)
        return records

    def whole(self, params: Any, split: str) -> dict[str, Any]:
        """All measures of a split; faithfulness on dev alone."""
        prompts = self.data.learned if split == "train" else getattr(self.data, split)
        return self.read(params, prompts, faithful=split == "dev")

    def baselines(self) -> dict[str, Any]:
        """What needs no model, on dev: the rules of `qkdyn.readings.question_baselines`, and how frequent tokens are."""
        train, dev = self.data.train, self.data.dev
        found: dict[str, Any] = dict(baselines(dev, self.data.vocabulary, [answers[0] for answers in train.references]))
        return found | {"token_frequencies": {"loss": unigram_loss(train, dev, self.data.vocabulary.size)}}


def unigram_loss(train: Prompts, dev: Prompts, vocabulary: int) -> float:
    """Nats per token of dev's answers, and their ends, by how frequent each is in training answers, each seen once more."""

    def tokens(prompts: Prompts) -> np.ndarray:
        return prompts.answer[np.arange(prompts.answer.shape[1]) < prompts.answer_length[:, None]]

    counts = 1.0 + np.bincount(tokens(train), minlength=vocabulary)
    log_p = np.log(counts / counts.sum())
    there = np.arange(dev.answer.shape[1]) < dev.answer_length[:, None]
    # As the model's loss: the mean over questions of the mean over tokens.
    return float((-(log_p[dev.answer] * there).sum(1) / dev.answer_length).mean())


def _written(run: Run, records: Records, each: int) -> dict[str, Any]:
    """Where the run diverged, if it did, and what is known of each epoch."""
    losses = records["losses"]
    bad = ~np.isfinite(losses)
    known = [losses[at : at + each].mean() for at in range(0, len(losses), each)]
    return {
        "diverged_at": int(np.argmax(bad)) // each + 1 if bad.any() else None,
        "epochs": {
            "training_loss": known + [None] * (run.arm.epochs - len(known)),
            "selection": {name: _padded(records.get(f"read/{name}", np.zeros(0)), run.arm.epochs) for name in EPOCH},
        },
    }


def _padded(column: np.ndarray, count: int) -> list[float | None]:
    return [*map(float, column), *[None] * (count - len(column))]


def plain(value: Any) -> Any:
    """As JSON has it: five digits, null for what is not finite."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim):
        return [plain(item) for item in value]
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int | np.integer):
        return int(value)
    return float(f"{float(value):.5g}") if np.isfinite(value) else None
