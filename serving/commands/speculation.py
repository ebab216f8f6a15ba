"""The endpoint's current speculator, from vLLM's `speculative_config`, as recipe values.

    values, words = read_speculation("serve.sh", {"method": "mtp", "num_speculative_tokens": 1}, m)
    values        # {"eval": {"current_k": 1}}

Every key of vLLM 0.32's `SpeculativeConfig` is on one list: read, refused, harmless, or named in
the description, because the base is measured without it.
"""

from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.serving.vllm_flags import LOSSY, PLUGIN_FLAGS
from outrider.serving.vllm_version import WRITTEN_FOR
from outrider.speculators.kinds import weightless_kind

READ = frozenset({"method", "model", "num_speculative_tokens", "draft_sample_method"})
"""Keys that become recipe values."""

NUMBERS = ("num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min")
"""Keys of integers that become recipe values."""

REFUSED = {"synthetic_acceptance_rates", "synthetic_acceptance_length"}
"""Keys that make drafts be accepted without regard to the target."""

HARMLESS = frozenset({
    "attention_backend", "code_revision", "draft_load_config", "draft_tensor_parallel_size",
    "enforce_eager", "disable_padded_drafter_batch", "moe_backend", "use_local_argmax_reduction",
    # Set by vLLM itself.
    "draft_model_config", "draft_parallel_config", "target_model_config",
    "target_parallel_config",
    # Of earlier releases (vLLM 0.8 to 0.10 have the last two in the section itself).
    "speculative_token_tree", "disable_logprobs", "disable_mqa_scorer", "disable_log_stats",
    "enable_chunked_prefill",
})  # fmt: skip
"""Keys without effect on which drafts are proposed and accepted."""

NAMED = frozenset({
    "disable_eagle_block_drop", "dspark_draft_topk", "enable_adaptive_verification",
    "index_share_for_mtp_iteration", "kv_cache_dtype", "max_model_len",
    "num_speculative_tokens_per_batch_size", "parallel_drafting", "prompt_lookup_max",
    "prompt_lookup_min", "quantization", "rejection_sample_method", "revision",
    "suffix_decoding_max_cached_requests", "suffix_decoding_max_spec_factor",
    "suffix_decoding_max_tree_depth", "suffix_decoding_min_token_prob", "tensor_parallel_size",
    "use_heterogeneous_vocab",
    # Of earlier releases.
    "acceptance_method", "disable_by_batch_size", "posterior_alpha", "posterior_threshold",
})  # fmt: skip
"""Keys that may change what the endpoint accepts, or how fast, and that have no recipe key."""

METHODS = {"[ngram]": "ngram", "ngram_gpu": "ngram"}
"""Other names of methods; in one model runner, both n-gram methods draft the same tokens."""

MTP = "mtp"

OF_VLLM = frozenset({
    "custom_class", "dflash", "draft_model", "dspark", "eagle", "eagle3", "extract_hidden_states",
    "medusa", "mlp_speculator", MTP, "ngram", "suffix",
})  # fmt: skip
"""Methods of vLLM 0.32 (`SpeculativeMethod`), next to NAME_mtp, which it reads as `mtp`."""

IN_NAMES = {"eagle-": "eagle", "eagle3": "eagle3", "dflash": "dflash", "dspark": "dspark"}
"""Methods that vLLM 0.32 takes from a drafter's name if the command names none
(`SpeculativeConfig.__post_init__`), in its order."""

OF_NO_METHOD = "its MTP layer, as vLLM before 0.10 inferred"
OF_NAMED_MODEL = "a draft model, or the head that its config.json describes"
"""What drafts if the command names no method."""

ARCTIC = "arctic"
"""The method of the plug-in ArcticInference."""

OF_ARCTIC = frozenset({"enable_suffix_decoding"})
"""Keys that ArcticInference adds."""


