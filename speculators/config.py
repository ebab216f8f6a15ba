"""The `speculator` section of a recipe: kind, base, shape and training options.

SpeculatorConfig(depth=4)
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    model_validator,
)

from outrider.speculators.head_config import HeadConfig
from outrider.speculators.kinds import (
    DEFAULT_KIND,
    lookup_names,
    trainable_kind,
    trainable_names,
    weightless_kind,
)

AUTO = "auto"
"""Value of `speculator.kind` that selects every lookup and every supported kind."""

ANY_LOOKUP = "lookup"
"""Entry of `speculator.kind` for the lookups of `eval.lookup`."""


def _candidates(kind: str | list[str]) -> str | list[str]:
    """Validates the kinds; a one-item list becomes its item."""
    if kind == AUTO:
        return AUTO
    names = [kind] if isinstance(kind, str) else kind
    lookups = [name for name in names if name in (*lookup_names(), ANY_LOOKUP)]
    trained = [name for name in names if name not in lookups]
    twice = len(set(names)) < len(names)
    if not names or set(trained) - set(trainable_names()) or twice:
        raise ValueError(
            f"list kinds, each once: {', '.join((*trainable_names(), *lookup_names()))};"
            f" {ANY_LOOKUP} selects all lookups, {AUTO} alone all that the target supports"
        )
    return names[0] if len(names) == 1 else names


class LookupConfig(BaseModel):
    """The `lookup` section: the responses that suffix lookup searches."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    max_gb: float = Field(default=1.0, gt=0, le=16)
    """Memory of each engine process for the history, in GB. The newest responses that fit are kept;
    report and model card state their share. A token takes 8 bytes: 1 GB holds 600,000 responses of
    200 tokens."""

    shared: bool = False
    """Whether requests of all tenants search one history. false: a request searches the responses
    of the tenant that its `cache_salt` names, as logged; without `cache_salt`, those that were
    logged without a tenant, or all if the log has one tenant. The
    evaluation sends it if the log has several."""


