"""Room on the disk: promised once, and a full disk is its own error."""

import errno
import os
from pathlib import Path

import pytest

from llmgw_agent.weights.blocking import telling_full_disk
from llmgw_agent.weights.room import RESERVE_BYTES, DiskRoom
from llmgw_common.errors import LlmgwError


def room(free_bytes):
    return DiskRoom(Path("/"), lambda _: RESERVE_BYTES + free_bytes)


def test_what_one_was_promised_another_does_not_get():
    disk = room(100)
    disk.promise("a", 60)
    with pytest.raises(LlmgwError) as caught:
        disk.promise("b", 60)
    assert caught.value.code == "disk_full"
    disk.written("a", 20)  # 40 of a's bytes now show in the free ones
    disk.promise("b", 60)
    disk.give_back("a")
    disk.promise("c", 40)


def test_a_new_promise_replaces_the_one_before():
    disk = room(100)
    disk.promise("a", 90)
    disk.promise("a", 100)
    with pytest.raises(LlmgwError):
        disk.promise("a", 101)
    disk.promise("b", 100)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_system_that_has_no_space_is_told_with_numbers(tmp_path, number):
    with pytest.raises(LlmgwError, match="free") as caught:
        with telling_full_disk(tmp_path, 5 << 20):
            raise OSError(number, os.strerror(number))
    assert caught.value.code == "disk_full"
    assert caught.value.facts["needed"] == 5 << 20


def test_another_failure_of_the_disk_is_not_a_full_disk(tmp_path):
    with pytest.raises(OSError, match=r"I/O|Input"):
        with telling_full_disk(tmp_path, 1):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
