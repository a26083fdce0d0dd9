"""Networks: attention against brute force, gradients everywhere, zero at the start, and the measurement."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lavps
from lavps.amortization import LikelihoodGradient, Palette, conditioning_channels
from lavps.nn import (
    HDiT,
    HDiTConfig,
    InvFusion,
    UNet,
    UNetConfig,
    build_network,
    hdit_ffhq256,
    hdit_imagenet256,
    hdit_tiny,
    unet_small,
)
from lavps.nn.attention import global_attention, neighbourhood_attention
from lavps.nn.layers import merge_tokens, split_tokens
from lavps.operators import (
    AveragePool,
    Blur,
    CallableOperator,
    HDRClip,
    Identity,
    Mask,
    Operator,
    PhaseRetrieval,
    gaussian_kernel,
)
from lavps.variational import Context

SMALL_HDIT = HDiTConfig(
    patch=2, widths=(32, 64), depths=(1, 1), attention=(3, None), head_dim=16, mapping_width=32
)
SMALL_UNET = UNetConfig(widths=(16, 32), depth=1, attention=(1,), head_dim=16, condition_width=32)
SMALL = [SMALL_HDIT, SMALL_UNET]
NAMES = ["hdit", "unet"]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def awake(config: HDiTConfig | UNetConfig, seed: int = 0) -> HDiT | UNet:
    """The network with its zero-initialised weights drawn at random: none of its branches is silent."""
    torch.manual_seed(seed)
    network = build_network(config.to_dict()).eval()
    with torch.no_grad():
        for i, parameter in enumerate(network.parameters()):
            if not parameter.any():
                fan_in = parameter[0].numel() if parameter.ndim > 1 else 10
                parameter.copy_(normal(*parameter.shape, seed=i) / fan_in**0.5)
    return network


def size_of(config: HDiTConfig | UNetConfig) -> float:
    with torch.device("meta"):
        network = build_network(config.to_dict())
    return sum(parameter.numel() for parameter in network.parameters()) / 1e6


# -- attention ------------------------------------------------------------------------------------------


def brute_force(q: Tensor, sets: list[tuple[Tensor, Tensor]], window: int) -> Tensor:
    """Query by query, from the definition."""
    height, width = q.shape[1:3]
    rows, columns = min(window, height), min(window, width)
    out = torch.zeros_like(q)
    for i in range(height):
        for j in range(width):
            r = min(max(i - rows // 2, 0), height - rows)
            c = min(max(j - columns // 2, 0), width - columns)
            keys = torch.cat([k[:, r : r + rows, c : c + columns].flatten(1, 2) for k, _ in sets], 1)
            values = torch.cat([v[:, r : r + rows, c : c + columns].flatten(1, 2) for _, v in sets], 1)
            weight = torch.einsum("bhd,bkhd->bkh", q[:, i, j], keys).softmax(1)
            out[:, i, j] = torch.einsum("bkh,bkhd->bhd", weight, values)
    return out


@pytest.mark.parametrize(
    ("height", "width", "window"),
    [(5, 7, 3), (8, 8, 7), (4, 9, 5), (3, 3, 7), (24, 18, 5), (19, 33, 7), (17, 4, 9), (40, 17, 11)],
)
@pytest.mark.parametrize("num_sets", [1, 2])
def test_neighbourhood_attention_is_its_definition(height: int, width: int, window: int, num_sets: int):
    tensors = [
        normal(2, height, width, 2, 4, seed=i, dtype=torch.float64).requires_grad_()
        for i in range(1 + 2 * num_sets)
    ]
    q, *rest = tensors
    sets = list(zip(rest[::2], rest[1::2], strict=True))
    probe = normal(*q.shape, seed=9, dtype=torch.float64)
    expected = brute_force(q.clone(), sets, window)
    gradients = torch.autograd.grad(expected, tensors, probe)
    for tile in (8, 5, None):
        out = neighbourhood_attention(q, sets, window, tile)
        torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-12)
        for got, gradient in zip(torch.autograd.grad(out, tensors, probe), gradients, strict=True):
            torch.testing.assert_close(got, gradient, rtol=1e-9, atol=1e-12)


def test_a_window_as_large_as_the_map_sees_all() -> None:
    q, k, v = (normal(2, 6, 5, 2, 4, seed=i) for i in range(3))
    torch.testing.assert_close(neighbourhood_attention(q, [(k, v)], 11), global_attention(q, [(k, v)]))


def test_a_large_map_is_never_held_against_itself() -> None:
    q, k, v = (normal(1, 192, 161, 1, 8, seed=i) for i in range(3))  # the full mask: 955 million entries
    out = neighbourhood_attention(q, [(k, v)], 7)
    part = (slice(None), slice(80, 100), slice(40, 60))
    small = neighbourhood_attention(q[part], [(k[part], v[part])], 7)
    torch.testing.assert_close(out[part][:, 3:-3, 3:-3], small[:, 3:-3, 3:-3])


def test_attention_first_met_under_inference_mode_can_be_trained() -> None:
    q = normal(1, 24, 24, 1, 8)
    with torch.inference_mode():
        neighbourhood_attention(q, [(q, q)], 5)
    neighbourhood_attention(q.requires_grad_(), [(q, q)], 5).sum().backward()


def test_even_windows_are_refused() -> None:
    q = normal(1, 8, 8, 1, 4)
    with pytest.raises(ValueError, match="odd"):
        neighbourhood_attention(q, [(q, q)], 4)


def test_splitting_undoes_merging() -> None:
    x = normal(2, 6, 8, 3)
    assert torch.equal(split_tokens(merge_tokens(x, 2), 2), x)
    # The token of a square holds that square's pixels.
    assert set(merge_tokens(x, 2)[0, 1, 2].tolist()) == set(x[0, 2:4, 4:6].flatten().tolist())


def test_a_shifted_image_gives_a_shifted_output_away_from_the_border() -> None:
    config = HDiTConfig(patch=2, widths=(32,), depths=(2,), attention=(5,), head_dim=16, mapping_width=16)
    network, x, t = awake(config), normal(1, 3, 48, 48), torch.tensor([0.3])
    with torch.no_grad():
        out, shifted = network(x, t), network(x.roll((2, 2), (2, 3)), t)
    # Two layers see 2 + 2 tokens far, plus 4 where the window is shifted; one token is two pixels.
    inside = (..., slice(16, -16), slice(16, -16))
    torch.testing.assert_close(shifted[inside], out.roll((2, 2), (2, 3))[inside], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(shifted[..., :4, :4], out.roll((2, 2), (2, 3))[..., :4, :4], atol=1e-3)


def test_attention_knows_where_a_neighbour_is() -> None:
    config = replace(SMALL_HDIT, widths=(32,), depths=(1,), attention=(None,))
    network, x, t = awake(config), normal(1, 3, 8, 8), torch.tensor([0.3])
    with torch.no_grad():
        out, mirrored = network(x, t), network(x.roll(4, 3), t).roll(-4, 3)
    assert not torch.allclose(out, mirrored, atol=1e-3)  # without positions it would be the same


# -- networks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [hdit_tiny(), unet_small(), *SMALL])
def test_an_untrained_network_gives_exactly_zero(config: HDiTConfig | UNetConfig) -> None:
    network = build_network(replace(config, out_channels=6).to_dict())
    out = network(normal(2, 3, 32, 32), torch.tensor([0.1, 0.9]))
    assert out.shape == (2, 6, 32, 32)
    assert not out.any()


@pytest.mark.parametrize("config", SMALL, ids=NAMES)
def test_every_parameter_receives_a_gradient(config: HDiTConfig | UNetConfig) -> None:
    network = awake(replace(config, num_classes=2, second_time=True))
    t, s = torch.tensor([0.1, 0.5, 0.9]), torch.tensor([0.05, 0.2, 0.3])
    network(normal(3, 3, 16, 16), t, s, torch.tensor([0, 1, 2])).square().mean().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@pytest.mark.parametrize(
    ("config", "millions"),
    [(hdit_tiny(), 1.0), (hdit_ffhq256(), 152.0), (hdit_imagenet256(), 599.0), (unet_small(), 6.6)],
)
def test_parameter_counts(config: HDiTConfig | UNetConfig, millions: float) -> None:
    assert size_of(config) == pytest.approx(millions, rel=0.02)


@pytest.mark.parametrize("config", [hdit_ffhq256(), replace(SMALL_HDIT, joint=(1,)), unet_small(9, 6)])
def test_a_configuration_survives_json(config: HDiTConfig | UNetConfig) -> None:
    described = json.loads(json.dumps(config.to_dict()))
    with torch.device("meta"):
        network = build_network(described)
    assert network.config == config
    assert hash(network.config) == hash(config)


def test_unknown_kinds_and_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="kind"):
        build_network({"kind": "vit"})
    with pytest.raises(ValueError, match="per level"):
        HDiTConfig(widths=(64, 128), depths=(1,), attention=(7,))
    with pytest.raises(ValueError, match="head_dim"):
        HDiTConfig(widths=(48, 96), head_dim=64)
    with pytest.raises(ValueError, match="odd"):
        HDiTConfig(attention=(6, None))
    with pytest.raises(ValueError, match="joint"):
        HDiTConfig(joint=(2,))
    with pytest.raises(ValueError, match="attention"):
        UNetConfig(attention=(3,))
    with pytest.raises(ValueError, match="divide"):
        UNetConfig(head_dim=48)


@pytest.mark.parametrize("config", SMALL, ids=NAMES)
def test_a_row_does_not_depend_on_the_batch(config: HDiTConfig | UNetConfig) -> None:
    network, x, t = awake(config), normal(3, 3, 16, 24), torch.tensor([0.1, 0.5, 0.9])
    with torch.no_grad():
        whole = network(x, t)
        for i in range(3):
            torch.testing.assert_close(
                network(x[i : i + 1], t[i : i + 1]), whole[i : i + 1], rtol=1e-5, atol=1e-5
            )
        torch.testing.assert_close(network(x, t[1]), network(x, t[1].expand(3)))  # one time for all


@pytest.mark.parametrize("config", SMALL, ids=NAMES)
def test_both_times_matter(config: HDiTConfig | UNetConfig) -> None:
    network, x = awake(replace(config, second_time=True)), normal(1, 3, 16, 16)
    with torch.no_grad():
        out = network(x, torch.tensor([0.5]), torch.tensor([0.2]))
        for t, s in [(0.51, 0.2), (0.5, 0.21), (0.2, 0.5)]:
            other = network(x, torch.tensor([t]), torch.tensor([s]))
            assert (other - out).abs().max() > 1e-4, (t, s)
    with pytest.raises(ValueError, match="second_time"):
        network(x, torch.tensor([0.5]))
    with pytest.raises(ValueError, match="second_time"):
        awake(config)(x, torch.tensor([0.5]), torch.tensor([0.2]))


@pytest.mark.parametrize("config", SMALL, ids=NAMES)
def test_classes_and_the_class_of_none(config: HDiTConfig | UNetConfig) -> None:
    network, x, t = awake(replace(config, num_classes=3)), normal(2, 3, 16, 16), torch.tensor([0.5, 0.5])
    with torch.no_grad():
        none = network(x, t)
        assert torch.equal(network(x, t, labels=torch.tensor([3, 3])), none)
        some = network(x, t, labels=torch.tensor([1, 3]))
    assert not torch.allclose(some[0], none[0], atol=1e-4)
    torch.testing.assert_close(some[1], none[1], rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="num_classes"):
        awake(config)(x, t, labels=torch.tensor([0, 0]))


@pytest.mark.parametrize("config", SMALL, ids=NAMES)
@pytest.mark.parametrize("size", [(17, 30), (3, 5), (16, 16)])
def test_any_size_is_padded_and_cropped(config: HDiTConfig | UNetConfig, size: tuple[int, int]) -> None:
    network, x, t = awake(config), normal(1, 3, *size), torch.tensor([0.5])
    margin = (0, -size[1] % config.multiple, 0, -size[0] % config.multiple)
    padded = F.pad(x, margin, mode="reflect")
    with torch.no_grad():
        out = network(x, t)
        assert out.shape == x.shape
        torch.testing.assert_close(out, network(padded, t)[..., : size[0], : size[1]])
        assert network(x[..., :1, :1], t).isfinite().all()  # nothing to reflect


def test_checkpointing_changes_no_gradient() -> None:
    x, t = normal(2, 3, 16, 16), torch.tensor([0.2, 0.8])
    gradients = []
    for checkpointing in (False, True):
        network = awake(replace(SMALL_HDIT, checkpointing=checkpointing)).train()
        network(x, t).square().sum().backward()
        gradients.append([parameter.grad for parameter in network.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed)


@pytest.mark.parametrize("config", [SMALL_HDIT, SMALL_UNET], ids=NAMES)
def test_bfloat16_agrees(config: HDiTConfig | UNetConfig) -> None:
    network, x, t = awake(config), normal(2, 3, 16, 16), torch.tensor([0.2, 0.8])
    out = network(x, t)
    with torch.autocast("cpu", torch.bfloat16):
        low = network(x, t)
    assert low.dtype == torch.float32
    assert (low - out).std() < 0.03 * out.std()
    low.square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


@pytest.mark.parametrize("config", SMALL, ids=NAMES)
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.thorough
def test_a_compiled_network_is_the_same(config: HDiTConfig | UNetConfig, backend: str) -> None:
    network, x, t = awake(config), normal(2, 3, 40, 40), torch.tensor([0.2, 0.8])
    torch._dynamo.reset()
    compiled = torch.compile(network, backend=backend, fullgraph=True)
    out, expected = compiled(x, t), network(x, t)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
    parameters = list(network.parameters())
    for got, gradient in zip(
        torch.autograd.grad(out.square().sum(), parameters),
        torch.autograd.grad(expected.square().sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(got, gradient, rtol=1e-3, atol=1e-3 * float(gradient.abs().max()))


@pytest.mark.parametrize("config", SMALL, ids=NAMES)
def test_weights_load_into_a_network_built_from_its_description(config: HDiTConfig | UNetConfig) -> None:
    network, x, t = awake(config), normal(1, 3, 16, 16), torch.tensor([0.5])
    with torch.device("meta"):
        other = build_network(config.to_dict())
    other.load_state_dict(network.state_dict(), assign=True)  # the tables of frequencies included
    with torch.no_grad():
        assert torch.equal(other.eval()(x, t), network(x, t))
        in_double = network.double()(x.double(), t)
    torch.testing.assert_close(other(x, t).double(), in_double, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("config", SMALL, ids=NAMES)
def test_memory_format_and_dropout(config: HDiTConfig | UNetConfig) -> None:
    network, x, t = awake(replace(config, dropout=0.5)), normal(2, 3, 16, 16), torch.tensor([0.2, 0.8])
    with torch.no_grad():
        out = network(x, t)
        last = network.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last), t)
        torch.testing.assert_close(last, out, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(network.train()(x, t), out, atol=1e-2)


@pytest.mark.parametrize("config", SMALL, ids=NAMES)
def test_a_network_is_a_prior(config: HDiTConfig | UNetConfig) -> None:
    prior = lavps.NetworkPrior(awake(config).train(), lavps.VPLinear(), "v")
    x_t = normal(2, 3, 16, 16)
    with torch.no_grad():
        x_0 = prior.denoise(x_t, torch.tensor(0.3, dtype=torch.float64))
    assert x_0.shape == x_t.shape
    assert x_0.isfinite().all()


def test_it_learns() -> None:
    torch.manual_seed(0)
    network, x, t = build_network(SMALL_HDIT.to_dict()), normal(4, 3, 16, 16), torch.rand(4)
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(60):
        loss = (network(x, t) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.3


# -- the measurement ------------------------------------------------------------------------------------


def fourier_samples(x: Tensor) -> Tensor:
    return torch.fft.fft2(x, norm="ortho")[..., ::2]


def batched_blur(padding: str) -> Blur:
    kernels = torch.stack([gaussian_kernel(std, 5) for std in (0.6, 0.9, 1.4)])
    return Blur(kernels, padding, batched=True)  # type: ignore[arg-type]


OPERATORS: dict[str, Callable[[], Operator]] = {
    "masks": lambda: Mask(normal(3, 1, 16, 12, seed=5) > 0, batched=True),
    "block means": lambda: AveragePool(4),
    "circular blurs": lambda: batched_blur("circular"),
    "reflecting blurs": lambda: batched_blur("reflect"),
    "complex": lambda: CallableOperator(fourier_samples, (3, 16, 12)),
    "projections": lambda: CallableOperator(lambda x: x.sum(2).flatten(1), (3, 16, 12)),
}


def simulate(operator: Operator, std: float = 0.1) -> lavps.InverseProblem:
    return lavps.InverseProblem.simulate(normal(3, 3, 16, 12, seed=3), operator, lavps.GaussianNoise(std))


def context_of(problem: lavps.InverseProblem, x_0: Tensor | None = None) -> Context:
    shape = (len(problem), *problem.image_shape)
    x_0 = normal(*shape, seed=1) if x_0 is None else x_0
    s, t = (torch.tensor(time, dtype=torch.float64) for time in (0.2, 0.4))
    return Context(x_0, normal(*shape, seed=2), s, t, problem, lavps.VPLinear())


@pytest.mark.parametrize("name", OPERATORS)
def test_invfusion_with(name: str) -> None:
    problem = simulate(OPERATORS[name]())
    config = replace(SMALL_HDIT, joint=(0, 1))
    network, x, t = awake(config), normal(3, 3, 16, 12), torch.tensor([0.1, 0.5, 0.9])
    out = network(x, t, problem=problem)
    out.square().mean().backward()
    for parameter_name, parameter in network.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.any(), parameter_name
    with torch.no_grad():
        for i in range(3):
            row = network(x[i : i + 1], t[i : i + 1], problem=problem[i])
            torch.testing.assert_close(row, out[i : i + 1], rtol=1e-3, atol=1e-4)
        y = problem.y.clone()
        y[1] = y[1] + 1.0
        other = network(x, t, problem=replace_y(problem, y))
    assert not torch.allclose(other[1], out[1], atol=1e-3)
    torch.testing.assert_close(other[0], out[0], rtol=1e-3, atol=1e-4)


def replace_y(problem: lavps.InverseProblem, y: Tensor) -> lavps.InverseProblem:
    return lavps.InverseProblem(y, problem.operator, problem.noise, problem.in_shape)


def test_feature_degradation_is_its_formula() -> None:
    # Two feature images of one channel, tokens of 2 x 2 pixels: D = 8.
    fusion = InvFusion(width=8, patch=2, image_channels=1, damping=0.0)
    images = normal(2, 1, 8, 8, seed=4)
    problem = lavps.InverseProblem.simulate(images, AveragePool(2), lavps.GaussianNoise(0.1))
    tokens = normal(2, 4, 4, 8)
    with torch.no_grad():
        got = fusion(tokens, problem)
        features = split_tokens(fusion.norm_in(tokens), 2).permute(0, 3, 1, 2)  # (B, k, 8, 8)
        measured = torch.cat([F.avg_pool2d(features, 2), problem.y], dim=1)
        mixed = F.gelu(
            torch.einsum("kj,bjhw->bkhw", fusion.mix.weight, measured) + fusion.mix.bias[:, None, None]
        )
        back = mixed.repeat_interleave(2, 2).repeat_interleave(2, 3)
        expected = fusion.norm_out(merge_tokens(back.permute(0, 2, 3, 1), 2))
    torch.testing.assert_close(got, expected)
    assert isinstance(fusion.enter, nn.Identity)
    assert InvFusion(width=64, patch=4).features == 1  # 64 / 48: projected to one image
    assert InvFusion(width=192, patch=4).features == 4


def test_invfusion_of_padded_images_under_autocast() -> None:
    operator = Mask(normal(2, 1, 15, 10, seed=5) > 0, batched=True)
    problem = lavps.InverseProblem.simulate(normal(2, 3, 15, 10), operator, lavps.GaussianNoise(0.1))
    network, x, t = awake(replace(SMALL_HDIT, joint=(0,))), normal(2, 3, 15, 10), torch.tensor([0.2, 0.8])
    with torch.no_grad():
        out = network(x, t, problem=problem)
        with torch.autocast("cpu", torch.bfloat16):
            low = network(x, t, problem=problem)
    assert out.shape == x.shape
    assert (low - out).std() < 0.05 * out.std()


def test_invfusion_says_what_it_lacks() -> None:
    network, x, t = awake(replace(SMALL_HDIT, joint=(0,))), normal(3, 3, 16, 12), torch.tensor([0.5])
    with pytest.raises(ValueError, match="problem"):
        network(x, t)
    with pytest.raises(TypeError, match="LikelihoodGradient"):
        network(x, t, problem=simulate(HDRClip()))
    with pytest.raises(ValueError, match="batch of 1"):
        network(x[:1], t, problem=simulate(Identity()))


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("part", [Palette(), Palette("adjoint"), LikelihoodGradient()], ids=str)
def test_conditioning_channels_are_images_of_order_one(name: str, part: Palette | LikelihoodGradient) -> None:
    context = context_of(simulate(OPERATORS[name]()))
    images = part.images(context)
    assert images.shape == (3, part.channels(3), 16, 12)
    assert images.dtype == torch.float32
    assert images.isfinite().all()
    assert 1e-2 < images.std() < 5
    for i in range(3):
        row = part.images(context.select(torch.tensor([i])))
        torch.testing.assert_close(row, images[i : i + 1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("operator", [HDRClip(), PhaseRetrieval()])
@pytest.mark.parametrize("noise", [lavps.GaussianNoise(0.01), lavps.PoissonNoise(100.0)])
def test_nonlinear_operators_and_other_noise(operator: Operator, noise: lavps.noise.NoiseModel) -> None:
    x = normal(3, 3, 16, 12, seed=3).clamp(-1, 1)
    context = context_of(lavps.InverseProblem.simulate(x, operator, noise), 0.5 * x)
    parts = [Palette(), LikelihoodGradient()]
    both = conditioning_channels(parts, context)
    assert both.shape == (3, sum(part.channels(3) for part in parts), 16, 12)
    assert both.isfinite().all()
    assert both[:, 3:].abs().max() < 5
    assert both[:, 3:].any()
    assert conditioning_channels([], context).shape == (3, 0, 16, 12)


def test_the_gradient_channel_does_not_know_the_scale_of_the_noise() -> None:
    x = normal(3, 3, 16, 12, seed=3)
    y = AveragePool(4)(x)
    problems = [lavps.InverseProblem(y, AveragePool(4), lavps.GaussianNoise(std)) for std in (1e-4, 1.0)]
    x_0 = normal(3, 3, 16, 12, seed=1)
    fine, coarse = (LikelihoodGradient().images(context_of(problem, x_0)) for problem in problems)
    torch.testing.assert_close(fine, coarse)
    residual = y - AveragePool(4)(x_0)
    copies = residual.repeat_interleave(4, 2).repeat_interleave(4, 3)
    torch.testing.assert_close(fine, copies)  # the whole step, since the rows of A are orthogonal
    assert LikelihoodGradient().images(context_of(problems[0], x)).abs().max() < 1e-5


def test_an_empty_measurement_gives_zeros() -> None:
    mask = torch.ones(3, 1, 16, 12, dtype=torch.bool)
    mask[1] = False
    context = context_of(simulate(Mask(mask, batched=True)))
    for part in (Palette(), Palette("adjoint"), LikelihoodGradient()):
        images = part.images(context)
        assert not images[1].any()
        assert images[0].any()


def test_what_depends_on_the_problem_alone_is_computed_once() -> None:
    @dataclass(frozen=True)
    class Counting(AveragePool):
        calls: list[str]

        def norm(self, x: Tensor, iterations: int = 30) -> Tensor:
            self.calls.append("norm")
            return super().norm(x, iterations)

        def pseudo_inverse(
            self, y: Tensor, damping: float = 0.0, iterations: int = 100, tolerance: float = 1e-6
        ) -> Tensor:
            self.calls.append("pseudo_inverse")
            return super().pseudo_inverse(y, damping, iterations, tolerance)

    problem = simulate(Counting(4, []))
    parts = (Palette(), Palette(damping=0.1), LikelihoodGradient())
    for x_0 in (normal(3, 3, 16, 12), normal(3, 3, 16, 12, seed=7)):
        for part in parts:
            part.images(context_of(problem, x_0))
    assert isinstance(problem.operator, Counting)
    assert sorted(problem.operator.calls) == ["norm", "pseudo_inverse", "pseudo_inverse"]


def test_palette_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="back"):
        Palette("inverse")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="damping"):
        Palette(damping=-1.0)
