"""The lab is what it says it is: hosts that are apart, a network that can be broken, and nothing left behind."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.lab.hosts import LOGIN, Lab, LabError, why_no_delay

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

RECEIVE = """
import socket, time
server = socket.create_server(("", 5000))
print("listening", flush=True)
connection, _ = server.accept()
warm_bytes, total_bytes = 4_000_000, 0  # the first bytes pass in a burst
while chunk := connection.recv(1 << 20):
    if total_bytes < warm_bytes <= total_bytes + len(chunk):
        start, start_bytes = time.monotonic(), total_bytes + len(chunk)
    total_bytes += len(chunk)
print((total_bytes - start_bytes) * 8 / (time.monotonic() - start))
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 5000)) as connection:
    connection.sendall(bytes(int(sys.argv[2])))
"""
CLOCKS = (
    "import time, datetime; print(time.time(), datetime.datetime.now(datetime.UTC).timestamp(), time.time_ns() / 1e9)"
)


def rate_bits_per_s(lab, sender, receiver, size_bytes):
    """What a TCP connection between two hosts carries, without its first megabytes."""
    server = lab.start(receiver, [sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE, text=True)
    assert server.stdout.readline() == "listening\n"
    lab.run(sender, [sys.executable, "-c", SEND, lab.address(receiver), str(size_bytes)], check=True)
    return float(server.stdout.readline())


def carries(lab, sender, receiver, size_bytes, least, most=float("inf")):
    """Whether one of five tries shows such a rate: other work on this machine's few cores disturbs any of them."""
    return any(least < rate_bits_per_s(lab, sender, receiver, size_bytes) < most for _ in range(5))


def output(lab, host, command):
    return lab.run(host, ["sh", "-c", command], check=True).stdout.strip()


def processes_of(folder):
    """The command lines of processes of a lab, found by its scratch folder."""
    commands = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    return [command for command in commands if str(folder) in command]


def test_hosts_have_names_and_addresses(lab):
    assert lab.hosts == ["cb1", "cb2", "cb3", "cb4"]
    for host in [LOGIN, *lab.hosts]:
        assert output(lab, host, "hostname") == host
        assert output(lab, host, f"getent hosts {host}").split() == [lab.address(host), host]
        assert f" {lab.address(host)}/24 " in output(lab, host, "ip -oneline address show dev eth0")


def test_every_host_reaches_every_other(lab):
    names = [LOGIN, *lab.hosts]
    assert all(lab.reaches(host, other) for host in names for other in names if host != other)


