"""Imported before ranks are forked: what torch's compiler imports, and finds out of this machine, for 4.6 s in each."""

import shutil

from torch._inductor import compile_fx  # noqa: F401
from torch._inductor.cpu_vec_isa import pick_vec_isa

if shutil.which("g++"):
    pick_vec_isa()
