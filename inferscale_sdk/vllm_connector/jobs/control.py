"""Jobs that neither load nor capture: refusals, ``ping``, ``stats``, ``forget``, ``locate``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

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
from inferscale_sdk.vllm_connector.metadata import Forgotten, Located, Order

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


class _EveryRankJob(Job):
    """Has something done with keys; answered when every rank has spoken on each."""

    def __init__(self, core: Core, request_id: str, keys: Sequence[str]) -> None:
        super().__init__(core, request_id, ())
        self._pending = dict.fromkeys(keys, 0)
        self._serial: int | None = None

    def ready(self) -> bool:
        if not super().ready():
            return False
        if self._serial is None:
            self._serial = self.core.new_serial()
            if self._pending:
                self.core.orders[self._serial] = self
                self._send(Order(self._serial, tuple(self._pending)))
        return not self._pending

    @abstractmethod
    def _send(self, order: Order) -> None:
        """Tell the workers what to do with the keys."""

    def _heard(self, key: str) -> bool:
        """One rank has spoken on a key; true if it was the last one."""
        self._pending[key] += 1
        if self._pending[key] < self.core.index.world_size:
            return False
        del self._pending[key]
        if not self._pending and self._serial is not None:
            del self.core.orders[self._serial]
        return True


class ForgetJob(_EveryRankJob):
    """Drop keys everywhere."""

    def __init__(self, core: Core, request_id: str, op: ForgetOp) -> None:
        super().__init__(core, request_id, op.keys)
        self._existed: set[str] = set()
        self._failed: set[str] = set()

    def _send(self, order: Order) -> None:
        self.core.index.forget(order.keys)
        self.core.forget.append(order)

    def forgotten(self, report: Forgotten) -> None:
        if report.existed:
            self._existed.add(report.key)
        if report.failed:
            self._failed.add(report.key)
        if self._heard(report.key):
            self.core.index.forgotten(report.key)

    def answer(self) -> ForgetAnswer:
        self.core.count("forgotten_segments", len(self._existed))
        return ForgetAnswer(forgotten=len(self._existed), failed=tuple(sorted(self._failed)))


class LocateJob(_EveryRankJob):
    """Say where keys lie."""

    def __init__(self, core: Core, request_id: str, op: LocateOp) -> None:
        super().__init__(core, request_id, op.keys)
        self._found: dict[str, set[str]] = {}

    def _send(self, order: Order) -> None:
        self.core.locate.append(order)

    def located(self, report: Located) -> None:
        if report.places:
            self._found.setdefault(report.key, set()).update(report.places)
        self._heard(report.key)

    def answer(self) -> LocateAnswer:
        return LocateAnswer(found={key: tuple(sorted(at)) for key, at in self._found.items()})


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
