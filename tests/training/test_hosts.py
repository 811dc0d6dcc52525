"""Training over two hosts: network namespaces with addresses of their own, one of which loses power in the middle."""

from pathlib import Path

import pytest

from scripts import two_hosts


def test_a_killed_host_comes_back_and_the_run_ends_as_one_process_would(tmp_path: Path) -> None:
    if why := two_hosts.refusal():
        pytest.skip(why)
    work = two_hosts.prepare(tmp_path, epochs=3)
    with two_hosts.Hosts() as hosts:
        assert "3 epochs" in two_hosts.killed(hosts, work)
