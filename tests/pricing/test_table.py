"""A table of steps: what is read, what is taken for empty cells, and what is wrong with which line."""

from pathlib import Path

import pytest

from clusterbench.errors import SuiteError
from clusterbench.pricing.step_table import as_usual
from clusterbench.pricing.table import read_steps

HEADER = "model,params_b,layers,hidden,ffn,heads,kv_heads,vocab,seq,gpus,tp,pp,dp,zero,mbs,gbs,step_s,sp"
ROW = "m,8.03,32,4096,14336,32,8,128256,4096,16,2,1,8,1,1,64,2.5,1"
"""The 8B of Llama 3: 8.03 billion parameters are those of two tables."""


def table(tmp_path, *rows, header=HEADER):
    file = tmp_path / "steps.csv"
    file.write_text("\n".join([header, *rows]) + "\n")
    return file


def cells(**others):
    named = dict(zip(HEADER.split(","), ROW.split(","), strict=True)) | others
    return ",".join(named.values())


def only(tmp_path, **others):
    read = read_steps(table(tmp_path, f"{cells(**others)},none", header=f"{HEADER},recompute"), 8)
    (row,) = read.rows
    return row, read.defaults


def test_a_row_is_a_step(tmp_path):
    row, defaults = only(tmp_path)
    assert (row.line, row.model, row.step_s, row.reason) == (2, "m", 2.5, "")
    job = row.priced.job
    assert str(job.layout) == "dp8-tp2+sp+zero1"
    assert job.shape.num_parameters == 8_030_261_248
    assert (job.seq_len, job.global_batch_size, job.micro_batch_size) == (4096, 64, 1)
    assert (row.priced.num_nodes, row.priced.ranks_per_node, row.priced.num_micro_batches) == (2, 8, 8)
    assert defaults == []


SP_TAKEN = "sp is not said: tp taken with sequence parallelism, as is usual: 1 of 1 rows"


@pytest.mark.parametrize(
    ("words", "recompute", "has_sp", "said"),
    [
        ("1", "", True, []),
        ("true", "", True, []),
        ("0", "full", False, []),
        ("False", "", False, []),
        ("", "selective+SP", True, []),
        ("", "full", True, [SP_TAKEN]),
    ],
)
def test_sequence_parallelism_has_a_column(tmp_path, words, recompute, has_sp, said):
    row = f"{cells(sp=words)},{recompute or 'none'}"
    read = read_steps(table(tmp_path, row, header=f"{HEADER},recompute"), 8)
    assert read.rows[0].priced.job.layout.sp is has_sp
    assert read.defaults == said


def test_one_rank_of_tp_shares_no_sequence(tmp_path):
    row, defaults = only(tmp_path, tp="1", gpus="8", sp="1")
    assert str(row.priced.job.layout) == "dp8+zero1"
    assert defaults == []


def test_sequence_parallelism_that_no_column_says_is_taken_aloud(tmp_path):
    header, row = (line.rsplit(",", 1)[0] for line in (HEADER, ROW))
    read = read_steps(table(tmp_path, f"{row},none", header=f"{header},recompute"), 8)
    assert read.rows[0].priced.job.layout.sp
    assert read.defaults == [SP_TAKEN]


def test_tokens_per_second_have_more_digits_than_a_step_time(tmp_path):
    header = f"{HEADER},tokens_per_s_per_gpu"
    (row,) = read_steps(table(tmp_path, f"{cells()},6553.6", header=header), 8).rows
    assert row.step_s == pytest.approx(64 * 4096 / 16 / 6553.6)


def test_a_node_has_as_many_gpus_as_the_usual_server_of_the_rows_card(tmp_path):
    rows = [f"{cells()},{gpu}" for gpu in ("gb200 (NVL72)", "NVIDIA H200", "mine")]
    file = table(tmp_path, *rows, header=f"{HEADER},gpu")
    assert [row.priced.ranks_per_node for row in read_steps(file, None).rows] == [4, 8, 8]
    assert [row.priced.ranks_per_node for row in read_steps(file, None, "gh200-96gb").rows] == [1, 1, 1]
    assert [row.priced.ranks_per_node for row in read_steps(file, 2).rows] == [2, 2, 2]


