"""EAGLE-3 heads and n-gram lookup draft for nano R1 and leave its greedy text unchanged."""

import pytest

from outrider.common.errors import OutriderError
from outrider.eval.replay.draft_parity import draft_parity, record
from outrider.serving.config import EngineConfig
from outrider.serving.engine import CAPTURE_EXTENSION, AskedRow, open_engine
from outrider.serving.speculator import Drafting, Speculator, served_directory
from outrider.speculators.kinds import check_speculator, drafter_kind_of, lookup_names
from outrider.speculators.parity import ParityConfig, parity_failure
from tests.dflash_head import write_dflash_head
from tests.eagle3_head import write_eagle3_head
from tests.live.faults import FAULT, FAULT_EXTENSION
from tests.serving.in_process import swap

HEADS = {
    "eagle3": {},
    "eagle3, MLA": {"mla": True},
    "eagle3, normed": {"norm_before_residual": True, "fc_norm": True},
    "eagle3, 3.1": {"norm_output": True, "norm_before_fc": True},
    "p_eagle": {"pard_token": 2, "fc_norm": True},
    "eagle3, MLA, 3.1": {"mla": True, "norm_output": True, "fc_norm": True},
    "eagle3, SpecForge": {
        "eagle_aux_hidden_state_layer_ids": None,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]},  # before 2, 3 and 4
    },
    "eagle3, llama3": {
        "partial_rotary_factor": 0.5,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "dflash": {"heads": 4, "kv_heads": 2},
    "dflash, yarn": {
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
}
SLOW = [*list(HEADS)[1:], *lookup_names()]
PARITY = ParityConfig(prompts=8, max_tokens=24, anchors=120)


@pytest.mark.engine
@pytest.mark.parametrize(
    "kind", ["eagle3", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_it_drafts_and_the_text_is_the_same(engine, target, prompts, k, tmp_path, kind):
    """A head drafts what the unroll drafts at every depth, and so does the next one loaded."""
    rows = [
        AskedRow(row_id=str(n), token_ids=prompt, temperature=0.0, top_p=1.0, max_tokens=40)
        for n, prompt in enumerate(prompts)
    ]
    without = engine.answer(rows)
    if kind == "suffix":
        pytest.importorskip("arctic_inference", reason="suffix lookup needs arctic-inference")
    speculator = Speculator.from_name("ngram")
    environment = {}
    heads = {}
    if kind in lookup_names():
        speculator = Speculator.from_name(kind)
    else:
        for seed, name in enumerate(("first", "second")):
            write = write_dflash_head if kind.startswith("dflash") else write_eagle3_head
            written = write(
                target.directory(), tmp_path / name, seed, layers=(1, 2, 3), **HEADS[kind]
            )
            heads[name] = served_directory(written, target.directory(), tmp_path / "cache")
            check_speculator(heads[name], target.directory())
        speculator = Speculator.from_name(heads["first"])
        assert speculator.swaps_with(Speculator.from_name(heads["second"]))
    if "MLA" in kind:  # one cache for both: the target's attention must be MLA too
        environment = {"VLLM_MLA_DISABLE": "0"}
    settings = EngineConfig(kv_cache_gb=0.25, environment=environment)
    extension = FAULT_EXTENSION if heads else CAPTURE_EXTENSION
    drafting = Drafting(speculator, k)
    with open_engine(target, settings, drafting, extension=extension) as speculating:
        answers = speculating.answer(rows)
        counted = {
            metric.name: metric.value
            for metric in speculating.llm.get_metrics()
            if hasattr(metric, "value")
        }
        spec = speculator.features(target.directory())
        recordings = {}
        for name, directory in heads.items():
            swap(speculating, directory, heads["first"], target.directory())
            recordings[name] = record(speculating, spec, prompts, PARITY.max_tokens)
        if heads:
            fail_at_every_tensor(speculating, heads["first"], target.directory())
            restored = record(speculating, spec, prompts, PARITY.max_tokens)
    assert counted["vllm:spec_decode_num_drafts"] > 0
    equal = sum(a == b for a, b in zip(without, answers, strict=True))
    assert equal >= len(rows) - 1, "more than one near tie differs"
    if kind in lookup_names():  # nano R1 repeats its prompt, so lookups must hit
        assert counted["vllm:spec_decode_num_accepted_tokens"] > 0
    for name, recording in recordings.items():
        found = draft_parity(
            recording=recording,
            speculator_dir=heads[name],
            target_dir=target.directory(),
            k=k,
            parity=PARITY,
        )
        assert found[0][0] > 60
        assert parity_failure(found, PARITY) is None, (name, found)
    if heads:
        # Not step by step: the prompts are cached by now, and near ties of bf16 fall otherwise.
        found = draft_parity(
            recording=restored,
            speculator_dir=heads["second"],
            target_dir=target.directory(),
            k=k,
            parity=PARITY,
        )
        assert parity_failure(found, PARITY) is None, ("after faults", found)
        crossed = draft_parity(
            recording=recordings["second"],
            speculator_dir=heads["first"],
            target_dir=target.directory(),
            k=k,
            parity=PARITY,
        )
        assert parity_failure(crossed, PARITY) is not None


def fail_at_every_tensor(engine, directory, target_dir):
    """Each load ends early, and what the engine drafted with is loaded again."""
    (before,) = engine.llm.collective_rpc("speculator_report")
    for after in range(len(list(drafter_kind_of(directory).swap_tensors(directory))) + 1):
        engine.llm.collective_rpc("next_load_fails_after", args=(after,))
        with pytest.raises(OutriderError, match=FAULT):
            swap(engine, directory, directory, target_dir)
        (now,) = engine.llm.collective_rpc("speculator_report")
        assert now["directory"] == before["directory"]
