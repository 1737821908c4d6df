"""Jobs that neither load nor capture: refusals, ``ping``, ``stats``, ``forget``, ``locate``."""

from __future__ import annotations

from inferscale_sdk.protocol import (
    ForgetAnswer,
    ForgetOp,
    LocateAnswer,
    LocateOp,
    PingAnswer,
    PrefetchAnswer,
    PrefetchOp,
    Reason,
    Refusal,
    StatsAnswer,
    StatsOp,
)
from inferscale_sdk.vllm_connector.jobs.base import Core, Job
from inferscale_sdk.vllm_connector.metadata import Forgotten

__all__ = ["ForgetJob", "LocateJob", "PingJob", "PrefetchJob", "RefusedJob", "StatsJob"]


class RefusedJob(Job):
    """An operation that cannot be carried out; the request is served as plain text."""

    def __init__(self, core: Core, request_id: str, reason: Reason, message: str) -> None:
        super().__init__(core, request_id, ())
        self._refusal = Refusal(reason=reason, message=message)
        core.count(f"refused_{reason.value}")

    def ready(self) -> bool:
        return True

    def answer(self) -> Refusal:
        return self._refusal


class PingJob(Job):
    """Identity and state; asked for through a LoRA adapter's name, the adapter's identity."""

    def __init__(self, core: Core, request_id: str, fingerprint: str) -> None:
        super().__init__(core, request_id, ())
        self._fingerprint = fingerprint

    def answer(self) -> PingAnswer:
        hello, identity = self.core.hello, self.core.identity
        assert hello is not None
        return PingAnswer(
            sdk_version=identity.sdk_version,
            fingerprint=self._fingerprint,
            model=identity.model,
            block_size=identity.block_size,
            max_model_len=identity.max_model_len,
            dtype=hello.dtype,
            n_layers=hello.n_layers,
            bytes_per_token=hello.bytes_per_token,
            probe=self.core.verdict,
            probe_token_id=identity.probe_token_id,
            tiers={"host": self.core.index.stats()},
        )


class StatsJob(Job):
    """Counters and earlier reports."""

    def __init__(self, core: Core, request_id: str, op: StatsOp) -> None:
        super().__init__(core, request_id, ())
        self._op = op

    def answer(self) -> StatsAnswer:
        found = {i: self.core.reports[i] for i in self._op.report_ids if i in self.core.reports}
        return StatsAnswer(
            counters=dict(self.core.counters),
            tiers={"host": self.core.index.stats()},
            reports=found,
        )


class ForgetJob(Job):
    """Drop keys everywhere; answered when every rank has done it."""

    def __init__(self, core: Core, request_id: str, op: ForgetOp) -> None:
        super().__init__(core, request_id, ())
        self._pending = dict.fromkeys(op.keys, 0)
        self._existed: set[str] = set()
        self._failed: set[str] = set()
        self._sent = False

    def ready(self) -> bool:
        if not super().ready():
            return False
        if not self._sent:
            self._sent = True
            self.core.index.remove(self._pending)
            self.core.forget.extend(self._pending)
        return not self._pending

    def forgotten(self, report: Forgotten) -> None:
        key = report.key
        if key not in self._pending:
            return
        if report.existed:
            self._existed.add(key)
        if report.failed:
            self._failed.add(key)
        self._pending[key] += 1
        if self._pending[key] >= self.core.index.world_size:
            del self._pending[key]

    def answer(self) -> ForgetAnswer:
        self.core.count("forgotten_segments", len(self._existed))
        return ForgetAnswer(forgotten=len(self._existed), failed=tuple(sorted(self._failed)))


class PrefetchJob(Job):
    """Start reading what lies lower down. Answered at once; nothing is pinned."""

    def __init__(self, core: Core, request_id: str, op: PrefetchOp) -> None:
        super().__init__(core, request_id, ())
        self._keys = tuple(dict.fromkeys(op.keys))
        self._answer: PrefetchAnswer | None = None

    def ready(self) -> bool:
        if not super().ready():
            return False
        if self._answer is None:
            index = self.core.index
            resident = sum(index.get(key) is not None for key in self._keys)
            self._answer = PrefetchAnswer(resident=resident, fetching=len(index.fetch(self._keys)))
            self.core.count("prefetched_segments", self._answer.fetching)
        return True

    def answer(self) -> PrefetchAnswer:
        return self._answer or PrefetchAnswer()


class LocateJob(Job):
    """Say where keys lie; answered when every rank has looked."""

    def __init__(self, core: Core, request_id: str, op: LocateOp) -> None:
        super().__init__(core, request_id, ())
        self._pending = dict.fromkeys(op.keys, 0)
        self._found: dict[str, set[str]] = {}
        self._sent = False

    def ready(self) -> bool:
        if not super().ready():
            return False
        if not self._sent:
            self._sent = True
            self.core.locate.extend(self._pending)
        return not self._pending

    def located(self, key: str, places: tuple[str, ...]) -> None:
        if key not in self._pending:
            return
        if places:
            self._found.setdefault(key, set()).update(places)
        self._pending[key] += 1
        if self._pending[key] >= self.core.index.world_size:
            del self._pending[key]

    def answer(self) -> LocateAnswer:
        return LocateAnswer(found={key: tuple(sorted(at)) for key, at in self._found.items()})