@pytest.mark.parametrize(
    ("params_b", "ffn", "tied", "said"),
    [
        ("8.03", 14336, False, None),
        ("7.505", 14336, True, None),
        ("6.151", 9557, False, "feed-forward of two matrices: priced as a gated one of 2/3"),
        ("7", 14336, False, "params_b fits no such model to 2 %"),
        ("", 14336, False, "params_b is empty: a gated feed-forward, tables not tied"),
    ],
)
def test_the_number_of_parameters_tells_what_no_column_says(tmp_path, params_b, ffn, tied, said):
    row, defaults = only(tmp_path, params_b=params_b)
    assert (row.priced.job.shape.ffn_hidden_size, row.priced.job.shape.tied_embeddings) == (ffn, tied)
    assert row.priced.is_gated == (ffn == 14336)
    assert (said is None and defaults == []) or said in defaults[0]


GPT = {"hidden": "2048", "ffn": "8192", "heads": "16", "kv_heads": "16", "layers": "24", "vocab": "50368"}
"""MPT-1B: feed-forwards of two matrices, one table for both ends, and learned positions."""


@pytest.mark.parametrize(
    ("params_b", "seq", "tied", "said"),
    [
        ("1.3159", "2048", True, "params_b tells a feed-forward of two matrices: priced as a gated one of 2/3"),
        ("1.4460", "65536", True, "params_b tells a feed-forward of two matrices: priced as a gated one of 2/3"),
        ("1", "2048", False, "params_b fits no such model to 2 %, ffn is 4 x hidden: a feed-forward of two matrices"),
        ("", "2048", False, "params_b is empty, ffn is 4 x hidden: a feed-forward of two matrices"),
    ],
)
def test_a_gpt_has_two_matrices_and_may_have_learned_positions(tmp_path, params_b, seq, tied, said):
    row, defaults = only(tmp_path, **GPT, params_b=params_b, seq=seq)
    assert (row.priced.job.shape.ffn_hidden_size, row.priced.job.shape.tied_embeddings) == (5461, tied)
    assert not row.priced.is_gated
    assert defaults[0].startswith(said)


def test_fewer_kv_heads_are_no_gpts(tmp_path):
    row, _ = only(tmp_path, **GPT | {"kv_heads": "8"}, params_b="")
    assert row.priced.job.shape.ffn_hidden_size == 8192  # as in Llama 3.2 1B


@pytest.mark.parametrize(
    ("seq", "recompute", "tflops", "found", "said"),
    [
        # Megatron-LM's README of 2020: 1.16 B on one A100
        ("", "", "149.8", (1024, "full"), "recompute is empty: full taken, as step_s and tflops_per_gpu tell"),
        ("1024", "", "149.8", (1024, "full"), "recompute is empty: full taken, as step_s and tflops_per_gpu tell"),
        ("", "full", "149.8", (1024, "full"), "seq is empty: told by step_s and tflops_per_gpu"),
        # FLOP/s of a model tell nothing of it
        ("", "", "115.6", (1024, "none"), "none taken, as tflops_per_gpu count nothing that is computed again"),
        ("", "", "90", (2048, "none"), "recompute is empty: none taken"),  # of no sequence: what is taken elsewhere
        ("512", "", "149.8", (512, "none"), "recompute is empty: none taken"),
    ],
)
def test_published_flops_tell_the_sequence_and_what_was_computed_again(tmp_path, seq, recompute, tflops, found, said):
    shape = {"params_b": "1.16", "layers": "24", "hidden": "1920", "ffn": "7680", "heads": "15", "kv_heads": "15"}
    of_step = {"gpus": "1", "tp": "1", "dp": "1", "mbs": "16", "gbs": "16", "vocab": "51200", "step_s": "1.076"}
    row = f"{cells(**shape, **of_step, seq=seq)},{recompute},{tflops}"
    steps = read_steps(table(tmp_path, row, header=f"{HEADER},recompute,tflops_per_gpu"), 8)
    (read,) = steps.rows
    assert (read.priced.job.seq_len, read.priced.recompute) == found
    assert any(said in words for words in steps.defaults)


