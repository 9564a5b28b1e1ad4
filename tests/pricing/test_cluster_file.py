"""``--cluster``: what a cluster is, from a file or from a run, in the place of options."""

import json

import pytest
from click.testing import CliRunner

from clusterbench.cli import main
from clusterbench.errors import SuiteError
from clusterbench.fingerprint import Fingerprint
from clusterbench.pricing.cluster_file import KnownCluster, read_cluster

WHOLE = "gpu: h100-sxm-80gb\ngpus_per_node: 4\nnum_nodes: 2\nnics: 4x400Gb\n"
ASKED = ("--shape", "llama-8b", "--global-batch-size", "16")
MODEL = "model,layers,hidden,ffn,heads,vocab,seq,mbs,gbs"
ROW = "llama,32,4096,14336,32,128256,4096,1,16"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory, as messages name files in it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def file(here, text, name="cluster.yaml"):
    (here / name).write_text(text)
    return name


def run(*arguments):
    return CliRunner().invoke(main, arguments)


def said(text):
    """Comments as one line."""
    return " ".join(text.replace("\n#", "").split())


def run_folder(
    here, gpus=("NVIDIA H100 80GB HBM3",) * 4, hosts=("n1", "n2"), device="cuda", gpu="NVIDIA H100 80GB HBM3"
):
    """What a run on such hosts leaves of its cluster."""
    folder = here / "run"
    folder.mkdir()
    cluster = {"num_nodes": len(hosts), "ranks_per_node": 4, "device": device, "gpu_name": gpu, "hosts": list(hosts)}
    head = {"kind": "plan", "suite": "s", "question": "?", "cluster": cluster, "repeats": 1}
    (folder / "plan.jsonl").write_text(json.dumps(head) + "\n")
    port = {"state": "4: ACTIVE", "bits_per_s": 4e11, "link_layer": "InfiniBand"}
    of_gpus = [{"name": name, "driver_version": "570.1"} for name in gpus]
    facts = {host: {"gpus": of_gpus, "infiniband": [port] * 4} for host in hosts}
    (folder / "environment.json").write_text(json.dumps({"hosts": facts}))
    for name in ("observations.jsonl", "outcomes.jsonl"):
        (folder / name).touch()
    return folder


def change_host(folder, host, **facts):
    environment = json.loads((folder / "environment.json").read_text())
    environment["hosts"][host] |= facts
    (folder / "environment.json").write_text(json.dumps(environment))


def test_a_file_is_answered_as_the_same_options_are(here):
    of_options = run(
        "advise", *ASKED, "--gpu", "h100-sxm-80gb", "--num-nodes", "2", "--gpus-per-node", "4", "--nics", "4x400Gb"
    )
    of_file = run("advise", *ASKED, "--cluster", file(here, WHOLE))
    assert of_file.exit_code == 0, of_file.stderr
    said_of_it = "# the cluster as cluster.yaml has it: gpu h100-sxm-80gb, gpus_per_node 4, num_nodes 2, nics 4x400Gb\n"
    assert said_of_it in of_file.stdout
    said_of_nics = "# NICs of a node, as --nics says: 4x400Gb\n"
    assert of_file.stdout.replace(said_of_it, "") == of_options.stdout.replace(said_of_nics, "")


def test_what_a_file_leaves_out_is_left_to_options(here):
    name = file(here, "gpu: NVIDIA GB200\n")
    alone = run("advise", *ASKED, "--cluster", name)
    assert "llama-8b on 1 node x 4 NVIDIA GB200" in alone.stdout
    assert "4 GPUs a node, as --gpus-per-node was not said" in said(alone.stdout)
    beside = run("advise", *ASKED, "--cluster", name, "--num-nodes", "2", "--gpus-per-node", "2")
    assert "llama-8b on 2 nodes x 2 NVIDIA GB200" in beside.stdout
    assert beside.stdout.count("If the NICs of a node are ") == 2


def test_the_same_said_twice_is_no_contradiction(here):
    more = ("--gpu", "NVIDIA H100 80GB HBM3", "--gpus-per-node", "4", "--nics", "4x400Gb", "--num-nodes", "2")
    assert run("advise", *ASKED, "--cluster", file(here, WHOLE), *more).exit_code == 0


def test_a_part_of_the_cluster_may_be_asked_about(here):
    done = run("advise", *ASKED, "--cluster", file(here, WHOLE), "--num-nodes", "1")
    assert "llama-8b on 1 node x 4 NVIDIA H100 80GB HBM3" in done.stdout


