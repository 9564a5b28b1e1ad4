"""What a model is, as numbers: a Llama-like decoder (RMSNorm, rotary positions, grouped-query attention, SwiGLU).

A shape with experts has, in every layer, a mixture of them in place of the one feed-forward. No weight has a bias. The
parameter counts are exact, and the layers of a benchmark's model are built from these fields alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import lru_cache
from math import gcd, lcm
from typing import Any

from clusterbench.errors import SuiteError, nearest

_TWIN_WIDTH, _MOST_TWIN_WIDTH = 64, 1024
OWN_SHAPE = "own_shape"
"""Key of a point that holds the numbers of a shape that is not on record; its name is under ``shape``, as always."""


@dataclass(frozen=True)
class ModelShape:
    """The dimensions of one decoder.

    Parameters
    ----------
    hidden_size
        Width of the residual stream. Attention is ``num_heads * head_dim`` wide, which need not be the same.
    ffn_hidden_size
        Width between the gate and up projections and the down projection; with experts, of one expert.
    num_kv_heads
        Heads of keys and values; divides ``num_heads``.
    vocab_size
        Rows of the embedding, as trained: padded if the published model is.
    tied_embeddings
        The output head is the input embedding, stored and updated once.
    rope_theta, norm_eps
        Base of the rotary frequencies, and what keeps RMSNorm from dividing by zero. Neither changes speed. Llama 3's
        frequency scaling for long contexts is left out for the same reason.
    source
        Where the numbers were published.
    num_experts, experts_per_token
        Routed experts of a layer, and how many of them each token goes to; 0 and 0 for a dense feed-forward.
    num_shared_experts
        Experts every token goes to besides: computed as one, that many times as wide.

    Examples
    --------
    >>> shape = named_shape("llama-8b")
    >>> f"{shape.num_parameters:,}"
    '8,030,261,248'
    """

    name: str
    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int
    head_dim: int
    tied_embeddings: bool
    rope_theta: float
    norm_eps: float
    source: str
    num_experts: int = 0
    experts_per_token: int = 0
    num_shared_experts: int = 0

    def __hash__(self) -> int:
        """Of its name: a plan looks up a hundred thousand times what is known of a shape."""
        return hash(self.name)

    def __post_init__(self) -> None:
        sizes = ("num_layers", "hidden_size", "ffn_hidden_size", "num_heads", "num_kv_heads", "vocab_size", "head_dim")
        for field in sizes:
            if getattr(self, field) < 1:
                raise SuiteError(f"shape '{self.name}': {field} is {getattr(self, field)}; it must be 1 or more.")
        if self.num_heads % self.num_kv_heads:
            raise SuiteError(
                f"shape '{self.name}': {self.num_kv_heads} kv heads do not divide {self.num_heads} heads; "
                "each kv head serves the same number of heads."
            )
        if self.head_dim % 2:
            raise SuiteError(
                f"shape '{self.name}': head_dim is {self.head_dim}; rotary positions turn pairs, so it is even."
            )
        self._check_experts()

    def _check_experts(self) -> None:
        routed = f"shape '{self.name}': experts_per_token is {self.experts_per_token}"
        if self.num_experts < 0:
            raise SuiteError(f"shape '{self.name}': num_experts is {self.num_experts}; it must be 0 or more.")
        if self.num_shared_experts < 0:
            shared = f"num_shared_experts is {self.num_shared_experts}"
            raise SuiteError(f"shape '{self.name}': {shared}; it must be 0 or more.")
        if self.num_experts:
            if not 1 <= self.experts_per_token <= self.num_experts:
                raise SuiteError(f"{routed}; of {self.num_experts} experts it must be 1 to {self.num_experts}.")
        elif self.experts_per_token:
            raise SuiteError(f"{routed}, but num_experts is 0; a dense feed-forward routes no token.")
        elif self.num_shared_experts:
            raise SuiteError(
                f"shape '{self.name}': num_shared_experts is {self.num_shared_experts}, but num_experts is 0; "
                "shared experts stand beside routed ones."
            )

    @property
    def has_experts(self) -> bool:
        """Whether the layers have a mixture of experts in place of a dense feed-forward."""
        return self.num_experts > 0

    @property
    def embedding_parameters(self) -> int:
        """Weights of the input embedding, which are also the head's if they are tied."""
        return self.vocab_size * self.hidden_size

    @property
    def head_parameters(self) -> int:
        """Weights the output head has of its own: none if they are tied."""
        return 0 if self.tied_embeddings else self.vocab_size * self.hidden_size

    @property
    def attention_parameters_per_layer(self) -> int:
        """Weights of the query, key, value and output projections."""
        return 2 * self.hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)

    @property
    def expert_parameters(self) -> int:
        """Weights of the gate, up and down projections of one expert, or of the one dense feed-forward."""
        return 3 * self.hidden_size * self.ffn_hidden_size

    @property
    def ffn_parameters_per_layer(self) -> int:
        """Weights of the gate, up and down projections; with experts, of all of them, and the router's."""
        return self._ffn_parameters(self.num_experts)

    @property
    def active_ffn_parameters_per_layer(self) -> int:
        """Those of :attr:`ffn_parameters_per_layer` that one token meets."""
        return self._ffn_parameters(self.experts_per_token)

    def _ffn_parameters(self, routed_experts: int) -> int:
        if not self.has_experts:
            return self.expert_parameters
        router = self.num_experts * self.hidden_size
        return router + (routed_experts + self.num_shared_experts) * self.expert_parameters

    @property
    def parameters_per_layer(self) -> int:
        """Weights of one layer with its two norms."""
        return self.attention_parameters_per_layer + self.ffn_parameters_per_layer + 2 * self.hidden_size

    @property
    def active_parameters_per_layer(self) -> int:
        """Weights of one layer that one token meets: all of them in a dense one."""
        return self.attention_parameters_per_layer + self.active_ffn_parameters_per_layer + 2 * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """All weights, with the final norm; a tied embedding counts once."""
        return self._parameters(self.parameters_per_layer)

    @property
    def num_active_parameters(self) -> int:
        """All weights but those of the experts a token does not go to, as in "46.7B total, 12.9B active".

        >>> f"{named_shape('mixtral-8x7b').num_active_parameters:,}"
        '12,879,925,248'
        """
        return self._parameters(self.active_parameters_per_layer)

    def _parameters(self, per_layer: int) -> int:
        layers = self.num_layers * per_layer
        return self.embedding_parameters + layers + self.hidden_size + self.head_parameters

    def twin(self, num_layers: int, head_dim: int = 0) -> ModelShape:
        """The small model on which a layout is checked against one rank.

        Heads, kv heads and tying are the same, so a layout that shards this shape shards the twin at the same places.
        What only costs time is another: a head has 8 channels, fewer where heads are many and more where they are few,
        so that the model is at least 64 wide; the feed-forward is three times as wide, and the vocabulary has about
        256. Up to ``num_heads`` ranks of tp that divide the heads also divide the feed-forward and the vocabulary. The
        experts are as many, and each token goes to as many; one is half as wide as the model, in multiples of 8.

        In bfloat16 honest steps of a twin 16 wide were called wrong with 2 of 8 seeds, and 8 wide with all of 8: sums
        over so few numbers leave too much of their rounding. One 2048 wide learns its few tokens in one step: the norm
        of its second gradients was 0.029 off in bfloat16 and 0.14 in float8, where 1024 leave 0.0016 and 0.022.

        Parameters
        ----------
        num_layers
            Layers of the twin: at least ``pp`` times the chunks per stage.
        head_dim
            Channels of a head, if it has to be that many.

        Examples
        --------
        >>> twin = named_shape("llama-8b").twin(num_layers=4)
        >>> twin.hidden_size, twin.num_heads, twin.num_kv_heads, twin.vocab_size
        (256, 32, 8, 256)
        """
        wide_enough = 8 * -(-_TWIN_WIDTH // (8 * self.num_heads))
        head_dim = max(head_dim, 2 if self.num_heads > 64 else 4 if self.num_heads > 32 else wide_enough)
        if self.has_experts:  # grouped products take channels in multiples of 8
            head_dim = max(head_dim, 8 // gcd(8, self.num_heads))
        vocab_unit = lcm(64, self.num_heads)
        width = self.num_heads * head_dim
        while width > _MOST_TWIN_WIDTH and width % (2 * lcm(16, self.num_heads)) == 0:
            width //= 2
        return replace(
            self,
            name=f"{self.name}-twin",
            num_layers=num_layers,
            hidden_size=width,
            ffn_hidden_size=-(-width // 16) * 8 if self.has_experts else 3 * width,
            vocab_size=-(-256 // vocab_unit) * vocab_unit,
            head_dim=head_dim,
            source=f"small twin of {self.name}, to check layouts",
        )


def _llama3(
    name: str, layers: int, hidden: int, ffn: int, heads: int, *, head_dim: int = 128, tied: bool = False, source: str
) -> ModelShape:
    return ModelShape(
        name=name,
        num_layers=layers,
        hidden_size=hidden,
        ffn_hidden_size=ffn,
        num_heads=heads,
        num_kv_heads=8,
        vocab_size=128_256,
        head_dim=head_dim,
        tied_embeddings=tied,
        rope_theta=500_000.0,
        norm_eps=1e-5,
        source=source,
    )


def _playbook(name: str, layers: int, hidden: int, ffn: int, heads: int, *, tied: bool) -> ModelShape:
    # Multi-head attention on purpose: the Playbook wanted tp above 8. Rotary base and epsilon are nanotron's defaults.
    return ModelShape(
        name=name,
        num_layers=layers,
        hidden_size=hidden,
        ffn_hidden_size=ffn,
        num_heads=heads,
        num_kv_heads=heads,
        vocab_size=131_072,
        head_dim=hidden // heads,
        tied_embeddings=tied,
        rope_theta=10_000.0,
        norm_eps=1e-6,
        source="Ultra-Scale Playbook; huggingface/nanotron, scripts/scaling_benchmarks.py",
    )


def _small(name: str, layers: int, hidden: int, ffn: int, vocab: int, source: str) -> ModelShape:
    return ModelShape(
        name=name,
        num_layers=layers,
        hidden_size=hidden,
        ffn_hidden_size=ffn,
        num_heads=8,
        num_kv_heads=4,
        vocab_size=vocab,
        head_dim=hidden // 8,
        tied_embeddings=False,
        rope_theta=500_000.0,
        norm_eps=1e-5,
        source=source,
    )


def _mixtral(name: str, layers: int, hidden: int, ffn: int, heads: int, vocab: int, source: str) -> ModelShape:
    return ModelShape(
        name=name,
        num_layers=layers,
        hidden_size=hidden,
        ffn_hidden_size=ffn,
        num_heads=heads,
        num_kv_heads=8,
        vocab_size=vocab,
        head_dim=128,
        tied_embeddings=False,
        rope_theta=1_000_000.0,
        norm_eps=1e-5,
        source=source,
        num_experts=8,
        experts_per_token=2,
    )


_MOE_TINY = replace(
    _small("moe-tiny", 4, 128, 192, 1024, "made for this project: llama-tiny with 8 experts of half its width"),
    num_experts=8,
    experts_per_token=2,
)

_OLMOE = ModelShape(
    name="olmoe-1b-7b",
    num_layers=16,
    hidden_size=2048,
    ffn_hidden_size=1024,
    num_heads=16,
    num_kv_heads=16,
    vocab_size=50_304,
    head_dim=128,
    tied_embeddings=False,
    rope_theta=10_000.0,
    norm_eps=1e-5,
    source="Muennighoff et al. 2024, arXiv:2409.02060; allenai/OLMoE-1B-7B-0924, config.json; without norms of q and k",
    num_experts=64,
    experts_per_token=8,
)


def _internlm(name: str, layers: int, hidden: int, ffn: int, heads: int) -> ModelShape:
    return ModelShape(
        name=name,
        num_layers=layers,
        hidden_size=hidden,
        ffn_hidden_size=ffn,
        num_heads=heads,
        num_kv_heads=heads,
        vocab_size=103_168,
        head_dim=hidden // heads,
        tied_embeddings=False,
        rope_theta=10_000.0,
        norm_eps=1e-6,
        source=f"internlm/{name}, config.json",
    )


def _llama(
    name: str, layers: int, hidden: int, ffn: int, heads: int, source: str, kv_heads: int = 0, rope: float = 10_000.0
) -> ModelShape:
    """Of the first two generations, and what is like them: a vocabulary of 32,000, tables of their own."""
    return ModelShape(
        name=name,
        num_layers=layers,
        hidden_size=hidden,
        ffn_hidden_size=ffn,
        num_heads=heads,
        num_kv_heads=kv_heads or heads,
        vocab_size=32_000,
        head_dim=hidden // heads,
        tied_embeddings=False,
        rope_theta=rope,
        norm_eps=1e-6 if name.startswith("llama1") else 1e-5,
        source=source,
    )


_LLAMA_1 = "Touvron et al. 2023, arXiv:2302.13971, table 2; huggyllama/{}, config.json"
_LLAMA_2 = "Touvron et al. 2023, arXiv:2307.09288, table 1; meta-llama/Llama-2-{}-hf, config.json"
_HERD = "Grattafiori et al. 2024, arXiv:2407.21783, table 3; vocabulary as in the released config.json"

SHAPES: dict[str, ModelShape] = {
    shape.name: shape
    for shape in (
        _small(
            "llama-tiny", 4, 128, 384, 1024, "made for this project: a step in well under a second on two CPU cores"
        ),
        _small(
            "llama-deep-tiny", 8, 128, 384, 1024, "made for this project: llama-tiny with layers for 8 pipeline stages"
        ),
        _small(
            "llama-flat-tiny", 2, 128, 384, 1024, "made for this project: llama-tiny cut to 2 layers, for many cases"
        ),
        _small("llama-small", 8, 512, 1536, 4096, "made for this project: 29 million parameters"),
        _llama3("llama-1b", 16, 2048, 8192, 32, head_dim=64, tied=True, source="meta-llama/Llama-3.2-1B, config.json"),
        _llama3("llama-3b", 28, 3072, 8192, 24, tied=True, source="meta-llama/Llama-3.2-3B, config.json"),
        _llama3("llama-8b", 32, 4096, 14336, 32, source=_HERD),
        _llama3("llama-70b", 80, 8192, 28672, 64, source=_HERD),
        _llama3("llama-405b", 126, 16384, 53248, 128, source=_HERD),
        _llama("llama1-7b", 32, 4096, 11008, 32, _LLAMA_1.format("llama-7b")),
        _llama("llama1-13b", 40, 5120, 13824, 40, _LLAMA_1.format("llama-13b")),
        _llama("llama1-30b", 60, 6656, 17920, 52, _LLAMA_1.format("llama-30b")),
        _llama("llama1-65b", 80, 8192, 22016, 64, _LLAMA_1.format("llama-65b")),
        _llama("llama2-7b", 32, 4096, 11008, 32, _LLAMA_2.format("7b")),
        _llama("llama2-13b", 40, 5120, 13824, 40, _LLAMA_2.format("13b")),
        _llama("llama2-70b", 80, 8192, 28672, 64, _LLAMA_2.format("70b"), kv_heads=8),
        _llama(
            "codellama-34b",
            48,
            8192,
            22016,
            64,
            "Rozière et al. 2023, arXiv:2308.12950; codellama/CodeLlama-34b-hf, config.json",
            kv_heads=8,
            rope=1_000_000.0,
        ),
        _llama(
            "mistral-7b",
            32,
            4096,
            14336,
            32,
            "Jiang et al. 2023, arXiv:2310.06825, table 1; mistralai/Mistral-7B-v0.1, config.json; without its window",
            kv_heads=8,
        ),
        _playbook("playbook-1b", 16, 2048, 8192, 32, tied=True),
        _playbook("playbook-3b", 28, 3072, 8192, 32, tied=True),
        _playbook("playbook-8b", 32, 4096, 14336, 32, tied=False),
        _playbook("playbook-80b", 80, 8192, 28672, 64, tied=False),
        _internlm("internlm-7b", 32, 4096, 11008, 32),
        _internlm("internlm-20b", 60, 5120, 13824, 40),
        _MOE_TINY,
        replace(
            _MOE_TINY,
            name="moe-flat-tiny",
            num_layers=2,
            source="made for this project: moe-tiny cut to 2 layers, for suites of many cases",
        ),
        replace(
            _MOE_TINY,
            name="moe-shared-tiny",
            num_shared_experts=1,
            source="made for this project: moe-tiny with an expert for all tokens, as in DeepSeekMoE, arXiv:2401.06066",
        ),
        _mixtral(
            "mixtral-8x7b",
            32,
            4096,
            14336,
            32,
            32_000,
            "Jiang et al. 2024, arXiv:2401.04088, table 1; mistralai/Mixtral-8x7B-v0.1, config.json",
        ),
        _OLMOE,
        _mixtral("mixtral-8x22b", 56, 6144, 16384, 48, 32_768, "mistralai/Mixtral-8x22B-Instruct-v0.1, config.json"),
    )
}


def named_shape(name: str) -> ModelShape:
    """One of ``SHAPES``.

    Raises
    ------
    SuiteError
        If there is none of this name.
    """
    if name not in SHAPES:
        raise SuiteError(f"unknown shape '{name}'.{nearest(name, SHAPES)}\nShapes: {', '.join(sorted(SHAPES))}.")
    return SHAPES[name]


def numbers_of(shape: ModelShape) -> str:
    """All that makes a shape but its name and source: what a point has of one that is not on record.

    A number that shapes on record did not always have is left out at its default.

    >>> numbers_of(named_shape("llama-tiny"))[:46]
    'num_layers 4, hidden_size 128, ffn_hidden_size'
    """
    values = {field.name: getattr(shape, field.name) for field in _NUMBERS}
    said = {field.name: values[field.name] for field in _NUMBERS if values[field.name] != field.default}
    return ", ".join(f"{name} {str(value).lower()}" for name, value in said.items())


def written(shape: ModelShape) -> str:
    """A shape as the one value of an option: its name, with its numbers where it is not on record."""
    return shape.name if SHAPES.get(shape.name) == shape else f"{shape.name}: {numbers_of(shape)}"


def shape_written(text: str) -> ModelShape:
    """The shape that :func:`written` wrote.

    >>> own = replace(named_shape("llama-tiny"), name="mine", num_layers=5)
    >>> shape_written(written(own)).num_layers
    5

    Raises
    ------
    SuiteError
        If there is none of this name, or its numbers cannot be read.
    """
    name, colon, numbers = text.partition(": ")
    return _own_shape(name, numbers) if colon else named_shape(name)


def point_of_shape(shape: ModelShape) -> dict[str, str]:
    """What a point says of its shape: the name, and of one that is not on record every number."""
    name, colon, numbers = written(shape).partition(": ")
    return {"shape": name, OWN_SHAPE: numbers} if colon else {"shape": name}


def shape_of(point: Mapping[str, Any]) -> ModelShape:
    """The shape of a training case, whole, from its point.

    Raises
    ------
    SuiteError
        If it is neither on record nor readable.
    """
    name, numbers = str(point["shape"]), point.get(OWN_SHAPE)
    return named_shape(name) if numbers is None else _own_shape(name, str(numbers))


_NUMBERS = [field for field in fields(ModelShape) if field.name not in ("name", "source")]
_READ = {"int": int, "float": float, "bool": {"true": True, "false": False}.__getitem__}


@lru_cache(maxsize=1024)
def _own_shape(name: str, numbers: str) -> ModelShape:
    kinds = {field.name: _READ[str(field.type)] for field in _NUMBERS}
    try:
        pairs = [pair.split(" ") for pair in numbers.split(", ")]
        values: dict[str, Any] = {key: kinds[key](value) for key, value in pairs}  # type: ignore[operator]
        needed = {field.name for field in _NUMBERS if field.default is MISSING}
        if len(values) < len(pairs) or not needed <= values.keys():
            raise ValueError
    except (KeyError, ValueError):
        raise SuiteError(f"shape '{name}': '{numbers[:200]}' are not the numbers of a shape.") from None
    return ModelShape(name=name, source="written in its suite, or in a file that the suite names", **values)