def test_an_empty_ffn_is_worked_out_and_said(tmp_path):
    row, defaults = only(tmp_path, ffn="")
    assert row.priced.job.shape.ffn_hidden_size == pytest.approx(14336, rel=0.001)
    assert defaults == ["ffn is empty: worked out from params_b, gated, tables not tied: 1 of 1 rows"]


def test_a_gpt_without_a_width_has_four_times_the_hidden_size(tmp_path):
    """Narayanan et al. 2021, arXiv:2104.04473, table 1: 7.5 B, 36 layers of 4,096, a vocabulary of 51,200."""
    gpt = {"layers": "36", "hidden": "4096", "heads": "32", "kv_heads": "", "vocab": "", "params_b": "7.5", "ffn": ""}
    row, defaults = only(tmp_path, **gpt)
    shape = row.priced.job.shape
    assert (shape.ffn_hidden_size, shape.tied_embeddings, row.priced.is_gated) == (8 * 4096 // 3, True, False)
    assert "ffn is empty: 4 x hidden of two matrices, as params_b tells, priced as a gated one of 2/3" in defaults[2]


def test_a_gpt_of_1_7_b_is_one_with_its_learned_positions(tmp_path):
    """The first row of that table makes 1.647 B without them, which no publication rounds to 1.7; it came out gated."""
    gpt = {"layers": "24", "hidden": "2304", "heads": "24", "kv_heads": "", "vocab": "", "params_b": "1.7", "ffn": ""}
    row, defaults = only(tmp_path, **gpt, seq="2048")
    assert (row.priced.job.shape.ffn_hidden_size, row.priced.is_gated) == (8 * 2304 // 3, False)
    assert not any("gated, tables not tied" in words for words in defaults)


def test_width_and_vocabulary_may_have_no_column(tmp_path):
    header = "params_b,layers,hidden,heads,seq,gpus,mbs,gbs,recompute"
    read = read_steps(
        table(tmp_path, "7.5,36,4096,32,2048,8,1,8,full", "7.5,36,4096,,2048,8,1,8,full", header=header), 8
    )
    assert read.rows[0].priced.job.shape.vocab_size == 51_200
    assert read.rows[1].reason == "heads is empty"
    assert any(words.startswith("vocab is not said: 51200 taken") for words in read.defaults)
    assert any(words.startswith("ffn is not said: 4 x hidden of two matrices") for words in read.defaults)


def test_other_empty_cells_are_named_with_what_is_taken(tmp_path):
    row, defaults = only(tmp_path, kv_heads="", seq="", mbs="", vocab="", params_b="", dp="", zero="")
    job = row.priced.job
    assert (job.shape.num_kv_heads, job.seq_len, job.micro_batch_size, job.layout.dp) == (32, 2048, 8, 8)
    assert {words.split(" is empty")[0] for words in defaults} == {"kv_heads", "seq", "mbs", "vocab", "params_b", "dp"}


def test_a_model_on_record_needs_no_shape(tmp_path):
    named = dict.fromkeys(("params_b", "layers", "hidden", "ffn", "heads", "kv_heads", "vocab"), "")
    row, defaults = only(tmp_path, **named, model="InternLM-7B")
    assert row.priced.job.shape.num_layers == 32
    assert defaults == [
        "the shape is empty: internlm-7b as on record, 7.32 B parameters, a vocabulary of 103,168: 1 of 1 rows"
    ]
    unknown, _ = only(tmp_path, **named, model="x")
    assert unknown.reason == (
        "layers, hidden and heads are empty, and 'x' is no shape on record: write them, or the path of its config.json "
        "as model"
    )


def test_models_of_publications_are_on_record(tmp_path):
    named = dict.fromkeys(("params_b", "layers", "hidden", "ffn", "heads", "kv_heads", "vocab"), "")
    for words, parameters, is_gated in (("Llama 2 70B", 68_976_648_192, True), ("GPT-3 175B", 174_587_904_000, False)):
        row, _ = only(tmp_path, **named, model=words)
        assert row.priced.job.shape.num_parameters == pytest.approx(parameters, rel=1e-3)
        assert row.priced.is_gated == is_gated
    other, _ = only(tmp_path, **named | {"params_b": "30"}, model="Llama 2 70B")
    assert other.reason == "params_b is 30, and llama2-70b on record has 69: another model"
    for parameters, is_other in (("57", True), ("58", False), ("82", False), ("83", True)):  # a fifth of it
        row, _ = only(tmp_path, **named | {"params_b": parameters}, model="Llama 2 70B")
        assert row.reason.endswith("another model") == is_other, parameters


def test_where_no_stage_of_zero_is_said_that_of_the_profile_is_taken_aloud(tmp_path):
    rows = [cells(zero=stage, tp=tp, dp=dp, gpus="16") for stage, tp, dp in (("", "2", "8"), ("0", "2", "8"))]
    alone = cells(zero="", tp="1", dp="1", gpus="1")
    table_read = read_steps(table(tmp_path, *rows, alone), 8)
    read = as_usual(table_read, 3, "")
    assert [row.priced.job.layout.zero for row in read.rows] == [3, 0, 0]
    assert read.defaults[-1] == "zero is not said: 3 taken, as the profile has it: 1 of 3 rows"
    assert as_usual(read, 0, "") == read
    none = as_usual(table_read, 0, "")
    assert [row.priced.job.layout.zero for row in none.rows] == [0, 0, 0]
    assert none.defaults[-1] == (
        "zero is not said: 0 taken, so each rank of dp holds all of the optimizer's states: 1 of 3 rows"
    )


@pytest.mark.parametrize(("recompute", "how"), [("", "empty"), (None, "not said")])
def test_that_nothing_is_computed_again_is_taken_aloud(tmp_path, recompute, how):
    row, header = (ROW, HEADER) if recompute is None else (f"{ROW},{recompute}", f"{HEADER},recompute")
    read = read_steps(table(tmp_path, row, header=header), 8)
    assert read.defaults == [f"recompute is {how}: none taken: 1 of 1 rows"]


@pytest.mark.parametrize(("pp", "vpp", "chunks", "is_taken"), [(2, "", 1, True), (2, "2", 2, False), (1, "", 1, False)])
def test_that_stages_are_not_interleaved_is_taken_aloud(tmp_path, pp, vpp, chunks, is_taken):
    row = f"{cells(pp=str(pp), gpus=str(16 * pp))},none,{vpp}"
    read = read_steps(table(tmp_path, row, header=f"{HEADER},recompute,vpp"), 8)
    assert read.rows[0].priced.chunks == chunks
    assert read.defaults == is_taken * ["vpp is not said: stages of pp taken without interleaving: 1 of 1 rows"]


def test_whether_gradients_are_hidden_has_a_column_where_that_is_a_choice(tmp_path):
    rows = [f"{cells()},{words}" for words in ("1", "no", "")]
    read = read_steps(table(tmp_path, *rows, header=f"{HEADER},dp_overlap"), 8)
    assert [row.priced.dp_overlap for row in read.rows] == [True, False, None]
    assert as_usual(read, 0, "hidden").defaults[-1] == "dp_overlap is not said: hidden: 1 of 3 rows"
    no_choice = as_usual(read, 0, "").rows
    assert [row.reason for row in no_choice] == [*2 * ["dp_overlap is said, and is no choice in this profile"], ""]


def test_words_behind_the_zero_stage_are_let_be(tmp_path):
    row, _ = only(tmp_path, zero="3 (FSDP)")
    assert row.priced.job.layout.zero == 3
    alone, _ = only(tmp_path, zero="3 (FSDP)", gpus="1", tp="1", dp="1")
    assert alone.priced.job.layout.zero == 0


def test_a_precision_of_which_no_rate_is_known_has_a_reason(tmp_path):
    rows = [f"{cells()},{precision}" for precision in ("bf16", "FP16", "", "fp8", "fp32")]
    read = read_steps(table(tmp_path, *rows, header=f"{HEADER},precision"), 8).rows
    assert [row.priced is not None for row in read] == [True, True, True, False, False]
    assert read[3].reason.startswith("precision 'fp8': rates of products are those of bf16 and fp16")


@pytest.mark.parametrize(
    "words", ["amp", "AMP", "amp_bf16", "BF16-mixed", "bf16 (AMP)", "mixed precision (bfloat16)", "fp16 mixed"]
)
def test_mixed_precision_multiplies_in_its_smaller_type(tmp_path, words):
    (row,) = read_steps(table(tmp_path, f"{cells()},{words}", header=f"{HEADER},precision"), 8).rows
    assert row.priced is not None


@pytest.mark.parametrize("words", ["bf16/fp8", "fp8 + bf16", "mxfp8", "tf32", "mixed", "bf16 weights, int8"])
def test_more_than_one_type_tells_no_rate(tmp_path, words):
    (row,) = read_steps(table(tmp_path, f'{cells()},"{words}"', header=f"{HEADER},precision"), 8).rows
    assert row.reason.startswith(f"precision '{words}': rates of products are those of bf16 and fp16")


def test_a_card_without_bfloat16_has_a_price_in_float16_alone(tmp_path):
    rows = [f"{cells(step_s='25')},V100-32GB,{precision}" for precision in ("fp16", "amp", "bf16", "")]
    read = read_steps(table(tmp_path, *rows, header=f"{HEADER},gpu,precision"), 8).rows
    assert [row.reason for row in read] == [
        "",
        "",
        "precision 'bf16': v100-sxm2-32gb multiplies in fp16, and not in bf16",
        "precision is empty, taken for bf16: v100-sxm2-32gb multiplies in fp16, and not in bf16",
    ]


@pytest.mark.parametrize(
    ("words", "stage"), [("ZeRO-3", 3), ("stage 1", 1), ("FULL_SHARD", 3), ("SHARD_GRAD_OP", 2), ("NO_SHARD", 0)]
)
def test_the_zero_stage_may_be_in_words_of_deepspeed_and_fsdp(tmp_path, words, stage):
    row, _ = only(tmp_path, zero=words)
    assert row.priced.job.layout.zero == stage


@pytest.mark.parametrize("words", ["OOM", "n/a", "-", "NaN", "0", "0.00"])
def test_what_was_not_measured_is_no_mistake_of_the_table(tmp_path, words):
    row, defaults = only(tmp_path, step_s=words)
    assert row.priced is not None
    assert row.step_s is None
    assert defaults == [f"step_s is '{words}': not measured: 1 of 1 rows"]


def test_numbers_are_read_as_people_write_them(tmp_path):
    header = f"{HEADER.replace('model', 'Model').replace('gbs', 'GBS')},tokens_per_s_per_gpu,mem_gb"
    row = f'{cells(gpus="1,024", dp="512", gbs="2,048", step_s="0.41 s", params_b="8.03B")},"20,000.5",60GB'
    row = row.replace("1,024", '"1,024"').replace("2,048", '"2,048"')
    (read,) = read_steps(table(tmp_path, row, header=header), 8).rows
    assert (read.priced.job.layout.world_size, read.priced.job.global_batch_size, read.memory_gb) == (1024, 2048, 60)
    assert read.step_s == pytest.approx(2048 * 4096 / 1024 / 20000.5)


@pytest.mark.parametrize(
    ("column", "words", "meant"),
    [
        ("seq", "2K", ": 2000 or 2048"),
        ("step_s", "1,420", ": 1420 or 1.420"),
        ("gpus", "~16", ": write 16 if it is near enough"),
        ("tp", "1 (2)", ": two, of which a row has one"),
        ("step_s", "2.5 GB", ""),
        ("gbs", "6,4", ""),
    ],
)
def test_of_a_number_that_may_be_another_that_is_said(tmp_path, column, words, meant):
    row = cells(**{column: f'"{words}"'})
    with pytest.raises(SuiteError) as error:
        read_steps(table(tmp_path, row), 8)
    assert str(error.value) == f"steps.csv:2: {column} is '{words}', and must be a number{meant}."


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ({"gpus": "12"}, "dp8-tp2+sp+zero1 needs 16 GPUs, and the row has 12"),
        ({"dp": "", "tp": "3"}, "neither dp nor the number of GPUs says how many copies there are"),
        ({"gbs": ""}, "gbs is empty"),
        ({"heads": ""}, "heads is empty"),
        ({"heads": "33"}, "hidden 4096 is no multiple of heads 33"),
        ({"zero": "7"}, "zero7"),
        ({"ffn": "", "params_b": ""}, "ffn is empty, and without params_b"),
        ({"ffn": "", "params_b": "1"}, "1 B parameters leave nothing for it"),
        ({"kv_heads": "5"}, "5 kv heads do not divide 32 heads"),
        ({"params_b": "46.7"}, "params_b is 46.7, and layers, hidden, ffn and vocab make 8.03: another model"),
        ({"model": "Mixtral 8x7B"}, "'Mixtral 8x7B' has experts, of which columns say nothing"),
        ({"gbs": "1048576"}, "1048576 sequences of 4096 are 4.29 billion tokens a step: gbs must be in sequences"),
    ],
)
def test_a_row_that_cannot_be_has_a_reason_and_the_others_are_priced(tmp_path, others, reason):
    read = read_steps(table(tmp_path, cells(**others), ROW), 8)
    assert reason in read.rows[0].reason
    assert read.rows[0].priced is None
    assert read.rows[1].priced is not None


