"""Feature stores that fail in one process: named by import string in a run's spec, like the real one."""

import os
import time

from outrider.common.errors import OutriderError
from outrider.data.features.feature_store import Features, FeatureStore


class MistakeInRank1(FeatureStore):
    """In rank 1 the user's mistake shows at the first row; rank 0 is busy for longer than anyone would wait."""

    def read(self, sequence_id: str) -> Features:
        if os.environ["RANK"] == "1":
            raise OutriderError(
                "features/shard-00003.safetensors: 12 bytes, the manifest says 640 bytes; capture again"
            )
        time.sleep(600)
        return super().read(sequence_id)


class BugInRank1(FeatureStore):
    """An error of the program, in the middle of a step."""

    reads = 0

    def read(self, sequence_id: str) -> Features:
        self.reads += 1
        if os.environ["RANK"] == "1" and self.reads > 6:
            raise RuntimeError("a kernel failed")
        return super().read(sequence_id)


class KilledInRank1(FeatureStore):
    """Gone without a word, as for want of memory."""

    reads = 0

    def read(self, sequence_id: str) -> Features:
        self.reads += 1
        if os.environ["RANK"] == "1" and self.reads > 6:
            os.kill(os.getpid(), 9)
        return super().read(sequence_id)
