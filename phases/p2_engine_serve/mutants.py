"""The mutants of P2: each replaces a part of the stack by a faulty one."""

from __future__ import annotations

from falsifiers.judging.subject import stack_mutants
from phases.p0_scheduler.increment import EngineLoop, Scheduler
from phases.p2_engine_serve import wrong_replies, wrong_rows, wrong_serving, wrong_templates
from phases.p2_engine_serve.api import Api
from phases.p2_engine_serve.hybrid_engine import HybridEngine
from phases.p2_engine_serve.request_stream import Reply
from phases.p2_engine_serve.service import Service
from phases.p2_engine_serve.stop_text import StreamedText
from phases.p2_engine_serve.template import Template

FIELDS = {"driver": EngineLoop, "scheduler": Scheduler, "engine": HybridEngine,
          "text": StreamedText, "reply": Reply, "service": Service, "api": Api,
          "template": Template}
MUTANTS = stack_mutants(FIELDS, wrong_replies, wrong_rows, wrong_serving, wrong_templates)
