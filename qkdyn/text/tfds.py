"""The same records through tensorflow-datasets (an extra; no TensorFlow): prepared once in array_record, then read back.

HateXplain has a builder of its own. SQuAD is the stock `squad`, version 1.1: its features and its reading of the files,
under another name, because the stock builder takes a file only if it has downloaded it or knows its checksum, and we take
what lies in a folder, plain or gzipped. Records are shuffled on the disk, so each carries its place in the file.
"""

import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from qkdyn.errors import DataError
from qkdyn.files import prepare_folder
from qkdyn.text.hatexplain import LABELS, HateXplain, Post, read_hatexplain
from qkdyn.text.sources import checksums, find, open_text
from qkdyn.text.squad import Answer, Question, read_squad

SQUAD_SPLITS = {"train": "train-v1.1.json", "validation": "dev-v1.1.json"}


def _library() -> Any:
    """tensorflow-datasets, or DataError with how to install it."""
    try:
        import tensorflow_datasets
    except ImportError as error:
        raise DataError(f"tensorflow-datasets cannot be imported ({error}); pip install 'qkdyn[tfds]'") from error
    return tensorflow_datasets


@functools.cache
def _hatexplain_builder() -> Any:
    """The builder class of HateXplain; made once, because its name is registered when it is made."""
    tfds = _library()

    class QkdynHatexplain(tfds.core.GeneratorBasedBuilder):
        """HateXplain as `read_hatexplain` reads it."""

        VERSION = tfds.core.Version("1.0.0")
        MANUAL_DOWNLOAD_INSTRUCTIONS = "dataset.json and post_id_divisions.json, plain or gzipped"

        def _info(self) -> Any:
            features = {
                "index": np.int64,  # Place in the split.
                "id": tfds.features.Text(),
                "words": tfds.features.Sequence(tfds.features.Text()),
                "label": tfds.features.ClassLabel(names=LABELS),
                # The masks of all annotators end to end: lists of lists need TensorFlow.
                "rationales": tfds.features.Sequence(np.bool_),
            }
            return tfds.core.DatasetInfo(
                builder=self, features=tfds.features.FeaturesDict(features), metadata=tfds.core.MetadataDict()
            )

        def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
            folder = Path(dl_manager.manual_dir)
            data = read_hatexplain(folder)
            self.info.metadata.update(
                undecided=data.undecided, notes=list(data.notes), sha256=checksums(folder, "hatexplain")
            )
            splits = {"train": data.train, "validation": data.validation, "test": data.test}
            return {name: self._generate_examples(posts) for name, posts in splits.items()}

        def _generate_examples(self, posts: tuple[Post, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
            for index, post in enumerate(posts):
                masks = [marked for mask in post.rationales for marked in mask]
                words = list(post.words)
                yield (
                    post.id,
                    {"index": index, "id": post.id, "words": words, "label": post.label, "rationales": masks},
                )

    return QkdynHatexplain


@functools.cache
def _squad_builder() -> Any:
    """The stock builder of SQuAD v1.1, reading from a folder."""
    tfds = _library()
    stock = tfds.builder_cls("squad")

    class QkdynSquad(stock):
        """The stock `squad` with the files of a folder in the place of downloads."""

        BUILDER_CONFIGS = tuple(config for config in stock.BUILDER_CONFIGS if config.name == "v1.1")
        MANUAL_DOWNLOAD_INSTRUCTIONS = "train-v1.1.json and dev-v1.1.json"

        def _info(self) -> Any:
            features = {**super()._info().features, "index": np.int64}
            return tfds.core.DatasetInfo(
                builder=self, features=tfds.features.FeaturesDict(features), metadata=tfds.core.MetadataDict()
            )

        def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
            folder = Path(dl_manager.manual_dir)
            self.info.metadata.update(sha256=checksums(folder, "squad"))
            return {name: self._numbered(folder / file) for name, file in SQUAD_SPLITS.items()}

        def _numbered(self, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
            for index, (key, record) in enumerate(self._generate_examples(path)):
                yield key, {**record, "index": index}

    return QkdynSquad


def _builder(kind: Any, data_dir: str | Path) -> Any:
    return kind(data_dir=str(data_dir), file_format="array_record")


def _prepare(kind: Any, folder: Path, data_dir: str | Path, expected: dict[str, str]) -> None:
    """Prepare unless it is done; what was prepared from other files is refused."""
    prepare_folder(data_dir)
    builder = _builder(kind, data_dir)
    if builder.is_prepared():
        if builder.info.metadata.get("sha256") != expected:
            raise DataError(f"{builder.data_path} was prepared from other files; remove it, or choose another folder")
        return
    config = _library().download.DownloadConfig(manual_dir=str(folder), try_download_gcs=False)
    builder.download_and_prepare(download_config=config)


def _records(kind: Any, data_dir: str | Path, prepare: str) -> tuple[dict[str, list[dict[str, Any]]], Any]:
    """Split -> its records in the order of the file; and the metadata."""
    builder = _builder(kind, data_dir)
    if not builder.is_prepared():
        raise DataError(f"nothing is prepared in {builder.data_path}; call {prepare} first")
    return {
        split: sorted(builder.as_data_source(split=split), key=lambda record: int(record["index"]))
        for split in builder.info.splits
    }, builder.info.metadata


def prepare_hatexplain(folder: str | Path, data_dir: str | Path) -> None:
    """Prepare HateXplain in array_record.

    Args:
        folder: where `dataset.json` and `post_id_divisions.json` are, plain or gzipped.
        data_dir: where tensorflow-datasets keeps what it prepares; nothing is done if it is there from the same files.

    Raises:
        DataError: as `read_hatexplain`; tensorflow-datasets is missing; prepared there from other files.
        OutputError: `data_dir` cannot be written.
    """
    _prepare(_hatexplain_builder(), Path(folder), data_dir, checksums(folder, "hatexplain"))


def hatexplain_from_tfds(data_dir: str | Path) -> HateXplain:
    """What `read_hatexplain` returns, from what `prepare_hatexplain` prepared; DataError where it did not."""
    splits, metadata = _records(_hatexplain_builder(), data_dir, "prepare_hatexplain")

    def post(record: dict[str, Any]) -> Post:
        words = tuple(word.decode() for word in record["words"])
        marks = [bool(marked) for marked in record["rationales"]]
        masks = tuple(tuple(marks[at : at + len(words)]) for at in range(0, len(marks), len(words)))
        return Post(record["id"].decode(), words, LABELS[int(record["label"])], masks)

    train, validation, test = (tuple(map(post, splits[name])) for name in ("train", "validation", "test"))
    return HateXplain(train, validation, test, metadata["undecided"], tuple(metadata["notes"]))


def prepare_squad(folder: str | Path, data_dir: str | Path) -> None:
    """Prepare SQuAD v1.1 in array_record with the stock builder's features and reading.

    Args:
        folder: where `train-v1.1.json` and `dev-v1.1.json` are, plain or gzipped.
        data_dir: as for `prepare_hatexplain`.

    Raises:
        DataError: as `read_squad`; tensorflow-datasets is missing; prepared there from other files.
        OutputError: `data_dir` cannot be written.
    """
    for file in SQUAD_SPLITS.values():
        read_squad(find(folder, file))
    # The stock builder reads plain files only.
    with tempfile.TemporaryDirectory() as plain:
        for file in SQUAD_SPLITS.values():
            (Path(plain) / file).write_text(open_text(find(folder, file)), encoding="utf-8", newline="")
        _prepare(_squad_builder(), Path(plain), data_dir, checksums(folder, "squad"))


def squad_from_tfds(data_dir: str | Path) -> dict[str, tuple[Question, ...]]:
    """Split -> what `read_squad` returns for its file, from what `prepare_squad` prepared; DataError where it did not."""
    splits, _ = _records(_squad_builder(), data_dir, "prepare_squad")

    def question(record: dict[str, Any]) -> Question:
        title, context, asked = (record[name].decode() for name in ("title", "context", "question"))
        given = zip(record["answers"]["text"], record["answers"]["answer_start"], strict=True)
        answers = tuple(Answer(text.decode(), int(start)) for text, start in given)
        return Question(record["id"].decode(), title, context, asked, answers)

    return {name: tuple(map(question, records)) for name, records in splits.items()}
