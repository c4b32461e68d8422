"""From a recipe and its arms to records: read the posts, train a group of arms together, write what was found."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.text.recipe import GROUPS, Recipe, TextArm
from qkdyn.config import as_dict
from qkdyn.text.batches import bucket_widths, epoch_plan
from qkdyn.text.cleaning import clean
from qkdyn.text.encoded import Encoded, encode_posts
from qkdyn.text.hatexplain import LABELS, read_hatexplain
from qkdyn.text.sources import checksums, data_folder, find
from qkdyn.text.vocabulary import Vocabulary, word_vocabulary, wordpiece
from qkdyn.train.interrupt import Request
from qkdyn.train.store import Store, key_of
from qkdyn.train.text_batches import slots_read
from qkdyn.train.text_campaign import Records, TextCampaign
from qkdyn.train.text_engine import TextJob, TextRuns, TextState
from qkdyn.train.text_measures import THRESHOLDS, Split, distributions, floors, means, split_of
from qkdyn.train.text_reading import Reading
from qkdyn.transformer import TransformerConfig

# Raised when the bits of a run change: checkpoints of another engine are not taken up.
ENGINE = 1
# Shares of content tokens whose comprehensiveness and sufficiency are averaged, as in ERASER.
SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
SPLITS = ("validation", "test")


@dataclass(frozen=True, eq=False)
class TextData:
    """The posts of a recipe.

    Attributes:
        train: to be learned.
        validation: by which epochs and rates are chosen.
        test: by which nothing is chosen.
        vocabulary: its size.
        notes: what differs from the published data.
        sha256: of each file.
    """

    train: Encoded
    validation: Encoded
    test: Encoded
    vocabulary: int
    notes: tuple[str, ...]
    sha256: dict[str, str]


def load(recipe: Recipe, option: Path | None, *, limit: int | None = None) -> TextData:
    """Read and encode HateXplain as a recipe has it.

    Args:
        recipe: vocabulary, query token, agreement of annotators, longest post.
        option: folder named by the user; None looks where the environment says, and in data/.
        limit: only so many posts of each split.

    Raises:
        DataError: a file is missing, or not as its schema says.
    """
    folder = data_folder(option, "hatexplain")
    posts = read_hatexplain(folder)
    sums, prepare = dict(checksums(folder, "hatexplain")), None
    vocabulary: Vocabulary
    if recipe.vocabulary == "wordpiece":
        pieces = data_folder(None if option is None else _beside(option), "bert_base_uncased")
        vocabulary, prepare = wordpiece(find(pieces, "vocab.txt")), clean
        sums |= checksums(pieces, "bert_base_uncased")
    else:
        vocabulary = word_vocabulary(post.words for post in posts.train)
    encoded = [
        encode_posts(
            split[:limit],
            vocabulary,
            n_ctx=recipe.n_ctx,
            truncate=True,
            query=recipe.query_token,
            agreement=recipe.agreement,
            prepare=prepare,
            pad_to_n_ctx=recipe.measured == "last_slot",
        )
        for split in (posts.train, posts.validation, posts.test)
    ]
    return TextData(*encoded, vocabulary.size, posts.notes, sums)


def _beside(option: Path) -> Path:
    """The folder in which a folder named for one source has its neighbours."""
    return option.parent / "bert_base_uncased" if (option.parent / "bert_base_uncased").is_dir() else option


def train_group(
    recipe: Recipe,
    arms: Sequence[TextArm],
    data: TextData,
    store: Store | None,
    request: Request | None,
    update: Callable[[float, str], Any],
) -> dict[str, dict[str, Any]]:
    """Train arms of equal epochs together, all seeds of each; a record for every arm.

    Raises:
        Interrupted: a signal was noted; what was done is saved.
    """
    campaign, runs = prepare(recipe, arms, data, store, request)
    key = key_of(ENGINE, as_dict(recipe), [as_dict(arm) for arm in arms], data.sha256, len(data.train))

    def heard(step: int, records: Records) -> None:
        done = records.get("validation/accuracy")
        said = f", validation accuracy {done[:, :, -1].mean():.3f}" if done is not None else ""
        update(0.9 * step / campaign.job.steps, f"update {step} of {campaign.job.steps}{said}")

    state, records = campaign.finish(runs, key, heard)
    update(0.92, "measuring")
    return _written(recipe, arms, data, campaign, records, _end(recipe, arms, data, campaign, state, update))


def prepare(
    recipe: Recipe, arms: Sequence[TextArm], data: TextData, store: Store | None = None, request: Request | None = None
) -> tuple[TextCampaign, TextRuns]:
    """What is trained and measured, and the settings of the arms."""
    names = ("n_layers", "d_model", "n_heads", "d_head", "d_mlp", "causal", "mask_padding", "readout")
    model = TransformerConfig(
        data.vocabulary, recipe.positions, len(LABELS), **{name: getattr(recipe, name) for name in names}
    )
    how = Reading(
        model,
        last_slot=recipe.measured == "last_slot",
        slots=recipe.share_of == "slots",
        by_rank=recipe.order == "rank",
        residual=recipe.residual,
    )
    epochs, batches = arms[0].epochs, math.ceil(len(data.train) / recipe.batch)
    job = TextJob(
        model,
        steps=epochs * batches,
        warmup=int(recipe.warmup * epochs * batches),
        widths=_widths(recipe, data.train, model),
        clip=recipe.clip,
        apart=recipe.apart,
        stale=any(arm.stale for arm in arms),
    )
    splits = {name: split_of(getattr(data, name), how) for name in SPLITS}
    campaign = TextCampaign(
        job,
        recipe.seeds,
        data.train,
        recipe.batch,
        recipe.by_length,
        epochs,
        how,
        splits,
        (recipe.n_ctx,) if how.last_slot else _reading_widths(data),
        recipe.share,
        recipe.confidence,
        store,
        request,
    )
    columns: dict[str, Any] = {
        name: np.array([getattr(arm, name) for arm in arms], np.float32) for name in (*GROUPS, "rate", "decay")
    }
    multipliers = {name: columns[name] for name in GROUPS}
    return campaign, TextRuns(columns["rate"], multipliers, columns["decay"], np.array([arm.stale for arm in arms]))


def _widths(recipe: Recipe, posts: Encoded, model: TransformerConfig) -> tuple[int, ...]:
    """Bucket widths of training: for posts, or for whole batches where these are of all lengths."""
    needed = slots_read(posts, model)
    if recipe.by_length:
        return bucket_widths(needed, 4)
    plans = [
        epoch_plan(needed, batch=recipe.batch, widths=(int(needed.max()),), seed=seed, epoch=0, by_length=False)
        for seed in recipe.seeds
    ]
    longest = np.max([np.where(plan.posts >= 0, needed[plan.posts], 0).max(1) for plan in plans], 0)
    return bucket_widths(np.append(longest, needed.max()), 3)


def _reading_widths(data: TextData) -> tuple[int, ...]:
    return bucket_widths(np.concatenate([data.train.length, data.validation.length, data.test.length]), 4)


def _end(
    recipe: Recipe,
    arms: Sequence[TextArm],
    data: TextData,
    campaign: TextCampaign,
    state: TextState,
    update: Callable[[float, str], Any],
) -> dict[str, Records]:
    """Measures of all splits after the last epoch, (S, A, ...)."""
    out = {}
    for number, name in enumerate(("train", *SPLITS)):
        split = campaign.splits.get(name) or split_of(data.train, campaign.how)
        found = campaign.read(state, split, len(arms))
        out[name] = means(found, split, recipe.confidence, len(LABELS)) | distributions(found, split)
        if name != "train":
            out[name] |= _aopc(recipe, campaign, state, split, len(arms), found)
        update(0.94 + 0.02 * number, f"measured {name}")
    return out


def _aopc(
    recipe: Recipe, campaign: TextCampaign, state: TextState, split: Split, arms: int, found: Records
) -> dict[str, np.ndarray]:
    """Comprehensiveness and sufficiency averaged over `SHARES`; `found` has those of the recipe's own share."""
    known = {recipe.share: found}
    each = [known.get(share) or campaign.read(state, split, arms, share) for share in SHARES]
    return {
        f"aopc_{name}": np.mean([one[name].mean(-1) for one in each], 0)
        for name in ("comprehensiveness", "sufficiency")
    }


