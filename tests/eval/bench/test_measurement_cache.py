import json
import os
import stat

from outrider.eval.bench.measurement_cache import Steps


def test_a_step_is_measured_once_while_its_inputs_are_the_same(tmp_path):
    calls = []

    def work():
        calls.append(1)
        return {"n": len(calls)}

    assert (
        Steps(tmp_path, {"a": 1}).run("speed", work)
        == Steps(tmp_path, {"a": 1}).run("speed", work)
        == {"n": 1}
    )
    assert Steps(tmp_path, {"a": 2}).run("speed", work) == {"n": 2}


def test_responses_are_their_owners_alone_from_the_first_byte_on(tmp_path, monkeypatch):
    seen = []
    rename = os.rename
    monkeypatch.setattr(
        "pathlib.Path.rename",
        lambda path, target: (seen.append(path.stat().st_mode), rename(path, target)),
    )
    previous = os.umask(0o022)
    try:
        Steps(tmp_path / "evaluation" / "steps", {}).put("verification_outputs", {"token_ids": [1]})
    finally:
        os.umask(previous)
    directory = tmp_path / "evaluation" / "steps"
    path = directory / "verification_outputs.json"
    assert json.loads(path.read_text())["result"] == {"token_ids": [1]}
    assert [stat.S_IMODE(mode) for mode in (*seen, path.stat().st_mode)] == [0o600, 0o600]
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