@pytest.mark.parametrize(
    ("option", "given", "line", "has"),
    [
        ("--gpu", "h200-sxm-141gb", 1, "gpu h100-sxm-80gb"),
        ("--gpus-per-node", "8", 2, "gpus_per_node 4"),
        ("--num-nodes", "3", 3, "2 nodes and no more"),
        ("--nics", "8x400Gb", 4, "nics 4x400Gb"),
    ],
)
def test_an_option_that_contradicts_the_file_is_refused_with_both_places(here, option, given, line, has):
    done = run("advise", *ASKED, "--cluster", file(here, WHOLE), option, given)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: cluster.yaml:{line}: the cluster has {has}, but {option} is {given}.\n"
        f"hint: leave out {option}, or --cluster\n"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "gpu: h100-sxm-80gb\nnodes: 8\n",
            "cluster.yaml:2: a cluster file has no key 'nodes'. Did you mean 'num_nodes'?\n"
            "Keys: gpu, gpus_per_node, num_nodes, nics.",
        ),
        ("gpu: zebra\n", "cluster.yaml:1: gpu 'zebra' is not in the tables.\nCards: "),
        ("\ngpu: A100\n", "cluster.yaml:2: gpu 'A100' is not in the tables. Did you mean a100-sxm4-80gb, a100-sxm4-40"),
        ("gpu: 8\n", "cluster.yaml:1: 'gpu' must be text, not 8."),
        ("gpu:\n", "cluster.yaml:1: 'gpu' must be text, not nothing."),
        ("gpu: [h100]\n", "cluster.yaml:1: 'gpu' must be one value: text."),
        ("gpus_per_node: 0\n", "cluster.yaml:1: 'gpus_per_node' must be a whole number from 1 to 1024, not 0."),
        ("num_nodes: 2.5\n", "cluster.yaml:1: 'num_nodes' must be a whole number from 1 to 100000, not 2.5."),
        ("gpu: l40s\nnics: 400\n", "cluster.yaml:2: 'nics' must be text, not 400."),
        (
            "gpu: l40s\nnics: 8x400\n",
            "cluster.yaml:2: nics '8x400' is not of the form 8x400Gb: 1 to 999 NICs of a node, each of 1 to 9999 "
            "gigabits per second.",
        ),
        ("- gpu\n", "cluster.yaml:1: a cluster file is keys and values: gpu, gpus_per_node, num_nodes, nics."),
        ("gpu: !!python/name:os.system x\n", "cluster.yaml:1: tag '!!python/name:os.system' is not allowed; "),
        ("gpu: a\ngpu: b\n", "cluster.yaml:2: key 'gpu' is given twice, first in line 1."),
        ("", "cluster.yaml is empty. A cluster file needs at least 'gpu'."),
    ],
)
def test_a_mistake_in_the_file_is_said_with_its_line(here, text, message):
    done = run("advise", *ASKED, "--cluster", file(here, text))
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {message}")


def test_a_file_that_is_not_there_is_said(here):
    done = run("advise", *ASKED, "--cluster", "none.yaml")
    assert (done.exit_code, done.stderr) == (
        2,
        "error: --cluster none.yaml cannot be read: No such file or directory.\n",
    )


def test_a_card_that_nothing_says_is_asked_for(here):
    done = run("advise", *ASKED)
    assert (done.exit_code, done.stderr) == (2, "error: say the card: --gpu NAME, or --cluster FILE with 'gpu'.\n")
    done = run("advise", *ASKED, "--cluster", file(here, "num_nodes: 2\n"))
    assert (done.exit_code, done.stderr) == (2, "error: say the card: --gpu NAME: cluster.yaml does not say it.\n")


def test_a_table_is_priced_on_the_cluster_of_a_file(here):
    (here / "steps.csv").write_text(f"{MODEL},gpus\n{ROW},8\n")
    of = ("steps.csv", "--profile", "nanotron")
    options = ("--gpu", "h100-sxm-80gb", "--gpus-per-node", "4", "--nics", "4x400Gb")
    of_options, of_file = (run("price", *of, *more) for more in (options, ("--cluster", file(here, WHOLE))))
    assert of_file.exit_code == 0, of_file.stderr
    assert (of_file.stdout, of_file.stderr) == (of_options.stdout, of_options.stderr)
    other = run("price", *of, "--cluster", "cluster.yaml", "--gpus-per-node", "8")
    assert (other.exit_code, other.stdout) == (2, "")
    assert other.stderr.startswith("error: cluster.yaml:2: the cluster has gpus_per_node 4, but --gpus-per-node is 8.")


def test_rates_are_learned_on_the_cluster_of_a_file(here):
    (here / "steps.csv").write_text(f"{MODEL},gpus,step_s\n{ROW},8,3.0\n{ROW},4,6.0\n")
    of = ("steps.csv", "--profile", "nanotron")
    options = ("--gpu", "h100-sxm-80gb", "--gpus-per-node", "4", "--nics", "4x400Gb")
    of_options, of_file = (run("calibrate", *of, *more) for more in (options, ("--cluster", file(here, WHOLE))))
    assert of_file.exit_code == 0, of_file.stderr
    assert of_file.stdout == of_options.stdout


