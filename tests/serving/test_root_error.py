"""The root cause in the log of a server that failed, from a log of vLLM 0.32 (shortened)."""

import pytest

from outrider.serving.server import root_error

LOG = """\
(APIServer pid=2876) INFO 11-24 07:37:20 [model.py:733] Resolved architecture: DeepseekV3ForCausalLM
Traceback (most recent call last):
  File "vllm/plugins/__init__.py", line 69, in load_plugins_by_group
ImportError: somebody else's plugin, which vLLM leaves out
(Worker pid=10436) ERROR 11-24 07:37:41 [multiproc_executor.py:1063] WorkerProc hit an exception.
(Worker pid=10436) ERROR 11-24 07:37:41 [multiproc_executor.py:1063] Traceback (most recent call last):
(Worker pid=10436) ERROR 11-24 07:37:41 [multiproc_executor.py:1063]   File "vllm/v1/worker/cpu_worker.py", line 219, in determine_available_memory
(EngineCore pid=3674) INFO 11-24 07:37:41 [utils.py:347] Using LBHNC KV cache layout.
(Worker pid=10436) ERROR 11-24 07:37:41 [multiproc_executor.py:1063]     raise ValueError(
(Worker pid=10436) ERROR 11-24 07:37:41 [multiproc_executor.py:1063] ValueError: Available memory on node 0 (0.4/23.54 GiB) on kv cache allocation
(Worker pid=10436) ERROR 11-24 07:37:41 [multiproc_executor.py:1063] Traceback (most recent call last):
(EngineCore pid=3674) ERROR 11-24 07:37:41 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=3674) ERROR 11-24 07:37:41 [core.py:1510] RuntimeError: Worker failed with error
Traceback (most recent call last):
  File "vllm/v1/engine/utils.py", line 1431, in wait_for_engine_startup
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
resource_tracker.py:254: UserWarning: There appear to be 1 leaked shared_memory objects
"""  # noqa: E501


@pytest.mark.parametrize(
    ("log", "found"),
    [
        (
            LOG,
            [
                "Traceback (most recent call last):",
                '  File "vllm/v1/worker/cpu_worker.py", line 219, in determine_available_memory',
                "    raise ValueError(",
                "ValueError: Available memory on node 0 (0.4/23.54 GiB) on kv cache allocation",
            ],
        ),
        ("\n".join(LOG.splitlines()[-4:]), LOG.splitlines()[-4:-1]),
        ("vllm: error: unknown argument\n", ["vllm: error: unknown argument"]),
    ],
    ids=["engine", "server", "neither"],
)
def test_it_is_the_first_traceback_of_the_engine_or_the_server_s_last_error_or_the_end(
    log: str, found: list[str]
) -> None:
    assert root_error(log).splitlines() == found
