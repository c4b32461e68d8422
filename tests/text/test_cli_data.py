"""`qkdyn data`: what is there, what is not, what is wrong with it; and the download of one source."""

import hashlib
import json
import subprocess
import sys

import pytest
from made import made_squad, write, write_data

from qkdyn.cli import main
from qkdyn.errors import DataError
from qkdyn.text.catalogue import SOURCES
from qkdyn.text.listing import count_rows


def ask(capsys, *arguments):
    """Run the command; return status, output and complaint."""
    status = main([str(argument) for argument in arguments])
    return status, *capsys.readouterr()


def entry(shown: str, name: str) -> str:
    """What the list says of one source."""
    return next(part for part in shown.split("\n\n") if part.startswith(f"{name}: "))


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """No QKDYN_DATA and no ./data; nothing may be downloaded."""
    monkeypatch.delenv("QKDYN_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("urllib.request.urlopen", lambda *arguments, **options: pytest.fail("a download was tried"))


def test_what_is_found(tmp_path, capsys, nowhere):
    root = write_data(tmp_path / "root", 60, zipped=True, bert=400, bpe=None)
    status, shown, complaint = ask(capsys, "data", "--data", root)
    assert (status, complaint) == (0, "")
    found = entry(shown, "hatexplain")
    assert f"looked at: {root}, {root / 'hatexplain'}\n" in found and f"found in {root / 'hatexplain'}:" in found
    divisions = (root / "hatexplain" / "post_id_divisions.json").read_bytes()
    assert "dataset.json.gz: 63 posts, sha256 " in found and "(no published checksum known)" in found
    assert (
        f"post_id_divisions.json: 3 lists of ids, sha256 {hashlib.sha256(divisions).hexdigest()} "
        f"(differs from the published {SOURCES['hatexplain'].files[1].sha256})" in found
    )
    assert "train 48 posts (32 with rationales), validation 6 posts (4 with rationales), test 6 posts" in found
    assert "3 undecided" in found and "note: train: 48 posts, published are 15,383" in found
    assert "vocab.txt.gz: 400 tokens, sha256 " in entry(shown, "bert_base_uncased")
    bpe = entry(shown, "gpt2_bpe")
    assert "encoder.json: 417 tokens, " in bpe and "vocab.bpe: 160 merges, " in bpe


def test_what_is_as_published_is_said_so(tmp_path, capsys, nowhere, monkeypatch):
    root = write_data(tmp_path / "data", bpe=0)
    vocabulary = root / "bert_base_uncased" / "vocab.txt"
    (file,) = SOURCES["bert_base_uncased"].files
    monkeypatch.setitem(file.__dict__, "sha256", hashlib.sha256(vocabulary.read_bytes()).hexdigest())
    _, shown, _ = ask(capsys, "data")
    assert "(as published)" in entry(shown, "bert_base_uncased")


def test_what_is_not_found_says_where_it_is_published(capsys, nowhere):
    status, shown, complaint = ask(capsys, "data")
    assert (status, complaint) == (0, "")
    for name, source in SOURCES.items():
        part = entry(shown, name)
        assert f"NOT FOUND: the files of {name} were not found; looked at data/{name} (no such file" in part
        assert f"`qkdyn data fetch {name}`" in part and source.needed_by in part and source.licence in part
        assert all(file.url in part for file in source.files)


def test_damage_is_shown_in_its_place(tmp_path, capsys, nowhere):
    root = write_data(tmp_path / "data")
    write(root / "hatexplain" / "dataset.json", '{"1_made": {}}')
    (root / "bert_base_uncased" / "vocab.txt").write_bytes(b"\xff")
    write(root / "sva" / "sentences.tsv", "sentence\tverb_pos\na b\tVBZ\nc d\tVBP\n")
    status, shown, _ = ask(capsys, "data")
    assert status == 0
    assert "cannot be used: data/hatexplain/dataset.json: post '1_made': its keys" in entry(shown, "hatexplain")
    assert "vocab.txt: data/bert_base_uncased/vocab.txt is not UTF-8 text" in entry(shown, "bert_base_uncased")
    assert "sentences.tsv: 2 sentences, " in entry(shown, "sva")
    assert "(taken instead of agr_50_mostcommon_10K.tsv)" in entry(shown, "sva")
    assert "preambles.tsv: not there, and not needed" in entry(shown, "sva")
    write(root / "sva" / "preambles.tsv", "sentence\tverb_pos\na\tVBZ\n", zipped=True)
    _, shown, _ = ask(capsys, "data")
    assert "preambles.tsv.gz: 1 sentences, sha256 " in entry(shown, "sva")


def test_beginnings_of_sentences_are_found_without_the_sentences(tmp_path, capsys, nowhere):
    path = write(tmp_path / "sva" / "preambles.tsv", "sentence\tverb_pos\na\tVBZ\n")
    shown = entry(ask(capsys, "data", "--data", tmp_path)[1], "sva")
    assert "NOT FOUND" in shown and f"  but {path}: 1 sentences, enough for what reads no more than these\n" in shown


def test_questions_are_counted(tmp_path):
    assert count_rows(write(tmp_path / "a.json", json.dumps(made_squad(21)), zipped=True), "questions") == 21
    for content in ("[]", '{"data": [{}]}', '{"data": 3}'):
        with pytest.raises(DataError, match="is not as SQuAD's files are"):
            count_rows(write(tmp_path / "b.json", content), "questions")
    with pytest.raises(DataError, match="holds no JSON object"):
        count_rows(write(tmp_path / "c.json", "[]"), "posts")


@pytest.mark.parametrize("before", [True, False])
def test_fetch_without_a_network(tmp_path, capsys, monkeypatch, before):
    asked = []

    def refuse(request, timeout):
        asked.append(request)
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    where = ["--data", tmp_path]
    status, shown, complaint = ask(
        capsys, "data", *(where if before else []), "fetch", "hatexplain", *([] if before else where)
    )
    assert status == 2 and shown == "" and len(asked) == 1
    url = SOURCES["hatexplain"].files[0].url
    said, error = complaint.splitlines()
    assert said == f"{url} -> {tmp_path / 'hatexplain'}"
    assert error.startswith(f"qkdyn: error: cannot download {url}: ")
    assert "Network is unreachable" in error and error.endswith(f"put it into {tmp_path / 'hatexplain'}")


def test_fetch_of_what_is_there_needs_no_network(tmp_path, capsys, nowhere):
    root = write_data(tmp_path / "data")
    status, _, complaint = ask(capsys, "data", "fetch", "bert_base_uncased")
    assert status == 2 and "vocab.txt differs from the published file; move it away" in complaint
    (root / "hatexplain" / "post_id_divisions.json").unlink()
    status, _, complaint = ask(capsys, "data", "fetch", "nothing")
    assert status == 2 and "choose one of hatexplain, sva, squad, bert_base_uncased, gpt2_bpe" in complaint


def test_a_reader_that_has_enough_is_no_error(tmp_path):
    code = "import sys; from qkdyn.cli import main; sys.exit(main(['data']))"
    command = f"'{sys.executable}' -c \"{code}\" | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
