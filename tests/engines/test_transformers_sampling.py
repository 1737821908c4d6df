"""Choosing the next token, and what may be asked of it."""

import pytest

torch = pytest.importorskip("torch")

from inferscale_sdk.engines.base import Sampling  # noqa: E402
from inferscale_sdk.engines.transformers.options import Options, read_options  # noqa: E402
from inferscale_sdk.engines.transformers.sampling import Chooser  # noqa: E402
from inferscale_sdk.errors import ConfigurationError  # noqa: E402

SHARES = torch.tensor([0.05, 0.4, 0.25, 0.3])
LOGITS = SHARES.log()


def draws(sampling: Sampling, n: int = 4000, options: Options | None = None) -> torch.Tensor:
    """Share of each token among many draws."""
    chooser = Chooser(sampling, options or read_options(sampling))
    chosen = torch.tensor([chooser.choose(LOGITS) for _ in range(n)])
    return torch.bincount(chosen, minlength=4) / n


def test_greedy_takes_the_largest():
    assert Chooser(Sampling(), Options()).choose(LOGITS.bfloat16()) == 1


def test_sampling_follows_the_shares():
    found = draws(Sampling(temperature=1.0, seed=1))

    torch.testing.assert_close(found, SHARES, atol=0.03, rtol=0)


def test_temperature_sharpens():
    found = draws(Sampling(temperature=0.5, seed=1))

    torch.testing.assert_close(found, SHARES**2 / (SHARES**2).sum(), atol=0.03, rtol=0)


def test_nucleus_is_the_fewest_that_reach_top_p():
    found = draws(Sampling(temperature=1.0, top_p=0.6, seed=1))

    torch.testing.assert_close(found, torch.tensor([0.0, 4 / 7, 0.0, 3 / 7]), atol=0.03, rtol=0)


def test_the_smallest_nucleus_is_greedy():
    assert draws(Sampling(temperature=1.0, top_p=1e-6, seed=1), 50)[1] == 1.0


def test_top_k():
    found = draws(Sampling(temperature=1.0, seed=1, extra={"top_k": 2}))

    torch.testing.assert_close(found, torch.tensor([0.0, 4 / 7, 0.0, 3 / 7]), atol=0.03, rtol=0)


def test_a_seed_repeats_and_no_seed_does_not():
    def run(seed: int | None) -> list[int]:
        chooser = Chooser(Sampling(temperature=1.0, seed=seed), Options())
        return [chooser.choose(LOGITS) for _ in range(64)]

    assert run(5) == run(5)
    assert run(5) != run(6)
    assert run(None) != run(None)


def test_extra_is_read():
    sampling = Sampling(extra={"ignore_eos": True, "stop_token_ids": [3], "top_k": -1})

    assert read_options(sampling) == Options(0, True, frozenset({3}))


@pytest.mark.parametrize(
    ("sampling", "what"),
    [
        (Sampling(max_tokens=0), "max_tokens=0"),
        (Sampling(temperature=-1.0), "temperature=-1.0"),
        (Sampling(temperature=float("nan")), "temperature=nan"),
        (Sampling(top_p=0.0), "top_p=0.0"),
        (Sampling(top_p=1.5), "top_p=1.5"),
        (Sampling(extra={"logprobs": 3}), "logprobs"),
    ],
)
def test_what_cannot_be_done_is_refused(sampling, what):
    with pytest.raises(ConfigurationError, match=what):
        read_options(sampling)
