"""A verdict on a network that somebody already has: `pm.audit(net, test)`.

Read `audit` first: it makes a `Subject` (subject.py), lets every check look at it (checks/, one
file for each question), corrects their tests for how many there are, and sorts what they say.
`finding` is what a check returns, `page` writes it up as HTML, Markdown and JSON.
"""

from polymode.audits.audit import Audit, audit
from polymode.audits.finding import SEVERITIES, Evidence, Finding
from polymode.audits.subject import Subject

__all__ = ["SEVERITIES", "Audit", "Evidence", "Finding", "Subject", "audit"]
