"""Maps torch's element types to the engine's."""

import torch

from chorale.runners.engine.library import DataType

DTYPES = {
    torch.float32: DataType.FLOAT32,
    torch.float64: DataType.FLOAT64,
    torch.float16: DataType.FLOAT16,
    torch.bfloat16: DataType.BFLOAT16,
    torch.int32: DataType.INT32,
    torch.int64: DataType.INT64,
    torch.int8: DataType.INT8,
    torch.uint8: DataType.UINT8,
}
"""Types that plans and programs support; tables use DataType's names in lower case."""
