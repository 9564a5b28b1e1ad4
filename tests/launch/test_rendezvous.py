"""How agents find each other without MPI, and that no other program gets in between."""

import contextlib
import hmac
import json
import multiprocessing
import re
import secrets
import socket
import stat
import threading

import pytest

from clusterbench.errors import LaunchError
from clusterbench.launch import control, handshake, rendezvous
from clusterbench.launch.control import Alone, TcpHead
from clusterbench.launch.messages import TimeTold
from clusterbench.launch.rendezvous import meet, ports_of, shared_secret, waited_in_vain
from clusterbench.launchers import Started, launchers

SECRET = {"CLUSTERBENCH_SECRET": "0123456789abcdef"}
JOB = {**SECRET, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": "3"}


def agent(rank, size=3):
    return Started(launchers()["by_hand"], rank, size, 0)


def job_of(environment):
    return launchers()["by_hand"].job_of(environment)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A user's configuration, empty."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "clusterbench" / "secret"


@pytest.fixture
def job():
    """A job of this test alone, at ports that nobody has."""
    while True:
        job = {**JOB, "MASTER_PORT": str(secrets.randbelow(2**32))}
        if all(map(_is_free, ports_of(job_of(job)))):
            return job


def _is_free(port):
    with contextlib.suppress(OSError), socket.create_server(("0.0.0.0", port)):
        return True
    return False


def meet_in_background(launcher, job, timeout_s=60.0):
    """A plane, or why there is none, once the thread is through."""
    came = []

    def run():
        try:
            came.append(meet(launcher, job, timeout_s))
        except LaunchError as error:
            came.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, came


def test_agents_meet_in_whatever_order_they_come(job):
    members = [meet_in_background(agent(rank), job) for rank in (2, 1)]
    head = meet(agent(0), job, 60)
    for thread, _ in members:
        thread.join()
    (second,), (first,) = (came for _, came in members)
    second.send(0, TimeTold(7.0))
    while not (arrived := head.receive()):
        pass
    assert arrived == [(2, TimeTold(7.0))]
    for plane in (first, second, head):
        plane.close()


def test_one_agent_meets_nobody():
    assert isinstance(meet(agent(0, size=1), {}, 0), Alone)


def test_a_port_that_is_somebody_elses_is_passed_over(job):
    other = socket.create_server(("0.0.0.0", ports_of(job_of(job))[0]))

    def answer_as_another_service_would():
        with contextlib.suppress(OSError):
            while True:
                other.accept()[0].close()

    service = threading.Thread(target=answer_as_another_service_would)
    service.start()
    thread, came = meet_in_background(agent(0, size=2), job)
    member = meet(agent(1, size=2), job, 60)
    thread.join()
    other.shutdown(socket.SHUT_RDWR)
    service.join()
    other.close()
    member.close()
    came[0].close()


def test_a_go_between_on_an_earlier_port_is_not_believed(job):
    # On the head's host anybody may take the port; what he passes on proves that he sits on the wrong one.
    mallory = socket.create_server(("0.0.0.0", ports_of(job_of(job))[0]))
    thread, came = meet_in_background(agent(0, size=2), job)
    said = []

    def pass_on():
        victim, _ = mallory.accept()
        with victim, _dial(("127.0.0.1", ports_of(job_of(job))[1])) as head:
            victim.sendall(head.recv(4096))
            head.sendall(victim.recv(4096))
            said.append(head.recv(4096))

    between = threading.Thread(target=pass_on)
    between.start()
    member = meet(agent(1, size=2), job, 60)  # turned down there, it goes on to the next port
    between.join()
    thread.join()
    mallory.close()
    assert said == [b""]
    member.close()
    came[0].close()


def test_listeners_on_all_ports_before_the_heads_keep_a_member_only_for_a_moment_each(job, monkeypatch):
    monkeypatch.setattr(rendezvous, "_FIRST_PATIENCE_S", 0.05)
    *earlier, _ = ports_of(job_of(job))
    is_over = threading.Event()

    def drip(listener):
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            while not is_over.wait(0.01):
                connection.sendall(b" ")

    listeners = [socket.create_server(("0.0.0.0", port)) for port in earlier]
    threads = [threading.Thread(target=drip, args=(listener,)) for listener in listeners]
    for thread in threads:
        thread.start()
    head, came = meet_in_background(agent(0, size=2), job)
    member = meet(agent(1, size=2), job, 60)
    head.join()
    assert isinstance(came[0], TcpHead)
    is_over.set()
    for thread, listener in zip(threads, listeners, strict=True):
        thread.join()
        listener.close()
    member.close()
    came[0].close()


def _dial(address):
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(address, 5)


def test_the_head_names_who_did_not_come(job):
    with pytest.raises(LaunchError) as caught:
        meet(agent(0), job, 0.2)
    port = ports_of(job_of(job))[0]
    assert str(caught.value) == (
        f"2 of 3 agents did not come to {socket.gethostname()}:{port} within 0.2 s: 1, 2.\n"
        "hint: these are ranks of the launcher; one that was started says where it looked for the head, and one that "
        "says nothing was not started, or has ended"
    )


def test_who_waits_in_a_shell_of_srun_hears_for_whom_and_how_to_start_instead(monkeypatch, capsys):
    """'srun -n16 --pty bash' and then 'clusterbench run' waited 60 s without a word."""
    monkeypatch.setattr(control, "SECONDS_TO_SAY_LATE", 0.05)
    job = {**SECRET, "SLURM_JOB_ID": secrets.token_hex(8), "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "cb1"}
    with pytest.raises(LaunchError):
        meet(Started(launchers()["slurm"], 0, 16, 0), job, 0.3)
    assert capsys.readouterr().err == (
        "waiting up to 0.3 s for ranks 1-15 of the 16 processes that srun started\n"
        "hint: in a shell of 'srun --pty' start 'srun --overlap clusterbench ...', or on this host alone "
        "'env -u SLURM_PROCID -u PMI_RANK clusterbench ...'\n"
    )


def test_a_member_says_where_it_looked_and_what_to_look_at(job):
    with pytest.raises(LaunchError) as caught:
        meet(agent(1), job, 0.2)
    first, *_, last = ports_of(job_of(job))
    here, where = socket.gethostname(), f"127.0.0.1, ports {first} to {last}"
    said, hint = str(caught.value).split("\n")
    assert said.startswith(
        f"agent 1 of 3 (host {here}) did not find the head at {where}, within 0.2 s; the last try said:"
    )
    assert hint.startswith(
        "hint: is 127.0.0.1 the host of rank 0, has no other process rank 1, are those ports open between hosts, and "
        "is CLUSTERBENCH_SECRET (or the file "
    )


def test_of_two_that_waited_for_each_other_both_words_tell_which(job, monkeypatch):
    said = []
    for rank, environment in ((0, job), (1, {**job, "MASTER_ADDR": "127.9.9.9"})):
        with pytest.raises(LaunchError) as caught:
            meet(agent(rank, size=2), environment, 0.2)
        said.append(f"error: {caught.value}")
    here = socket.gethostname()
    assert waited_in_vain("\n".join(said)) == (
        f"the process on {here} did not find the head of the run on {here}, and each waited for the other"
    )
    assert [waited_in_vain(words) for words in said] == ["", ""]  # one alone may have waited for what never began


def getaddrinfo(answers, asked):
    """A name service that gives for cb1 each of ``answers``, the last one for ever; an exception is no answer."""
    really = socket.getaddrinfo

    def answer(host, *how, **more):
        if host != "cb1":
            return really(host, *how, **more)
        asked.append(host)
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(found, OSError):
            raise found
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in found]

    return answer


def test_a_name_is_asked_for_once_and_not_for_each_port(job, monkeypatch):
    """A name service that takes three seconds for an answer used up all of a member's time."""
    asked = []
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo([["127.0.0.1"]], asked))
    with pytest.raises(LaunchError, match=r"did not find the head at cb1 \(127\.0\.0\.1\), ports "):
        meet(agent(1), {**job, "MASTER_ADDR": "cb1"}, 0.2)
    assert asked.count("cb1") == 1


