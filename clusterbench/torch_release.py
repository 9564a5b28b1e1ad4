"""What formulas have to know of the torch that is installed, which they do not import; no torch.

Each fact is that of a release, as no name can be looked up without the import. :mod:`clusterbench.engine.compat` has
the names that stand for it, and a test holds both against each other.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

NEWEST = (2, 15)
"""Of those that formulas were held against: what is taken for granted where none is installed."""


@cache
def torch_release() -> tuple[int, int]:
    """``(2, 13)`` of torch 2.13.0."""
    try:
        major, minor, *_ = version("torch").split(".")
    except PackageNotFoundError:
        return NEWEST
    return int(major), int(minor)


def adds_up_in_parameters() -> bool:
    """Whether FSDP2 lets autograd add gradients up in the parameters that it gathered; since 2.15.

    Each is then in the dtype of the reduction as soon as it is there. Before, FSDP2 cast those of a whole group behind
    its backward, and held on to the last one until the group was reduced.
    """
    return torch_release() >= (2, 15)


def makes_buffers_for_messages() -> bool:
    """Whether a pipeline's schedule has buffers for messages only while they are under way; since 2.15.

    Before, it made one for each micro-batch when it began, and held what a stage sent until its backward was through.
    """
    return torch_release() >= (2, 15)


def holds_gathered_before() -> bool:
    """Whether FSDP2 has what it gathered last, as it came, while it takes the next apart in a forward; up to 2.14.

    A local name of ``FSDPParamGroup.wait_for_unshard`` held it. Since 2.15 it goes first, in a method of its own.
    """
    return torch_release() < (2, 15)


def sums_norms_in_float32() -> bool:
    """Whether gradients of torchtitan's norms are summed over tp in the float32 of their weights; counted with 2.15.0.

    With 2.13.0 they are in the dtype of the arithmetic when DTensor sums them.
    """
    return torch_release() >= (2, 15)
