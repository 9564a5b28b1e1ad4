import pytest

from clusterbench.errors import SuiteError
from clusterbench.launch.interfaces import Interface, choose_interfaces, interfaces_of


def host(**addresses: str) -> tuple[Interface, ...]:
    network = [{"name": name, "addresses": of_name.split()} for name, of_name in addresses.items()]
    return interfaces_of({"network": network})


def names(hosts, wanted=None):
    return {name: (interface.name, interface.address) for name, interface in choose_interfaces(hosts, wanted).items()}


def test_the_network_that_all_share_is_taken_whatever_it_is_called():
    hosts = {
        "a": host(lo="127.0.0.1/8", eth0="192.168.1.4/30", ib0="10.0.0.1/16"),
        "b": host(lo="127.0.0.1/8", ens3="10.0.7.2/16", eth0="192.168.9.4/30"),
    }
    assert names(hosts) == {"a": ("ib0", "10.0.0.1"), "b": ("ens3", "10.0.7.2")}


def test_what_every_host_has_under_the_same_address_joins_nobody():
    hosts = {
        "a": host(lo="127.0.0.1/8", docker0="172.17.0.1/16", eth0="10.0.0.1/24"),
        "b": host(lo="127.0.0.1/8", docker0="172.17.0.1/16", eth0="10.0.0.2/24"),
    }
    assert names(hosts) == {"a": ("eth0", "10.0.0.1"), "b": ("eth0", "10.0.0.2")}


def test_a_bridge_of_any_name_that_every_host_has_for_itself_joins_nobody():
    hosts = {
        "a": host(cloud0="172.30.0.1/16", eth0="10.0.0.1/24"),
        "b": host(cloud0="172.30.0.1/16", eth0="10.0.0.2/24"),
    }
    assert names(hosts) == {"a": ("eth0", "10.0.0.1"), "b": ("eth0", "10.0.0.2")}


def test_a_bridge_with_the_hosts_own_address_joins_them_unlike_one_that_docker_made():
    hosts = {
        name: host(**{"br-0a1b2c3d4e5f": f"172.18.0.{number}/16", "br-ex": f"10.0.0.{number}/24"})
        for number, name in enumerate("ab", 1)
    }
    assert names(hosts) == {"a": ("br-ex", "10.0.0.1"), "b": ("br-ex", "10.0.0.2")}


def test_the_way_to_the_pods_of_a_kubernetes_node_joins_nobody():
    # Each host has a network of its own, as between racks, and what Cilium makes comes first by its name.
    hosts = {
        name: host(cilium_host=f"10.244.{number}.7/32", eth0=f"10.0.{number}.1/24")
        for number, name in enumerate("ab", 1)
    }
    assert names(hosts) == {"a": ("eth0", "10.0.1.1"), "b": ("eth0", "10.0.2.1")}


def test_the_way_to_the_boards_controller_joins_nobody():
    hosts = {
        "a": host(enx0a="169.254.3.1/24", eth0="10.0.0.1/24"),
        "b": host(enx0a="169.254.3.2/24", eth0="10.0.0.2/24"),
    }
    assert names(hosts) == {"a": ("eth0", "10.0.0.1"), "b": ("eth0", "10.0.0.2")}


def test_two_containers_on_the_network_of_one_machine_meet_there():
    hosts = {"a": host(eth0="10.0.0.1/24"), "b": host(eth0="10.0.0.1/24")}
    assert names(hosts) == {"a": ("eth0", "10.0.0.1"), "b": ("eth0", "10.0.0.1")}


def test_hosts_with_networks_of_their_own_take_the_name_they_share():
    hosts = {"a": host(eth0="10.0.0.1/31"), "b": host(eth0="10.0.0.3/31")}
    assert names(hosts) == {"a": ("eth0", "10.0.0.1"), "b": ("eth0", "10.0.0.3")}


def test_an_interface_that_was_asked_for_is_taken():
    hosts = {"a": host(eth0="10.0.0.1/24", ib0="10.1.0.1/24"), "b": host(eth0="10.0.0.2/24", ib0="10.1.0.2/24")}
    assert names(hosts, "ib0") == {"a": ("ib0", "10.1.0.1"), "b": ("ib0", "10.1.0.2")}


def test_one_that_is_missing_is_named_with_its_hosts_and_what_they_have():
    own = host(lo="::1/128 127.0.0.1/8", eth0="10.0.0.2/24 fe80::2/64", ib1="fd00::2/64")
    hosts = {"a": host(eth0="10.0.0.1/24", ib0="10.1.0.1/24"), "b": own}
    with pytest.raises(SuiteError) as caught:
        choose_interfaces(hosts, "ib0")
    assert str(caught.value) == (
        "--interface ib0: there is none of this name with an address on b (lo 127.0.0.1, eth0 10.0.0.2, ib1 fd00::2).\n"
        "hint: 'ip -brief address' on a host lists its own"
    )


def test_hosts_without_anything_in_common_are_refused():
    hosts = {"a": host(lo="127.0.0.1/8", ib0="10.0.0.1/24"), "b": host(eth0="10.3.0.2/24"), "c": ()}
    with pytest.raises(SuiteError) as caught:
        choose_interfaces(hosts, None)
    assert str(caught.value) == (
        "the hosts have no network in common: a (lo 127.0.0.1, ib0 10.0.0.1), b (eth0 10.3.0.2), c (none).\n"
        "hint: name the interface that joins them, '--interface eth0'"
    )


def test_an_interface_without_an_address_is_not_counted():
    assert interfaces_of({"network": [{"name": "ib0", "addresses": []}, {"name": "eth0"}]}) == ()


def test_ipv6_is_taken_where_hosts_have_nothing_else_in_common():
    both = {"a": host(eth0="fd00::1/64", eth1="10.0.0.1/24"), "b": host(eth0="fd00::2/64", eth1="10.0.0.2/24")}
    assert names(both) == {"a": ("eth1", "10.0.0.1"), "b": ("eth1", "10.0.0.2")}
    mixed = {"a": host(eth0="fd00::1/64", eth1="10.0.0.1/24"), "b": host(eth0="fd00::2/64")}
    assert names(mixed) == {"a": ("eth0", "fd00::1"), "b": ("eth0", "fd00::2")}
    assert names(mixed, "eth0") == {"a": ("eth0", "fd00::1"), "b": ("eth0", "fd00::2")}


def test_an_address_that_holds_for_one_link_joins_nobody():
    with pytest.raises(SuiteError, match="no network in common"):
        choose_interfaces({"a": host(eth0="fe80::1/64"), "b": host(eth0="fe80::2/64")}, None)
