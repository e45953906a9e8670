"""The real data folder, settled before the other tests' settings give every cache a new place."""

from __future__ import annotations

import os

from polymode.tasks.files import data_folder

os.environ["POLYMODE_DATA"] = str(data_folder())