@pytest.mark.parametrize(
    ("rows", "header", "said"),
    [
        ([cells(tp="two")], HEADER, "steps.csv:2: tp is 'two', and must be a number."),
        ([cells(tp="-2")], HEADER, "steps.csv:2: tp is '-2', and must be a number of 0 and more."),
        ([cells(tp="0")], HEADER, "steps.csv:2: tp is 0, and must be a whole number from 1 to 1,000,000,000."),
        ([cells(layers="1.5")], HEADER, "steps.csv:2: layers is 1.5, and must be a whole number from 1 to 10,000."),
        ([cells(zero="sharded")], HEADER, "steps.csv:2: zero is 'sharded', and must begin with a whole number or be"),
        ([cells(mbs="1e999")], HEADER, "steps.csv:2: mbs is 1e999, which is too large."),
        ([cells(step_s="inf")], HEADER, "steps.csv:2: step_s is 'inf', and must be a number."),
        ([cells(params_b="8030261248")], HEADER, "steps.csv:2: params_b is 8030261248, and no more than 100000 in its"),
        ([cells(sp="so")], HEADER, "steps.csv:2: sp is 'so', and must be one of 1, true, yes, 0, false, no."),
        (["1,2"], HEADER, "steps.csv:2: the row has 2 cells and the header 18."),
        ([], HEADER, "steps.csv has a header and no rows, so there is nothing to price."),
        ([ROW], HEADER.replace(",", ";"), "steps.csv:2: the row has 1 cells and the header 18."),
        ([ROW], HEADER.replace("seq", "seqq"), "steps.csv:1: unknown column 'seqq'.\nColumns: source, model, "),
        ([ROW], HEADER.replace("seq", "seqq"), "\nhint: 'seqq': call it seq if it is that"),
        ([ROW], HEADER.replace("seq", "a").replace("dp", "b"), "steps.csv:1: unknown columns 'a', 'b'."),
        (
            [ROW],
            HEADER.replace("mbs", "Batch size"),
            "hint: 'Batch size': call it gbs where it is of a step of all ranks, mbs",
        ),
        ([ROW], HEADER.replace("zero", "mood"), ".\nhint: 'mood': take it out if it changes nothing of what ran"),
        ([ROW], HEADER.replace("zero", "# GPUs"), "steps.csv:1: columns 'gpus' and '# GPUs' are both gpus."),
        ([ROW], HEADER.replace("step_s", "tp"), "steps.csv:1: column 'tp' is there 2 times."),
        (["1,2"], "model,layers", "steps.csv:1: no column 'hidden'. Needed: layers, hidden, heads, seq, "),
    ],
)
def test_a_mistake_of_the_file_is_said_with_its_line(tmp_path, rows, header, said):
    with pytest.raises(SuiteError) as error:
        read_steps(table(tmp_path, *rows, header=header), 8)
    assert said in str(error.value)


