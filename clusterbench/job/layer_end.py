"""What lives while the last layer of a rank comes to its end in forward, beside what is kept for backward. No torch."""

from __future__ import annotations

from collections.abc import Mapping

from clusterbench.job import TrainingJob


def residual_bytes(job: TrainingJob) -> int:
    """Bytes of the residual stream of one micro-batch: of what passes between two stages."""
    return job.residual_tokens * job.shape.hidden_size * job.compute_bytes


def keeps_input(held: Mapping[str, float], job: TrainingJob) -> bool:
    """Whether what a stage receives is kept for backward as it came: a norm on a CPU keeps 16 bit as 32."""
    return "layer.inputs" in held or job.device == "cuda" or job.compute_bytes >= 4


def _cuts_last_product(job: TrainingJob, held: Mapping[str, float]) -> bool:
    """Whether +sp cuts the last product of a layer that is computed again, which then takes most.

    Where only inputs are kept, a CPU needs more to compute the layer again.
    """
    is_again = "layer.inputs" in held and ("layer.feed_forward.gate" in held or job.device == "cuda")
    return is_again and job.layout.sp and not job.shape.has_experts


def at_layer_end(
    job: TrainingJob, held: Mapping[str, float], makes_input: bool, parts: int, messages: bool = False
) -> float:
    """Bytes at the end of the last layer beside what is kept of it, its output among them.

    No more than the output where the layer is computed again: that takes more, later, but for what +sp cuts behind the
    last product.

    Parameters
    ----------
    held
        What is held at the end of forward, by what it is.
    makes_input
        Whether the layer's input is made by this rank, and is in no buffer and no message.
    parts
        In how many the micro-batch goes through the experts.
    messages
        Whether messages count, too: rows as they came to their experts, and as they came back.
    """
    output = residual_bytes(job)
    if _cuts_last_product(job, held):  # the output is not there yet
        return _cut_product(job)
    if "layer.inputs" in held:
        return float(output)
    # The stream at the layer's start and in its middle, where norms keep them in another precision.
    streams = 0 if keeps_input(held, job) else 1 + makes_input
    if job.shape.has_experts:  # the rows that experts made, the same with their weights, and what shared ones made
        products = 2 * job.shape.experts_per_token / parts + bool(job.shape.num_shared_experts)
        if messages and job.layout.spreads_experts:  # rows of one expert keep their order, and are kept as they came
            products += job.shape.experts_per_token * (1 + (job.layout.ep < job.shape.num_experts))
    elif job.layout.sp:  # the partial sums of all tokens, once more as they are cut
        products = 2 * job.layout.tp
    else:  # what is summed over tp is a message
        products = 0 if job.layout.uses("tp") else 1
    return float((streams + products + 1) * output)


def before_loss(job: TrainingJob, held: Mapping[str, float], parts: int, messages: bool = False) -> float:
    """Bytes when the last layer of all comes to its end, of which a loss over few logits needs less."""
    of_layers = sum([size for name, size in held.items() if name.startswith("layer.")])
    makes_input = job.num_layers > 1 or not job.layout.uses("tp")
    return of_layers + at_layer_end(job, held, makes_input, parts, messages)


def at_last_norm(job: TrainingJob, held: Mapping[str, float]) -> float:
    """Bytes when the norm behind all layers is through on a CPU: what it rounds and the stream are there beside it."""
    if job.device == "cuda" or job.compute_bytes >= 4 or job.layout.sp or not job.has_head:
        return 0.0
    own = sum(size for name, size in held.items() if name.startswith(("layer.", "norm.", "head.")))
    return own + residual_bytes(job) * (1 + 4 / job.compute_bytes)


def _cut_product(job: TrainingJob) -> float:
    """Bytes beside what is kept while +sp cuts the last product of a layer.

    What the product is of, its result and that as it is cut, the stream in the layer's middle and what a norm made of
    it, and where sequences are several that as it was gathered and put in order.
    """
    of_product = job.local_tokens * job.shape.ffn_hidden_size // job.layout.tp * job.compute_bytes
    return float(of_product + ((2 + (job.micro_batch_size > 1)) * job.layout.tp + 2) * residual_bytes(job))
