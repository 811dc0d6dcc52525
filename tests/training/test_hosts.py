"""Two hosts, as far as one computer goes: namespaces with their own addresses. python -m scripts.two_hosts has more."""

import pytest

from scripts import two_hosts


@pytest.fixture(scope="module")
def hosts():
    if why := two_hosts.refusal():
        pytest.skip(why)
    with two_hosts.Hosts() as both:
        yield both


def test_a_host_is_killed_and_the_run_comes_back(hosts, tmp_path):
    """Losses and scores are those of one process; then both evaluate."""
    work = two_hosts.prepare(tmp_path, epochs=6)
    assert "epochs, losses within" in two_hosts.killed(hosts, work)
    said = tmp_path / "said"
    assert "evaluated to the same mIoU" in two_hosts.scored(hosts, work, tmp_path / "killed", said)
