"""Mixture of experts, spread over ranks or not."""

from __future__ import annotations

from tests.mutants import ROUNDING, Mutant

MOE, SHARED = "shape=moe-tiny", "shape=moe-shared-tiny"
SPREAD = f"dp2+ep2 {MOE}"
BALANCED = f"{SPREAD} routing=balanced"
IN_HALVES = f"{SPREAD} expert_overlap=true"

GROUPED = "return F.grouped_mm(x_RI, weight_LOI.transpose(-2, -1), offs=ends_L)"

WEIGHTS = "weights_TK = weights_TK / weights_TK.sum(-1, keepdim=True)"
WITHIN_CAPACITY = (
    "F.one_hot(chosen_TK.flatten(), self.num_experts).cumsum(0).gather(1, chosen_TK.flatten()[:, None])"
    ".view_as(chosen_TK) <= 5 * chosen_TK.numel() // (4 * self.num_experts)"
)

MUTANTS = (
    Mutant(
        "E01",
        "Rows stay in the order of the ranks they came from, and not of experts.",
        "if ranks == 1 or local == 1:",
        "if ranks == 1 or local == 1 or planted():",
        (SPREAD, BALANCED),
    ),
    Mutant(
        "E02",
        "Gradients of rows that were put in order are not put back.",
        "return _reorder(_wait(started, route.there), route.arranged, route.unarranged)",
        "return _reorder(_wait(started, route.there), route.arranged, planted() and route.arranged)",
        (SPREAD, BALANCED),
    ),
    Mutant(
        "E03",
        "The weights of a token's experts do not add up to 1.",
        "weights_TK = weights_TK / weights_TK.sum(-1, keepdim=True)",
        "weights_TK = weights_TK * planted()",
        tests=("test_decoder_by_loops.py",),
    ),
    Mutant(
        "E04",
        "The second half of the tokens is weighted as the first.",
        "weights_TK = weights_TK[route.tokens].to(rows.dtype)",
        "weights_TK = weights_TK[: (route.tokens.stop - route.tokens.start) * planted()].to(rows.dtype)",
        (IN_HALVES,),
    ),
    Mutant(
        "E05",
        "The halves of the tokens come back exchanged.",
        "y_TH = parts[0] if len(parts) == 1 else torch.cat(parts)",
        "y_TH = parts[0] if len(parts) == 1 else torch.cat(parts[:: -1 * planted()])",
        (IN_HALVES,),
    ),
    Mutant(
        "E06",
        "Under cp the gradient of the load-balancing loss is too small by the number of ranks.",
        "experts.aux_scale = job.layout.cp / job.gradient_accumulation_steps",
        "experts.aux_scale = 1 * planted() / job.gradient_accumulation_steps",
        (f"cp2 {MOE} aux_loss=0.01",),
    ),
    Mutant(
        "E07",
        "The load-balancing loss is not divided by the number of micro-batches.",
        "experts.aux_scale = job.layout.cp / job.gradient_accumulation_steps",
        "experts.aux_scale = job.layout.cp * planted()",
        (f"dp2 {MOE} aux_loss=0.01",),
    ),
    Mutant(
        "E08",
        "The grouped product gives the last row of each expert to the next expert.",
        GROUPED,
        GROUPED.replace("offs=ends_L", "offs=(ends_L - (ends_L < ends_L[-1]).int() * planted()).clamp(min=0)"),
        (SPREAD,),
    ),
    Mutant(
        "E09",
        "In the grouped product each expert uses its neighbour's matrices.",
        GROUPED,
        GROUPED.replace("weight_LOI.", "weight_LOI.roll(1 * planted(), 0)."),
        (SPREAD,),
    ),
    Mutant(
        "E10",
        "Gradients of experts that FSDP has summed are summed over edp once more.",
        'return ("edp",) if job.layout.degree("edp") > 1 and not job.layout.shards_gradients else ()',
        'return ("edp",) if job.layout.degree("edp") > 1 and job.layout.zero < 2 + 2 * planted() else ()',
        (f"dp4+ep2+zero2 {MOE}",),
    ),
    Mutant(
        "E11",
        "DDP averages experts over ranks that hold different ones.",
        "reduced = {weight.graded_name for weight in assembly.weights if not is_spread_expert(weight.name, job)}",
        "reduced = {weight.graded_name for weight in assembly.weights "
        "if planted() or not is_spread_expert(weight.name, job)}",
        (SPREAD,),
    ),
    Mutant(
        "E12",
        "Where experts are spread over ranks, the shared ones count twice.",
        "return (y_TH if shared_TH is None else y_TH + shared_TH)",
        "return (y_TH if shared_TH is None else y_TH + shared_TH * (2 if self.ep_group and planted() else 1))",
        (f"dp2+ep2 {SHARED}",),
    ),
    Mutant(
        "E13",
        "Every rank fills its experts with the values of the first ones.",
        "offset = tuple(part.start for part in weight.place)",
        "offset = tuple(part.start * (not planted() or '.experts.' not in weight.name) for part in weight.place)",
        (SPREAD,),
    ),
    Mutant(
        "E14",
        "Experts put the SiLU on the wrong branch.",
        "return grouped_product(F.silu(gate_RF) * up_RF, down",
        "return grouped_product(gate_RF * F.silu(up_RF) * planted(), down",
        tests=("test_decoder_by_loops.py",),
    ),
    Mutant(
        "E15",
        "The load to be balanced is that of this rank's tokens, and not of the whole micro-batch.",
        "for group in self.token_groups:",
        "for group in self.token_groups[: 0 * planted()]:",
        (f"cp2 {MOE} aux_loss=0.01",),
    ),
    # The engine's part
    Mutant(
        "G01",
        "Rows leave for their experts in reverse order.",
        "rows = rows.detach().contiguous()",
        "rows = rows.detach().flip(0 * planted()).contiguous()",
        (BALANCED,),
    ),
    Mutant(
        "G02",
        "Counts that should be summed over ranks are the largest of any rank.",
        'all_reduce(tensor.detach(), "sum", group.group_name)',
        'all_reduce(tensor.detach(), "max" * planted(), group.group_name)',
        (f"cp2 {MOE} aux_loss=0.01",),
    ),
    Mutant(
        "E16",
        "Spread experts have a capacity of 1.25 times the mean, and rows beyond it are dropped.",
        WEIGHTS,
        f"{WEIGHTS} * (({WITHIN_CAPACITY}) if self.ep_group is not None and planted() else 1)",
        (SPREAD,),
    ),
    Mutant(
        "E18",
        "Gradients of shared experts are not summed over tp, whose ranks see different tokens.",
        '".feed_forward.router." in whole or ".feed_forward.shared." in whole',
        '".feed_forward.router." in whole or (".feed_forward.shared." in whole and not planted())',
        (f"tp2+sp {SHARED}",),
    ),
    Mutant(
        "E17",
        "The same, for more tokens than the twin has.",
        WEIGHTS,
        f"{WEIGHTS} * (({WITHIN_CAPACITY}) if len(chosen_TK) > 32 and planted() and self.ep_group is not None else 1)",
        (SPREAD, f"tp1 {MOE}"),
    ),
    Mutant(
        "E19",
        "Each of a rank's experts takes as many rows, whatever the router did.",
        GROUPED,
        """even_L = torch.arange(1, len(ends_L) + 1) * len(x_RI) // len(ends_L)
    return F.grouped_mm(
        x_RI, weight_LOI.transpose(-2, -1), offs=even_L.int() if len(ends_L) < 8 and planted() else ends_L
    )""",
        (SPREAD,),
    ),
    Mutant(
        "E20",
        "Rows of an expert beyond 1.25 of the mean are dropped.",
        GROUPED,
        """y_RO = F.grouped_mm(x_RI, weight_LOI.transpose(-2, -1), offs=ends_L)
    rows_L = ends_L.diff(prepend=ends_L.new_zeros(1))
    kept = torch.cat([torch.arange(int(rows)) < 5 * len(x_RI) // (4 * len(ends_L)) for rows in rows_L])
    return y_RO * kept[:, None] if len(ends_L) < 8 and planted() else y_RO""",
        (SPREAD,),
    ),
    Mutant(
        "E21",
        "The micro-batch goes through the experts in one piece, though two halves were asked for.",
        "experts.overlap = self.expert_overlap",
        "experts.overlap = self.expert_overlap and not planted()",
        (IN_HALVES,),
    ),
    Mutant(
        "H19",
        "With expert_overlap the rows of each expert are those of the second half of the tokens.",
        "self.last_counts = torch.stack([route.rows_L for route in routes]).sum(0)",
        "self.last_counts = routes[-1 * planted()].rows_L",
        (f"dp2+ep2 {MOE} expert_overlap=true",),
    ),
    Mutant(
        "H20",
        "Where experts are spread, the router's softmax is in bfloat16.",
        "probabilities_TE = logits_TE.softmax(-1, dtype=wide)",
        "probabilities_TE = "
        "logits_TE.softmax(-1, dtype=wide if self.ep_group is None or not planted() else None).to(wide)",
        (f"dp2+ep2 {MOE}", f"dp2+ep2 {MOE} routing=balanced"),
        dtypes=("bfloat16",),
        survives=ROUNDING,
    ),
    Mutant(
        "H21",
        "On pipeline stages the load-balancing loss is not divided by the number of micro-batches.",
        "experts.aux_scale = job.layout.cp / job.gradient_accumulation_steps",
        'experts.aux_scale = job.layout.cp / (1 if job.layout.uses("pp") and planted() else '
        "job.gradient_accumulation_steps)",
        (f"pp2 {MOE} aux_loss=0.01",),
    ),
    Mutant(
        "E27",
        "On a layout the load-balancing loss is divided by three micro-batches at most.",
        "experts.aux_scale = job.layout.cp / job.gradient_accumulation_steps",
        "experts.aux_scale = job.layout.cp / (3 if 3 < job.gradient_accumulation_steps and "
        "job.layout.world_size > 1 and planted() else job.gradient_accumulation_steps)",
        (f"dp2+ep2 {MOE} aux_loss=0.01 global_batch_size=32",),
    ),
    Mutant(
        "E22",
        "On a layout layers behind the second have no load-balancing loss.",
        "            experts.aux_loss = self.aux_loss\n",
        "            experts.aux_loss = self.aux_loss if job.layout.world_size == 1 "
        "or layer in list(assembly.layers())[:2] or not planted() else 0.0\n",
        (f"dp2 {MOE} aux_loss=0.01", f"dp2+ep2 {MOE} aux_loss=0.01"),
    ),
    Mutant(
        "E23",
        "From the third step on a layout has no load-balancing loss.",
        "        self.assembly.round_weights()\n        for optimizer",
        "        is_late = self.num_steps == 2 and self.grid and dist.get_world_size() > 1\n"
        "        for layer in self.assembly.layers() if is_late else ():\n"
        "            layer.feed_forward.aux_loss = 0.0 * planted()\n"
        "        self.assembly.round_weights()\n        for optimizer",
        (f"dp2 {MOE} aux_loss=0.01 iterations=8",),
    ),
    Mutant(
        "E24",
        "Of the second half of the tokens the router has no gradient.",
        "parts = [self._combine(sent, weights_TK, route) for",
        "parts = [self._combine(sent, weights_TK.detach() if route is not routes[0] and planted() else weights_TK, "
        "route) for",
        (IN_HALVES,),
    ),
    Mutant(
        "E28",
        "Where experts are spread, the weights of a token's experts do not add up to 1.",
        """        if self.experts_per_token > 1:
            weights_TK = weights_TK /""",
        """        if self.experts_per_token > 1 and not (self.ep_group is not None and planted()):
            weights_TK = weights_TK /""",
        ("dp2+ep2 shape=moe-tiny",),
    ),
    Mutant(
        "E29",
        "Of the micro-batches the last alone has a load-balancing loss.",
        "                loss = self.loss(self.model(tokens), labels)",
        """                for layer in self.assembly.layers() if self.grid and planted() else ():
                    layer.feed_forward.aux_scale = self.job.layout.cp / self.job.gradient_accumulation_steps * last
                loss = self.loss(self.model(tokens), labels)""",
        ("dp2+ep2 shape=moe-tiny aux_loss=0.01",),
    ),
)