def test_hosts_are_apart(lab):
    sleeper = lab.start("cb1", ["sleep", "100"])
    output(lab, "cb1", "touch /dev/shm/seen $TMPDIR/seen")
    assert lab.processes("cb1") == ["sleep 100"]
    assert lab.processes("cb2") == []
    assert "sleep 100" not in output(lab, "cb2", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert output(lab, "cb2", "ls /dev/shm $TMPDIR").split() == ["/dev/shm:", f"{lab.folder}/tmp:"]
    assert output(lab, "cb2", "ls /sys/class/net").split() == ["eth0", "lo"]
    assert sleeper.poll() is None


def test_a_popen_is_that_of_the_command_itself(lab):
    sleeper = lab.start("cb1", ["sleep", "100"])
    sleeper.terminate()
    assert sleeper.wait(60) == -signal.SIGTERM
    assert lab.left_running() == {}
    assert lab.run("cb1", ["sh", "-c", "echo out; echo err >&2; exit 7"]).returncode == 7


def test_a_command_that_takes_too_long_is_killed(lab):
    with pytest.raises(subprocess.TimeoutExpired):
        lab.run("cb1", ["sleep", "100"], timeout=0.2)
    assert lab.left_running() == {}


def test_an_unknown_host_is_named(lab):
    with pytest.raises(LabError, match=r"no host 'cb7'; there are cb0, cb1, cb2, cb3, cb4"):
        lab.run("cb7", ["true"])


def test_ssh_leads_from_the_login_host_to_the_others(lab):
    done = lab.run(LOGIN, ["ssh", "-x", "-o", "BatchMode=yes", "root@cb2", "hostname; pwd; exit 3"])
    assert (done.returncode, done.stdout.split()) == (3, ["cb2", os.path.expanduser("~")])
    assert lab.run(LOGIN, ["ssh", lab.address("cb3"), "hostname"]).stdout == "cb3\n"


def test_ssh_gives_no_variables_of_the_caller(lab):
    environment = {**os.environ, "SECRET_OF_THE_LOGIN_HOST": "1"}
    assert lab.run(LOGIN, ["ssh", "cb1", "env"], env=environment).stdout.count("SECRET") == 0


def test_ssh_does_not_reach_a_host_that_is_down(lab):
    lab.crash("cb2")
    done = lab.run(LOGIN, ["ssh", "cb2", "hostname"])
    assert done.returncode == 255
    assert done.stderr == "ssh: connect to host cb2 port 22: No route to host\n"


def test_a_cut_host_has_no_carrier_until_it_is_healed(lab):
    lab.cut("cb2")
    assert not lab.reaches("cb1", "cb2", timeout_s=0.3)
    assert output(lab, "cb2", "cat /sys/class/net/eth0/carrier") == "0"
    assert lab.reaches("cb1", "cb3")
    lab.heal("cb2")
    assert lab.reaches("cb1", "cb2", timeout_s=30)


def test_drop_loses_packets_silently(lab):
    lab.drop("cb2")
    assert not lab.reaches("cb2", "cb1", timeout_s=0.3)
    assert output(lab, "cb2", "cat /sys/class/net/eth0/carrier") == "1"
    lab.undrop("cb2")
    assert lab.reaches("cb2", "cb1", timeout_s=30)


def test_a_crash_takes_everything_and_a_revived_host_is_fresh(lab):
    sleeper = lab.start("cb2", ["sleep", "100"])
    output(lab, "cb2", "touch /dev/shm/seen $TMPDIR/seen")
    lab.crash("cb2")
    assert sleeper.wait(60) == -signal.SIGKILL
    assert not lab.is_up("cb2")
    assert not lab.reaches("cb1", "cb2", timeout_s=0.3)
    with pytest.raises(LabError, match="cb2 is down"):
        lab.run("cb2", ["true"])
    lab.revive("cb2")
    assert lab.reaches("cb1", "cb2", timeout_s=30)
    assert output(lab, "cb2", "hostname; ls /dev/shm $TMPDIR").split() == ["cb2", "/dev/shm:", f"{lab.folder}/tmp:"]


@pytest.mark.parametrize(("power", "heard"), [(False, True), (True, False)])
def test_peers_hear_of_a_crash_but_not_of_a_power_failure(lab, power, heard):
    listen = "import socket; s = socket.create_server(('', 5000)); print(1, flush=True); s.accept()[0].recv(1)"
    connect = (
        f"import socket; s = socket.create_connection(('{lab.address('cb1')}', 5000)); print(1, flush=True); s.recv(1)"
    )
    listener = lab.start("cb1", [sys.executable, "-c", listen], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    listener.stdout.readline()
    caller = lab.start("cb2", [sys.executable, "-c", connect], stdout=subprocess.PIPE)
    caller.stdout.readline()
    lab.crash("cb2", power=power)
    if heard:
        listener.wait(60)
    else:
        time.sleep(0.5)
        assert listener.poll() is None


@pytest.mark.alone
@pytest.mark.parametrize(("sender", "receiver"), [("cb1", "cb2"), ("cb2", "cb1")])
def test_a_shaped_host_sends_and_receives_at_its_rate(lab, sender, receiver):
    lab.shape("cb2", "100mbit")
    assert carries(lab, sender, receiver, 16_000_000, 80e6, 110e6)
    lab.unshape("cb2")
    assert carries(lab, sender, receiver, 64_000_000, 200e6)


@pytest.mark.alone
@pytest.mark.skipif(why_no_delay() is not None, reason=str(why_no_delay()))
def test_a_delayed_host_is_a_round_trip_farther(lab):
    near_s = lab.round_trip_s("cb1", "cb2")
    lab.delay("cb2", 10)
    assert 0.020 <= lab.round_trip_s("cb1", "cb2") < near_s + 0.035
    assert lab.round_trip_s("cb1", "cb3") < 0.015
    lab.undelay("cb2")
    assert lab.round_trip_s("cb1", "cb2") < 0.015
    assert lab.left_running() == {}


@pytest.mark.alone
@pytest.mark.skipif(why_no_delay() is not None, reason=str(why_no_delay()))
def test_delay_goes_with_a_rate_and_with_a_cut(lab):
    lab.shape("cb2", "100mbit")
    lab.delay("cb2", 1)
    assert carries(lab, "cb1", "cb2", 16_000_000, 80e6, 110e6)
    lab.drop("cb2")
    assert not lab.reaches("cb1", "cb2", timeout_s=0.3)
    lab.undrop("cb2")
    lab.crash("cb2")
    lab.revive("cb2")
    assert lab.round_trip_s("cb1", "cb2") < 0.002 + 0.013


@pytest.mark.skipif(why_no_delay() is not None, reason=str(why_no_delay()))
def test_loss_is_seen_as_retransmitted_segments(lab):
    def retransmitted():
        names, values = (line.split() for line in output(lab, "cb1", "grep ^Tcp: /proc/net/snmp").splitlines())
        return int(values[names.index("RetransSegs")])

    before = retransmitted()
    rate_bits_per_s(lab, "cb1", "cb2", 16_000_000)
    healthy = retransmitted() - before
    lab.loss("cb2", 0.01)
    rate_bits_per_s(lab, "cb1", "cb2", 16_000_000)
    assert retransmitted() - before - healthy > healthy + 20


def test_a_skewed_host_shows_another_time(lab):
    lab.skew("cb2", 180)
    shifts_s = {}
    for host in ("cb1", "cb2"):
        shown_s = [float(clock) for clock in lab.run(host, [sys.executable, "-c", CLOCKS], check=True).stdout.split()]
        shifts_s[host] = [clock - time.time() for clock in shown_s]
    assert shifts_s["cb1"] == pytest.approx([0, 0, 0], abs=60)
    assert shifts_s["cb2"] == pytest.approx([180, 180, 180], abs=60)


def test_two_labs_do_not_see_each_other(lab):
    with Lab(2) as other:
        other.cut("cb2")
        assert lab.reaches("cb1", "cb2")
        assert not other.reaches("cb1", "cb2", timeout_s=0.3)
        lab.start("cb1", ["sleep", "100"])
        assert other.left_running() == {}


def test_a_renewed_lab_is_as_new_and_boots_no_host_that_is(lab):
    untouched = lab._inits["cb4"]
    lab.crash("cb1")
    lab.cut("cb2")
    lab.run("cb3", ["mount", "-o", "remount,size=64m", "/dev/shm"], check=True)
    lab.skew("cb3", 180)
    lab.login(["sh", "-c", "sleep 100 & sleep 100"])
    lab.renew()
    assert lab.left_running() == {}
    assert all(lab.reaches(LOGIN, host) for host in lab.hosts)
    assert "size=65536k" not in output(lab, "cb3", "grep /dev/shm /proc/mounts")
    assert "LAB_CLOCK_SKEWS" not in output(lab, "cb3", "env")
    assert lab._inits["cb4"] == untouched
    lab.start("cb4", ["sh", "-c", "touch /dev/shm/seen; sleep 100 & sleep 100"])
    while output(lab, "cb4", "ls /dev/shm") == "":  # a host that is still empty is left as it is
        time.sleep(0.02)
    lab.shape("cb2", "1mbit")
    lab.renew()
    assert lab._inits["cb4"] != untouched
    assert output(lab, "cb4", "ls /dev/shm") == ""
    assert "tbf" not in output(lab, "cb2", "tc qdisc show dev eth0")


def test_nothing_is_left_after_close(needs_lab):
    with closing(Lab(2)) as lab:
        lab.start("cb1", ["sleep", "100"])
        lab.login(["sh", "-c", "ssh cb2 sleep 100"])
    assert not lab.folder.exists()
    assert processes_of(lab.folder) == []
    assert str(lab.folder) not in Path("/proc/mounts").read_text()


def test_nothing_is_left_after_the_owner_was_killed(needs_lab):
    code = """
import time
from tests.lab.hosts import Lab
lab = Lab(2)
lab.start("cb1", ["sleep", "100"])
lab.login(["sh", "-c", "ssh cb2 sleep 100"])
print(lab.folder, flush=True)
time.sleep(100)
"""
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    folder = Path(owner.stdout.readline().strip())
    assert processes_of(folder)
    owner.kill()
    owner.communicate()
    deadline = time.monotonic() + 60
    while processes_of(folder) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert processes_of(folder) == []
    with Lab(1):
        assert not folder.exists()  # the next lab swept it


def test_a_lab_made_by_hand_stays_until_it_is_taken_down(needs_lab, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where no person's lab is

    def command(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "tests.lab", *arguments], capture_output=True, text=True, timeout=200
        )

    try:
        assert command("up", "2").stdout == "cb0=10.77.0.254 cb1=10.77.0.1 cb2=10.77.0.2\n"
        assert command("up", "2").stderr.startswith("Error: there is a lab already")
        assert command("exec", "cb2", "sh", "-c", "hostname; exit 4").stdout == "cb2\n"
        assert command("login", "ssh", "cb1", "hostname").stdout == "cb1\n"
        assert command("crash", "cb2").returncode == 0
        assert command("exec", "cb2", "true").stderr == "Error: cb2 is down\n"
        assert command("revive", "cb2").returncode == 0
        assert command("exec", "cb2", "hostname").stdout == "cb2\n"
    finally:
        assert command("down").returncode == 0
    assert processes_of(tmp_path) == []
    assert command("ls").stderr.startswith("Error: there is no lab")
