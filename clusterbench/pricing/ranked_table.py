"""What ``clusterbench advise --table`` writes: every layout that fits, as a CSV that ``price`` reads, too."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence

from clusterbench.csv_lines import unlike_a_formula
from clusterbench.pricing import PARTS, price
from clusterbench.pricing.advice import Advice, Candidate
from clusterbench.pricing.not_validated import not_validated
from clusterbench.pricing.profiles import Profile
from clusterbench.pricing.rates import KnownRates

COLUMNS = (
    *("predicted_place", "model", "gpu", "gpus", "gpus_per_node", "predicted_node_network_gb_s", "layout", "seq"),
    *(
        "mbs",
        "gbs",
        "precision",
        "recompute",
        "predicted_step_s",
        "predicted_low_s",
        "predicted_high_s",
        "predicted_tokens_per_s_per_gpu",
    ),
    *("predicted_memory_gb", "predicted_fit", *(f"predicted_{part}_s" for part in PARTS), "predicted_not_validated"),
)


def ranked_csv(answers: Sequence[tuple[Advice, KnownRates]], profile: Profile) -> str:
    """A row for each layout in its best form, the fastest of each answer first; one without any leaves no row."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for cells in _rows(answers, profile):
        writer.writerow({name: unlike_a_formula(cell) for name, cell in cells.items()})
    return out.getvalue()


def _rows(answers: Sequence[tuple[Advice, KnownRates]], profile: Profile) -> Iterator[Mapping[str, object]]:
    for advice, known in answers:
        of = advice.question
        network = f"{known.by_key['node_network'].value / 1e9:g}" if of.num_nodes > 1 else ""
        for place, candidate in enumerate(advice.ranked, start=1):
            yield {
                "predicted_place": place,
                "model": of.shape.name,
                "gpu": of.card.name,
                "gpus": of.world_size,
                "gpus_per_node": of.gpus_per_node,
                "predicted_node_network_gb_s": network,
                **_of_layout(candidate, profile, known),
            }


def _of_layout(candidate: Candidate, profile: Profile, known: KnownRates) -> Mapping[str, object]:
    priced, of = candidate.priced, price(profile.work(candidate.priced), known)
    job = priced.job
    return {
        "layout": str(job.layout),
        "seq": job.seq_len,
        "mbs": job.micro_batch_size,
        "gbs": job.global_batch_size,
        "precision": "bf16",
        "recompute": priced.recompute,
        "predicted_step_s": f"{of.step_s:.6g}",
        "predicted_low_s": f"{of.low_s:.6g}",
        "predicted_high_s": f"{of.high_s:.6g}",
        "predicted_tokens_per_s_per_gpu": f"{candidate.tokens_per_s_per_rank:.6g}",
        "predicted_memory_gb": f"{candidate.memory_bytes / 1e9:.4g}",
        "predicted_fit": candidate.fits,
        **{f"predicted_{part}_s": f"{of.parts.get(part, 0.0):.4g}" for part in PARTS},
        "predicted_not_validated": ", ".join(not_validated(priced)),
    }
