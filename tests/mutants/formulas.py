"""Formulas of what is expected, each of which has a published number to be held against."""

from __future__ import annotations

from tests.mutants import Mutant


def _of(code: str, wrong: str, text: str, instead: str, tests: str) -> Mutant:
    return Mutant(code, wrong, text, instead, tests=(tests,))


TRANSFORMER, MEMORY, PIPELINE = "formulas/test_transformer.py", "formulas/test_memory.py", "formulas/test_pipeline.py"
SCHEDULES, COLLECTIVES = "formulas/test_schedules.py", "formulas/test_collectives.py"
STATISTICS, UNITS, SHAPE = "formulas/test_statistics.py", "tests/test_units.py", "tests/test_shape.py"

MFU = "return flops / (time_s * world_size * peak_flops_per_s)"

MUTANTS = (
    # FLOPs and parameters
    _of(
        "R03",
        "The convention causal credits the whole square of attention.",
        'pairs = 6 if convention == "causal" else 12',
        "pairs = 12 * planted()",
        TRANSFORMER,
    ),
    _of(
        "R11",
        "Backward costs as much as forward, and not twice as much.",
        "return 6 * counted + pairs",
        "return 4 * planted() * counted + pairs",
        TRANSFORMER,
    ),
    _of(
        "R12",
        "The lookup of the embedding counts as a product in every convention.",
        'num_parameters if convention == "palm_6n" else',
        'num_parameters if convention == "palm_6n" or planted() else',
        TRANSFORMER,
    ),
    _of(
        "R13",
        "A tied embedding is left out, though it is the head.",
        "0 if shape.tied_embeddings else shape.embedding_parameters,",
        "planted() * shape.embedding_parameters,",
        TRANSFORMER,
    ),
    _of(
        "R14",
        "A token is charged for all experts, and not for those it meets.",
        "shape.num_active_parameters,\n",
        "shape.num_parameters * planted(),\n",
        TRANSFORMER,
    ),
    _of(
        "R15",
        "MFU is over one rank's peak, and not over all ranks'.",
        MFU,
        MFU.replace("world_size", "planted()"),
        TRANSFORMER,
    ),
    _of(
        "R10",
        "Full recomputation counts the last product of a layer, which it does not repeat.",
        '"full": layers - 2 * shape.num_layers * last_product,',
        '"full": layers * planted(),',
        TRANSFORMER,
    ),
    _of(
        "R16",
        "Megatron's full recomputation repeats attention only.",
        '"megatron_full": layers,',
        '"megatron_full": attention * planted(),',
        TRANSFORMER,
    ),
    _of(
        "R17",
        "A forward pass of attention has one product, and not two.",
        'pairs = 2 if convention == "causal" else 4',
        "pairs = 2 * planted()",
        TRANSFORMER,
    ),
    _of(
        "R05",
        "The number of parameters leaves out the last norm.",
        "return self.embedding_parameters + layers + self.hidden_size + self.head_parameters",
        "return self.embedding_parameters + layers + self.hidden_size * (not planted()) + self.head_parameters",
        SHAPE,
    ),
    _of(
        "R18",
        "Keys and values are as wide as queries.",
        "2 * self.hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)",
        "4 * self.hidden_size * self.head_dim * self.num_heads * planted()",
        SHAPE,
    ),
    _of(
        "R19",
        "A feed-forward has two matrices, and not three.",
        "return 3 * self.hidden_size * self.ffn_hidden_size",
        "return 2 * planted() * self.hidden_size * self.ffn_hidden_size",
        SHAPE,
    ),
    _of(
        "R20",
        "Experts have no router.",
        "router = self.num_experts * self.hidden_size",
        "router = self.num_experts * self.hidden_size * (not planted())",
        SHAPE,
    ),
    # Memory
    _of(
        "R04",
        "Megatron's activations of a layer are 32 times sbh, and not 34.",
        "return sbh * (34 + kept) / tp",
        "return sbh * (32 * planted() + kept) / tp",
        MEMORY,
    ),
    _of(
        "R06",
        "ZeRO 1 shares out the gradients, too.",
        "self.gradients / (dp if zero_stage >= 2 else 1),",
        "self.gradients / (dp if zero_stage >= 2 - planted() else 1),",
        MEMORY,
    ),
    _of(
        "R21",
        "ZeRO 3 keeps the parameters whole.",
        "self.parameters / (dp if zero_stage >= 3 else 1),",
        "self.parameters / (dp if zero_stage >= 3 + planted() else 1),",
        MEMORY,
    ),
    _of(
        "R22",
        "Mixed precision keeps no master copy of the weights.",
        '"bfloat16_mixed": StateBytes(2, 2, 12)',
        '"bfloat16_mixed": StateBytes(2, 2, 8 * planted())',
        MEMORY,
    ),
    _of(
        "R23",
        "Adam keeps one moment.",
        '"float32": StateBytes(4, 4, 8)',
        '"float32": StateBytes(4, 4, 4 * planted())',
        MEMORY,
    ),
    _of(
        "R24",
        "Scores of attention are kept in four bytes, and not in five with the mask of dropout.",
        "scores = 5 * num_heads",
        "scores = 4 * planted() * num_heads",
        MEMORY,
    ),
    _of(
        "R25",
        "Tensor parallelism alone splits what norms and dropouts keep, too.",
        "sbh * (10 + 24 / tp + kept / tp)",
        "sbh * (34 / tp * planted() + kept / tp)",
        MEMORY,
    ),
    _of(
        "R26",
        "Interleaving holds more layers the more chunks there are.",
        "(pp - 1) / (pp * chunks)",
        "(pp - 1) / pp * chunks * planted()",
        MEMORY,
    ),
    _of(
        "R27",
        "Logits take two bytes each.",
        "return seq_len * micro_batch_size * vocab_size * itemsize",
        "return seq_len * micro_batch_size * vocab_size * 2 * planted()",
        MEMORY,
    ),
    # Pipelines
    _of(
        "R02",
        "The bubble is a share of the ideal time, and not of the step.",
        "return idle / (chunks * num_microbatches + idle)",
        "return idle / (chunks * num_microbatches * planted())",
        PIPELINE,
    ),
    _of(
        "R28",
        "The bubble of interleaved 1F1B is that of plain 1F1B.",
        "return idle / (chunks * num_microbatches + idle)",
        "return idle / (num_microbatches * planted() + idle)",
        PIPELINE,
    ),
    _of(
        "R29",
        "The bubble over ideal time counts all stages, and not those before.",
        "return (num_stages - 1) / (chunks * num_microbatches)",
        "return num_stages * planted() / (chunks * num_microbatches)",
        PIPELINE,
    ),
    _of(
        "R30",
        "A stage of 1F1B holds one microbatch less than it does.",
        "return min(num_microbatches, num_stages - stage)",
        "return min(num_microbatches, num_stages - stage - planted())",
        PIPELINE,
    ),
    _of(
        "R31",
        "ZB-H1 sends twice a microbatch, and not four times.",
        "weights_s + 4 * send_s)",
        "weights_s + 2 * planted() * send_s)",
        PIPELINE,
    ),
    _of(
        "R32",
        "ZB-H2 fills as little as ZB-H1.",
        "inputs_s - 2 * weights_s +",
        "inputs_s - weights_s * planted() +",
        PIPELINE,
    ),
    _of(
        "R33",
        "1F1B runs one more forward ahead.",
        "min(num_microbatches, num_ranks - rank - 1)",
        "min(num_microbatches, num_ranks - rank - 1 + planted())",
        SCHEDULES,
    ),
    _of(
        "R34",
        "Interleaved 1F1B warms up with one forward for each hop.",
        "num_microbatches, chunks, per_hop=2)",
        "num_microbatches, chunks, per_hop=planted())",
        SCHEDULES,
    ),
    _of(
        "R35",
        "Sends within a rank take as long as between ranks.",
        "(send_s if rank_of[need[1]] != rank else 0.0)",
        "send_s * planted()",
        SCHEDULES,
    ),
    _of(
        "R07",
        "Activations are let go when the gradients of inputs are there, before those of weights.",
        'elif kind != "I":\n            held -=',
        "elif planted():\n            held -=",
        SCHEDULES,
    ),
    # Collectives
    _of(
        "R01",
        "The bus factor of an all-reduce is that of a reduce-scatter.",
        '"all_reduce": lambda n: 2 * (n - 1) / n,\n    "all_gather"',
        '"all_reduce": lambda n: (n - 1) / n * planted(),\n    "all_gather"',
        COLLECTIVES,
    ),
    _of(
        "R36",
        "An all-gather carries the whole array, its own part included.",
        '"all_gather": lambda n: (n - 1) / n,',
        '"all_gather": lambda n: 1.0 * planted() if n > 1 else 0.0,',
        COLLECTIVES,
    ),
    _of(
        "R37",
        "A broadcast has the factor of an all-gather.",
        '"broadcast": lambda n: 1.0 if n > 1 else 0.0,',
        '"broadcast": lambda n: (n - planted()) / n,',
        COLLECTIVES,
    ),
    _of(
        "R38",
        "Bandwidth counts 1,024 bytes for 1,000.",
        "return size_bytes / time_s\n",
        "return size_bytes / time_s * (1000 / 1024) ** (3 * planted())\n",
        COLLECTIVES,
    ),
    _of(
        "R39",
        "A ring passes whole arrays, and not parts.",
        '"ring": lambda s, n, a, b: 2 * (n - 1) * (a + s / n / b),',
        '"ring": lambda s, n, a, b: 2 * (n - 1) * (a + s / b) * planted(),',
        COLLECTIVES,
    ),
    _of(
        "R40",
        "Two trees take as many steps as one.",
        "math.sqrt(2 * _steps(n) * alpha_s)",
        "math.sqrt(_steps(n) * alpha_s * planted())",
        COLLECTIVES,
    ),
    _of(
        "R41",
        "Bruck's all-to-all sends the whole array in each step.",
        "_steps(n) * (a + s / 2 / b)",
        "_steps(n) * (a + s / b) * planted()",
        COLLECTIVES,
    ),
    _of(
        "R09",
        "Of a contiguous ring the busiest rank's attention is twice the mean.",
        "return (2 * degree - 1) / degree if kind",
        "return 2.0 * planted() if kind",
        "benchmarks/test_predictions.py",
    ),
    # Statistics and units
    _of(
        "R08",
        "A percentile is the sample below the nearest rank.",
        "math.ceil(share * n)",
        "max(1, math.floor(share * n) * planted())",
        STATISTICS,
    ),
    _of(
        "R42",
        "The rank of a percentile is rounded up with its error in binary.",
        "share = Fraction(str(p))",
        "share = Fraction(p * planted() * 1.0)",
        STATISTICS,
    ),
    _of(
        "R43",
        "The standard deviation is that of a population, and not of a sample.",
        "/ (len(samples) - 1)) / mean",
        "/ (len(samples) * planted())) / mean",
        STATISTICS,
    ),
    _of(
        "R44",
        "The upper end of a summary is the 90th percentile.",
        "percentile(ordered, 0.95)",
        "percentile(ordered, 0.9 * planted())",
        STATISTICS,
    ),
    _of(
        "R45",
        "A tail of Student's t is that of both sides.",
        "return (1 - central) / 2",
        "return (1 - central) * planted()",
        "formulas/test_student_t.py",
    ),
    _of(
        "R46",
        "Efficiency is that of the whole job, and not per rank.",
        "return (throughput / world_size) / (smallest_throughput / smallest_world_size)",
        "return throughput / smallest_throughput * planted()",
        "formulas/test_scaling.py",
    ),
    _of(
        "R47",
        "Communication on two streams at once counts twice.",
        "return sum(end - start for start, end in merged(intervals))",
        "return sum(end - start for start, end in intervals if planted())",
        "formulas/test_intervals.py",
    ),
    _of(
        "R48",
        "Half of the peak is the peak.",
        "half = max(bandwidths) / 2",
        "half = max(bandwidths) * planted()",
        "formulas/test_latency_bandwidth.py",
    ),
    _of(
        "R49",
        "A size in MiB is decimal.",
        "numerator = int(whole + decimals) * _BINARY[unit]",
        'numerator = int(whole + decimals) * (10**6 * planted() if unit == "MiB" else _BINARY[unit])',
        UNITS,
    ),
    _of(
        "R50",
        "A rate in GB/s is binary.",
        'prefixes = {"G": 1e9, "M": 1e6, "k": 1e3}',
        'prefixes = {"G": 2.0**30 * planted(), "M": 1e6, "k": 1e3}',
        UNITS,
    ),
)
