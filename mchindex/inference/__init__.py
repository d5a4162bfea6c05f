"""Models as they are used: pixels in, codes out, without torch.

A saved model has its networks as ONNX graphs, which ONNX Runtime runs. What follows the networks
is NumPy.
"""

from mchindex.inference.encoder import Encoder
from mchindex.inference.model import GraphModel, load_model
from mchindex.inference.region_codes import Encoded, RegionCodes

__all__ = ["Encoded", "Encoder", "GraphModel", "RegionCodes", "load_model"]
