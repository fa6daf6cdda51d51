"""The mutants of P0: each replaces a part of the stack by a faulty one."""

from __future__ import annotations

from falsifiers.judging.subject import stack_mutants
from phases.p0_scheduler import wrong_recovery, wrong_running, wrong_seating
from phases.p0_scheduler.engine_loop import EngineLoop
from phases.p0_scheduler.scheduler import Scheduler

MUTANTS = stack_mutants({"scheduler": Scheduler, "driver": EngineLoop}, wrong_seating,
                        wrong_running, wrong_recovery)
