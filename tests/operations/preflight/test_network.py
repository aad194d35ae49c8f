import pytest

from hmm_datasets.operations.preflight.network import check_network, infiniband, interface_to, named_interfaces

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


@pytest.mark.parametrize(
    ("variable", "value", "found"),
    [
        ("GLOO_SOCKET_IFNAME", "eth0", ["eth0"]),
        ("GLOO_SOCKET_IFNAME", "eth", []),
        ("NCCL_SOCKET_IFNAME", "eth", ["eth0", "eth1"]),
        ("NCCL_SOCKET_IFNAME", "=eth", []),
        ("NCCL_SOCKET_IFNAME", "=ib0,eth0", ["eth0", "ib0"]),
        ("NCCL_SOCKET_IFNAME", "^lo,eth", ["ib0"]),
    ],
)
def test_interfaces_are_named_as_nccl_and_gloo_read_them(variable, value, found):
    assert named_interfaces(variable, value, THERE) == found


def test_a_port_of_infiniband_is_active_or_down(tmp_path):
    assert infiniband(tmp_path) == "none"
    state = tmp_path / "mlx5_0" / "ports" / "1" / "state"
    state.parent.mkdir(parents=True)
    state.write_text("1: DOWN\n")
    assert infiniband(tmp_path) == "down"
    state.write_text("4: ACTIVE\n")
    assert infiniband(tmp_path) == "active"
