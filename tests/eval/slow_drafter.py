"""A slower drafter with the same drafts: its layer runs repeatedly, the last result counts."""

from pathlib import Path
from typing import Any

from outrider.serving.vllm_hooks.drafter_swap import DrafterExtension

REPEATS = 25
SLOW_DRAFTER_EXTENSION = "tests.eval.slow_drafter.SlowDrafterExtension"


class SlowDrafterExtension(DrafterExtension):
    """Replaces the engine's extension; slow while weights of a directory `slow` are loaded."""

    def swap_drafter(self, directory: str) -> dict[str, Any]:
        """Loads the weights, and sets the pace."""
        for module in self.model_runner.drafter.model.modules():
            if type(module).__name__ != "DeepSeekMultiTokenPredictorLayer":
                continue
            own = type(module).forward.__get__(module)

            def repeated(*args: Any, own: Any = own, **kwargs: Any) -> Any:
                for _ in range(REPEATS):
                    own(*args, **kwargs)
                return own(*args, **kwargs)

            module.forward = repeated if Path(directory).name == "slow" else own
        return super().swap_drafter(directory)
