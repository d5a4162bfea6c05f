"""Models: backbones, base hashing methods, the agent's policy, and MCHModel, which joins them."""

from mchindex.errors import ModelError
from mchindex.models.hashing import HashMethod
from mchindex.models.mch import MCHModel
from mchindex.models.methods import METHODS, create_method
from mchindex.models.policy import Policy
from mchindex.models.region_codes import Encoded, RegionCodes

__all__ = [
    "METHODS",
    "Encoded",
    "HashMethod",
    "MCHModel",
    "ModelError",
    "Policy",
    "RegionCodes",
    "create_method",
]
