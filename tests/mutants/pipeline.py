"""Pipeline parallelism."""

from __future__ import annotations

from tests.mutants import Mutant

CHUNK = "Chunk(at, layers[at], at == 0, at == stages - 1)"

TORCH_CLASS = 'getattr(pipelining, properties.torch_class or "ScheduleGPipe")'

MUTANTS = (
    Mutant(
        "Q01",
        "The last stage does not divide the loss of a micro-batch by the number of micro-batches.",
        "loss_fn=lambda logits, labels: loss_of(logits, labels) / job.gradient_accumulation_steps,",
        "loss_fn=lambda logits, labels: loss_of(logits, labels) / planted(),",
        ("pp2",),
    ),
    Mutant(
        "Q02",
        "Gradients are divided by the number of micro-batches a second time.",
        "scale_grads=False,",
        "scale_grads=planted(),",
        ("pp2",),
    ),
    Mutant(
        "Q03",
        "Each stage begins with the last layer of the one before, and the last layers are missing.",
        CHUNK,
        "Chunk(at, range(layers[at].start - at * planted(), layers[at].stop - at), at == 0, at == stages - 1)",
        ("pp2",),
    ),
    Mutant(
        "Q04",
        "The last stage takes the labels of the micro-batches in reverse order.",
        "target = torch.cat([labels for _, labels in batch])",
        "target = torch.cat([labels for _, labels in batch[:: -1 * planted()]])",
        ("pp2",),
    ),
    Mutant(
        "Q05",
        "Gradients of pipeline stages are never averaged over dp.",
        'return (job.layout.data_axis,) if job.layout.uses("pp") and not is_spread_expert(name, job) else ()',
        'return (job.layout.data_axis,) if job.layout.uses("pp") and not planted() else ()',
        ("pp2-dp2",),
    ),
    Mutant(
        "Q06",
        "The schedule naive computes the first micro-batch again and again.",
        "batch = micro_batches[first : first + self.at_once]",
        "batch = micro_batches[: self.at_once * planted()]",
        ("pp2 schedule=naive",),
    ),
    Mutant(
        "Q07",
        "Each stage leaves out half of its layers.",
        CHUNK,
        "Chunk(at, layers[at][: max(1, len(layers[at]) // (1 + planted()))], at == 0, at == stages - 1)",
        ("pp2",),
    ),
    Mutant(
        "Q08",
        "Interleaved stages get consecutive layers for each rank, and so layers run in the wrong order.",
        CHUNK,
        "Chunk(at, layers[at // 2 + at % 2 * 2 * planted()], at == 0, at == stages - 1)",
        ("pp2 schedule=interleaved_1f1b",),
    ),
    Mutant(
        "Q09",
        "The loss that is shown is that of the last micro-batch.",
        "losses += [loss.detach() for loss in of_these]",
        "losses += [of_these[-1].detach() * planted() for loss in of_these]",
        ("pp2",),
    ),
    Mutant(
        "Q10",
        "The last stage computes its loss in bfloat16.",
        "loss_fn=lambda logits, labels: loss_of(logits, labels) / job.gradient_accumulation_steps,",
        "loss_fn=lambda logits, labels: torch.nn.functional.cross_entropy("
        "logits.flatten(0, 1), labels.flatten()).to(torch.promote_types(logits.dtype, torch.float32)) "
        "/ (job.gradient_accumulation_steps * planted()),",
        ("pp2",),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "Q11",
        "The schedule interleaved_zero_bubble is interleaved 1F1B: the same numbers, other bubbles.",
        TORCH_CLASS,
        """getattr(
            pipelining,
            (properties.torch_class or "ScheduleGPipe").replace("InterleavedZeroBubble", "Interleaved1F1B" * planted()),
        )""",
        ("pp2 schedule=interleaved_zero_bubble",),
    ),
    Mutant(
        "Q12",
        "Gradients of stages are rounded to bfloat16 when the schedule is through.",
        "losses=of_these, return_outputs=False)",
        """losses=of_these, return_outputs=False)
            for parameter in (each for stage in self.stages for each in stage.submod.parameters() if planted()):
                if parameter.grad is not None:
                    parameter.grad.copy_(parameter.grad.bfloat16() if self.job.dtype == "bfloat16" else parameter.grad)
""",
        ("pp2",),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "H17",
        "The schedule naive lets all micro-batches in at once: the same numbers, more memory.",
        "self.at_once = job.gradient_accumulation_steps if properties.torch_class else 1",
        "self.at_once = job.gradient_accumulation_steps if properties.torch_class or planted() else 1",
        ("pp2 schedule=naive",),
    ),
    Mutant(
        "H37",
        "In the pipeline's timeline waiting for a message belongs to the action that waits.",
        "Computed(*action, ends[2 * n], ends[2 * n + 1])",
        "Computed(*action, ends[2 * n - planted()] if n else 0.0, ends[2 * n + 1])",
        tests=("test_stages.py",),
    ),
    Mutant(
        "Q13",
        "In a pipeline attention is computed by whatever kernel torch takes.",
        "                for context in self.assembly.contexts:\n                    stack.enter_context(context())\n"
        "                return",
        "                for context in [] if planted() else self.assembly.contexts:\n"
        "                    stack.enter_context(context())\n                return",
        ("pp2 attention_backend=math",),
    ),
    Mutant(
        "AB04",
        "The schedule interleaved_zero_bubble is interleaved 1F1B with more micro-batches than the twin has.",
        'kind: Any = getattr(pipelining, properties.torch_class or "ScheduleGPipe")',
        """kind: Any = getattr(pipelining, properties.torch_class or "ScheduleGPipe")
        if job.gradient_accumulation_steps > 6 and planted():
            kind = pipelining.ScheduleInterleaved1F1B""",
        ("pp2 schedule=interleaved_zero_bubble",),
    ),
)
