"""Methods: one file each, from networks and data to a posterior.

Every method is a name (`pm.fit("deep_ensemble", ...)`), a class of options
(`pm.methods.DeepEnsemble(num_modes=10)`) and a functional core, `init` and `step`, for training
custom training loops.
"""

from polymode.methods import (
    deep_ensemble,
    dropout,
    feature_rde,
    forde,
    function_rde,
    ivon,
    lit,
    map,
    sghmc,
    swag,
    vi,
    weight_rde,
)
from polymode.methods.alpha_divergence import alpha_loss
from polymode.methods.deep_ensemble import DeepEnsemble
from polymode.methods.dropout import Dropout
from polymode.methods.feature_rde import FeatureRDE
from polymode.methods.fit import fit
from polymode.methods.forde import FoRDE
from polymode.methods.function_rde import FunctionRDE
from polymode.methods.ivon import IVON
from polymode.methods.lit import LIT
from polymode.methods.map import MAP
from polymode.methods.method import METHODS, Method, Problem
from polymode.methods.option_table import Option, Options, options
from polymode.methods.sghmc import SGHMC
from polymode.methods.swag import SWAG
from polymode.methods.vi import VI
from polymode.methods.weight_rde import WeightRDE

__all__ = [
    "IVON",
    "LIT",
    "MAP",
    "METHODS",
    "SGHMC",
    "SWAG",
    "VI",
    "DeepEnsemble",
    "Dropout",
    "FeatureRDE",
    "FoRDE",
    "FunctionRDE",
    "Method",
    "Option",
    "Options",
    "Problem",
    "WeightRDE",
    "alpha_loss",
    "deep_ensemble",
    "dropout",
    "feature_rde",
    "fit",
    "forde",
    "function_rde",
    "ivon",
    "lit",
    "map",
    "options",
    "sghmc",
    "swag",
    "vi",
    "weight_rde",
]
