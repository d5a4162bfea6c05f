"""Models: backbones, base hashing methods, the agent's policy, and MCHModel, which joins them."""

from mchindex.models.hashing import HashMethod
from mchindex.models.mch import Encoded, MCHModel, ModelError, RegionCodes
from mchindex.models.methods import METHODS, create_method
from mchindex.models.policy import Policy

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
