import pytest

from hmm_datasets.operations.preflight.network import check_network, interface_to

THERE = ["eth0", "eth1", "ib0", "lo"]


def test_the_interface_that_leads_to_an_address_is_named():
    assert interface_to("127.0.0.1") == ("lo", "127.0.0.1")
    assert check_network("127.0.0.1").detail == "127.0.0.1 is reached through lo (127.0.0.1)"


def test_an_address_that_nobody_knows_fails():
    check = check_network("no-such-host.invalid")
    assert not check.ok
    assert check.detail.startswith("MASTER_ADDR no-such-host.invalid cannot be reached")


@pytest.mark.parametrize("variable", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"])
def test_an_interface_that_this_host_does_not_have_fails_with_one_that_it_has(variable, monkeypatch):
    monkeypatch.setenv(variable, "eth77")
    check = check_network("127.0.0.1")
    assert not check.ok
    assert check.detail.startswith(f"{variable}=eth77 is no interface of this host, which has ")
    assert check.detail.endswith(f"; export {variable}=lo")
