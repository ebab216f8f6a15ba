import subprocess
import sys

import pytest
from pydantic import ValidationError

from outrider.data.config import SplitConfig


def test_a_split_must_leave_sessions_to_train_on():
    with pytest.raises(
        ValidationError, match=r"heldout_fraction = 1.1 leaves no session to train on"
    ):
        SplitConfig(validation_fraction=0.5, heldout_fraction=0.6)


def test_config_imports_nothing_slow():
    code = (
        "import sys, outrider.data.config\n"
        "assert not {'torch', 'datasets', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
