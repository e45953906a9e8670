"""Methods: one file each, from networks and data to a posterior.

Every method is a name (`pm.fit("deep_ensemble", ...)`), a class of options
(`pm.methods.DeepEnsemble(num_modes=10)`) and a functional core, `init` and `step`, for training
loops of one's own.
"""

from polymode.methods import deep_ensemble, map
from polymode.methods.deep_ensemble import DeepEnsemble
from polymode.methods.fit import fit
from polymode.methods.map import MAP
from polymode.methods.method import METHODS, Method, Problem

__all__ = ["MAP", "METHODS", "DeepEnsemble", "Method", "Problem", "deep_ensemble", "fit", "map"]
