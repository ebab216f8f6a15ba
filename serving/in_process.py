"""The engine of capture and checks, from the settings of the served one.

    engine, changes = in_process(recipe.serving.engine)
    for change in changes:
        print(change)       # prefix_caching off: a cached position has no states

It runs in Outrider's process and reads hidden states, so it cannot have every setting of a server.
What differs is named; the served engine keeps its settings.
"""

from outrider.serving.config import EngineConfig

CONTRADICTS = {
    "prefill_context_parallel_size": "it divides a prompt's states over ranks",
    "kv_transfer_config": "positions from another engine are not computed",
    "kv_offloading_size": "offloaded prefixes are not computed again",
    "kv_offloading_backend": "offloaded prefixes are not computed again",
    "kv_sharing_fast_prefill": "it skips layers of the prompt",
    "data_parallel_size_local": "there is one engine",
    "data_parallel_backend": "there is one engine",
    "data_parallel_rpc_port": "there is one engine",
    "enable_dbo": "it overlaps data-parallel engines, of which there is one",
    "all2all_backend": "it connects data-parallel engines, of which there is one",
    "enable_elastic_ep": "it adds data-parallel engines, of which there is one",
    "optimization_level": "the engine is eager",
    "cudagraph_capture_sizes": "the engine is eager",
    "max_cudagraph_capture_size": "the engine is eager",
    "compilation_config": "the engine is eager",
    "logits_processors": "logits are read as the target computes them",
}
"""vLLM's arguments that contradict reading states, and why."""


def in_process(engine: EngineConfig) -> tuple[EngineConfig, list[str]]:
    """The settings for an engine in this process, and one line for each that differs."""
    update: dict[str, object] = {}
    changes = []
    if engine.prefix_caching:
        update["prefix_caching"] = False
        changes.append("prefix_caching off: a cached position has no states")
    if engine.mode != "eager":
        update["mode"] = "eager"
        changes.append("mode eager: it starts in a fraction of the time and prefills as fast")
    if engine.data_parallel > 1:
        ranks = engine.tensor_parallel * engine.data_parallel
        update |= {"tensor_parallel": ranks, "data_parallel": 1}
        changes.append(
            f"tensor_parallel {ranks} instead of {engine.tensor_parallel} x data_parallel"
            f" {engine.data_parallel}: vLLM runs data-parallel engines in servers only"
        )
    refused = {name: why for name, why in CONTRADICTS.items() if name in engine.extra_arguments}
    if refused:
        kept = {k: v for k, v in engine.extra_arguments.items() if k not in refused}
        update["extra_arguments"] = kept
        changes += [f"without {name}: {why}" for name, why in refused.items()]
    return engine.model_copy(update=update), changes
