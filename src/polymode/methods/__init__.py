"""Methods: one file each, from networks and data to a posterior.

Every method is a name (`pm.fit("deep_ensemble", ...)`), a class of options
(`pm.methods.DeepEnsemble(num_modes=10)`) and a functional core, `init` and `step`, for training
custom training loops.
"""

from polymode.methods import (
    batch_ensemble,
    checkpoint_ensemble,
    concrete_dropout,
    cyclical_sgmcmc,
    ddu,
    deep_ensemble,
    dropout,
    ema,
    evidential,
    feature_rde,
    forde,
    function_rde,
    hmc,
    ivon,
    laplace,
    laplace_map,
    lit,
    lp_bnn,
    map,
    masksembles,
    mc_batchnorm,
    mile,
    mimo,
    packed,
    sghmc,
    sgld,
    sgnht,
    snapshot,
    sngp,
    swa,
    swag,
    tabm,
    tfb,
    vbll,
    vi,
    weight_rde,
)
from polymode.methods.alpha_divergence import alpha_loss
from polymode.methods.batch_ensemble import BatchEnsemble
from polymode.methods.checkpoint_ensemble import CheckpointEnsemble
from polymode.methods.concrete_dropout import ConcreteDropout
from polymode.methods.cyclical_sgmcmc import CyclicalSGMCMC
from polymode.methods.ddu import DDU
from polymode.methods.deep_ensemble import DeepEnsemble
from polymode.methods.dropout import Dropout
from polymode.methods.ema import EMA
from polymode.methods.evidential import Evidential
from polymode.methods.feature_rde import FeatureRDE
from polymode.methods.fit import fit
from polymode.methods.forde import FoRDE
from polymode.methods.function_rde import FunctionRDE
from polymode.methods.hmc import HMC
from polymode.methods.ivon import IVON
from polymode.methods.laplace import Laplace
from polymode.methods.laplace_map import LaplaceMAP
from polymode.methods.lit import LIT
from polymode.methods.lp_bnn import LPBNN
from polymode.methods.map import MAP
from polymode.methods.masksembles import Masksembles
from polymode.methods.mc_batchnorm import MCBatchNorm
from polymode.methods.method import METHODS, Method, Problem
from polymode.methods.mile import MILE
from polymode.methods.mimo import MIMO
from polymode.methods.option_table import Option, Options, options
from polymode.methods.packed import Packed
from polymode.methods.sghmc import SGHMC
from polymode.methods.sgld import SGLD
from polymode.methods.sgnht import SGNHT
from polymode.methods.snapshot import Snapshot
from polymode.methods.sngp import SNGP
from polymode.methods.swa import SWA
from polymode.methods.swag import SWAG
from polymode.methods.tabm import TabM
from polymode.methods.tfb import TFB
from polymode.methods.vbll import VBLL
from polymode.methods.vi import VI
from polymode.methods.weight_rde import WeightRDE

__all__ = [
    "DDU",
    "EMA",
    "HMC",
    "IVON",
    "LIT",
    "MAP",
    "METHODS",
    "MILE",
    "MIMO",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "SNGP",
    "SWA",
    "SWAG",
    "TFB",
    "BatchEnsemble",
    "LPBNN",
    "lp_bnn",
    "Masksembles",
    "masksembles",
    "mimo",
    "VBLL",
    "CheckpointEnsemble",
    "TabM",
    "batch_ensemble",
    "tabm",
    "CyclicalSGMCMC",
    "VI",
    "ConcreteDropout",
    "DeepEnsemble",
    "Dropout",
    "Evidential",
    "FeatureRDE",
    "FoRDE",
    "FunctionRDE",
    "LaplaceMAP",
    "Laplace",
    "MCBatchNorm",
    "Method",
    "Option",
    "Options",
    "Packed",
    "Problem",
    "Snapshot",
    "WeightRDE",
    "checkpoint_ensemble",
    "cyclical_sgmcmc",
    "alpha_loss",
    "concrete_dropout",
    "ddu",
    "deep_ensemble",
    "dropout",
    "ema",
    "evidential",
    "feature_rde",
    "fit",
    "forde",
    "function_rde",
    "hmc",
    "ivon",
    "laplace_map",
    "laplace",
    "lit",
    "map",
    "mc_batchnorm",
    "mile",
    "options",
    "packed",
    "sghmc",
    "sgld",
    "sgnht",
    "snapshot",
    "sngp",
    "swa",
    "swag",
    "tfb",
    "vbll",
    "vi",
    "weight_rde",
]