def test_a_suite_is_no_table(tmp_path):
    suite = tmp_path / "tp_scale.yaml"
    suite.write_text("suite: tp_scale\nbenchmarks: []\n")
    with pytest.raises(
        SuiteError, match=r"tp_scale.yaml is no table: .*\nhint: 'clusterbench run /.*yaml' runs a suite"
    ):
        read_steps(suite, 8)


BRIDGE = "Model,#-GPUs,Precision,GBS,MBS,Sequence Length,FSDP,TP,PP,CP,VP,EP,GA,Tokens / sec / GPU,System"
"""As NVIDIA publishes steps: github.com/NVIDIA-NeMo/Megatron-Bridge, docs/performance-summary.md."""


def test_columns_are_read_as_they_are_published_and_that_is_said(tmp_path):
    rows = [
        "LLAMA3_70B,64,BF16,128,1,8192,0,4,8,1,5,1,64,800,DGX-H100",
        "x (w/o y),8,BF16,8,1,8192,0,1,1,1,n/a,-,1,-,DGX-H100",
    ]
    read = read_steps(table(tmp_path, *rows, header=BRIDGE), None)
    first, second = read.rows
    job = first.priced.job
    assert (str(job.layout), job.shape.name, job.seq_len) == ("pp8-dp2-tp4+sp", "llama-70b", 8192)
    assert (first.priced.chunks, job.global_batch_size, job.micro_batch_size) == (5, 128, 1)
    assert first.step_s == pytest.approx(128 * 8192 / 64 / 800)
    assert second.reason.startswith("layers, hidden and heads are empty, and 'x (w/o y)' is no shape on record")
    assert read.defaults[0] == (
        "columns are taken as published: #-GPUs for gpus, Sequence Length for seq, VP for vpp, "
        "Tokens / sec / GPU for tokens_per_s_per_gpu, System for gpu"
    )


