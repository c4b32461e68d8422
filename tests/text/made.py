"""Made data in the published schemas: harmless posts of invented words, a small WordPiece vocabulary, a small byte BPE."""

import gzip
import itertools
import json
from pathlib import Path

import numpy as np

_SYLLABLES = [first + vowel for first in "bdfghjklmnprstvz" for vowel in "aeiou"]
TOXIC = ("hatespeech", "offensive")
MARKERS = 20  # Words that only posts of one toxic label hold, and that its annotators mark.


def made_words(count: int) -> list[str]:
    """`count` different invented words of three syllables (at most 512,000); the first ones are the markers."""
    every = itertools.product(*[_SYLLABLES] * 3)
    return ["".join(syllables) for syllables in itertools.islice(every, count)]


def _post(generator: np.random.Generator, words: list[str], label: str, length: int, masks: int) -> dict:
    """One post in the published schema; a toxic one holds one to three marked words of its label."""
    tokens = generator.choice(words[2 * MARKERS :], length).tolist()
    rationales = []
    if label in TOXIC:
        at = generator.choice(length, min(length, int(generator.integers(1, 4))), replace=False)
        own = words[TOXIC.index(label) * MARKERS :][:MARKERS]
        for index in at:
            tokens[index] = str(generator.choice(own))
        full = np.isin(np.arange(length), at)
        # Each further annotator leaves out a mark now and then, never the first one.
        for annotator in range(masks):
            kept = full & ((generator.random(length) < 0.8) | (annotator == 0) | (np.arange(length) == at[0]))
            rationales.append(kept.astype(int).tolist())
    return {"post_tokens": tokens, "rationales": rationales}


def _annotators(generator: np.random.Generator, label: str | None) -> list[dict]:
    """Three annotators: all differ for None, else two or three of them give `label`."""
    labels = ["hatespeech", "normal", "offensive"]
    if label is not None:
        labels = [label, label, str(generator.choice([label, *labels]))]
    return [
        {"label": given, "annotator_id": number, "target": ["None"]}
        for number, given in enumerate(generator.permutation(labels).tolist(), 1)
    ]


def made_posts(
    posts: int = 60, *, words: int = 300, shortest: int = 4, longest: int = 24, undecided: int = 3, seed: int = 0
):
    """The contents of `dataset.json` and `post_id_divisions.json`.

    `posts` counts those with a majority label, a third of each label, 8 : 1 : 1 in train, val and test; the undecided ones
    come on top and are in no split. Lengths are uniform from `shortest` to `longest`; train has one mask a toxic post,
    val and test two or three. A post's label can be read off its marked words.
    """
    generator, vocabulary = np.random.default_rng(seed), made_words(words)
    dataset: dict[str, dict] = {}
    divisions: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    for number in range(posts + undecided):
        identity = f"{1000 + number}_made"
        label = ("hatespeech", "normal", "offensive")[number % 3] if number < posts else None
        split = {8: "val", 9: "test"}.get(number // 3 % 10, "train")
        masks = 1 if split == "train" else int(generator.integers(2, 4))
        length = int(generator.integers(shortest, longest + 1))
        record = _post(generator, vocabulary, label or "normal", length, masks)
        dataset[identity] = {"post_id": identity, "annotators": _annotators(generator, label), **record}
        if label is not None:
            divisions[split].append(identity)
    return dataset, divisions


def wordpiece_entries(size: int | None = None) -> list[str]:
    """A WordPiece vocabulary: special tokens as in BERT, letters, syllables, their continuations; filled up to `size`."""
    letters = [chr(code) for code in range(33, 127)]
    pieces = [*letters, *_SYLLABLES]
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces, *(f"##{piece}" for piece in pieces)]
    return entries + [f"[unused{number}]" for number in range((size or 0) - len(entries))]


def byte_letters() -> list[str]:
    """GPT-2's letters for the 256 bytes, in the order of the bytes."""
    plain = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = itertools.count(0x100)
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def bpe_entries(size: int | None = None) -> tuple[dict[str, int], list[str]]:
    """A byte-level BPE as GPT-2's files hold it: entries (bytes, syllables, syllables after a space), and its merges."""
    letters = byte_letters()
    space = letters[ord(" ")]
    merges = [f"{syllable[0]} {syllable[1]}" for syllable in _SYLLABLES]
    merges += [f"{space} {syllable}" for syllable in _SYLLABLES]
    entries = letters + [merge.replace(" ", "") for merge in merges] + ["<|endoftext|>"]
    entries += [f"<unused{number}>" for number in range((size or 0) - len(entries))]
    return {entry: index for index, entry in enumerate(entries)}, merges


def write(path: Path, text: str, zipped: bool = False) -> Path:
    """Write `text` to `path`, or gzipped to `path`.gz; return where it went."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not zipped:
        path.write_text(text)
        return path
    path = path.with_name(f"{path.name}.gz")
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
    return path


def write_data(
    root: Path, posts: int = 60, *, zipped: bool = False, bert: int | None = None, bpe: int | None = 0, **sizes: int
) -> Path:
    """Write a whole data folder: hatexplain/, bert_base_uncased/ and gpt2_bpe/ with the published file names.

    Args:
        root: the folder, as QKDYN_DATA or --data would name it.
        posts: number of posts with a majority label.
        zipped: dataset.json and vocab.txt gzipped.
        bert: entries of vocab.txt, filled up with unused ones (30522 as published); None for as few as there are.
        bpe: entries of encoder.json likewise; 0 for no gpt2_bpe folder.
        sizes: as for `made_posts`.
    """
    dataset, divisions = made_posts(posts, **sizes)
    write(root / "hatexplain" / "dataset.json", json.dumps(dataset), zipped)
    write(root / "hatexplain" / "post_id_divisions.json", json.dumps(divisions))
    write(root / "bert_base_uncased" / "vocab.txt", "\n".join(wordpiece_entries(bert)) + "\n", zipped)
    if bpe != 0:
        entries, merges = bpe_entries(bpe)
        write(root / "gpt2_bpe" / "encoder.json", json.dumps(entries))
        write(root / "gpt2_bpe" / "vocab.bpe", "\n".join(["#version: 0.2", *merges]) + "\n")
    return root


def made_squad(questions: int = 20, seed: int = 0) -> dict:
    """The content of one SQuAD v1.1 file: two articles of invented words, one to three answers a question."""
    generator, vocabulary = np.random.default_rng(seed), made_words(200)
    articles = [{"title": title, "paragraphs": []} for title in ("First_é", "Second")]
    for number in range(0, questions, 2):
        context = "  ".join(generator.choice(vocabulary, 12).tolist()) + " – “end”"
        qas = []
        for one in range(number, min(number + 2, questions)):
            starts = generator.integers(0, 60, int(generator.integers(1, 4))).tolist()
            answers = [{"text": context[start : start + 9], "answer_start": start} for start in starts]
            qas.append({"id": f"{seed}-{one:04}", "question": f"what is {one}?", "answers": answers})
        articles[number % 4 // 2]["paragraphs"].append({"context": context, "qas": qas})
    return {"version": "1.1", "data": articles}
