"""Shifts of data: 19 corruptions of images and changes of place, wrong labels, shifted tables.

The corruptions are those of ImageNet-C and CIFAR-10-C (D. Hendrycks, T. Dietterich, ICLR 2019) as
batched torch code for grey and colour images of any size; docs/shifts.md says what differs.

Read `shift` first: it registers and applies shifts of images. `pixel_noise`, `blur`, `weather`,
`digital` and `geometry` define them, with the operations of `filters`; `labels` and `tabular` are
for other data.
"""

from polymode.tasks.shifts.blur import (
    defocus_blur,
    gaussian_blur,
    glass_blur,
    motion_blur,
    zoom_blur,
)
from polymode.tasks.shifts.digital import contrast, jpeg, pixelate, saturate
from polymode.tasks.shifts.geometry import DEGREES, elastic_transform, rotation, translation
from polymode.tasks.shifts.labels import label_noise
from polymode.tasks.shifts.pixel_noise import (
    gaussian_noise,
    impulse_noise,
    shot_noise,
    speckle_noise,
)
from polymode.tasks.shifts.shift import (
    MOVING,
    SEVERITIES,
    SHIFTS,
    Shift,
    corrupt,
    corrupt_pair,
)
from polymode.tasks.shifts.tabular import TABLE_SHIFTS, gap_split, shift_table
from polymode.tasks.shifts.weather import brightness, fog, frost, snow, spatter

CORRUPTIONS = (
    "gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise",
    "defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "gaussian_blur",
    "snow", "frost", "fog", "brightness", "spatter",
    "contrast", "elastic_transform", "pixelate", "jpeg", "saturate",
)  # fmt: skip

__all__ = [
    "CORRUPTIONS", "DEGREES", "MOVING", "SEVERITIES", "SHIFTS", "TABLE_SHIFTS", "Shift",
    "brightness", "contrast", "corrupt", "corrupt_pair", "defocus_blur", "elastic_transform",
    "fog", "frost", "gap_split", "gaussian_blur", "gaussian_noise", "glass_blur", "impulse_noise",
    "jpeg", "label_noise", "motion_blur", "pixelate", "rotation", "saturate", "shift_table",
    "shot_noise", "snow", "spatter", "speckle_noise", "translation", "zoom_blur",
]  # fmt: skip
