"""SQuAD from its published files: one typed record for each question."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from qkdyn.errors import DataError, reject
from qkdyn.text.sources import read_json

_AS_PUBLISHED = "take the file as published"


@dataclass(frozen=True)
class Answer:
    """A span of the context: its text and the index of its first character."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """One question on a paragraph, with the answers of its annotators."""

    id: str
    title: str
    context: str
    question: str
    answers: tuple[Answer, ...]
    impossible: bool = False


def _reject(path: Path, where: str, value: Any, allowed: str) -> NoReturn:
    reject(f"{path}: {where}", value, allowed, _AS_PUBLISHED, DataError)


def _field(path: Path, where: str, record: Any, key: str, kind: type) -> Any:
    value = record.get(key) if isinstance(record, dict) else record
    if not isinstance(record, dict) or not isinstance(value, kind) or isinstance(value, bool):
        _reject(path, f"{where}: {key}", value, {str: "a string", int: "an integer", list: "a list"}[kind])
    return value


def _question(path: Path, where: str, title: str, context: str, record: Any) -> Question:
    identity = _field(path, where, record, "id", str)
    where, answers = f"question {identity!r}", []
    for number, answer in enumerate(_field(path, where, record, "answers", list)):
        at = f"{where}: answers[{number}]"
        text, start = _field(path, at, answer, "text", str), _field(path, at, answer, "answer_start", int)
        if not 0 <= start < max(1, len(context)):
            _reject(path, f"{at}: answer_start", start, f"within the context's {len(context)} characters")
        answers.append(Answer(text, start))
    impossible = record.get("is_impossible", False)
    if not isinstance(impossible, bool):
        _reject(path, f"{where}: is_impossible", impossible, "true or false")
    return Question(identity, title, context, _field(path, where, record, "question", str), tuple(answers), impossible)


def read_squad(path: str | Path) -> tuple[Question, ...]:
    """The questions of one file (v1.1 or v2.0, plain or gzipped), in its order.

    Raises:
        DataError: the file cannot be read, or is not as published; the message names question and field.
    """
    path, questions = Path(path), {}
    for number, article in enumerate(_field(path, "its content", read_json(path), "data", list)):
        paragraphs = _field(path, f"data[{number}]", article, "paragraphs", list)
        title = _field(path, f"data[{number}]", {"title": "", **article}, "title", str)
        for index, paragraph in enumerate(paragraphs):
            where = f"data[{number}].paragraphs[{index}]"
            context = _field(path, where, paragraph, "context", str)
            for record in _field(path, where, paragraph, "qas", list):
                question = _question(path, where, title, context, record)
                if question.id in questions:
                    raise DataError(f"{path}: question {question.id!r} stands twice; {_AS_PUBLISHED}")
                questions[question.id] = question
    return tuple(questions.values())
