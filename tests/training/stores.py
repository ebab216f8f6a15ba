"""Feature stores that fail in rank 1, for `feature_store` in a training spec."""

import os
import time

from outrider.common.errors import OutriderError
from outrider.data.features.feature_store import Features, FeatureStore


class MistakeInRank1(FeatureStore):
    """Rank 1 raises a user's mistake at the first row; rank 0 is busy for ten minutes."""

    def read(self, sequence_id: str) -> Features:
        if os.environ["RANK"] == "1":
            raise OutriderError(
                "features/shard-00003.safetensors: 12 bytes, the manifest says 640 bytes;"
                " capture again"
            )
        time.sleep(600)
        return super().read(sequence_id)


class BugInRank1(FeatureStore):
    """Rank 1 raises an unexpected error in the middle of a step."""

    reads = 0

    def read(self, sequence_id: str) -> Features:
        self.reads += 1
        if os.environ["RANK"] == "1" and self.reads > 6:
            raise RuntimeError("a kernel failed")
        return super().read(sequence_id)


class KilledInRank1(FeatureStore):
    """Rank 1 is killed without a message, as by the out-of-memory killer."""

    reads = 0

    def read(self, sequence_id: str) -> Features:
        self.reads += 1
        if os.environ["RANK"] == "1" and self.reads > 6:
            os.kill(os.getpid(), 9)
        return super().read(sequence_id)
