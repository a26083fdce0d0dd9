"""Names of methods in tables and figures, derived from their settings.

A method of a benchmark is a :class:`~lavps.samplers.settings.Settings`, its networks named by their folders.
Everything a benchmark stores is filed under the settings' keys. A name has two parts: the family states which
sampler ran, by which guidance ("MGDM (Adam)", "MGDM (linearized)", "LAVPS"); the label states its settings
("K=50, G=1, linearized for t ≤ 0.5").
"""

from __future__ import annotations

__all__ = ["family", "label", "matches_group", "model_name"]

from collections.abc import Sequence

from ..guidance import Amortized, Gradient, Guidance, Linearized, Switch
from ..minimizers import Adam, Minimizer
from ..samplers import DAPS, DPS, MGDM, MGPS, MMPS, PiGDM, Settings


def model_name(method: Settings) -> str | None:
    """Return the folder or Hub id of the method's inference model or conditional denoiser, if it has one."""
    names = {model.name for model in method.models}
    if len(names) > 1:
        raise ValueError(f"a method of a benchmark has one model, got {sorted(map(str, names))}")
    return names.pop() if names else None


def family(method: Settings) -> str:
    """Return the sampler, and its guidance where that differs: "MGDM (Adam)", "LAVPS", "MGPS (amortized)"."""
    sampler = method.template
    if not isinstance(sampler, MGDM):
        amortized = isinstance(sampler, MGPS) and method.models
        return f"{sampler.name} (amortized)" if amortized else sampler.name
    if method.models:
        return "LAVPS"
    kinds = dict.fromkeys(_kind(part) for _, part in _pieces(sampler.guidance))
    guided = [kind for kind in kinds if kind != "unguided"]
    return f"MGDM ({', then '.join(guided or kinds)})"


def label(method: Settings) -> str:
    """Return the settings in a few words, within the family: "K=50, G=1, linearized for t ≤ 0.5"."""
    sampler = method.template
    words = [f"K={method.num_steps}"]
    if isinstance(sampler, MGDM | MGPS):
        pieces = _pieces(sampler.guidance)
        words += _gradients(pieces, bool(method.models)) + _models(pieces) + _safeguards(pieces)
    if isinstance(sampler, MGDM | DAPS):
        words += [f"M={sampler.denoising_steps}"] if sampler.denoising_steps > 1 else []
    if isinstance(sampler, MGDM):
        words += [f"R={sampler.repetitions}"] if sampler.repetitions > 1 else []
        words += ["bridge re-noising"] if sampler.renoise == "bridge" else []
    if isinstance(sampler, DPS):
        words.append(f"step size {sampler.step_size:g}")
    if isinstance(sampler, MMPS) and not isinstance(sampler, PiGDM):
        words.append(f"{sampler.solver_steps} solver step{'s' * (sampler.solver_steps > 1)}")
    return ", ".join(words)


def matches_group(method: Settings, group: str) -> bool:
    """Return whether a method belongs to a group.

    Args:
        method: Settings of the method.
        group: Words of family and label, joined by ", ": "MGDM" (every guidance without a model),
            "MGDM (Adam)", "MGDM (Adam), K=100", "MGDM, linearized" (wherever linearized steps take part).
            Alternatives are joined by " or ".
    """
    name = family(method)
    sampler, _, guidance = name.removesuffix(")").partition(" (")
    words = {sampler, *guidance.split(", then "), *f"{name}, {label(method)}".split(", ")}
    return any(set(choice.split(", ")) <= words for choice in group.split(" or "))


Pieces = Sequence[tuple[float, Guidance]]


def _pieces(guidance: Guidance, start: float = 1.0) -> list[tuple[float, Guidance]]:
    """Return the parts of a guidance in order of the run, each with the largest time of its interval."""
    if isinstance(guidance, Switch):
        return _pieces(guidance.first, start) + _pieces(guidance.then, guidance.at)
    return [(start, guidance)]


def _kind(part: Guidance) -> str:
    if _linearized(part) is not None:
        return "linearized"
    if isinstance(part, Gradient):
        named = "Adam" if isinstance(part.minimizer, Adam) else "whitened gradient"
        return named if part.steps else "unguided"
    return type(part).__name__


def _linearized(part: Guidance) -> Linearized | None:
    """Return the linearized step of a part: the part itself, or what its gradient steps start from."""
    step = part.model if isinstance(part, Amortized) else part
    return step if isinstance(step, Linearized) else None


def _gradients(pieces: Pieces, amortized: bool) -> list[str]:
    """Describe the gradient steps: ["G=1", "G=0 for t ≤ 0.2", "η=0.03"]."""
    words, previous = [], None
    for start, part in pieces:
        now = (part.steps, _linearized(part) is None) if isinstance(part, Gradient | Amortized) else None
        if now is not None and now != previous:
            words.append(f"G={now[0]}{_within(start)}")
        previous = now
    descents = [part for _, part in pieces if isinstance(part, Gradient | Amortized) and part.steps]
    return words + list(filter(None, dict.fromkeys(_rate(part.minimizer, amortized) for part in descents)))


def _rate(minimizer: Minimizer, amortized: bool) -> str:
    """Return the learning rate, with the optimizer's name if the family lacks it; τ = 1 is left out."""
    if isinstance(minimizer, Adam):
        return f"{'Adam ' if amortized else ''}η={minimizer.learning_rate:g}"
    size = getattr(minimizer, "step_size", 1.0)
    words = ["whitened"] * amortized + [f"τ={size:g}"] * (size != 1.0)
    return " ".join(words)


def _models(pieces: Pieces) -> list[str]:
    """Describe where the model and the linearized steps are in effect, unless they are so at every step."""
    kinds, bounds = [_prediction(part) for _, part in pieces], [*[start for start, _ in pieces], 0.0]
    known = {"", "linearized"} if all(_linearized(part) for _, part in pieces) else {""}
    words = []
    for kind in [kind for kind in dict.fromkeys(kinds) if kind not in known]:
        first, last = kinds.index(kind), len(kinds) - kinds[::-1].index(kind)
        # The words of a linearized step state where the model before it ends.
        replaced = kind == "model" and "linearized" in kinds[last:]
        where = _within(bounds[first], 0.0 if replaced else bounds[last])
        words += [kind + where] if where or kind != "model" else []
    return words


def _prediction(part: Guidance) -> str:
    """Return what a part starts from: "model", "linearized", "damped" (v = 0.01), or "" for the bridge."""
    if (step := _linearized(part)) is None:
        return "model" if isinstance(part, Amortized) else ""
    if step.data_variance == 1.0:
        return "linearized"
    return "damped" if step.data_variance == 0.01 else f"v={step.data_variance:g}"


def _safeguards(pieces: Pieces) -> list[str]:
    """Describe the safeguards: a model has one at every step, a linearized step has none, if not stated."""
    words = []
    for _, part in pieces:
        if isinstance(part, Amortized):
            trained, every = _linearized(part) is None, part.safeguard_every
            if every is None:
                words += ["no safeguard"] * trained
            else:
                words += [f"safeguard every {every} steps"] if every > 1 else ["safeguard"] * (not trained)
    return list(dict.fromkeys(words))


def _within(start: float, end: float = 0.0) -> str:
    """Return " for t ≤ 0.5" of an interval of time, nothing for all of it."""
    if end > 0.0:
        return f" for t > {end:g}" if start == 1.0 else f" for {end:g} < t ≤ {start:g}"
    return "" if start == 1.0 else f" for t ≤ {start:g}"