FOUNDRY = (
    "Model,SeqLen (T),# GPUs,GPU,MFU,HFU,MicroBatchSize,GradAccum,GlobalBatchSize,Throughput (T/s),"
    "Throughput (T/s/GPU),Precision,Sharding Strategy,Activation Checkpointing,NumParams,layers,hidden,ffn,heads,vocab"
)
"""As MosaicML does: github.com/mosaicml/llm-foundry, scripts/train/benchmarking/README.md; shape of its yamls."""


def test_units_of_columns_are_read_and_results_set_aside(tmp_path):
    row = "7b,2048,8,h100_80gb,42.83,57.11,{},85144,10643,amp_bf16,FULL_SHARD,{},{},32,4096,16384,32,50368"
    rows = [row.format("6,1,48", "False", "6658859008"), row.format("64,2,1024", "True", "6658859008")]
    read = read_steps(table(tmp_path, *rows, header=FOUNDRY), None)
    assert [each.priced.recompute for each in read.rows] == ["none", "full"]
    assert [each.priced.job.layout.zero for each in read.rows] == [3, 3]
    assert not any(each.priced.is_gated for each in read.rows)
    assert read.rows[0].step_s == pytest.approx(48 * 2048 / 8 / 10643)
    assert "NumParams for params_b x 1e-09" in read.defaults[0]
    assert read.defaults[1] == "columns not read, as they say nothing of what ran: HFU, Throughput (T/s)"
    assert "activation checkpointing is said: whole layers computed again: 1 of 2 rows" in read.defaults
    uneven = read_steps(table(tmp_path, row.format("64,2,512", "True", "6658859008"), header=FOUNDRY), None)
    assert uneven.rows[0].reason == "mbs 64 x dp 8 x 2 accumulations are 1024, and gbs is 512"
    with pytest.raises(SuiteError, match="params_b is '7B', and must be a number alone: its column has the unit"):
        read_steps(table(tmp_path, row.format("6,1,48", "False", "7B"), header=FOUNDRY), None)


