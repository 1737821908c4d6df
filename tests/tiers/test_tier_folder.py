"""A store's folder seen from outside."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from inferscale_sdk.errors import StoreError
from inferscale_sdk.kv.segment import Segment
from inferscale_sdk.tiers import files, folder
from inferscale_sdk.tiers.disk import DiskTier

KEYS = [f"{i:02x}" * 20 for i in range(1, 5)]


def segment(key: str) -> Segment:
    data = torch.arange(2 * 2 * 3 * 1 * 4, dtype=torch.float32).reshape(2, 2, 3, 1, 4)
    return Segment(key, data.contiguous(), 0, "0" * 32)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two models and two ranks; the first key lies everywhere, the last nowhere."""
    for model, rank, keys in (("a", 0, KEYS[:3]), ("a", 1, KEYS[:1]), ("b", 0, KEYS[:1])):
        with DiskTier(tmp_path, model, rank=rank) as tier:
            for key in keys:
                tier.put(segment(key))
    return tmp_path


def test_everything_is_listed_once_a_shard(root: Path) -> None:
    found = list(folder.segments(root))
    assert sorted(entry.key for entry in found) == sorted([KEYS[0]] * 3 + KEYS[1:3])
    assert len({entry.shard for entry in found}) == 3
    assert all(entry.nbytes == entry.path.stat().st_size for entry in found)
    assert list(folder.segments(root / "nothing")) == []


def test_locate_sees_copies_damaged_ones_and_half_written_ones(root: Path) -> None:
    shard = files.shard_folder(root, "a", 0)
    path = files.segment_path(shard, KEYS[1])
    path.write_bytes(path.read_bytes()[:-1])
    with DiskTier(root, "a") as tier:
        assert tier.get(KEYS[1]) is None  # goes to quarantine
    half = files.segment_path(shard, KEYS[2]).with_name(f".{KEYS[2]}.0123456789abcdef.tmp")
    half.write_bytes(b"KV")
    assert folder.locate(root, KEYS) == {
        KEYS[0]: ("disk",),
        KEYS[1]: ("quarantine",),
        KEYS[2]: ("disk", "temporary"),
    }
    assert folder.locate(root / "nothing", KEYS) == {}
    with pytest.raises(ValueError, match="40 lower-case hex"):
        folder.locate(root, ["../../etc/passwd"])


def test_remove_reaches_every_model_and_rank(root: Path) -> None:
    assert folder.remove(root, KEYS[:1]) == 3
    assert folder.remove(root, KEYS[:1]) == 0
    assert folder.locate(root, KEYS).keys() == set(KEYS[1:3])


def test_whole_segments_pass_in_every_shard(root: Path) -> None:
    assert [folder.verify(entry, root) for entry in folder.segments(root)] == [None] * 5


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda raw: raw[:-4], "truncated"),
        (lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]), "checksum mismatch"),
        (lambda raw: b"x" + raw[1:], "bad magic"),
        (lambda raw: b"", "truncated"),
    ],
)
def test_damage_is_named_and_set_aside_only_on_request(root: Path, spoil, reason: str) -> None:
    path = files.segment_path(files.shard_folder(root, "a", 0), KEYS[1])
    path.write_bytes(spoil(path.read_bytes()))
    (entry,) = [e for e in folder.segments(root) if e.key == KEYS[1]]
    damage = folder.verify(entry, root)
    assert damage is not None and reason in damage.reason and not damage.set_aside
    assert path.exists()
    damage = folder.verify(entry, root, repair=True)
    assert damage is not None and damage.set_aside
    assert not path.exists()
    assert folder.locate(root, [KEYS[1]]) == {KEYS[1]: ("quarantine",)}
    assert folder.verify(entry, root) is None  # gone meanwhile


def test_what_is_encrypted_is_checked_with_its_key(tmp_path: Path) -> None:
    from inferscale_sdk.kv.cipher import Cipher
    from inferscale_sdk.kv.codec import dump

    cipher, other = Cipher(b"k" * 32), Cipher(b"o" * 32)
    path = files.segment_path(files.shard_folder(tmp_path, "a", 0), KEYS[0])
    path.parent.mkdir(parents=True)
    place = path.relative_to(tmp_path).as_posix()
    path.write_bytes(b"".join(cipher.seal(dump(segment(KEYS[0]), "a"), place)))
    (entry,) = folder.segments(tmp_path)
    assert entry.place == place
    assert folder.verify(entry, tmp_path, cipher=cipher) is None
    for wrong in (None, other):
        damage = folder.verify(entry, tmp_path, cipher=wrong, repair=True)
        assert damage is not None and damage.unknown and path.exists()
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    damage = folder.verify(entry, tmp_path, cipher=cipher)
    assert damage is not None and not damage.unknown and "tag is wrong" in damage.reason


def test_a_segment_under_another_name_or_model_is_damage(root: Path) -> None:
    good = files.segment_path(files.shard_folder(root, "a", 0), KEYS[1])
    renamed = files.segment_path(files.shard_folder(root, "a", 0), KEYS[3])
    renamed.parent.mkdir(exist_ok=True)
    renamed.write_bytes(good.read_bytes())
    moved = files.segment_path(files.shard_folder(root, "b", 0), KEYS[1])
    moved.parent.mkdir(exist_ok=True)
    moved.write_bytes(good.read_bytes())
    reasons = {
        damage.segment.path: damage.reason
        for entry in folder.segments(root)
        if (damage := folder.verify(entry, root)) is not None
    }
    assert reasons.keys() == {renamed, moved}
    assert "key mismatch" in reasons[renamed]
    assert "another model" in reasons[moved]


def test_a_folder_that_may_not_be_listed_is_not_taken_for_empty(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = files.shard_folder(root, "a", 0).parent
    plain = os.scandir

    def scandir(path: Any) -> Any:
        if Path(path) == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return plain(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(StoreError, match="cannot be listed"):
        folder.locate(root, KEYS)
    with pytest.raises(StoreError, match="cannot be listed"):
        list(folder.segments(root))
    with pytest.raises(StoreError, match="cannot be removed"):
        folder.remove(root, KEYS[1:2])
    with pytest.raises(StoreError, match="cannot be listed"):
        DiskTier(root, "b").delete_everywhere(KEYS[1])
