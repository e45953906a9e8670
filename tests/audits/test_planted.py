"""Planted defects of the benchmark are named, one network of each kind."""

from __future__ import annotations

import pytest

from benchmarks import audits


@pytest.mark.parametrize(
    ("source", "defect"),
    [
        (source, defect)
        for source in ("simulated tables", "simulated tables of 4,000 rows", "simulated images")
        for defect in audits.SOURCES[source][2]
    ],
)
def test_a_planted_defect_is_named_and_a_sound_network_is_not_blamed(source, defect) -> None:
    make, _, plants = audits.SOURCES[source]
    case, wanted = make(1), ""
    if plants[defect] is not None:
        case, wanted = plants[defect](case)
    names = [finding.name for finding in case.audit(1).problems]
    assert wanted in names if wanted else not names