class SpeculatorConfig(BaseModel):
    """The `speculator` section of a recipe."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    kind: Annotated[str | list[str], AfterValidator(_candidates)] = DEFAULT_KIND
    """Kind of speculator, or a list of candidates.
    `mtp`: the multi-token prediction layer that a DeepSeek-V3/R1 or GLM-4.5 target ships after its
    last layer. `eagle3`: a one-layer head over three states of the target, with its own vocabulary,
    trained from scratch or from another head. `p_eagle`: an EAGLE-3 head that drafts all tokens in
    one pass. `dflash`: a head that drafts a block of tokens in one pass and whose slots attend to
    each other. `dspark`: a DFlash head whose drafts also depend on the preceding token; needs a
    GPU. docs/explanation/kinds.md compares them. With a list, such as `[mtp, eagle3, ngram]`, each
    kind is trained on the same captured states, and the one that serves the validation traffic
    fastest is evaluated. `ngram` and `suffix`, vLLM's lookups, need no training, so a trained kind
    must be shown to be faster. `lookup`: those of `eval.lookup`. `auto`: these, and every kind that
    the target supports."""

    base: str | None = None
    """The speculator in use today, the baseline of the evaluation.
    A directory, `mtp` (the target's own layer), `ngram`, `suffix` (vLLM's suffix lookup, which also
    searches earlier responses and needs `outrider doctor --install-suffix`) or `none` (no
    speculation). `nano_r1/eagle3` and `nano_r1/p_eagle`, trained on general traffic, ship with the
    package. null: the target's own layer. Training starts from the base if it is of the trained
    kind, otherwise from scratch."""

    base_settings: dict[str, NonNegativeFloat] = {}
    """vLLM's settings of a lookup that is the base, such as `prompt_lookup_max`, as today's
    endpoint has them (`--from-serve-command` copies them). Empty: the best for this
    traffic."""

    head: HeadConfig = HeadConfig()
    """Shape of a head trained from scratch; does not apply to `mtp`."""

    depth: int = Field(default=4, ge=1, le=16)
    """Draft tokens K in training and replay; serving may use fewer."""

    train: Literal["all", "non_routed", "lora"] = "all"
    """Weights to train: `all`, `non_routed` or `lora`.
    `non_routed`: all but the routed experts (97 % of the 11.6 B parameters of R1's MTP layer),
    which keep the base's bytes and have no gradients or optimizer states. `lora`: `non_routed`
    plus low-rank adapters on the routed experts, merged into them at export."""

    lora_rank: int = Field(default=16, ge=8, multiple_of=8)
    """Rank of the `train: lora` adapters; grouped matmuls need multiples of 8."""

    draft_sample_method: Literal["greedy", "probabilistic"] = "greedy"
    """How drafts are chosen in serving, exact replay and the training loss.
    `greedy`: the most likely token, accepted with probability p(argmax q). `probabilistic`: a
    sample, accepted with probability sum min(p, q); the engine keeps the draft's logits."""

    @model_validator(mode="after")
    def _kind_reads_what_is_set(self) -> "SpeculatorConfig":
        names = trainable_names() if self.kind == AUTO else self.kinds
        kinds = [trainable_kind(name) for name in names]
        words = " and ".join(kind.in_words for kind in kinds)
        default = HeadConfig()
        unread = [
            key
            for key in HeadConfig.model_fields
            if not any(key in kind.head_keys for kind in kinds)
            and getattr(self.head, key) != getattr(default, key)
        ]
        if unread:
            raise ValueError(
                f"speculator.head.{unread[0]}: {words} has no such setting; leave"
                f" {', '.join(unread)} out, or choose another speculator.kind"
            )
        if self.base in lookup_names() and self.kind != AUTO and self.base in self.candidates:
            raise ValueError(
                f"speculator.kind: {self.base} is speculator.base, which every kind is compared"
                " with; leave it out of the list"
            )
        lookup = weightless_kind(self.base)
        known = lookup.default_settings if lookup else {}
        unknown = sorted(self.base_settings.keys() - known.keys())
        if unknown:
            known_keys = f"has {', '.join(known)}" if known else "has no settings"
            raise ValueError(
                f"speculator.base_settings.{unknown[0]}: speculator.base = {self.base}"
                f" {known_keys}; leave the key out"
            )
        if kinds and not any(self.train in kind.trains for kind in kinds):
            raise ValueError(
                f"speculator.train = {self.train}: {words} has no routed experts to freeze;"
                " leave the key out"
            )
        return self

    @property
    def hard_labels(self) -> bool:
        """Whether logged tokens alone decide acceptance.

        Greedy drafts are accepted where they equal the logged token, whatever distribution it was
        sampled from. Probabilistic drafts are accepted with a probability that depends on it.
        """
        return self.draft_sample_method == "greedy"

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the trained kinds; `auto` must be resolved first."""
        lookups = (*lookup_names(), ANY_LOOKUP)
        return tuple(name for name in self.candidates if name not in lookups)

    @property
    def candidates(self) -> tuple[str, ...]:
        """`kinds`, and the lookups that are listed; ANY_LOOKUP must be resolved first."""
        return (self.kind,) if isinstance(self.kind, str) else tuple(self.kind)

    @property
    def only_kind(self) -> str:
        """Name of the only kind that is trained."""
        (name,) = self.kinds
        return name

    def of_kinds(self, names: Sequence[str]) -> "SpeculatorConfig":
        """The section for these kinds, without settings that none of them uses."""
        kinds = [trainable_kind(name) for name in names if name not in lookup_names()]
        read = frozenset().union(*(kind.head_keys for kind in kinds))
        head = HeadConfig(**{key: value for key, value in self.head if key in read})
        train = self.train if any(self.train in kind.trains for kind in kinds) else "all"
        kind = names[0] if len(names) == 1 else list(names)
        return self.model_copy(update={"kind": kind, "head": head, "train": train})
