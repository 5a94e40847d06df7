"""Audits of evaluation loops: planted samples show which sample a loop got wrong."""

from disteval.audit.case import Case
from disteval.audit.findings import AuditReport, LoopFinding
from disteval.audit.runner import Audit, audit
from disteval.audit.sampler import audit_sampler
from disteval.errors import AuditError

__all__ = ["Audit", "AuditError", "AuditReport", "Case", "LoopFinding", "audit", "audit_sampler"]
