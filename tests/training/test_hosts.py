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
    """Losses and scores are those of one process; then both evaluate and predict together."""
    work = two_hosts.prepare(tmp_path, epochs=8)
    assert "epochs, losses within" in two_hosts.killed(hosts, work)
    said = tmp_path / "said"
    assert "23 pictures parsed" in two_hosts.scored_and_predicted(hosts, work, tmp_path / "killed", said)
