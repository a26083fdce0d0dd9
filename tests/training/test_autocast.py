"""A network in bfloat16 inside, float32 outside; the prior stays what it was."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import lavps
from lavps.priors.precision import Autocast, in_half, with_autocast
from support.problems import images, network_prior, pooling_problem


class Recording(nn.Module):
    """Remembers the dtype in which its product was computed."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.seen: list[torch.dtype] = []

    def forward(self, x: Tensor, scale: float, *, shift: float = 0.0) -> Tensor:
        y: Tensor = self.linear(x)
        self.seen.append(y.dtype)
        return y * scale + shift


def test_a_network_computes_in_half_and_answers_in_the_dtype_it_was_asked_in() -> None:
    network = Recording()
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    expected = 2.0 * network(x, 1.0) + 1.0
    answer = Autocast(network)(x, 2.0, shift=1.0)
    assert answer.dtype == torch.float32
    assert network.seen == [torch.float32, torch.bfloat16]
    torch.testing.assert_close(answer, expected, atol=0.05, rtol=0.05)
    assert not torch.is_autocast_enabled("cpu")


def test_casting_the_weights_once_changes_no_bit() -> None:
    network = network_prior().network
    kept = {name: value.clone() for name, value in network.state_dict().items()}
    x, t = images(2), torch.full((2,), 0.5)
    half = in_half(network)
    assert torch.equal(half(x, t), Autocast(network)(x, t))
    assert any(parameter.dtype == torch.bfloat16 for parameter in half.parameters())
    assert all(torch.equal(value, kept[name]) for name, value in network.state_dict().items())


def test_gradients_come_back_in_full_precision() -> None:
    prior = network_prior()
    x = images(2).requires_grad_()
    t = torch.tensor(0.5, dtype=torch.float64)
    (full,) = torch.autograd.grad(prior.denoise(x, t).square().sum(), x)
    (half,) = torch.autograd.grad(with_autocast(prior).denoise(x, t).square().sum(), x)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, full, atol=0.05, rtol=0.05)
    assert not torch.equal(half, full)


def test_the_prior_that_was_given_stays_as_it_was_and_lends_its_hash() -> None:
    prior = network_prior()
    prior.weights_hash = "abc"
    network = prior.network
    half = with_autocast(prior)
    assert prior.network is network
    assert isinstance(half.network, Autocast)
    assert (half.weights_hash, half.schedule, half.prediction) == ("abc", prior.schedule, prior.prediction)
    assert not half.network.training
    problem = pooling_problem(2)
    ours, theirs = (lavps.MGDM(p, num_steps=8).sample(problem).samples for p in (half, prior))
    assert ours.dtype == torch.float32
    assert (ours - theirs).abs().mean() < 0.05


def test_a_prior_without_a_network_is_refused() -> None:
    with pytest.raises(TypeError, match="has no torch network"):
        with_autocast(lavps.NetworkPrior(lambda x, t: x, lavps.Flow()))
