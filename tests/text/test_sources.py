"""Where files are found, how they are read, and what is said of one that cannot be."""

import errno
import gzip
import hashlib
import os
from pathlib import Path

import pytest
from made import write, write_data

from qkdyn.errors import DataError
from qkdyn.files import write_text
from qkdyn.text import sources
from qkdyn.text.catalogue import SOURCES
from qkdyn.text.sources import checksums, data_folder, find, find_published, open_text, read_json, read_lines, sha256


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """An empty working folder, and no QKDYN_DATA."""
    monkeypatch.delenv("QKDYN_DATA", raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def test_plain_and_gzipped_are_the_same_text(tmp_path):
    text = "ä line\nanother\n"
    plain, zipped = write(tmp_path / "a.txt", text), write(tmp_path / "b.txt", text, zipped=True)
    assert open_text(plain) == open_text(zipped) == text
    # What a browser has unpacked under the old name, or packed under the new one.
    zipped.rename(tmp_path / "c.txt")
    assert open_text(tmp_path / "c.txt") == text
    assert sha256(plain) == sha256(tmp_path / "c.txt") == hashlib.sha256(text.encode()).hexdigest()


def test_a_mark_of_byte_order_is_no_text(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b'\xef\xbb\xbf["\xef\xbb\xbfx",\n2]')
    assert open_text(path) == '["\ufeffx",\n2]' and list(read_lines(path)) == ['["\ufeffx",', "2]"]
    assert read_json(path) == ["\ufeffx", 2] and sha256(path) == hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_bytes(b"\xef\xbb\xbfx")
    assert list(read_lines(path)) == ["x"]


def test_halves_of_surrogate_pairs_are_named_wherever_they_are(tmp_path):
    path = tmp_path / "a.json"
    # A whole pair is a character, an escaped backslash none.
    path.write_text(r'{"a": ["\ud83d\ude00", "\\ud83d"]}')
    assert read_json(path) == {"a": ["\U0001f600", "\\ud83d"]}
    for text, where in (
        (r'{"a": [1, {"b": "x\ud83d"}]}', r"a\[1\]\.b"),
        (r'{"a": {"\uDE00y": 1}}', r"a: the key '\\ude00y'"),
        (r'{"\uDE00y": "\ud83d"}', r"the key '\\ude00y'"),
        (r'[["\ude00\ud83d"]]', r"\[0\]\[0\]"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=rf"a\.json: {where} holds half of a surrogate pair, .* as published"):
            read_json(path)


def test_what_utf8_cannot_hold_is_written_as_its_escape(tmp_path):
    # Such as the name of a file, in a note: a verdict is written after all training.
    assert write_text(tmp_path / "a", "é\udcffx\n").read_bytes() == b"\xc3\xa9\\udcffx\n"


def test_a_name_of_a_folder_has_no_nul():
    with pytest.raises(DataError, match=r"cannot read 'a\\x00b': .* has no NUL; choose another --data"):
        data_folder("a\0b", "sva")


def test_a_file_that_is_enough_makes_a_folder(tmp_path):
    with pytest.raises(DataError, match=r"lacks agr_50_mostcommon_10K\.tsv, and preambles\.tsv, which would do\)"):
        data_folder(tmp_path, "sva", enough="preambles.tsv")
    write(tmp_path / "sva/preambles.tsv", "x", zipped=True)
    assert data_folder(tmp_path, "sva", enough="preambles.tsv") == tmp_path / "sva"
    with pytest.raises(DataError, match=r"\(lacks agr_50_mostcommon_10K\.tsv\)"):
        data_folder(tmp_path, "sva")


def test_find_prefers_the_plain_file(tmp_path):
    with pytest.raises(DataError, match=rf"neither a.txt nor a.txt.gz is in {tmp_path}; `qkdyn data` lists"):
        find(tmp_path, "a.txt")
    write(tmp_path / "a.txt", "x", zipped=True)
    assert find(tmp_path, "a.txt") == tmp_path / "a.txt.gz"
    write(tmp_path / "a.txt", "x")
    assert find(tmp_path, "a.txt") == tmp_path / "a.txt"


def test_a_truncated_or_damaged_gzip_file(tmp_path):
    path = write(tmp_path / "a.txt", "".join(map(str, range(9999))), zipped=True)
    whole = path.read_bytes()
    for bad in (whole[:-20], whole[:5], whole[:100] + bytes(9) + whole[109:], whole + b"more"):
        path.write_bytes(bad)
        with pytest.raises(DataError, match=rf"{path} is a truncated or damaged gzip file .*download it again"):
            open_text(path)


def test_what_is_no_text_or_no_json(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=rf"{path} is not UTF-8 text"):
        open_text(path)
    for text in ('{"a": 1', "", "[" * 100_000):
        path.write_text(text)
        with pytest.raises(DataError, match=rf"{path} is not valid JSON"):
            read_json(path)
    path.write_text('{"a": {"b": 1, "c": 2, "b": 1}}')
    with pytest.raises(DataError, match=rf"{path} has the key 'b' twice"):
        read_json(path)


def test_missing_file_and_folder_in_its_place(tmp_path):
    with pytest.raises(DataError, match=rf"cannot read {tmp_path / 'a'}: No such file or directory; `qkdyn data`"):
        open_text(tmp_path / "a")
    with pytest.raises(DataError, match=rf"cannot read {tmp_path}: Is a directory; move what is in the way"):
        open_text(tmp_path)
    write(tmp_path / "a", "x")
    with pytest.raises(DataError, match=r"cannot read .*a/b: Not a directory; move what is in the way"):
        find(tmp_path / "a", "b")


def test_no_permission(tmp_path, monkeypatch):
    """Whoever runs the tests may be allowed everything, so the refusal of the system is played."""
    path = write(tmp_path / "a.txt", "x")

    def refuse(*arguments, **options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", refuse)
        with pytest.raises(DataError, match=rf"cannot read {path}: Permission denied; ask for permission to read it"):
            open_text(path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", refuse)
        with pytest.raises(DataError, match=rf"cannot read {path}: Permission denied; ask for permission"):
            find(tmp_path, "a.txt")
    with monkeypatch.context() as patch:
        patch.setattr(sources.os, "listdir", refuse)
        with pytest.raises(DataError, match=rf"looked at {tmp_path} \(permission denied\)"):
            data_folder(tmp_path, "hatexplain")


def test_the_folder_given_comes_first(elsewhere, monkeypatch):
    given, environment = write_data(elsewhere / "given"), write_data(elsewhere / "environment")
    write_data(elsewhere / "work" / "data")
    assert data_folder(None, "hatexplain") == Path("data/hatexplain")
    monkeypatch.setenv("QKDYN_DATA", str(environment))
    assert data_folder(None, "hatexplain") == environment / "hatexplain"
    assert data_folder(given, "hatexplain") == given / "hatexplain"
    assert data_folder(given / "hatexplain", "hatexplain") == given / "hatexplain"
    monkeypatch.setenv("QKDYN_DATA", str(environment / "hatexplain"))
    assert data_folder(None, "hatexplain") == environment / "hatexplain"
    # A folder that lacks a file is passed over, whether it is named or not.
    (environment / "hatexplain" / "dataset.json").unlink()
    assert data_folder(None, "hatexplain") == Path("data/hatexplain")


def test_what_was_looked_at_is_named(elsewhere, monkeypatch):
    root = elsewhere / "root"
    write(root / "hatexplain" / "dataset.json", "{}")
    monkeypatch.setenv("QKDYN_DATA", str(root))
    with pytest.raises(DataError) as raised:
        data_folder(None, "hatexplain")
    assert str(raised.value) == (
        f"the files of hatexplain were not found; looked at {root}/hatexplain (lacks post_id_divisions.json), "
        f"{root} (lacks dataset.json and post_id_divisions.json), data/hatexplain (no such file or directory); "
        "name their folder with --data or QKDYN_DATA, or run `qkdyn data fetch hatexplain`"
    )
    with pytest.raises(DataError, match="no data set or vocabulary is called 'hate'; choose one of hatexplain, sva"):
        data_folder(None, "hate")


def test_a_file_of_the_same_columns_is_taken_instead(tmp_path):
    (wanted,) = SOURCES["sva"].files
    with pytest.raises(DataError, match=r"none of agr_50_mostcommon_10K.tsv, .*, sentences.tsv.gz is in"):
        find_published(tmp_path, wanted)
    other = write(tmp_path / "sentences.tsv", "x", zipped=True)
    assert find_published(tmp_path, wanted) == other and data_folder(tmp_path, "sva") == tmp_path
    published = write(tmp_path / "agr_50_mostcommon_10K.tsv", "x", zipped=True)
    assert find_published(tmp_path, wanted) == published


def test_checksums_are_those_of_the_content(tmp_path):
    plain, zipped = write_data(tmp_path / "plain"), write_data(tmp_path / "zipped", zipped=True)
    assert checksums(plain / "hatexplain", "hatexplain") == checksums(zipped / "hatexplain", "hatexplain")
    content = gzip.decompress((zipped / "hatexplain" / "dataset.json.gz").read_bytes())
    assert checksums(zipped / "hatexplain", "hatexplain")["dataset.json"] == hashlib.sha256(content).hexdigest()


@pytest.mark.skipif("QKDYN_DATA" not in os.environ, reason="needs the real data (the same on made data above)")
@pytest.mark.parametrize("name", ["bert_base_uncased", "gpt2_bpe"])
def test_real_vocabularies_are_as_published(name):
    found = checksums(data_folder(None, name), name)
    assert found == {file.name: file.sha256 for file in SOURCES[name].files}
