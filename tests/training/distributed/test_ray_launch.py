"""Training on a Ray cluster: which processes run there, their number, messages and output."""

import pytest

from outrider.common.cluster.config import ClusterConfig
from outrider.training.config import TrainingConfig
from outrider.training.distributed.launch import _uses_ray


@pytest.mark.parametrize(
    ("address", "launcher", "processes", "expected"),
    [
        (None, None, 2, False),
        ("local", None, 2, True),
        ("local", None, 1, False),
        ("auto", None, 1, True),
        ("10.0.0.1:6379", "srun python", 2, False),
    ],
)
def test_ray_train_is_the_launcher_of_a_cluster(
    address: str | None, launcher: str | None, processes: int, expected: bool
) -> None:
    training = TrainingConfig(launcher=launcher, processes=processes, rows_per_step=2)
    assert _uses_ray(ClusterConfig(address=address), training) == expected
