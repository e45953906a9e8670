"""Conversions: the user's network as a member of an efficient ensemble.

A conversion changes modules of a network in place and keeps their names, so that everything else
sees an ordinary network. It is described by a `Conversion`, a kind and numbers that are safe in
JSON: a posterior's files hold it, and `pm.load(path, net=original)` converts the original again.
`conversion.py` has what all kinds share; read it first. Each kind is one file with `plan`, which
looks at a network and one pass through it, and `apply`, which changes a network as planned.
"""

from polymode.nets.conversion.conversion import (
    Conversion,
    conversion_from,
    conversion_of,
    convert,
    convert_networks,
)

__all__ = ["Conversion", "conversion_from", "conversion_of", "convert", "convert_networks"]
