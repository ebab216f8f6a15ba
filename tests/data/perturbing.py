"""A worker whose weights can be changed while it runs: the engine of another revision, without another start."""

import torch

from outrider.serving.capture_extension import CaptureExtension


class PerturbingExtension(CaptureExtension):
    """Named as `worker_extension_cls`."""

    def perturb(self, share: float) -> int:
        """Adds noise of `share` of its standard deviation to every matrix that lies open; returns how many there are."""
        generator = torch.Generator().manual_seed(0)
        changed = 0
        for parameter in self.model_runner.model.parameters():
            if parameter.ndim > 1 and parameter.numel():
                noise = torch.randn(parameter.shape, generator=generator) * parameter.float().std() * share
                parameter.data.add_(noise.to(parameter.dtype))
                changed += 1
        return changed
