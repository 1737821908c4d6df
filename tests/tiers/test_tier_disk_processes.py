"""Several processes on one folder, and processes that die while they write."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from inferscale_sdk.testing.tier_suite import make_key, make_segment
from inferscale_sdk.tiers.disk import DiskTier

WRITER_THAT_STOPS = """
import os, sys, time
from pathlib import Path
from inferscale_sdk.testing.tier_suite import make_segment
from inferscale_sdk.tiers.disk import DiskTier

tier = DiskTier(Path(sys.argv[1]), "model")
plain_write, done = os.write, 0

def write_some(descriptor, data):
    global done
    if descriptor <= 2:
        return plain_write(descriptor, data)
    room = int(sys.argv[2]) - done
    if room == 0:
        print("half", flush=True)
        time.sleep(60)
    written = plain_write(descriptor, bytes(data)[:room])
    done += written
    return written

os.write = write_some
tier.put(make_segment("a", n_tokens=64, variant=1))
"""

WRITER = """
import sys
from pathlib import Path
from inferscale_sdk.testing.tier_suite import make_segment
from inferscale_sdk.tiers.disk import DiskTier

tier = DiskTier(Path(sys.argv[1]), "model")
versions = [make_segment("a", n_tokens=n, variant=n) for n in (1, 200)]
print("ready", flush=True)
for step in range(300):
    tier.put(versions[step % 2])
    found = tier.get(versions[0].key)
    assert found in versions, found
assert tier.stats().quarantined == 0
"""


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("before", [False, True], ids=["new key", "replacing"])
def test_a_writer_killed_half_way_leaves_nothing_torn(tmp_path: Path, before: bool) -> None:
    old = make_segment("a")
    tier = DiskTier(tmp_path, "model")
    if before:
        tier.put(old)
    expected = old if before else None
    with start(WRITER_THAT_STOPS, tmp_path, 1000) as writer:
        try:
            assert line_of(writer) == "half"
            [half] = tmp_path.rglob("*.tmp")
            assert half.stat().st_size == 1000
            assert tier.get(make_key("a")) == expected
            # A second server that starts now leaves the living writer's file alone.
            DiskTier(tmp_path, "model")
            assert half.exists()
        finally:
            writer.send_signal(signal.SIGKILL)
            writer.communicate()
    assert half.exists()
    assert tier.get(make_key("a")) == expected
    again = DiskTier(tmp_path, "model")
    assert not half.exists()
    assert again.get(make_key("a")) == expected
    assert list(again.keys()) == ([old.key] if before else [])
    assert again.stats().quarantined == 0


def test_two_processes_write_and_read_one_key(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, "model")
    versions = [make_segment("a", n_tokens=n, variant=n) for n in (1, 200)]
    writers = [start(WRITER, tmp_path) for _ in range(2)]
    try:
        assert [line_of(writer) for writer in writers] == ["ready", "ready"]
        seen = 0
        while any(writer.poll() is None for writer in writers):
            found = tier.get(make_key("a"))
            assert found is None or found in versions
            seen += found is not None
    finally:
        errors = [writer.communicate(timeout=60)[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], errors
    assert seen > 0
    assert tier.stats().quarantined == 0
    assert list(tmp_path.rglob("*.tmp")) == []
