"""Posts as arrays: token ids, labels, and which tokens annotators marked; marks follow the words through any tokenizer."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Int, Int32

from qkdyn.errors import check_count, reject
from qkdyn.text.hatexplain import ANNOTATORS, LABELS, Post
from qkdyn.text.vocabulary import Vocabulary

# Slots of a batch are a multiple of this, here and in the buckets.
MULTIPLE = 8
AGREEMENTS = ("majority", "union", "mean3")


@dataclass(frozen=True, eq=False)
class Encoded:
    """The N posts of a split in T slots.

    Attributes:
        tokens: token ids, (N, T), filled up on the right with the vocabulary's pad.
        length: real tokens of each post, (N,), the query token included where there is one.
        label: class, (N,).
        relevant: weight of each token in [0, 1], (N, T): what annotators marked, see `agreement` of `encode_posts`.
        content: real tokens but for the query token, (N, T).
        marked: some token is relevant, (N,).
        pad: id in the other slots.
        n_ctx: most tokens that a post was allowed.
        cut: posts that were longer and lost their end.
        empty: posts of which the cleaning or the tokenizer left nothing: one unknown token stands for each.
    """

    tokens: Int32[np.ndarray, "N T"]
    length: Int32[np.ndarray, "N"]
    label: Int32[np.ndarray, "N"]
    relevant: Float32[np.ndarray, "N T"]
    content: Bool[np.ndarray, "N T"]
    marked: Bool[np.ndarray, "N"]
    pad: int
    n_ctx: int
    cut: int
    empty: int

    def __len__(self) -> int:
        return len(self.length)

    def take(self, posts: Int[np.ndarray, "B"], width: int | None = None) -> "Encoded":
        """Some posts in the order given, in `width` slots (T, if None); -1 is an empty row of length 0 and class 0.

        Raises:
            InputError: posts that are not integers, a post that is not there, or is longer than `width`.
        """
        posts = np.asarray(posts)
        if posts.ndim != 1 or posts.dtype.kind not in "iu":
            reject("posts", posts, "a list of integers, the places of posts")
        there = posts >= 0
        if posts.size and not -1 <= posts.min() <= posts.max() < len(self):
            reject("posts", [int(posts.min()), int(posts.max())], f"from 0 to {len(self) - 1}, or -1 for none")
        slots = self.tokens.shape[1] if width is None else check_count("width", width)
        length = np.where(there, self.length[posts], np.int32(0))
        if length.max(initial=0) > slots:
            reject("width", width, f"at least {length.max()}, the longest of these posts")

        def rows(values: np.ndarray, empty: Any) -> np.ndarray:
            """The posts' rows of one array; (B, T) is brought to `slots`."""
            if values.ndim == 1:
                return np.where(there, values[posts], values.dtype.type(empty))
            out = np.full((len(posts), slots), empty, values.dtype)
            shown = min(slots, values.shape[1])
            out[there, :shown] = values[posts[there], :shown]
            return out

        return Encoded(
            tokens=rows(self.tokens, self.pad),
            length=length,
            label=rows(self.label, 0),
            relevant=rows(self.relevant, 0),
            content=rows(self.content, False),
            marked=rows(self.marked, False),
            **{name: getattr(self, name) for name in ("pad", "n_ctx", "cut", "empty")},
        )


def _checked_masks(post: Post) -> Float32[np.ndarray, "annotators words"]:
    """The masks of a post as an array; InputError names the post whose masks are not over its words."""
    for number, mask in enumerate(post.rationales):
        if len(mask) != len(post.words):
            reject(
                f"mask {number} of post {post.id}",
                f"{len(mask)} entries",
                f"one entry for each of its {len(post.words)} words",
            )
    masks = np.array(post.rationales, bool).reshape(len(post.rationales), len(post.words))
    return masks.astype(np.float32)


def _agreed(masks: Float32[np.ndarray, "annotators words"], agreement: str, post: str) -> Float32[np.ndarray, "words"]:
    """One weight for each word from the masks of all annotators who gave one."""
    annotators = len(masks)
    if agreement == "mean3":
        if annotators > ANNOTATORS:
            reject(f"masks of post {post}", annotators, f"at most {ANNOTATORS}", "use majority or union")
        return masks.sum(0) / np.float32(ANNOTATORS)
    least = annotators / 2 if agreement == "majority" else 0
    return (masks.sum(0) > least).astype(np.float32)


