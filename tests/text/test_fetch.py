"""Downloads from a server on this machine: whole, resumed, refused, silent, and onto a disk that will not take them."""

import errno
import functools
import gzip
import hashlib
import http.server
import inspect
import json
import os
import re
import socket
import threading
import urllib.request
from dataclasses import replace

import pytest

from qkdyn.errors import DataError, OutputError
from qkdyn.text import fetch as module
from qkdyn.text.catalogue import SOURCES, PublishedFile, Source
from qkdyn.text.fetch import fetch

# The server of these tests shares a machine with them, which may be busy.
fetch_file = functools.partial(module.fetch_file, timeout=600.0)
CONTENT = json.dumps({f"{number}_made": number for number in range(30_000)}).encode()
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves `server.content`; the server's attributes say how well."""

    def do_GET(self):
        server, asked = self.server, re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
        server.asked.append(self.headers.get("Range"))
        if server.status != 200:
            return self.send_error(server.status)
        begin = int(asked[1]) if asked and server.ranges else 0
        if begin >= len(server.content):
            return self.send_error(416)
        self.send_response(206 if asked and server.ranges else 200)
        if server.shift is not None:
            begin += server.shift
        if asked and server.ranges:
            self.send_header("Content-Range", f"bytes {begin}-{len(server.content) - 1}/{len(server.content)}")
        body = server.content[begin:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: server.cut])
        if server.cut:
            server.go_on.wait(600)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(module, "fetch_file", fetch_file)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.content, running.asked, running.status = CONTENT, [], 200
        running.ranges, running.cut, running.shift, running.go_on = True, None, None, threading.Event()
        running.go_on.set()
        running.handle_error = lambda *arguments: None  # Whoever hangs up early is what some tests are about.
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.go_on.set()
        running.shutdown()
        thread.join()


def published(server, name="dataset.json", digest=DIGEST) -> PublishedFile:
    """What the server offers."""
    return PublishedFile(name, f"http://127.0.0.1:{server.server_address[1]}/{name}", "posts", digest)


def test_whole(server, tmp_path):
    said = fetch_file(published(server), tmp_path / "new" / "folder")
    path = tmp_path / "new" / "folder" / "dataset.json"
    assert path.read_bytes() == CONTENT and os.listdir(path.parent) == ["dataset.json"]
    assert said == f"{path}: {len(CONTENT):,} bytes, sha256 {DIGEST}"
    assert server.asked == [None]


def test_what_is_there_is_not_downloaded_again(server, tmp_path):
    (tmp_path / "dataset.json.gz").write_bytes(gzip.compress(CONTENT))
    assert "is there already" in fetch_file(published(server), tmp_path)
    with pytest.raises(DataError, match=r"dataset.json.gz differs from the published file; move it away"):
        fetch_file(published(server, digest="0" * 64), tmp_path)
    assert server.asked == [] and os.listdir(tmp_path) == ["dataset.json.gz"]


@pytest.mark.parametrize("ranges", [True, False])
def test_resumed_after_a_cut(server, tmp_path, ranges):
    server.ranges, server.cut = ranges, 100_000
    with pytest.raises(DataError, match=rf"connection ended after 100,000 of {len(CONTENT):,} bytes; run this again"):
        fetch_file(published(server), tmp_path)
    assert os.listdir(tmp_path) == ["dataset.json.part"]
    assert (tmp_path / "dataset.json.part").read_bytes() == CONTENT[:100_000]
    server.cut = None
    fetch_file(published(server), tmp_path)
    assert server.asked == [None, "bytes=100000-"]
    assert (tmp_path / "dataset.json").read_bytes() == CONTENT and os.listdir(tmp_path) == ["dataset.json"]


def test_whole_part_needs_no_more_bytes(server, tmp_path):
    (tmp_path / "dataset.json.part").write_bytes(CONTENT)
    fetch_file(published(server), tmp_path)
    assert (tmp_path / "dataset.json").read_bytes() == CONTENT


def test_other_bytes_than_asked_for(server, tmp_path):
    (tmp_path / "dataset.json.part").write_bytes(CONTENT[:1000])
    server.shift = -10
    with pytest.raises(DataError, match=r"sends other bytes than asked for; delete .*dataset.json.part"):
        fetch_file(published(server), tmp_path)
    assert (tmp_path / "dataset.json.part").read_bytes() == CONTENT[:1000]


def test_wrong_checksum(server, tmp_path):
    with pytest.raises(DataError) as raised:
        fetch_file(published(server, digest="0" * 64), tmp_path)
    for part in (DIGEST, "0" * 64, server_url(server), str(tmp_path), "it was removed"):
        assert part in str(raised.value)
    assert os.listdir(tmp_path) == []


def server_url(server) -> str:
    return published(server).url


def test_without_a_checksum_the_content_must_be_readable(server, tmp_path):
    said = fetch_file(published(server, digest=None), tmp_path)
    assert said.endswith(f"sha256 {DIGEST} (none published)")
    (tmp_path / "dataset.json").unlink()
    server.content = b"<html>sign in</html>"
    with pytest.raises(DataError, match=r"other content than was published \(.*is not valid JSON"):
        fetch_file(published(server, digest=None), tmp_path)
    assert os.listdir(tmp_path) == []


