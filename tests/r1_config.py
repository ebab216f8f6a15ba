"""The shape of DeepSeek-R1 from its published config.json, for tests without its weights."""

from outrider.common.files import read_json
from outrider.speculators.kinds import trainable_kind
from outrider.speculators.size import DrafterSize, drafter_size
from tools.rehearsal.rehearse import R1_CONFIG

R1 = read_json(R1_CONFIG)


def mtp_size(config: dict) -> DrafterSize:
    """The size of the MTP layer of a target with this config.json."""
    return drafter_size(trainable_kind("mtp"), config, config)