def read_speculation(
    source: str, section: dict[str, Any], target: str
) -> tuple[dict[str, Any], str]:
    """Recipe values of `eval` and `speculator`, and a description of what the endpoint runs."""
    _check_keys(source, section)
    # Flags of releases before 0.8 are texts.
    numbers = {key: int(section[key]) for key in NUMBERS if str(section.get(key)).isdigit()}
    section = section | numbers
    values: dict[str, Any] = {}
    model = section.get("model")
    method = section.get("method")
    if model in METHODS:  # of releases before 0.8
        method = model
        model = None
    method = _method_of(source, method, model)
    k = section.get("num_speculative_tokens")
    # vLLM takes it from the head's configuration: `n_predict`, or the block size of DSpark.
    number = "the default number of" if k is None else k
    drafter = method or (OF_NO_METHOD if model in (None, target) else OF_NAMED_MODEL)
    words = f"{drafter}, {number} drafts per step"
    if k is None:
        words += " (set eval.current_k to num_spec_tokens in vLLM's log)"
    if isinstance(k, int):
        values["eval"] = {"current_k": k}
    speculator: dict[str, Any] = {}
    lookup = weightless_kind(method)
    if lookup is not None and lookup.speculates:
        speculator["base"] = method
        speculator["base_settings"] = dict(lookup.settings_of(section))
    elif model and model != target:
        words += f", {model}"
        if Path(model).expanduser().is_dir():
            speculator["base"] = model
        else:
            words += " (no directory here: name a copy of it with speculator.base)"
    if section.get("draft_sample_method") is not None:
        speculator["draft_sample_method"] = section["draft_sample_method"]
    if speculator:
        values["speculator"] = speculator
    return values, words + _left_out(section, method)


def check_plugin(source: str, section: dict[str, Any], unknown: list[str]) -> None:
    """Refuses the command of ArcticInference, with all that only this plug-in has."""
    if section.get("method") != ARCTIC and not OF_ARCTIC & section.keys():
        return
    keys = [f"speculative_config.{key}" for key in sorted(OF_ARCTIC & section.keys())]
    method = ["speculative_config.method = arctic"] if section.get("method") == ARCTIC else []
    names = ", ".join([*method, *keys, *(flag for flag in unknown if flag in PLUGIN_FLAGS)])
    raise OutriderError(
        f"{source}: {names}: of the plug-in ArcticInference, and vLLM {WRITTEN_FOR} has no class"
        " for its speculators; give the command without these, with --tensor-parallel-size at the"
        " number of GPUs (Ulysses' degree times that of tensor parallelism), and without its"
        " speculator, or with a method of vLLM, such as suffix or eagle3"
    )


def _method_of(source: str, method: Any, model: Any) -> Any:
    """The method under vLLM's name, which it may take from the drafter's; None if unknown."""
    method = METHODS.get(str(method), method)
    if method is None:
        in_name = (name for part, name in IN_NAMES.items() if part in str(model).lower())
        return next(in_name, None)
    if str(method).endswith(f"_{MTP}"):
        return MTP
    if method not in OF_VLLM:
        raise OutriderError(
            f"{source}: speculative_config.method = {method}: vLLM {WRITTEN_FOR} has no such"
            f" method, but {', '.join(sorted(OF_VLLM))}; correct it, or remove speculative_config"
        )
    return method


def _check_keys(source: str, section: dict[str, Any]) -> None:
    """Refuses keys that vLLM does not have, and lossy acceptance."""
    unknown = sorted(section.keys() - READ - REFUSED - HARMLESS - NAMED)
    if unknown:
        raise OutriderError(
            f"{source}: speculative_config.{unknown[0]}: vLLM {WRITTEN_FOR} has no such key, so its"
            " effect is unknown; correct the spelling, or remove it"
        )
    lossy = sorted(REFUSED & section.keys())
    if section.get("rejection_sample_method") == "synthetic":
        lossy.append("rejection_sample_method")
    if section.get("acceptance_method") not in (None, "rejection_sampler"):
        lossy.append("acceptance_method")
    if lossy:
        raise OutriderError(
            f"{source}: speculative_config.{lossy[0]}: {LOSSY}; remove it from the command"
        )


def _left_out(section: dict[str, Any], method: str | None) -> str:
    """Names keys that the measured base lacks, and what it has instead."""
    words = ""
    lookup = weightless_kind(method)
    read = lookup.settings_of(section).keys() if lookup else ()
    served_as = lookup.runner_settings("v2").get("method") if lookup else None
    if served_as not in {None, section.get("method")}:
        words += f"; in model runner V2 measured as {served_as}, with async scheduling"
    kept_out = sorted((section.keys() & NAMED) - set(read))
    if kept_out:
        words += f"; left out, although the measured base may differ: {', '.join(kept_out)}"
    harmless = sorted(section.keys() & HARMLESS)
    if harmless:
        words += f"; left out, without effect on acceptance: {', '.join(harmless)}"
    return words
