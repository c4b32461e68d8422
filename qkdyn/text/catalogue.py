"""The published data sets and vocabularies that experiments on text need: file names, addresses, checksums."""

from dataclasses import dataclass

# Beginnings of the sentences of subject-verb agreement, which are made from these where there is no such file.
PREAMBLES = "preambles.tsv"


@dataclass(frozen=True)
class PublishedFile:
    """One file as published.

    Attributes:
        name: its name, upstream and in the data folder (there also gzipped, as `name`.gz).
        url: where it is published, maybe gzipped.
        rows: what one row is: posts, lists of ids, questions, sentences, tokens or merges.
        sha256: of the published content, uncompressed; None where it is not known.
        instead: names of files of the same columns that are taken where this one is missing.
    """

    name: str
    url: str
    rows: str
    sha256: str | None = None
    instead: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """What the file may be called in a data folder, the best first."""
        return tuple(written for name in (self.name, *self.instead) for written in (name, f"{name}.gz"))


@dataclass(frozen=True)
class Source:
    """A data set or vocabulary.

    Attributes:
        name: of the folder in which its files are looked for, and for `qkdyn data fetch`.
        title: what it is.
        needed_by: the experiments that read it.
        licence: as stated where it is published.
        files: all files that it consists of.
        beside: names of files that are not published, not needed, and taken where they are.
    """

    name: str
    title: str
    needed_by: str
    licence: str
    files: tuple[PublishedFile, ...]
    beside: tuple[str, ...] = ()


_HATEXPLAIN = "https://raw.githubusercontent.com/hate-alert/HateXplain/master/Data"
_SQUAD = "https://rajpurkar.github.io/SQuAD-explorer/dataset"
_GPT2 = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main"

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            "hatexplain",
            "HateXplain, posts with rationales (Mathew et al. 2021); the language is offensive",
            "HateXplain: Tables 1 and 5, Figure 7",
            "MIT; its card says CC BY 4.0",
            (
                PublishedFile("dataset.json", f"{_HATEXPLAIN}/dataset.json", "posts"),
                PublishedFile(
                    "post_id_divisions.json",
                    f"{_HATEXPLAIN}/post_id_divisions.json",
                    "lists of ids",
                    "c2fb0d89862e7897b11ea3e9380753f15a793482b4b70ad0532dfb1212212835",
                ),
            ),
        ),
        Source(
            "sva",
            "subject-verb agreement in Wikipedia (Linzen et al. 2016)",
            "subject-verb agreement: Table 1",
            "code MIT; text of Wikipedia CC BY-SA",
            (
                PublishedFile(
                    "agr_50_mostcommon_10K.tsv",
                    "https://www.dropbox.com/s/5axdu3q9jkxzjy8/agr_50_mostcommon_10K.tsv.gz?dl=1",
                    "sentences",
                    instead=("sentences.tsv",),
                ),
            ),
            beside=(PREAMBLES,),
        ),
        Source(
            "squad",
            "SQuAD v1.1 (Rajpurkar et al. 2016)",
            "question answering: Table 1",
            "CC BY-SA 4.0",
            # Checksums as in tensorflow-datasets.
            (
                PublishedFile(
                    "train-v1.1.json",
                    f"{_SQUAD}/train-v1.1.json",
                    "questions",
                    "3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955",
                    instead=("train-v2.0.json",),
                ),
                PublishedFile(
                    "dev-v1.1.json",
                    f"{_SQUAD}/dev-v1.1.json",
                    "questions",
                    "95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9",
                    instead=("dev-v2.0.json",),
                ),
            ),
        ),
        Source(
            "bert_base_uncased",
            "word pieces of bert-base-uncased",
            "HateXplain and subject-verb agreement in the published protocols",
            "Apache-2.0",
            (
                PublishedFile(
                    "vocab.txt",
                    "https://huggingface.co/google-bert/bert-base-uncased/resolve/main/vocab.txt",
                    "tokens",
                    "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
                ),
            ),
        ),
        Source(
            "gpt2_bpe",
            "byte-level pair encoding of GPT-2",
            "question answering in the published protocol",
            "MIT",
            (
                PublishedFile(
                    "encoder.json",
                    f"{_GPT2}/encoder.json",
                    "tokens",
                    "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
                ),
                PublishedFile(
                    "vocab.bpe",
                    f"{_GPT2}/vocab.bpe",
                    "merges",
                    "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
                ),
            ),
        ),
    )
}