def test_every_address_of_a_name_is_tried_and_a_name_that_comes_right_is_found(job, monkeypatch):
    monkeypatch.setattr(rendezvous, "_SECONDS_OF_AN_ANSWER", 0.0)
    answers = [socket.gaierror(socket.EAI_AGAIN, "no answer"), ["127.9.9.9"], ["127.9.9.9", "127.0.0.1"]]
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo(answers, []))
    head, came = meet_in_background(agent(0, size=2), job)
    member = meet(agent(1, size=2), {**job, "MASTER_ADDR": "cb1"}, 60)
    head.join()
    member.close()
    came[0].close()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
         "the last try said: cb1: Temporary failure in name resolution\n"
         "hint: 'getent hosts cb1' should give an address here, and MASTER_ADDR may be one; is cb1 the host of rank 0"),
        (["127.0.1.1"], "hint: the name cb1 leads back to this host here: is it right in /etc/hosts; is cb1 the host"),
    ],
)  # fmt: skip
def test_a_name_without_an_address_or_with_a_wrong_one_is_said(job, monkeypatch, answer, said):
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo([answer], []))
    with pytest.raises(LaunchError) as caught:
        meet(agent(1), {**job, "MASTER_ADDR": "cb1"}, 0.2)
    assert said in str(caught.value)


