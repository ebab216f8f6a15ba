"""The hook around a scheduler: its number of drafts follows the file."""

from types import SimpleNamespace

from outrider.serving.config import EngineConfig
from outrider.serving.vllm_hooks.drafts_file import DRAFTS, SCHEDULER, DraftsFile, following


def test_the_number_of_drafts_changes_with_the_next_step(tmp_path):
    path = tmp_path / "drafts.json"
    path.write_text("1")  # of an earlier server
    file = DraftsFile(path)
    engine = file.followed(EngineConfig())
    assert engine.environment == {DRAFTS: str(path)}
    assert engine.extra_arguments == {"scheduler_cls": SCHEDULER}
    scheduler = SimpleNamespace(num_spec_tokens=3, dynamic_sd_lookup=[3, 3, 3, 3, 3])
    step = following(lambda scheduler: scheduler.dynamic_sd_lookup[1:], str(path))
    assert step(scheduler) == [3] * 4  # as it was started
    for drafts, lookup in ((2, [2] * 4), (0, [0] * 4), ([(1, 2, 3), (3, 3, 0)], [3, 3, 0, 0])):
        file.draft(drafts)
        assert step(scheduler) == step(scheduler) == lookup
