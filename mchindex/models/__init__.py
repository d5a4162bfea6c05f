"""Models: backbones, hashing methods, the agent's policy, and MCHModel, which joins them."""

import mchindex.needs_torch  # noqa: F401
from mchindex.errors import ModelError
from mchindex.inference.region_codes import Encoded, RegionCodes
from mchindex.models.backbones import BACKBONES, Backbone, create_backbone, register_backbone
from mchindex.models.hashing import HashMethod
from mchindex.models.mch import MCHModel
from mchindex.models.methods import METHODS, create_method, register_method
from mchindex.models.policy import Policy
from mchindex.models.settings import Settings
from mchindex.models.views import Views

__all__ = [
    "BACKBONES",
    "METHODS",
    "Backbone",
    "Encoded",
    "HashMethod",
    "MCHModel",
    "ModelError",
    "Policy",
    "RegionCodes",
    "Settings",
    "Views",
    "create_backbone",
    "create_method",
    "register_backbone",
    "register_method",
]
