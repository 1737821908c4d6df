"""Faults of the load itself and of capture."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from connector_harness import Outcome
from fault_scene import EXACT, N_ANSWER, TEXT, Scene, case

from inferscale_sdk.protocol import ForgetOp, Reason
from inferscale_sdk.vllm_connector import capture

# -- the load itself ------------------------------------------------------------------------------


@case("load", "fails before anything is written", "load", TEXT, Reason.LOAD_FAILED)
def _(scene: Scene) -> Outcome:
    def broken(plan: Any, resident: Any) -> None:
        raise OSError("simulated")

    scene.patch.setattr(scene.harness.worker._loader, "load", broken)
    return scene.ask()


@case("load", "fails after half of the layers", "load", TEXT, Reason.LOAD_FAILED)
def _(scene: Scene) -> Outcome:
    def half(self: Any, layer: int, keys: Any, values: Any, slots: Any) -> None:
        if layer == 15:
            raise RuntimeError("simulated")
        write(self, layer, keys * 0, values * 0, slots)

    scene.harness.write_layer_by_layer(scene.patch)
    stack = type(scene.harness.worker._stack)
    write = stack.write
    scene.patch.setattr(stack, "write", half)
    return scene.ask()


@case("load", "fails after all was written", "load", TEXT, Reason.LOAD_FAILED)
def _(scene: Scene) -> Outcome:
    load = scene.harness.worker._loader.load

    def late(plan: Any, resident: Any) -> None:
        load(plan, resident)
        raise RuntimeError("simulated")

    scene.patch.setattr(scene.harness.worker._loader, "load", late)
    return scene.ask()


@case("load", "out of memory", "load", TEXT, Reason.LOAD_FAILED)
def _(scene: Scene) -> Outcome:
    def starved(plan: Any, resident: Any) -> None:
        raise torch.OutOfMemoryError("simulated")

    scene.patch.setattr(scene.harness.worker._loader, "load", starved)
    return scene.ask()


@case("load", "segment evicted between claim and load", "load", TEXT, Reason.MISSING)
def _(scene: Scene) -> Outcome:
    worker = scene.harness.worker
    load = worker.load

    def evicted() -> None:
        worker._resident.discard(scene.victim)
        load()

    scene.patch.setattr(worker, "load", evicted)
    out = scene.ask()
    scene.harness.scheduler._core.index.remove([scene.victim])
    return out


@case("load", "forgotten between claim and load", "load", EXACT)
def _(scene: Scene) -> Outcome:
    """Claimed in the step before the deletion arrives: the question came first."""
    op, salt = scene.harness.inject_op(scene.segments)
    forget = ForgetOp(keys=tuple(scene.keys))
    requests = [(scene.prompt, op, salt), ([5], forget, "x")]
    outs = scene.harness.ask_many(requests, n=N_ANSWER, logprobs=3)
    assert outs[1].answer["forgotten"] == len(scene.keys)
    return outs[0]


@case("load", "planning fails", "load", TEXT)
def _(scene: Scene) -> Outcome:
    from inferscale_sdk.vllm_connector.jobs.inject import InjectJob

    def broken(self: Any, block_ids: Any, n_external: int) -> None:
        raise RuntimeError("simulated")

    scene.patch.setattr(InjectJob, "allocated", broken)
    return scene.ask()


# -- capture --------------------------------------------------------------------------------------


@case("capture", "fails in one layer", "encode", TEXT, Reason.MISSING)
def _(scene: Scene) -> Outcome:
    def broken(slots: Any, wanted: Any) -> None:
        raise RuntimeError("simulated")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capture, "_rows", broken)
        answer = scene.encode_again("capture-fails")
    assert not answer["stored"]
    return scene.ask()
