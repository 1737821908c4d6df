"""Deletions that a remote store owes outlive the process that was asked for them."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferscale_sdk.errors import StoreError
from inferscale_sdk.testing.tier_suite import make_key, make_segment
from inferscale_sdk.tiers.disk import DiskTier
from inferscale_sdk.tiers.remote import RemoteLimits, RemoteTier
from inferscale_sdk.tiers.remote_base import ObjectStore, StoredObject
from inferscale_sdk.tiers.remote_debt_book import DebtBook

A, B, C = (make_key(name) for name in "abc")
FAST = RemoteLimits(connect_timeout_seconds=0.3, timeout_seconds=0.3, cooldown_seconds=0.2)


class Objects(ObjectStore):
    """A store that may be away."""

    def __init__(self, address: str = "dict://") -> None:
        self.address = address
        self.data: dict[str, bytes] = {}
        self.away = False

    def _asked(self) -> None:
        if self.away:
            raise ConnectionResetError("no route")

    def get(self, name: str) -> bytes | None:
        self._asked()
        return self.data.get(name)

    def head(self, name: str, nbytes: int) -> bytes | None:
        return self.data.get(name, b"")[:nbytes] or None

    def put(self, name: str, data: bytes, ttl_seconds: float | None) -> int | None:
        self._asked()
        self.data[name] = data
        return None

    def size(self, name: str) -> int | None:
        self._asked()
        return len(self.data[name]) if name in self.data else None

    def delete(self, name: str) -> int | None:
        self._asked()
        data = self.data.pop(name, None)
        return None if data is None else len(data)

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        yield from (StoredObject(n, len(d)) for n, d in self.data.items() if n.startswith(prefix))

    def shards(self) -> list[str]:
        self._asked()
        return sorted({"/".join(name.split("/")[:2]) for name in self.data})


def owed_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.owed"))


def tier_at(objects: Objects, folder: Path | None, rank: int = 0) -> RemoteTier:
    return RemoteTier(objects, "model", limits=FAST, rank=rank, debts_folder=folder)


def test_what_a_dead_server_owed_is_made_up_for_by_the_next(tmp_path: Path) -> None:
    objects, folder = Objects(), tmp_path / "kv" / "owed"
    for rank in (0, 1):
        tier_at(objects, None, rank).put(make_segment("a"))
    dies = tier_at(objects, folder)
    objects.away = True
    with pytest.raises(StoreError):
        dies.delete_everywhere(A)
    dies.close()
    (path,) = owed_files(folder)
    assert path.read_text() == f"+{A}\n"
    # The store is still away when the next one starts: it serves nothing, and remembers.
    waits = tier_at(objects, folder, rank=1)
    assert waits.get(A) is None
    waits.close()
    assert len(owed_files(folder)) == 1
    objects.away = False
    after = tier_at(objects, folder, rank=1)
    assert objects.data == {}, "under every rank, at start"
    assert after.locate([A]) == set()
    after.close()
    assert owed_files(folder) == []


def test_without_a_folder_it_is_lost_with_the_process() -> None:
    objects = Objects()
    dies = tier_at(objects, None)
    dies.put(make_segment("a"))
    objects.away = True
    with pytest.raises(StoreError):
        dies.delete_everywhere(A)
    dies.close()
    objects.away = False
    assert tier_at(objects, None).get(A) is not None


def test_a_segment_stored_anew_is_not_deleted_later(tmp_path: Path) -> None:
    objects = Objects()
    first = tier_at(objects, tmp_path)
    objects.away = True
    with pytest.raises(StoreError):
        first.delete_everywhere(A)
    objects.away = False
    time.sleep(FAST.cooldown_seconds + 0.05)
    first.put(make_segment("a"))
    first.close()
    assert tier_at(objects, tmp_path).get(A) == make_segment("a")


def test_deletions_that_succeed_write_nothing(tmp_path: Path) -> None:
    objects = Objects()
    with tier_at(objects, tmp_path / "owed") as tier:
        tier.put(make_segment("a"))
        assert tier.delete_everywhere(A) == 1
        with pytest.raises(StoreError):
            objects.away = True
            tier.delete(B)  # of this rank alone: eviction, not a user's deletion
        objects.away = False
    assert not (tmp_path / "owed").exists()


def test_two_servers_on_one_folder_keep_apart(tmp_path: Path) -> None:
    mine, yours = DebtBook(tmp_path, "x"), DebtBook(tmp_path, "x")
    mine.add(A)
    yours.add(B)
    assert DebtBook(tmp_path, "x").owed == ()
    mine.close()
    third = DebtBook(tmp_path, "x")
    assert third.owed == (A,)
    yours.done(B)
    yours.close()
    third.close()
    assert DebtBook(tmp_path, "another store").owed == ()
    assert DebtBook(tmp_path, "x").owed == (A,)


def test_done_and_owed_again(tmp_path: Path) -> None:
    book = DebtBook(tmp_path, "x")
    for key in (A, B, C, A):
        book.add(key)
    book.done(B)
    book.done(B)
    (path,) = owed_files(tmp_path)
    assert path.read_text() == f"+{A}\n+{B}\n+{C}\n-{B}\n"
    book.add(B)
    assert book.owed == (A, C, B)
    book.close()
    again = DebtBook(tmp_path, "x")
    assert again.owed == (A, C, B)
    for key in again.owed:
        again.done(key)
    assert owed_files(tmp_path)[0].stat().st_size == 0
    again.close()
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_was_cut_off_counts_for_nothing(tmp_path: Path) -> None:
    book = DebtBook(tmp_path, "x")
    book.add(A)
    book.close()
    (path,) = owed_files(tmp_path)
    path.write_bytes(path.read_bytes() + b"\xff\n+" + B[:17].encode())
    assert DebtBook(tmp_path, "x").owed == (A,)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o500)
    book = DebtBook(tmp_path / "owed", "x")
    book.add(A)
    assert book.owed == (A,)
    assert "cannot be written" in caplog.text
    tmp_path.chmod(0o700)


def test_a_folder_that_is_a_file_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "owed").write_text("")
    with caplog.at_level(logging.WARNING):
        book = DebtBook(tmp_path / "owed", "x")
        book.add(A)
        book.done(A)
        book.close()
    assert "cannot be written" in caplog.text


def test_files_are_private_and_no_segments(tmp_path: Path) -> None:
    with DiskTier(tmp_path, "model") as disk:
        book = DebtBook(tmp_path / "owed", "x")
        book.add(A)
        (path,) = owed_files(tmp_path / "owed")
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert list(disk.keys()) == []
        assert disk.delete_everywhere(A) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_killed_process_leaves_its_debts(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from inferscale_sdk.tiers.remote_debt_book import DebtBook\n"
        "book = DebtBook(Path(sys.argv[1]), 'x'); book.add(sys.argv[2])\n"
        "print('written', flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), A], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        assert DebtBook(tmp_path, "x").owed == (), "its writer lives"
        process.send_signal(signal.SIGKILL)
    assert DebtBook(tmp_path, "x").owed == (A,)
