"""The hook around a scheduler: its number of drafts follows the file."""

from types import SimpleNamespace

from outrider.serving.config import EngineConfig
from outrider.serving.vllm_hooks.drafts_file import (
    DRAFTS,
    SCHEDULER,
    DraftCountFile,
    fit_by_step,
    follow_file,
)


def test_the_number_of_drafts_changes_with_the_next_step(tmp_path):
    path = tmp_path / "drafts.json"
    path.write_text("1")  # of an earlier server
    file = DraftCountFile(path)
    engine = file.engine_settings(EngineConfig())
    assert engine.environment == {DRAFTS: str(path)}
    assert engine.extra_arguments == {"scheduler_cls": SCHEDULER}
    scheduler = SimpleNamespace(num_spec_tokens=3, dynamic_sd_lookup=[3, 3, 3, 3, 3])
    step = follow_file(lambda scheduler: scheduler.dynamic_sd_lookup[1:], str(path))
    assert step(scheduler) == [3] * 4  # as it was started
    for drafts, lookup in ((2, [2] * 4), (0, [0] * 4), ([(1, 2, 3), (3, 3, 0)], [3, 3, 0, 0])):
        file.draft(drafts)
        assert step(scheduler) == step(scheduler) == lookup


def test_a_step_s_own_drafts_must_fit_into_the_context(monkeypatch):
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    for name in ("sample_tokens", "_input_fits_in_drafter"):
        monkeypatch.setattr(GPUModelRunner, name, vars(GPUModelRunner)[name])  # restored at the end
    fit_by_step()
    runner = SimpleNamespace(
        num_spec_tokens=24,
        drafts_of_step=4,
        effective_drafter_max_model_len=512,
        speculative_config=SimpleNamespace(use_dflash=lambda: False),
    )
    for length, fits in ((508, True), (509, False)):
        metadata = SimpleNamespace(max_seq_len=length)
        assert GPUModelRunner._input_fits_in_drafter(runner, metadata) is fits
    assert not GPUModelRunner._input_fits_in_drafter(runner, None)
    assert runner.num_spec_tokens == 24
