import pytest

from outrider.common.errors import OutriderError
from outrider.eval.lossless.task_accuracy import load_task


def test_a_task_is_found_by_its_import_string():
    assert load_task("posixpath:join")("a", "b") == "a/b"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("posixpath", "module:function"),
        ("no_such_module:f", "cannot import"),
        ("posixpath:jion", "no function jion; it has .*join"),
    ],
)
def test_a_wrong_name_says_what_is_wrong(name, message):
    with pytest.raises(OutriderError, match=message):
        load_task(name)
