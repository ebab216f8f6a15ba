"""The columns of the table of sequences, as the ingest's workers write it; data/sequences.py reads it.

pa.record_batch(columns, schema=SCHEMA)
"""

import pyarrow as pa

SCHEMA = pa.schema(
    {
        "sequence_id": pa.string(),
        "session": pa.string(),
        "tenant": pa.string(),
        "route": pa.string(),
        "model": pa.string(),
        "time": pa.float64(),
        "token_ids": pa.list_(pa.int32()),
        "completion_start": pa.int32(),
        "fidelity": pa.string(),
        "finish_reason": pa.string(),
        "temperature": pa.float32(),
        "top_p": pa.float32(),
        "weight": pa.float32(),
        "prompt_text": pa.string(),
    }
)
"""`time` is in Unix seconds, null where the log has none. An empty text was not logged."""