def test_a_run_says_what_its_hosts_are(here):
    folder = run_folder(here)
    done = run("advise", *ASKED, "--cluster", "run")
    assert done.exit_code == 0, done.stderr
    assert "# the cluster as run has it: gpu h100-sxm-80gb, gpus_per_node 4, num_nodes 2, nics 4x400Gb\n" in done.stdout
    assert "llama-8b on 2 nodes x 4 NVIDIA H100 80GB HBM3" in done.stdout
    change_host(folder, "n1", infiniband=[])
    change_host(folder, "n2", infiniband=[])
    assert run("advise", *ASKED, "--cluster", "run").stdout.count("If the NICs of a node are ") == 2


def test_more_nodes_like_those_of_a_run_may_be_asked_about_but_no_others(here):
    run_folder(here)
    done = run("advise", *ASKED, "--cluster", "run", "--num-nodes", "4")
    assert "llama-8b on 4 nodes x 4 NVIDIA H100 80GB HBM3" in done.stdout
    other = run("advise", *ASKED, "--cluster", "run", "--gpus-per-node", "8")
    assert other.stderr.startswith("error: run: the cluster has gpus_per_node 4, but --gpus-per-node is 8.\n")


def test_rates_of_another_driver_than_that_of_the_run_are_refused(here):
    run_folder(here)
    (here / "rates.yaml").write_text("machine:\n  driver: '580.2'\nrates:\n  memory: 2500 GB/s\n")
    done = run("advise", *ASKED, "--cluster", "run", "--rates", "rates.yaml")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--rates rates.yaml is of another machine: it has driver 580.2, and this one driver 570.1." in done.stderr


def test_a_run_that_only_was_told_of_its_gpus_is_that_of_its_plan(here):
    run_folder(here, gpus=())
    done = run("advise", *ASKED, "--cluster", "run")
    assert "# the cluster as run has it: gpu h100-sxm-80gb, gpus_per_node 4, num_nodes 2\n" in done.stdout


def test_hosts_that_differ_are_no_cluster_of_nodes_that_are_alike(here):
    change_host(run_folder(here), "n2", gpus=[{"name": "NVIDIA H100 80GB HBM3"}] * 3)
    done = run("advise", *ASKED, "--cluster", "run")
    assert (done.exit_code, done.stderr) == (
        2,
        "error: run: its hosts differ in gpus_per_node: 3 and 4. Prices are of nodes that are alike.\n",
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "cpu", "gpu": None}, "run is a run on CPU ranks, and a cluster of GPUs is asked for.\n"),
        ({"gpu": "NVIDIA L41S"}, "run: gpu 'NVIDIA L41S' is not in the tables."),
        ({"gpu": None}, "say the card: --gpu NAME: run does not say it.\n"),
    ],
)
def test_a_run_without_a_card_of_the_tables_is_said(here, changes, message):
    run_folder(here, gpus=(), **changes)
    done = run("advise", *ASKED, "--cluster", "run")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {message}")


def test_a_folder_that_is_no_run_is_said(here):
    (here / "empty").mkdir()
    done = run("advise", *ASKED, "--cluster", "empty")
    assert done.exit_code == 2
    assert done.stderr.startswith("error: empty is not the folder of a run")


def test_a_run_that_is_priced_has_a_cluster_of_its_own(here):
    run_folder(here)
    done = run("price", "run", "--cluster", file(here, WHOLE))
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "error: run is a run and knows its own cluster: --cluster cluster.yaml has no effect.\n"
    done = run("price", "run", "--gpus-per-node", "4")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "error: run is a run and knows its own cluster: --gpus-per-node has no effect.\n"


def test_what_is_known_of_a_cluster_is_its_files(here):
    known = read_cluster(here / file(here, "num_nodes: 3\ngpu: l40s\n"))
    assert (known.gpu, known.gpus_per_node, known.num_nodes, known.nics) == ("l40s", None, 3, None)
    assert known.words == "gpu l40s, num_nodes 3"
    assert known.machine == Fingerprint()
    with pytest.raises(SuiteError, match="3 nodes and no more"):
        known.but(num_nodes=4)
    assert KnownCluster().but(num_nodes=4).num_nodes == 4


def test_a_file_names_a_card_as_the_option_does(here):
    assert read_cluster(here / file(here, "gpu: H200\n")).card.name == "h200-sxm-141gb"


@pytest.mark.parametrize(("words", "name"), [("H100", "h100-sxm-80gb"), ("A100-80GB", "a100-sxm4-80gb")])
def test_the_words_of_a_publication_name_a_card_where_they_stand_for_one(words, name):
    assert KnownCluster().but(gpu=words).card.name == name
    known = KnownCluster(gpu=name, places={"gpu": "cluster.yaml:1"})
    assert known.but(gpu=words).card.name == name


def test_words_that_stand_for_several_cards_are_refused():
    with pytest.raises(SuiteError, match=r"--gpu 'A100' is not in the tables\. Did you mean a100-sxm4-80gb, a100"):
        assert KnownCluster(gpu="A100").card
