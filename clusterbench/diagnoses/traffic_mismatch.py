from __future__ import annotations

from clusterbench.diagnoses import Diagnosis, Finding
from clusterbench.history import Reading
from clusterbench.units import format_value


class TrafficMismatch(Diagnosis):
    """Steps that send more or less than their formula says.

    What it looks for
    -----------------
    Cases whose bytes per step and axis, counted where PyTorch dispatches collectives, differ from the formula written
    down before the run. The counter knows nothing of the formula.

    Why it matters
    --------------
    Either the step communicates something nobody planned, or the formula is wrong. In both cases no statement about
    bandwidth, overlap or scaling of this layout stands on firm ground.

    How to confirm
    --------------
    Compare the collectives of that axis one by one with the list of the layout; a factor of two points at a forward
    that is recomputed, a constant excess at something that is sent once a step.

    What usually fixes it
    ---------------------
    A missing or a second reduction in the model, recomputation that the formula was not told of, a bucket or a dtype
    that differs from the suite's.
    """

    def findings(self, reading: Reading) -> list[Finding]:
        return [
            Finding(
                f"{row.case}, axis {row.detail.get('axis', '?')}",
                f"counted {100 * row.value / row.expected - 100:+.1f} % against the formula"
                if row.expected
                else "counted traffic where the formula has none",
                "warning",
                f"counted {format_value(row.value, 'B')} ({row.value:,.0f} B), "
                f"formula {format_value(row.expected, 'B')} ({row.expected:,.0f} B) per rank and step",
            )
            for row in reading.rows
            if row.metric == "traffic_bytes"
            and row.value is not None
            and row.expected is not None
            and not row.basis.startswith("about")  # a router decided
            # Both are whole bytes; anything else is the rounding of a float.
            and abs(row.value - row.expected) > 0.5
        ]
