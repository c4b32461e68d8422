"""Records through tensorflow-datasets are those of the plain readers, without TensorFlow and without a network."""

import builtins
import json
import socket
import subprocess
import sys

import pytest
from made import made_squad, write, write_data

from qkdyn.errors import DataError
from qkdyn.text import tfds
from qkdyn.text.hatexplain import read_hatexplain
from qkdyn.text.squad import read_squad


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def squad_folder(root, seed=0, zipped=False):
    """A folder with both files of SQuAD v1.1."""
    write(root / "train-v1.1.json", json.dumps(made_squad(30, seed)), zipped)
    write(root / "dev-v1.1.json", json.dumps(made_squad(11, seed + 1)))
    return root


@pytest.mark.parametrize("zipped", [False, True])
def test_hatexplain_is_what_the_reader_reads(tmp_path, zipped):
    folder = write_data(tmp_path, 60, zipped=zipped) / "hatexplain"
    tfds.prepare_hatexplain(folder, tmp_path / "prepared")
    assert tfds.hatexplain_from_tfds(tmp_path / "prepared") == read_hatexplain(folder)
    assert list(tmp_path.glob("prepared/qkdyn_hatexplain/1.0.0/*.array_record*"))
    assert "tensorflow" not in sys.modules


def test_squad_is_what_the_reader_reads(tmp_path):
    folder = squad_folder(tmp_path / "squad", zipped=True)
    tfds.prepare_squad(folder, tmp_path / "prepared")
    read = {"train": folder / "train-v1.1.json.gz", "validation": folder / "dev-v1.1.json"}
    assert tfds.squad_from_tfds(tmp_path / "prepared") == {name: read_squad(path) for name, path in read.items()}
    assert "tensorflow" not in sys.modules


def test_prepared_once_and_from_the_same_files_only(tmp_path):
    folder, prepared = write_data(tmp_path / "one") / "hatexplain", tmp_path / "prepared"
    tfds.prepare_hatexplain(folder, prepared)
    (record,) = prepared.rglob("*train*.array_record*")
    before = record.stat().st_mtime_ns
    tfds.prepare_hatexplain(folder, prepared)
    assert record.stat().st_mtime_ns == before
    other = write_data(tmp_path / "two", seed=1) / "hatexplain"
    with pytest.raises(DataError, match=rf"{prepared}/qkdyn_hatexplain/1.0.0 was prepared from other files; remove it"):
        tfds.prepare_hatexplain(other, prepared)
    tfds.prepare_squad(squad_folder(tmp_path / "squad"), prepared)
    with pytest.raises(DataError, match=r"qkdyn_squad/v1.1/3.0.0 was prepared from other files"):
        tfds.prepare_squad(squad_folder(tmp_path / "other", seed=5), prepared)


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match=r"nothing is prepared in .*; call prepare_hatexplain first"):
        tfds.hatexplain_from_tfds(tmp_path)
    with pytest.raises(DataError, match=r"nothing is prepared in .*; call prepare_squad first"):
        tfds.squad_from_tfds(tmp_path)
    with pytest.raises(DataError, match=r"neither train-v1.1.json nor train-v1.1.json.gz is in"):
        tfds.prepare_squad(tmp_path, tmp_path / "prepared")
    with pytest.raises(DataError, match=r"dataset.json"):
        tfds.prepare_hatexplain(tmp_path, tmp_path / "prepared")
    write(tmp_path / "train-v1.1.json", '{"data": [{"paragraphs": [{"context": 1, "qas": []}]}]}')
    with pytest.raises(DataError, match="context must be a string, got 1"):
        tfds.prepare_squad(tmp_path, tmp_path / "prepared")


def test_without_the_library(tmp_path, monkeypatch):
    real = builtins.__import__

    def missing(name, *arguments, **options):
        if name.startswith("tensorflow_datasets"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    tfds._hatexplain_builder.cache_clear()
    try:
        with pytest.raises(DataError, match=r"cannot be imported \(No module .*\); pip install 'qkdyn\[tfds\]'"):
            tfds.hatexplain_from_tfds(tmp_path)
    finally:
        tfds._hatexplain_builder.cache_clear()


def test_import_of_the_module_alone_imports_nothing_of_it():
    code = (
        "import sys, qkdyn.text.tfds; print([name for name in ('tensorflow_datasets', 'jax') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout.strip() == "[]"
