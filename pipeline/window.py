"""The end of a command's window: `--until` and `--max-gpu-hours`.

    end = window_end("06:00", None, gpus=8, now=time.time())      # the next 6 o'clock, Unix time
    end = window_end(None, 16.0, gpus=8, now=time.time())         # two hours from now

At the end, stages stop at a checkpoint, and the same command continues in the next window. The
GPUs count from the command's start: a node that is drained for it serves nothing while logs are
read.
"""

import datetime
import math
import re

from outrider.common.cluster.config import ClusterConfig
from outrider.common.errors import UsageError
from outrider.pipeline.recipe.recipe import Recipe


def window_end(until: str | None, max_gpu_hours: float | None, gpus: int, now: float) -> float:
    """Returns the earlier end in Unix time; infinity without a limit."""
    end = math.inf
    if until is not None:
        end = _next(until, now)
    if max_gpu_hours is not None:
        if not 0 < max_gpu_hours < math.inf:
            raise UsageError(
                f"--max-gpu-hours {max_gpu_hours:g}: give a positive number, such as 16 for two"
                " hours of eight GPUs"
            )
        end = min(end, now + 3600 * max_gpu_hours / gpus)
    return end


def _next(until: str, now: float) -> float:
    """The next time at which clocks of this machine's time zone show HH:MM."""
    match = re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)", until)
    if match is None:
        raise UsageError(f"--until {until}: give a time of this machine's clock, such as 06:00")
    hour, minute = map(int, match.groups())
    today = datetime.datetime.fromtimestamp(now)
    time = today.replace(hour=hour, minute=minute, second=0, microsecond=0)
    if time.timestamp() <= now:
        # A calendar day: 23 or 25 hours where clocks change.
        time += datetime.timedelta(days=1)
    return time.timestamp()


def gpus_of(recipe: Recipe) -> int:
    """Number of GPUs that a run holds: its engines' or its training's, whichever is larger."""
    from outrider.training.distributed.launch import processes_here

    cluster: ClusterConfig = recipe.cluster
    replicas = 1 if cluster.address in (None, "local") else cluster.capture_replicas
    engines = recipe.serving.engine.gpus * replicas
    return max(engines, processes_here(recipe.training, cluster))


def window_in_words(end: float, now: float) -> str:
    """The end as a line of the command's output."""
    time = datetime.datetime.fromtimestamp(end)
    return f"window: until {time:%Y-%m-%d %H:%M}, {(end - now) / 3600:.1f} h"
