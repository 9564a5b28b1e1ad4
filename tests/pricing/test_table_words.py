"""Names of columns as publications have them: what is certain is read, and of all others it is said what to do."""

import pytest

from clusterbench.errors import SuiteError
from clusterbench.pricing.table import read_steps
from clusterbench.pricing.table_words import hint_for, is_result, meaning_of

OF_TOKENS = "tokens_per_s_per_gpu where it is of one GPU, tokens_per_s_of_all where it is of all"


@pytest.mark.parametrize(
    ("name", "column", "factor"),
    [
        ("context length", "seq", 1),
        ("Seq. Len", "seq", 1),
        ("global bs", "gbs", 1),
        ("per_device_train_batch_size", "mbs", 1),
        ("tokens/s/gpu", "tokens_per_s_per_gpu", 1),
        ("tok/s/device", "tokens_per_s_per_gpu", 1),
        ("Throughput (tokens/sec/GPU)", "tokens_per_s_per_gpu", 1),
        ("MFU (%)", "mfu", 0.01),
        ("MFU", "mfu", 1),
        ("tflops/gpu", "tflops_per_gpu", 1),
        ("Model TFLOP / sec / GPU", "tflops_per_gpu", 1),
        ("GPU type", "gpu", 1),
        ("#GPUs", "gpus", 1),
        ("nodes", "num_nodes", 1),
        ("# of nodes", "num_nodes", 1),
        ("pp size", "pp", 1),
        ("tensor parallel", "tp", 1),
        ("Tensor-model-parallel size", "tp", 1),
        ("pipeline_parallel_degree", "pp", 1),
        ("grad accum", "ga", 1),
        ("act ckpt", "checkpointing", 1),
        ("data_parallel_shard_degree", "shard_group_size", 1),
        ("data_parallel_replicate_degree", "dp_replicate", 1),
        ("Step time [s]", "step_s", 1),
        ("Iteration time (ms)", "step_s", 1e-3),
        ("s / iter", "step_s", 1),
        ("Peak mem (MiB)", "mem_gb", 2**20 / 1e9),
        ("Kv heads", "kv_heads", 1),
        ("Micro-batches", "ga", 1),
        ("Batch size (global)", "gbs", 1),
        ("Sequence Length (tokens)", "seq", 1),
        ("#Params (B)", "params_b", 1),
        ("Parallelism", "layout", 1),
    ],
)
def test_a_name_whose_meaning_is_certain_is_read(name, column, factor):
    assert meaning_of(name)[:2] == (column, factor)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("max_memory_reserved (GiB)", None),
        ("Peak reserved memory (GiB)", "reserved"),
        ("Max allocated mem. (GB)", "allocated"),
        ("Active memory, GiB", "active"),
        ("Memory (%)", "of the card"),
        ("memory bandwidth (GB/s)", None),
    ],
)
def test_which_memory_was_measured_is_in_the_name(name, said):
    meaning = meaning_of(name.replace("_", " ") if said is None else name)
    if name.startswith("memory b"):
        assert meaning is None
    else:
        assert (meaning.column, meaning.said) == ("mem_gb", said or "reserved")


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("TP/PP/DP", ("tp", "pp", "dp")),
        ("(TP, PP, DP)", ("tp", "pp", "dp")),
        ("DP x TP x PP", ("dp", "tp", "pp")),
        ("tp-pp", ("tp", "pp")),
        ("TPxPP", ("tp", "pp")),
    ],
)
def test_a_column_may_be_of_several_degrees(name, order):
    assert meaning_of(name) == ("layout", 1.0, "", order)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Speed (iter/sec)", "call it step_s, and write one divided by it: seconds of a step"),
        ("Steps", "call it step_s where it is the time of a step, in seconds"),
        ("ETP", "take it out if it changes nothing of what ran"),
        ("wps", f"call it {OF_TOKENS}"),
        ("mem", "call it mem_gb where it is in GB, 'memory (GiB)' where it is in GiB"),
        ("model size", "call it model where it names a model, params_b where it counts parameters in billions"),
        ("bs / gpu", "call it mbs where a step has one micro-batch; gbs is it times dp"),
        ("Batch size/DP", "call it mbs where a step has one micro-batch; gbs is it times dp"),
        ("per_device_batch_size", "call it mbs where a step has one micro-batch; gbs is it times dp"),
        ("ctx", "call it seq where it counts the tokens of a sequence"),
        ("Global batch size (tokens)", "call it gbs, divided by seq: gbs counts sequences"),
        ("step time", "call it step_s where it is of a step, in seconds; 'step time (ms)' where it is in milliseconds"),
        ("TFLOPS", "call it tflops_per_gpu where it is of one GPU, in TFLOP/s"),
        ("Activation checkpoiting", "call it checkpointing if it is that, as 'activation checkpointing' is"),
        ("sequence_lenght", "call it seq if it is that, as 'sequence length' is"),
        ("microbatchsize_", None),
        ("Training throughput (128 GPUs)", f"call it {OF_TOKENS}"),
        (
            "avg. duration of 10 it",
            "call it step_s where it is of a step, in seconds; 'step time (ms)' where it is in milliseconds",
        ),
        ("Kernel Optimizations", "take it out if it changes nothing of what ran"),  # no zero optimization stage
        ("weather", "take it out if it changes nothing of what ran"),
    ],
)
def test_a_name_that_is_not_certain_is_told_what_it_may_be(name, hint):
    if hint is None:
        assert meaning_of(name).column == "mbs"
    else:
        assert meaning_of(name) is None
        assert not is_result(name)
        assert hint_for(name) == hint


def test_every_unknown_column_has_its_own_hint(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("model,seq,gpus,mbs,gbs,wps,mem,bs / gpu,weather\nllama-8b,8192,8,1,8,1,1,1,1\n")
    with pytest.raises(SuiteError) as error:
        read_steps(file, 8)
    lines = str(error.value).splitlines()
    assert lines[0] == "t.csv:1: unknown columns 'wps', 'mem', 'bs / gpu', 'weather'."
    assert [line.partition(": call")[0].partition(": take")[0] for line in lines[2:]] == [
        "hint: 'wps'",
        "hint: 'mem'",
        "hint: 'bs / gpu'",
        "hint: 'weather'",
    ]


def test_columns_that_were_measured_beside_are_set_aside():
    for name in (
        "Est. time to train (10K GPUs, 10T tokens)",
        "HFU",
        "samples/s",
        "HFU (%)",
        "Tokens/s",
        "loss",
        "Notes",
    ):
        assert is_result(name)
