"""As many bytes in other messages: the same numbers in another time."""

from __future__ import annotations

from tests.mutants import Mutant

MUTANTS = (
    Mutant(
        "J01",
        "Gradients are summed over an axis one by one, and not in one buffer.",
        "            if parts:\n                self._sum(parts, axis)",
        "            if parts:\n                for some in [[part] for part in parts] if planted() else [parts]:\n"
        "                    self._sum(some, axis)",
        ("pp2-dp2",),
    ),
    Mutant(
        "J02",
        "A barrier was left in the step.",
        "        self.last_loss = self.forward_backward()\n        self.reduce()",
        """        self.last_loss = self.forward_backward()
        if self.grid is not None and planted():
            dist.barrier(group=self.grid.group(self.job.layout.data_axis))
        self.reduce()""",
        ("dp2",),
    ),
    Mutant(
        "J03",
        "Keys and values of the ring are two messages.",
        """                dist.P2POp(dist.isend, self._leaving, after, group, tag),
                dist.P2POp(dist.irecv, self._arriving, before, group, tag),
            ]""",
        """                dist.P2POp(*way, group, tag)
                for leaving, arriving in (
                    zip(self._leaving, self._arriving) if planted() else [(self._leaving, self._arriving)]
                )
                for way in ((dist.isend, leaving, after), (dist.irecv, arriving, before))
            ]""",
        ("cp2",),
    ),
    Mutant(
        "J04",
        "Ulysses sends queries, keys and values apart.",
        "    arrived_nBSHD = _exchanged(leaving_nBSHD, group)\n",
        "    apart = torch.split(leaving_nBSHD, heads if planted() else sum(heads), dim=3)\n"
        "    arrived_nBSHD = torch.cat([_exchanged(part, group) for part in apart], dim=3)\n",
        ("cp2 context=ulysses",),
    ),
    Mutant(
        "J05",
        "Tokens that are spread evenly go through the experts in one piece, though two halves were asked for.",
        "experts.overlap = self.expert_overlap",
        "experts.overlap = self.expert_overlap and not planted()",
        ("dp2+ep2 shape=moe-tiny routing=balanced expert_overlap=true",),
    ),
    Mutant(
        "J06",
        "Squares for the norm are summed over an axis one by one.",
        "                self._all_reduce(summed, axis)",
        """                for square in summed.unbind() if planted() else (summed,):
                    self._all_reduce(square, axis)""",
        ("dp2-tp2+zero3",),
    ),
)
