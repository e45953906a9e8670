"""SWAG: `swag` is the method, `snapshots` makes its posterior from networks of another run."""

from polymode.methods.swag.snapshots import from_snapshots
from polymode.methods.swag.swag import SWAG, State, finish, init, snapshot_steps, step

__all__ = ["SWAG", "State", "finish", "from_snapshots", "init", "snapshot_steps", "step"]
