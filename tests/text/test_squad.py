"""The reader of SQuAD: every question with its answers, and damage named by question and field."""

import json

import pytest
from made import made_squad, write

from qkdyn.errors import DataError
from qkdyn.text.squad import Answer, Question, read_squad


def question(**change):
    """One question in the published schema."""
    return {"id": "q1", "question": "what?", "answers": [{"text": "ab", "answer_start": 1}]} | change


def file_of(root, *questions, **paragraph):
    """A file with one paragraph."""
    content = {"data": [{"title": "T", "paragraphs": [{"context": "xaby", "qas": list(questions)} | paragraph]}]}
    return write(root / "dev-v1.1.json", json.dumps(content))


def test_questions_come_as_they_were_written(tmp_path):
    made = made_squad(21)
    written = {
        asked["id"]: (article["title"], paragraph["context"], asked["question"], asked["answers"])
        for article in made["data"]
        for paragraph in article["paragraphs"]
        for asked in paragraph["qas"]
    }
    read = read_squad(write(tmp_path / "a.json", json.dumps(made), zipped=True))
    assert len(read) == 21 and [one.id for one in read] == list(written)
    for one in read:
        answers = [{"text": answer.text, "answer_start": answer.start} for answer in one.answers]
        assert (one.title, one.context, one.question, answers) == written[one.id]
        assert all(one.context[answer.start :].startswith(answer.text) for answer in one.answers)


def test_version_two(tmp_path):
    path = file_of(tmp_path, question(answers=[], is_impossible=True), question(id="q2", is_impossible=False))
    first, second = read_squad(path)
    assert first == Question("q1", "T", "xaby", "what?", (), True)
    assert second == Question("q2", "T", "xaby", "what?", (Answer("ab", 1),), False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": 3}, r"data\[0\].paragraphs\[0\]: id must be a string, got 3"),
        ({"question": None}, "question 'q1': question must be a string, got None"),
        ({"answers": {}}, "question 'q1': answers must be a list, got {}"),
        ({"answers": ["ab"]}, r"question 'q1': answers\[0\]: text must be a string, got 'ab'"),
        ({"answers": [{"text": "ab"}]}, r"answers\[0\]: answer_start must be an integer, got None"),
        ({"answers": [{"text": "ab", "answer_start": True}]}, r"answer_start must be an integer, got True"),
        (
            {"answers": [{"text": "ab", "answer_start": 4}]},
            "answer_start must be within the context's 4 characters, got 4",
        ),
        ({"is_impossible": 1}, "question 'q1': is_impossible must be true or false, got 1"),
    ],
)
def test_a_wrong_field_is_named(tmp_path, change, message):
    with pytest.raises(DataError, match=message):
        read_squad(file_of(tmp_path, question(**change)))


@pytest.mark.parametrize("field", ["id", "question", "text", "context", "title"])
def test_what_is_no_text_is_named_before_it_is_used(tmp_path, field):
    bad = "\ud800x"
    change = {"answers": [{"text": bad, "answer_start": 0}]} if field == "text" else {field: bad}
    path = file_of(tmp_path, question(**({} if field in ("context", "title") else change)))
    content = json.loads(path.read_text())
    if field == "title":
        content["data"][0]["title"] = bad
    elif field == "context":
        content["data"][0]["paragraphs"][0]["context"] = bad
    path.write_text(json.dumps(content))
    way = {"title": "", "context": r"\.paragraphs\[0\]", "text": r"\.paragraphs\[0\]\.qas\[0\]\.answers\[0\]"}
    way = way.get(field, r"\.paragraphs\[0\]\.qas\[0\]")
    with pytest.raises(DataError, match=rf"{path}: data\[0\]{way}\.{field} holds half of a surrogate pair"):
        read_squad(path)


def test_wrong_files_are_named(tmp_path):
    with pytest.raises(DataError, match=r"context must be a string, got 5; take the file as published"):
        read_squad(file_of(tmp_path, context=5))
    with pytest.raises(DataError, match=r"question 'q1' stands twice"):
        read_squad(file_of(tmp_path, question(), question()))
    with pytest.raises(DataError, match=r"its content: data must be a list, got \[\]"):
        read_squad(write(tmp_path / "a.json", "[]"))
    with pytest.raises(DataError, match=r"data\[0\]: paragraphs must be a list, got 'x'"):
        read_squad(write(tmp_path / "a.json", '{"data": ["x"]}'))