def _post_pieces(
    post: Post, vocabulary: Vocabulary, agreement: str, prepare: Callable[[str], Sequence[str]] | None
) -> tuple[np.ndarray, np.ndarray]:
    """Ids and weights of a post's tokens, (n,) each, before anything is cut; n may be 0."""
    if not isinstance(post, Post):
        reject("each of posts", post, "a Post", "as read_hatexplain returns them")
    if not post.words:
        reject(f"post {post.id}", "no words", "a post of at least one word", "leave it out")
    if post.label not in LABELS:
        reject(f"label of post {post.id}", post.label, "one of " + ", ".join(LABELS))
    weights = _agreed(_checked_masks(post), agreement, post.id)
    words, origin = post.words, np.arange(len(post.words))
    if prepare is not None:
        prepared = [prepare(word) for word in post.words]
        words = [part for parts in prepared for part in parts]
        origin = np.repeat(origin, [len(parts) for parts in prepared])
    encoding = vocabulary.encode(words)
    return encoding.ids, weights[origin[encoding.word]]


def _stacked(
    pieces: Sequence[tuple[np.ndarray, np.ndarray]], slots: int, pad: int
) -> tuple[Int32[np.ndarray, "N T"], Float32[np.ndarray, "N T"], Bool[np.ndarray, "N T"]]:
    """Ids and weights of all posts in `slots` slots, filled up on the right, and where there is content."""
    content = np.arange(slots) < np.array([[len(ids)] for ids, _ in pieces])
    tokens, relevant = np.full(content.shape, pad, np.int32), np.zeros(content.shape, np.float32)
    tokens[content] = np.concatenate([ids for ids, _ in pieces])
    relevant[content] = np.concatenate([weights for _, weights in pieces])
    return tokens, relevant, content


def encode_posts(
    posts: Iterable[Post],
    vocabulary: Vocabulary,
    *,
    n_ctx: int,
    truncate: bool = False,
    query: bool = False,
    agreement: str = "majority",
    prepare: Callable[[str], Sequence[str]] | None = None,
    pad_to_n_ctx: bool = False,
) -> Encoded:
    """Token ids, labels and marks of posts; every piece of a word inherits the word's weight exactly.

    Args:
        posts: id, words, label, and one mask over the words for each annotator who gave one.
        vocabulary: from `qkdyn.text.vocabulary`.
        n_ctx: most tokens of a post, the query token included.
        truncate: cut the end of what is longer, and count it; otherwise it is an error.
        query: append the vocabulary's query token, at the position that equals the number of content tokens.
        agreement: how the masks become one weight for each word. "majority": 1 where more than half of the annotators who
            gave a mask marked it; "union": where any did; "mean3": the sum of the masks over three, as in the published
            metric, which fills missing masks with zeros.
        prepare: cleaning, word -> words, which inherit the word's weight; such as `qkdyn.text.cleaning.clean`.
        pad_to_n_ctx: T = n_ctx; otherwise the longest post, rounded up to a multiple of 8.

    Returns:
        The posts in the order given. A post of which nothing is left is kept, as one unknown (else pad) token without
        weight, and counted, so that splits keep their sizes.

    Raises:
        InputError: something that is no post; names the post that has no words, a label not known, masks of another length
            than its words, or too many tokens; or a vocabulary without query token.
    """
    room = check_count("n_ctx", n_ctx, minimum=1 + query) - query
    if agreement not in AGREEMENTS:
        reject("agreement", agreement, "one of " + ", ".join(AGREEMENTS))
    if query and vocabulary.query is None:
        reject("query", query, "False for a vocabulary without query token", "or give with_query(vocabulary)")
    nothing = vocabulary.pad if vocabulary.unknown is None else vocabulary.unknown
    posts, once = tuple(posts), cache(prepare) if prepare else None
    pieces, cut, empty = [], 0, 0
    for post in posts:
        ids, weights = _post_pieces(post, vocabulary, agreement, once)
        if len(ids) > room and not truncate:
            reject(
                f"tokens of post {post.id}", len(ids) + query, f"at most n_ctx = {n_ctx}", "raise it or set truncate"
            )
        cut, empty = cut + (len(ids) > room), empty + (not len(ids))
        if not len(ids):
            ids, weights = np.array([nothing], np.int32), np.zeros(1, np.float32)
        pieces.append((ids[:room], weights[:room]))
    if not pieces:
        reject("posts", "none", "at least one post")
    length = np.array([len(ids) + query for ids, _ in pieces], np.int32)
    slots = n_ctx if pad_to_n_ctx else -(-int(length.max()) // MULTIPLE) * MULTIPLE
    tokens, relevant, content = _stacked(pieces, slots, vocabulary.pad)
    if query and vocabulary.query is not None:
        tokens[np.arange(len(posts)), length - 1] = vocabulary.query
    return Encoded(
        tokens=tokens,
        length=length,
        label=np.array([LABELS.index(post.label) for post in posts], np.int32),
        relevant=relevant,
        content=content,
        marked=np.any(relevant > 0, axis=1),
        pad=vocabulary.pad,
        n_ctx=n_ctx,
        cut=cut,
        empty=empty,
    )
