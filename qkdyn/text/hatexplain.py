"""HateXplain (Mathew et al. 2021) from its published files: posts, majority labels, rationales, the official splits."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from qkdyn.errors import DataError, reject
from qkdyn.text.sources import find, read_json

LABELS = ("hatespeech", "normal", "offensive")  # Index = class, as in the published classes.npy.
ANNOTATORS = 3
# Posts, and posts with rationales, of the published files by split (Vashisht & Ramaswamy 2026, Table 2).
PUBLISHED = {"train": (15383, 9132), "val": (1922, 1141), "test": (1924, 1142)}
_AS_PUBLISHED = "take the file as published"


@dataclass(frozen=True)
class Post:
    """One post: its id, words, majority label, and one mask over the words per annotator who gave one."""

    id: str
    words: tuple[str, ...]
    label: str
    rationales: tuple[tuple[bool, ...], ...]


@dataclass(frozen=True)
class HateXplain:
    """The official splits, in the order of their id lists.

    Attributes:
        train: posts to learn from.
        validation: the published split "val".
        test: posts to test on.
        undecided: posts whose three annotators all disagree; they are in no split.
        notes: what differs from the published data, one sentence each; to be shown with every result.
    """

    train: tuple[Post, ...]
    validation: tuple[Post, ...]
    test: tuple[Post, ...]
    undecided: int
    notes: tuple[str, ...]


def _reject(path: Path, post: str, field: str, value: Any, allowed: str) -> NoReturn:
    reject(f"{path}: post {post!r}: {field}", value, allowed, _AS_PUBLISHED, DataError)


def _words(path: Path, post: str, tokens: Any) -> tuple[str, ...]:
    if not isinstance(tokens, list) or not tokens:
        _reject(path, post, "post_tokens", tokens, "a list of at least one token")
    for index, token in enumerate(tokens):
        if not isinstance(token, str) or not token.strip():
            _reject(path, post, f"post_tokens[{index}]", token, "a string that is not empty")
    return tuple(tokens)


def _majority(path: Path, post: str, annotators: Any) -> str | None:
    """The label that at least two of the three annotators gave; None where all differ."""
    if not isinstance(annotators, list) or len(annotators) != ANNOTATORS:
        _reject(path, post, "annotators", annotators, f"a list of {ANNOTATORS} annotators")
    labels = []
    for index, annotator in enumerate(annotators):
        if not isinstance(annotator, dict) or "label" not in annotator:
            _reject(path, post, f"annotators[{index}]", annotator, 'an object with the key "label"')
        if annotator["label"] not in LABELS:
            _reject(path, post, f"annotators[{index}].label", annotator["label"], f"one of {', '.join(LABELS)}")
        labels.append(annotator["label"])
    label, count = Counter(labels).most_common(1)[0]
    return label if count > 1 else None


def _rationales(path: Path, post: str, masks: Any, words: int) -> tuple[tuple[bool, ...], ...]:
    if not isinstance(masks, list) or len(masks) > ANNOTATORS:
        _reject(path, post, "rationales", masks, f"a list of at most {ANNOTATORS} masks")
    for index, mask in enumerate(masks):
        if not isinstance(mask, list) or len(mask) != words:
            length = len(mask) if isinstance(mask, list) else mask
            _reject(path, post, f"length of rationales[{index}]", length, f"that of post_tokens, {words}")
        for at, value in enumerate(mask):
            if type(value) is not int or value not in (0, 1):
                _reject(path, post, f"rationales[{index}][{at}]", value, "0 or 1")
    return tuple(tuple(value == 1 for value in mask) for mask in masks)


def _post(path: Path, identity: str, record: Any) -> Post | None:
    """The typed record of one post; None where its annotators all disagree."""
    if not isinstance(record, dict):
        _reject(path, identity, "the record", record, "an object")
    for key in ("post_tokens", "annotators", "rationales"):
        if key not in record:
            _reject(
                path,
                identity,
                "its keys",
                list(record),
                f"at least post_tokens, annotators and rationales ({key} is missing)",
            )
    if record.get("post_id", identity) != identity:
        _reject(path, identity, "post_id", record["post_id"], "the key under which the post stands")
    words = _words(path, identity, record["post_tokens"])
    label = _majority(path, identity, record["annotators"])
    rationales = _rationales(path, identity, record["rationales"], len(words))
    return None if label is None else Post(identity, words, label, rationales)


def _divisions(path: Path) -> dict[str, list[str]]:
    """Split -> ids; no id may stand twice."""
    divisions = read_json(path)
    if not isinstance(divisions, dict) or not set(PUBLISHED) <= set(divisions):
        keys = sorted(divisions) if isinstance(divisions, dict) else divisions
        reject(f"{path}: its keys", keys, f"{', '.join(PUBLISHED)}", _AS_PUBLISHED, DataError)
    seen: dict[str, str] = {}
    for split in PUBLISHED:
        if not isinstance(divisions[split], list):
            reject(f"{path}: {split}", divisions[split], "a list of post ids", _AS_PUBLISHED, DataError)
        for identity in divisions[split]:
            if not isinstance(identity, str):
                reject(f"{path}: an id in {split}", identity, "a string", _AS_PUBLISHED, DataError)
            if identity in seen:
                raise DataError(
                    f"{path}: post {identity!r} stands twice, in {seen[identity]} and in {split}; {_AS_PUBLISHED}"
                )
            seen[identity] = split
    return {split: divisions[split] for split in PUBLISHED}


def _notes(splits: dict[str, list[Post]], homeless: int) -> list[str]:
    notes = []
    for split, posts in splits.items():
        given = [post.rationales for post in posts if post.rationales]
        for what, count, published in (
            ("posts", len(posts), PUBLISHED[split][0]),
            ("posts with rationales", len(given), PUBLISHED[split][1]),
        ):
            if count != published:
                notes.append(f"{split}: {count:,} {what}, published are {published:,}")
        if given and max(map(len, given)) == 1:
            notes.append(f"{split}: one rationale a post, not one for each annotator")
        blank = sum(not any(map(any, masks)) for masks in given)
        if blank:
            notes.append(f"{split}: {blank:,} posts with rationales in which no word is marked")
    if homeless:
        notes.append(f"{homeless:,} posts with a majority label are in no split and were left out")
    return notes


def read_hatexplain(folder: str | Path) -> HateXplain:
    """Read `dataset.json` and `post_id_divisions.json`, plain or gzipped, from `folder`.

    The label is the one that at least two of the three annotators gave; posts without one ("undecided") are dropped and
    counted. A post "with rationales" has at least one annotator's mask, whether or not the mask marks a word: this is
    what the paper's counts 9,132 / 1,141 / 1,142 count, and in the published files these are exactly the posts whose
    majority label is not "normal". Differing counts are notes, not errors.

    Raises:
        DataError: a file is missing, cannot be read, or is not as published, or a split is empty; the message names file,
            post and field.
    """
    data_path, division_path = find(folder, "dataset.json"), find(folder, "post_id_divisions.json")
    divisions = _divisions(division_path)
    records = read_json(data_path)
    if not isinstance(records, dict):
        reject(f"{data_path}: its content", records, "an object: post id -> post", _AS_PUBLISHED, DataError)
    posts = {identity: _post(data_path, identity, record) for identity, record in records.items()}
    splits: dict[str, list[Post]] = {}
    for split, identities in divisions.items():
        missing = [identity for identity in identities if identity not in posts]
        if missing:
            raise DataError(
                f"{division_path}: {len(missing):,} posts of {split} are not in {data_path}, the first is {missing[0]!r}; "
                "take both files from the same publication"
            )
        splits[split] = [post for identity in identities if (post := posts[identity]) is not None]
        if not splits[split]:
            listed = f"{len(identities):,} posts, none of them with a majority label" if identities else "no posts"
            reject(f"{division_path}: {split}", listed, "at least one post with a label", _AS_PUBLISHED, DataError)
    undecided = sum(post is None for post in posts.values())
    homeless = len(posts) - undecided - sum(map(len, splits.values()))
    train, validation, test = (tuple(splits[split]) for split in PUBLISHED)
    return HateXplain(train, validation, test, undecided, tuple(_notes(splits, homeless)))