@pytest.mark.parametrize(
    ("fsdp", "zero", "reason"),
    [
        ("0", 0, ""),
        ("8", 3, ""),
        ("True", 3, ""),
        ("no", 0, ""),
        ("4", 3, ""),
        ("3", None, "groups of 3 ranks that shard do not divide the 8 ranks of dp x cp"),
        ("1", None, "fsdp is 1, which may be 'yes' or a degree: write zero in its place"),
    ],
)
def test_fsdp_is_a_word_or_over_how_many_ranks(tmp_path, fsdp, zero, reason):
    read = read_steps(table(tmp_path, cells(zero=fsdp), header=HEADER.replace("zero", "FSDP")), 8)
    (row,) = read.rows
    assert row.reason == reason
    assert zero is None or row.priced.job.layout.zero == zero
    assert zero is None or row.priced.shard_group_size == (4 if fsdp == "4" else 0)
    about = "fsdp is 4, and 8 ranks have the same weights: the others are copies (HSDP)"
    assert (f"{about}: 1 of 1 rows" in read.defaults) == (fsdp == "4")


def test_a_table_in_markdown_is_read(tmp_path):
    lines = [f"| {' | '.join(text.split(','))} |" for text in (HEADER, ROW)]
    rule = "|" + len(HEADER.split(",")) * " ---: |"
    (row,) = read_steps(
        table(tmp_path, rule, lines[1].replace("2.5", "**[2.5](https://a.b/c)**"), header=lines[0]), 8
    ).rows
    assert (row.line, row.step_s, row.priced.job.seq_len) == (3, 2.5, 4096)
    with pytest.raises(SuiteError, match=r"steps.csv:4: no row of a table in Markdown, as no '\|' is in it"):
        read_steps(table(tmp_path, rule, lines[1], "That was it.", header=lines[0]), 8)


