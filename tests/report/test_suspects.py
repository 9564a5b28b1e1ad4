from __future__ import annotations

from clusterbench.diagnoses import Answer, Finding
from clusterbench.hosts import Evidence, Host, Hosts
from clusterbench.report.suspects import between_hosts, suspects


def of_files(host, what, severity="error"):
    return Finding(f"host {host}", what, severity, host=host)


def test_the_host_with_the_most_errors_is_first_whoever_found_them():
    slow = Finding("rank 3 on n2", "matmul: 61 % slower than the median", "error", brief="61 % slower", host="n2")
    said = suspects(
        {
            "straggler": Answer((slow,)),
            "unfit_host": Answer((of_files("n1", "has swap", "warning"), of_files("n2", "mlx5_3 port 1: is DOWN"))),
        }
    )
    assert [(each.host, each.severity, each.counts) for each in said] == [
        ("n2", "error", "2 errors"),
        ("n1", "warning", "1 warning"),
    ]
    assert said[0].sentences == ("Straggler: rank 3 on n2, 61 % slower", "mlx5_3 port 1: is DOWN")


def test_a_note_and_a_finding_that_names_no_host_suspect_none():
    shared = Finding("n1 -> n2", "slow", "error", among=("n1", "n2"))
    assert suspects({"slow_link": Answer((shared,)), "unfit_host": Answer((of_files("n1", "is a VM", "note"),))}) == []


def test_a_host_that_was_lost_while_cases_ran_is_one_on_which_something_was_found() -> None:
    """hosts.json and the terminal called it bad, and the page named no host at all."""
    lost = Evidence("lost", "all_to_all/4n32/1GiB: its agent said nothing for 30 s")
    again = Host("n3", "not judged", (Evidence("lost", "it was lost before, and took part again later"),))
    hosts = Hosts((Host("n1", "good", ()), Host("n2", "bad", (lost,)), again), 8)
    (said,) = suspects({}, hosts)
    assert (said.host, said.severity, said.counts) == ("n2", "error", "1 error")
    assert said.sentences == ("Lost: all_to_all/4n32/1GiB: its agent said nothing for 30 s",)


def test_what_lies_between_hosts_is_said_beside_the_hosts() -> None:
    """A page said that something was found on 1 of 4 hosts, h2, where a link between h1 and h3 was slow, too."""
    link = Finding("h1 <-> h3", "the link is slow", "warning", brief="33 % slower than its peers", among=("h1", "h3"))
    again = Finding("h1 <-> h3", "all 8 links are slow", "warning", among=("h1", "h3"))
    note = Finding("h0 <-> h1", "took another way", "note", among=("h0", "h1"))
    own = Finding("rank 3 on h2", "slow", "error", host="h2")
    answers = {"slow_link": Answer((link, again, note)), "straggler": Answer((own,))}
    assert between_hosts(answers) == ["Slow link: h1 <-> h3, 33 % slower than its peers"]


def test_of_many_findings_four_are_in_words():
    (said,) = suspects({"unfit_host": Answer(tuple(of_files("n1", f"port {number}") for number in range(6)))})
    assert (len(said.sentences), said.left_out) == (4, "and 2 more")