def test_a_head_whose_name_no_name_service_knows_is_found_at_master_addr(monkeypatch):
    # Slurm's NodeName may be one that slurm.conf alone has an address of.
    job = {**SECRET, "SLURM_JOB_ID": secrets.token_hex(8), "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "cb[1-2]"}
    head_at, ask = "127.0.0.1", socket.getaddrinfo

    def unknown(host, *others, **options):
        if host == "cb1":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return ask(host, *others, **options)

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    slurm = launchers()["slurm"]
    head, came = meet_in_background(Started(slurm, 0, 2, 0), {**job, "MASTER_ADDR": head_at})
    member = meet(Started(slurm, 1, 2, 0), {**job, "MASTER_ADDR": head_at}, 60)
    head.join()
    member.close()
    came[0].close()
    with pytest.raises(LaunchError, match="'getent hosts cb1' should give an address here, and MASTER_ADDR may be one"):
        meet(Started(slurm, 1, 2, 0), job, 0.2)


def test_a_member_comes_by_ipv6_where_the_head_has_it(job):
    if not control._has_ipv6():
        pytest.skip("this machine has no IPv6")
    head, came = meet_in_background(agent(0, size=3), job)
    members = [meet(agent(1), {**job, "MASTER_ADDR": "::1"}, 60), meet(agent(2), job, 60)]
    head.join()
    for plane in (*members, came[0]):
        plane.close()


def test_a_host_without_ipv6_listens_all_the_same(monkeypatch):
    monkeypatch.setattr(control, "_has_ipv6", lambda: False)
    head = TcpHead(1, b"secret", control.EVERY_ADDRESS)
    assert head.address[0] == "0.0.0.0"
    head.close()


def test_an_agent_without_the_secret_is_refused_though_its_rank_is_free(job):
    thread, came = meet_in_background(agent(0, size=2), job)
    with pytest.raises(LaunchError, match="did not find the head"):
        meet(agent(1, size=2), {**job, "CLUSTERBENCH_SECRET": "another one, as long"}, 0.3)
    member = meet(agent(1, size=2), job, 60)
    thread.join()
    member.close()
    came[0].close()


def test_what_was_overheard_on_one_connection_opens_no_other(job):
    thread, came = meet_in_background(agent(0, size=2), job)
    port = ports_of(job_of(job))[0]
    secret = hmac.new(SECRET["CLUSTERBENCH_SECRET"].encode(), job_of(job).encode(), "sha256").digest()
    secret = hmac.new(secret, str(port).encode(), "sha256").digest()
    with _dial(("127.0.0.1", port)) as member, _dial(("127.0.0.1", port)) as replay:
        nonce = json.loads(member.recv(4096))["nonce"]
        proof = hmac.new(secret, f"member:{nonce}:ab:1".encode(), "sha256").hexdigest()
        line = json.dumps({"rank": 1, "nonce": "ab", "proof": proof}).encode() + b"\n"
        replay.recv(4096)
        replay.sendall(line)
        assert replay.recv(4096) == b""
        member.sendall(line)
        assert "proof" in json.loads(member.recv(4096))
        thread.join()
    came[0].close()


def test_200_silent_connections_keep_nobody_waiting(job, monkeypatch):
    monkeypatch.setattr(handshake, "SECONDS_TO_AUTHENTICATE", 250.0)  # which none of them has used up
    thread, came = meet_in_background(agent(0, size=2), job)
    address = "127.0.0.1", ports_of(job_of(job))[0]
    silent = [_dial(address)] + [socket.socket() for _ in range(199)]
    for connection in silent[1:]:
        connection.setblocking(False)
        connection.connect_ex(address)
    member = meet(agent(1, size=2), job, 60)
    thread.join(60)
    assert not thread.is_alive()
    for connection in silent:
        connection.close()
    member.close()
    came[0].close()


@pytest.mark.parametrize("name", ["", "SLURM_JOB_ID=1", "SLURM_JOB_ID=2", "a" * 500])
def test_ports_are_below_those_that_systems_give_away(name):
    ports = ports_of(name)
    assert len(ports) == 16
    assert 20_000 <= ports[0] < ports[-1] < 30_000


def test_the_secret_is_the_one_that_was_given():
    assert shared_secret(SECRET) == b"0123456789abcdef"


def test_a_short_secret_is_refused():
    with pytest.raises(LaunchError) as caught:
        shared_secret({"CLUSTERBENCH_SECRET": "guess me"})
    assert str(caught.value) == (
        "CLUSTERBENCH_SECRET has 8 characters; 16 are the least.\n"
        "hint: 'openssl rand -hex 32' makes a good one; give all agents the same"
    )


def test_the_file_is_made_once_and_is_the_users_alone(home):
    secret = shared_secret({})
    assert re.fullmatch(rb"[0-9a-f]{64}", secret)
    assert shared_secret({}) == secret
    assert stat.S_IMODE(home.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.parent.stat().st_mode) == 0o700
    assert [file.name for file in home.parent.iterdir()] == ["secret"]


def test_twenty_that_come_at_once_read_the_same_file(home):
    fork = multiprocessing.get_context("fork")
    together, answers = fork.Barrier(20), fork.SimpleQueue()
    agents = [fork.Process(target=_read_at_once, args=(together, answers)) for _ in range(20)]
    for process in agents:
        process.start()
    read = {answers.get() for _ in agents}
    for process in agents:
        process.join()
    assert read == {home.read_bytes()}
    assert [file.name for file in home.parent.iterdir()] == ["secret"]


def _read_at_once(together, answers):
    together.wait(120)
    answers.put(shared_secret({}))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_file_that_others_can_read_is_no_secret(home, mode):
    shared_secret({})
    home.chmod(mode)
    with pytest.raises(LaunchError) as caught:
        shared_secret({})
    assert str(caught.value) == f"{home} can be read by others than you.\nhint: chmod 600 {home}, or delete it"


def test_an_empty_file_is_no_secret(home):
    home.parent.mkdir()
    home.touch(0o600)
    with pytest.raises(LaunchError) as caught:
        shared_secret({})
    assert str(caught.value) == (
        f"{home} has 0 characters; 16 are the least.\nhint: delete it; the next run makes a good one"
    )


def test_a_secret_typed_with_a_line_end_is_the_same(home):
    home.parent.mkdir()
    home.touch(0o600)
    home.write_text("0123456789abcdef\n")
    assert shared_secret({}) == shared_secret(SECRET)


def test_where_no_file_can_be_a_variable_does_it(home):
    home.parent.write_text("a file where a folder belongs")
    with pytest.raises(LaunchError) as caught:
        shared_secret({})
    assert str(caught.value) == (
        f"{home} cannot be read or made: File exists.\nhint: set CLUSTERBENCH_SECRET to the same text, 16 characters "
        "or more, for all agents"
    )


def test_a_user_without_a_home_is_told_of_the_variable(monkeypatch):
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(rendezvous.Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    with pytest.raises(LaunchError) as caught:
        shared_secret({})
    assert str(caught.value) == (
        "this user has no home, where the secret of its runs would be.\n"
        "hint: set CLUSTERBENCH_SECRET to the same text, 16 characters or more, for all agents"
    )


def test_a_secret_never_travels(job):
    heard = []
    port = ports_of(job_of(job))[0]
    with socket.create_server(("127.0.0.1", port)) as listener:
        thread, came = meet_in_background(agent(1, size=2), job, 0.5)
        connection, _ = listener.accept()
        with connection:
            connection.sendall(json.dumps({"clusterbench": 2, "nonce": "00"}).encode() + b"\n")
            heard.append(connection.recv(4096))
    thread.join()
    assert isinstance(came[0], LaunchError)
    assert SECRET["CLUSTERBENCH_SECRET"].encode() not in heard[0]
    assert sorted(json.loads(heard[0])) == ["nonce", "proof", "rank"]
