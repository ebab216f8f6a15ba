"""Gives Triton a backend named `cpu` in every interpreter that starts with this folder."""

from triton import backends


class _Driver:
    """What vLLM asks of a Triton backend's driver."""

    @staticmethod
    def is_active() -> bool:
        return True


backends.backends["cpu"] = backends.Backend(None, _Driver)


def _with_boolean_masks() -> None:
    """Lets the interpreter load and store where a scalar condition is part of a mask.

    A scalar of one bit is an int8 array in Triton's interpreter, which makes the mask one, but its
    `load` and `store` take booleans only. vLLM 0.32 has such masks in vllm/v1/worker/gpu, in
    spec_decode/ngram/speculator.py:137 and sample/gumbel.py:254.
    """
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    load = InterpreterBuilder.create_masked_load
    store = InterpreterBuilder.create_masked_store

    def boolean(mask):  # type: ignore[no-untyped-def]
        return TensorHandle(mask.data.astype(bool), mask.dtype)

    def create_masked_load(self, ptrs, mask, *args):  # type: ignore[no-untyped-def]
        return load(self, ptrs, boolean(mask), *args)

    def create_masked_store(self, ptrs, value, mask, *args):  # type: ignore[no-untyped-def]
        return store(self, ptrs, value, boolean(mask), *args)

    InterpreterBuilder.create_masked_load = create_masked_load
    InterpreterBuilder.create_masked_store = create_masked_store


_with_boolean_masks()
