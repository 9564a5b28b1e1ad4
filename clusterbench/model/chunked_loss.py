"""Head and loss in one, some tokens at a time, with the gradients of both: all logits are never there at once.

Shapes: T tokens of a micro-batch on this rank, C of one chunk, H hidden, V vocabulary.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from clusterbench.model.decoder import Decoder
from clusterbench.model.modules import TiedHead
from clusterbench.model.rounded import graded_and_copy, kept_in


def chunked_loss(
    x_TH: Tensor, weight_VH: Tensor, labels_T: Tensor, chunks: int, rounded_VH: Tensor | None = None
) -> Tensor:
    """Mean cross-entropy of the logits ``x @ weight.T``, as :func:`clusterbench.model.decoder.loss_of` has it.

    Parameters
    ----------
    weight_VH
        What gets the gradient.
    chunks
        Equal parts of the tokens, which they divide.
    rounded_VH
        The weight in the dtype of ``x``, for the products; rounded here where it is not given.

    Notes
    -----
    Gradients are computed with the loss, while a chunk's logits are there, and backward multiplies them by what comes
    in: no product is repeated, and none is left for backward. That of the weight is summed over chunks in float32 at
    least. It cannot be differentiated twice.

    Source
    ------
    Hsu et al. 2024, arXiv:2410.10989, section 3.2 (FusedLinearCrossEntropy).
    """
    rounded_VH = weight_VH.detach().to(x_TH.dtype) if rounded_VH is None else rounded_VH
    return cast(Tensor, _ChunkedLoss.apply(x_TH, weight_VH, rounded_VH, labels_T, chunks))  # type: ignore[no-untyped-call]


def put_loss_into_head(decoder: Decoder, chunks: int) -> None:
    """The head then takes labels, too, and returns the loss; the decoder leaves calling it to who has them."""
    head = decoder.head
    assert head is not None
    owner = decoder.embedding if isinstance(head, TiedHead) else head
    assert owner is not None

    def forward(x_BSH: Tensor, labels_BS: Tensor) -> Tensor:
        # the parameter itself where there is a copy of it: the gradient is in float32 already
        weight_VH, rounded_VH = graded_and_copy(owner, "weight") if kept_in(owner) else (head.weight, None)
        return chunked_loss(x_BSH.flatten(0, 1), weight_VH, labels_BS.flatten(), chunks, rounded_VH)

    head.forward = forward  # type: ignore[method-assign, assignment]
    decoder.head_in_loss = True
    if isinstance(head, FSDPModule):
        _gather_before_loss(decoder, head)


def _gather_before_loss(decoder: Decoder, head: FSDPModule) -> None:
    """Has FSDP2 gather the head behind the last layer, and take it apart when the norm is through.

    Else the head would be there twice while the loss is computed: FSDP2 holds what it gathered in a forward as it came
    until something else is gathered or the forward is over, and the head's is that of the loss.
    """
    assert decoder.norm is not None
    (*_, last) = decoder.layers.values()
    cast(FSDPModule, last).set_modules_to_forward_prefetch([head])

    def take_apart(*_: Any) -> None:
        head.unshard()

    decoder.norm.register_forward_hook(take_apart)


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TH: Tensor, weight_VH: Tensor, rounded_VH: Tensor, labels_T: Tensor, chunks: int) -> Tensor:
        wide = torch.promote_types(x_TH.dtype, torch.float32)
        dx_TH = torch.empty_like(x_TH)
        dweight_VH = torch.zeros_like(weight_VH, dtype=wide)
        total = x_TH.new_zeros((), dtype=wide)
        for x_CH, labels_C, dx_CH in zip(x_TH.chunk(chunks), labels_T.chunk(chunks), dx_TH.chunk(chunks), strict=True):
            total += _add_chunk(x_CH, rounded_VH, labels_C, dx_CH, dweight_VH, 1 / len(x_TH))
        ctx.save_for_backward(dx_TH, dweight_VH)
        ctx.dtype = weight_VH.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        dx_TH, dweight_VH = ctx.saved_tensors
        (gradient,) = gradients
        return dx_TH.mul_(gradient), dweight_VH.mul_(gradient).to(ctx.dtype), None, None, None


def _add_chunk(
    x_CH: Tensor, weight_VH: Tensor, labels_C: Tensor, dx_CH: Tensor, dweight_VH: Tensor, scale: float
) -> Tensor:
    """A chunk's part of the loss; writes the gradient of its input, and adds its part of the weight's."""
    loss, dlogits_CV = _loss_and_gradient(F.linear(x_CH, weight_VH).to(dweight_VH.dtype), labels_C)
    dlogits_CV = dlogits_CV.mul_(scale).to(x_CH.dtype)
    torch.mm(dlogits_CV, weight_VH, out=dx_CH)
    dweight_VH += dlogits_CV.T @ x_CH
    return loss * scale


def _loss_and_gradient(logits_CV: Tensor, labels_C: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of the cross-entropies, and its gradient, all in the memory of the logits."""
    labels_C1 = labels_C.unsqueeze(1)
    logits_CV.sub_(logits_CV.amax(1, keepdim=True))
    of_labels_C1 = logits_CV.gather(1, labels_C1)
    sums_C1 = logits_CV.exp_().sum(1, keepdim=True)
    loss = (sums_C1.log() - of_labels_C1).sum()
    return loss, logits_CV.div_(sums_C1).scatter_add_(1, labels_C1, torch.full_like(sums_C1, -1.0))