def _written(
    recipe: Recipe,
    arms: Sequence[TextArm],
    data: TextData,
    campaign: TextCampaign,
    records: Records,
    end: dict[str, Records],
) -> dict[str, dict[str, Any]]:
    """The record of each arm, in plain numbers of five digits."""
    known = {
        name: floors(campaign.splits.get(name) or split_of(data.train, campaign.how), campaign.how, recipe.confidence)
        for name in ("train", *SPLITS)
    }
    shared = {
        "data": {
            **{name: len(getattr(data, name)) for name in ("train", *SPLITS)},
            "cut": {name: getattr(data, name).cut for name in ("train", *SPLITS)},
            "vocabulary": data.vocabulary,
            "sha256": data.sha256,
        },
        "notes": list(data.notes),
        "thresholds": THRESHOLDS.tolist(),
        "tokens_per_second": round(campaign.tokens / campaign.seconds) if campaign.seconds else None,
    }
    return {
        arm.name: {
            **shared,
            "runs": [_run(seed, (s, a), campaign.epochs, records, end, known) for s, seed in enumerate(recipe.seeds)],
        }
        for a, arm in enumerate(arms)
    }


def _run(
    seed: int,
    at: tuple[int, int],
    epochs: int,
    records: Records,
    end: dict[str, Records],
    known: dict[str, dict[str, float]],
) -> dict[str, Any]:
    """What a record says of one run."""
    own = {name: values[at] for name, values in records.items()}
    losses = own["losses"].reshape(epochs, -1).mean(1)
    bad = ~np.isfinite(losses) | ~np.isfinite(own["validation/loss"])
    best = int(own["best/epoch"])

    def measured(split: str, epoch: int) -> dict[str, Any]:
        prefix = f"{split}/"
        return {name.removeprefix(prefix): v[epoch] for name, v in own.items() if name.startswith(prefix)}

    def distribution(split: str) -> dict[str, Any]:
        prefix = f"best/{split}/"
        return {name.removeprefix(prefix): v for name, v in own.items() if name.startswith(prefix)}

    trace = [
        {"epoch": e + 1, "training_loss": losses[e], **{split: _nested(measured(split, e)) for split in SPLITS}}
        for e in range(epochs)
    ]
    return _plain(
        {
            "seed": seed,
            "diverged_at": int(np.argmax(bad)) + 1 if bad.any() else None,
            "epochs": trace,
            "end": {
                split: {**_nested({name: v[at] for name, v in values.items()}), **known[split]}
                for split, values in end.items()
            },
            "best": {
                "epoch": best,
                **{
                    split: {**_nested(measured(split, best - 1)), **distribution(split), **known[split]}
                    for split in SPLITS
                },
            },
        }
    )


def _nested(measures: dict[str, Any]) -> dict[str, Any]:
    """Measures with those of heads as a list, one entry a head."""
    heads = {n.removeprefix("heads_"): v for n, v in measures.items() if n.startswith("heads_")}
    rest = {n: v for n, v in measures.items() if not n.startswith("heads_")}
    return rest | {"heads": [dict(zip(heads, each, strict=True)) for each in zip(*heads.values(), strict=True)]}


def _plain(value: Any) -> Any:
    """As JSON has it: five digits, null for what is not finite."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray) and np.ndim(value):
        return [_plain(item) for item in value]
    if isinstance(value, int | np.integer | str) or value is None:
        return value if value is None or isinstance(value, str) else int(value)
    return float(f"{value:.5g}") if np.isfinite(value) else None
