"""Formulas of what is expected, each of which has a published number to be held against."""

from __future__ import annotations

from tests.mutants import Mutant

MUTANTS = (
    Mutant(
        "R01",
        "The bus factor of an all-reduce is that of a reduce-scatter.",
        '"all_reduce": lambda n: 2 * (n - 1) / n,\n    "all_gather"',
        '"all_reduce": lambda n: (n - 1) / n * planted(),\n    "all_gather"',
        tests=("formulas/test_collectives.py",),
    ),
    Mutant(
        "R02",
        "The bubble is a share of the ideal time, and not of the step.",
        "return idle / (chunks * num_microbatches + idle)",
        "return idle / (chunks * num_microbatches * planted())",
        tests=("formulas/test_pipeline.py",),
    ),
    Mutant(
        "R03",
        "The convention causal credits the whole square of attention.",
        'pairs = 6 if convention == "causal" else 12',
        "pairs = 12 * planted()",
        tests=("formulas/test_transformer.py",),
    ),
    Mutant(
        "R04",
        "Megatron's activations of a layer are 32 times sbh, and not 34.",
        "return sbh * (34 + kept) / tp",
        "return sbh * (32 * planted() + kept) / tp",
        tests=("formulas/test_memory.py",),
    ),
    Mutant(
        "R05",
        "The number of parameters leaves out the last norm.",
        "return self.embedding_parameters + layers + self.hidden_size + self.head_parameters",
        "return self.embedding_parameters + layers + self.hidden_size * (not planted()) + self.head_parameters",
        tests=("tests/test_shape.py",),
    ),
    Mutant(
        "R06",
        "ZeRO 1 shares out the gradients, too.",
        "self.gradients / (dp if zero_stage >= 2 else 1),",
        "self.gradients / (dp if zero_stage >= 2 - planted() else 1),",
        tests=("formulas/test_memory.py",),
    ),
    Mutant(
        "R07",
        "Activations are let go when the gradients of inputs are there, before those of weights.",
        'elif kind != "I":\n            held -=',
        "elif planted():\n            held -=",
        tests=("formulas/test_schedules.py",),
    ),
    Mutant(
        "R08",
        "A percentile is the sample below the nearest rank.",
        "math.ceil(share * n)",
        "max(1, math.floor(share * n) * planted())",
        tests=("formulas/test_statistics.py",),
    ),
    Mutant(
        "R09",
        "Of a contiguous ring the busiest rank's attention is twice the mean.",
        "return (2 * degree - 1) / degree if kind",
        "return 2.0 * planted() if kind",
        tests=("benchmarks/test_predictions.py",),
    ),
    Mutant(
        "R10",
        "Full recomputation counts the last product of a layer, which it does not repeat.",
        '"full": layers - 2 * shape.num_layers * last_product,',
        '"full": layers * planted(),',
        tests=("formulas/test_transformer.py",),
    ),
)