def test_gzipped_where_published_so(server, tmp_path):
    table = b"sentence\tverb_pos\na cat sits .\tVBZ\n"
    server.content = gzip.compress(table)
    file = replace(published(server, "agr.tsv", None), rows="sentences")
    file = replace(file, url=f"{file.url}.gz?dl=1")
    fetch_file(file, tmp_path)
    assert os.listdir(tmp_path) == ["agr.tsv.gz"]
    assert gzip.decompress((tmp_path / "agr.tsv.gz").read_bytes()) == table
    (tmp_path / "agr.tsv.gz").unlink()
    server.content = b"<html>sign in</html>"
    with pytest.raises(DataError, match=r"other content than was published \(it is not gzipped"):
        fetch_file(file, tmp_path)


@pytest.mark.parametrize("status", [404, 503])
def test_refused_by_the_server(server, tmp_path, status):
    server.status = status
    with pytest.raises(DataError, match=rf"cannot download {server_url(server)}: the server answers {status} \w+"):
        fetch_file(published(server), tmp_path)
    assert os.listdir(tmp_path) == []


def test_no_network(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    file = PublishedFile("dataset.json", f"http://127.0.0.1:{port}/dataset.json", "posts")
    with pytest.raises(DataError) as raised:
        fetch_file(file, tmp_path / "hatexplain")
    assert str(raised.value).startswith(
        f"cannot download {file.url}: [Errno {errno.ECONNREFUSED}] Connection refused; "
    )
    assert str(raised.value).endswith(f"get the file by other means and put it into {tmp_path / 'hatexplain'}")


def test_silent_server_is_given_up(tmp_path, monkeypatch):
    told, real = [], urllib.request.urlopen
    monkeypatch.setattr(
        "urllib.request.urlopen", lambda asked, timeout: told.append(timeout) or real(asked, timeout=timeout)
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        file = PublishedFile("dataset.json", f"http://127.0.0.1:{silent.getsockname()[1]}/dataset.json", "posts")
        with pytest.raises(DataError, match=r"dataset.json: (timed out|no answer within 0.3 s); run this again"):
            fetch_file(file, tmp_path, timeout=0.3)
    assert told == [0.3]
    assert inspect.signature(fetch_file.func).parameters["timeout"].default == module.TIMEOUT < 5


def test_server_that_falls_silent_is_given_up(server, tmp_path):
    server.cut = 100_000
    server.go_on.clear()
    for timeout in (0.3, 3.0, 30.0):  # a busy machine may take longer than that for the first byte
        with pytest.raises(DataError, match=r"timed out|no answer within") as raised:
            fetch_file(published(server), tmp_path, timeout=timeout)
        if "no answer" not in str(raised.value):
            break
    assert "the connection broke (timed out); run this again" in str(raised.value)
    assert (tmp_path / "dataset.json.part").read_bytes() == CONTENT[:100_000]


def test_a_name_look_up_that_hangs_is_given_up(tmp_path, monkeypatch):
    free = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **options: free.wait(600))
    file = PublishedFile("dataset.json", "http://example.invalid/dataset.json", "posts")
    with pytest.raises(DataError, match=r"no answer within 0.2 s; run this again, .* put it into"):
        fetch_file(file, tmp_path, timeout=0.2)
    free.set()


def test_full_disk_keeps_what_was_received(server, tmp_path, monkeypatch):
    real = open

    class Full:
        """A file on a disk that takes 1,000 bytes more."""

        def __init__(self, *arguments, **options):
            self.file, self.left = real(*arguments, **options), 1000

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.file.close()

        def write(self, data):
            if not self.left:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written = self.file.write(data[: self.left])
            self.left -= written
            return written

    monkeypatch.setattr(module, "open", Full, raising=False)
    with pytest.raises(
        OutputError, match=r"cannot write .*dataset.json.part: No space left on device; free some space"
    ):
        fetch_file(published(server), tmp_path)
    monkeypatch.undo()
    assert (tmp_path / "dataset.json.part").read_bytes() == CONTENT[:1000]
    fetch_file(published(server), tmp_path)
    assert (tmp_path / "dataset.json").read_bytes() == CONTENT and server.asked[-1] == "bytes=1000-"


def test_folders_that_cannot_be_written(server, tmp_path, monkeypatch):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(
        OutputError, match=r"cannot write .*taken.*; free some space, ask for permission, or name another"
    ):
        fetch_file(published(server), tmp_path / "taken")

    def refuse(*arguments, **options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(module, "open", refuse, raising=False)
    with pytest.raises(OutputError, match=r"cannot write .*dataset.json.part: Permission denied"):
        fetch_file(published(server), tmp_path)


def test_a_source_goes_into_the_folder_of_its_name(server, tmp_path, monkeypatch):
    files = (published(server, "one.json"), published(server, "two.json"))
    monkeypatch.setitem(SOURCES, "made", Source("made", "", "", "", files))
    said = []
    lines = fetch("made", tmp_path, say=said.append).splitlines()
    assert sorted(os.listdir(tmp_path / "made")) == ["one.json", "two.json"]
    assert said == [f"{file.url} -> {tmp_path / 'made'}" for file in files] and len(lines) == 2
    monkeypatch.setenv("QKDYN_DATA", str(tmp_path / "environment"))
    fetch("made")
    monkeypatch.delenv("QKDYN_DATA")
    monkeypatch.chdir(tmp_path)
    fetch("made")
    assert (tmp_path / "environment" / "made" / "one.json").exists() and (tmp_path / "data" / "made").exists()
    with pytest.raises(DataError, match="no data set or vocabulary is called 'nothing'"):
        fetch("nothing", tmp_path)
