"""The shape of DeepSeek-R1 from its published config.json, for tests without its weights."""

from outrider.common.files import read_json
from outrider.pipeline.rehearsal.settings import R1_CONFIG

R1 = read_json(R1_CONFIG)
