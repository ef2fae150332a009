"""What this machine can do for mixed-precision training; each problem comes with a hint."""

from amptui.reports.doctor.report import doctor

__all__ = ["doctor"]