@pytest.mark.parametrize(
    ("step_s", "per_gpu", "reason"),
    [
        ("2.5", "6553.6", ""),
        ("3", "6553.6", ""),  # rounded to a whole second
        ("2.5", "104857.6", "step_s is 2.5 s, and tokens_per_s_per_gpu makes 0.1562 s of it"),
        ("", "104857.6", "as measured it would be 5.1 times the card's peak: is the speed that of all GPUs"),
        ("0.1", "", "as measured it would be 8.0 times the card's peak"),
    ],
)
def test_a_speed_that_cannot_have_been_is_refused(tmp_path, step_s, per_gpu, reason):
    row = f"{cells(step_s=step_s)},{per_gpu},DGX H100"
    (read,) = read_steps(table(tmp_path, row, header=f"{HEADER},tokens_per_s_per_gpu,gpu"), 8).rows
    assert read.reason.startswith(reason)
    assert bool(read.reason) == bool(reason)


def test_that_fp8_may_have_run_is_said_of_a_card_that_has_it(tmp_path):
    for gpu, said in (("DGX H100", True), ("A100-80G", False)):
        read = read_steps(table(tmp_path, f"{cells(step_s='')},{gpu}", header=f"{HEADER},gpu"), 8)
        assert any("multiplies in fp8, too" in words for words in read.defaults) == said


def test_the_shipped_tables_are_read_whole():
    here = Path(__file__).parent
    for name, number in (("playbook_sample.csv", 50), ("korthikanti2022_table5.csv", 9)):
        rows = read_steps(here / name, 8).rows
        assert len(rows) == number
        assert all(row.priced and row.step_s for row in rows)
