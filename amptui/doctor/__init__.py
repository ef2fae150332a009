"""What this machine can do for mixed-precision training, part by part, with a mend for each trouble."""

from amptui.doctor.report import doctor

__all__ = ["doctor"]
