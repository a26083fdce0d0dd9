"""Settings tried on the validation images, quality against cost, by any number of processes.

Every process runs the same command. A process works on a method while it holds its claim
(:func:`~lavps.evaluation.benchmark.records.claim`); one that is killed loses the claim, and another takes up
its rows where it stopped. Optuna keeps the trials, and proposes settings where the search is free (TPE or
NSGA-II with two objectives, mean LPIPS and cost); its storage is a journal in the benchmark's folder. Rows
are the truth: a method with all its rows is never run again, whichever study asks for it.

References:
    - Akiba et al., Optuna: A Next-generation Hyperparameter Optimization Framework, 2019.
    - Ozaki et al., Multiobjective Tree-Structured Parzen Estimator, 2022.
    - Deb et al., A Fast and Elitist Multiobjective Genetic Algorithm: NSGA-II, 2002.
"""

from __future__ import annotations

__all__ = ["Sweep"]

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from ...samplers import NonFiniteError
from .folder import Benchmark
from .methods import Method, SamplerName
from .runs import Row, Runner
from .spaces import Choice, Span, search_space, searched_method


@dataclass(frozen=True)
class Sweep:
    """A study: a name, and a runner on the validation images.

    Attributes:
        benchmark: the folder.
        runner: of the validation split.
        name: of the study; two names in one folder share their rows.
        screen: try methods on this many images first; only those that are not clearly behind go on to all.
        slack: how much worse in LPIPS than the best of its cost or cheaper a screened method may be.
    """

    benchmark: Benchmark
    runner: Runner
    name: str
    screen: int | None = None
    slack: float = 0.01

    def grid(self, methods: Sequence[Method]) -> None:
        """Run all of these methods that nobody has run; the others' are waited for, or taken over."""
        settings = [method.settings() for method in methods]
        names = sorted({name for values in settings for name in values})
        # As Optuna wants it, a value of a category is plain, and absent settings are a value too.
        space = {name: Choice(_distinct([values.get(name) for values in settings])) for name in names}
        for wait in (False, True):
            for method, values in zip(methods, settings, strict=True):
                if method.key in self._recorded():
                    continue
                with self.runner.folder.claimed(method.key, wait) as held:
                    if held and method.key not in self._recorded():
                        params = {name: values.get(name) for name in names}
                        self._record(method, params, space, self._evaluate(method))
        self._promote()

    def search(
        self,
        sampler: SamplerName,
        model: str | None,
        trials: int,
        algorithm: Literal["tpe", "nsga2"] = "tpe",
        space: Mapping[str, Choice | Span] | None = None,
    ) -> None:
        """Propose and run until the study has this many trials.

        Args:
            sampler: "mgdm" or "lavps".
            model: folder of the inference model of "lavps".
            trials: of the study, all processes and earlier runs together.
            algorithm: what proposes.
            space: where; default :func:`~lavps.evaluation.benchmark.spaces.search_space`.
        """
        samplers, space = _optuna().samplers, space or search_space(sampler)
        self._study.sampler = samplers.TPESampler() if algorithm == "tpe" else samplers.NSGAIISampler()
        self._take_over()
        while len(self._study.get_trials(deepcopy=False)) < trials:
            trial = self._study.ask(_distributions(space))
            method = searched_method(sampler, model, trial.params)
            with self.runner.folder.claimed(method.key):
                trial.set_user_attr("key", method.key)
                trial.set_user_attr("method", method.settings())
                self._tell(trial.number, self._evaluate(method))
        self._take_over()
        self._promote()

    def _promote(self) -> None:
        """Run the screened methods that are on the front, or near it, on all images."""
        if self.screen is None:
            return
        trials = [t for t in self._study.get_trials(deepcopy=False) if t.state.name == "COMPLETE"]
        tried = {t.user_attrs["key"]: (t.values[0], t.values[1], t.user_attrs["method"]) for t in trials}
        kept = []
        for score, cost, settings in tried.values():
            best = min(other for other, price, _ in tried.values() if price <= cost)
            if score <= best + self.slack:
                kept.append(Method.from_settings(settings))
        for wait in (False, True):
            for method in kept:
                with self.runner.folder.claimed(method.key, wait) as held:
                    if held:
                        self.runner.run_claimed(method)

    def finished(self) -> dict[str, tuple[float, float]]:
        """Mean LPIPS and cost of the study's methods, by key."""
        trials = self._study.get_trials(deepcopy=False)
        complete = [trial for trial in trials if trial.state.name == "COMPLETE"]
        return {trial.user_attrs["key"]: (trial.values[0], trial.values[1]) for trial in complete}

    @cached_property
    def _study(self) -> Any:
        optuna = _optuna()
        backend = optuna.storages.journal.JournalFileBackend(str(self.benchmark.path / "study.journal"))
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        return optuna.create_study(
            study_name=self.name,
            storage=optuna.storages.JournalStorage(backend),
            directions=["minimize", "minimize"],
            load_if_exists=True,
        )

    def _recorded(self) -> set[str]:
        trials = self._study.get_trials(deepcopy=False)
        return {trial.user_attrs["key"] for trial in trials if trial.state.is_finished()}

    def _evaluate(self, method: Method) -> tuple[float, float] | None:
        """Mean LPIPS and cost; None for a method that diverges. The caller holds its claim."""
        if self.runner.folder.failure(method.key) is not None:
            return None
        prices = self.benchmark.prices(method, self.runner.models, self.runner.measurements)
        try:
            rows = self.runner.run_claimed(method, self.screen)
        except NonFiniteError as error:
            self.runner.folder.fail(method, str(error))
            return None
        return _mean(rows, "lpips"), prices.cost(rows)

    def _record(
        self,
        method: Method,
        params: Mapping[str, Any],
        space: Mapping[str, Choice | Span],
        values: tuple[float, float] | None,
    ) -> None:
        optuna = _optuna()
        states = optuna.trial.TrialState
        self._study.add_trial(
            optuna.trial.create_trial(
                state=states.FAIL if values is None else states.COMPLETE,
                params=dict(params),
                distributions=_distributions(space),
                values=values,
                user_attrs={"key": method.key, "method": method.settings()},
            )
        )

    def _tell(self, number: int, values: tuple[float, float] | None) -> None:
        states = _optuna().trial.TrialState
        # Whoever took this trial over may have told it already.
        if values is None:
            self._study.tell(number, state=states.FAIL, skip_if_finished=True)
        else:
            self._study.tell(number, values, skip_if_finished=True)

    def _take_over(self) -> None:
        """Finish the trials of processes that have died: those that run without anybody holding the claim."""
        for trial in self._study.get_trials(deepcopy=False):
            if trial.state.is_finished() or "method" not in trial.user_attrs:
                continue
            method = Method.from_settings(trial.user_attrs["method"])
            with self.runner.folder.claimed(method.key, wait=False) as held:
                if held:
                    self._tell(trial.number, self._evaluate(method))


def _mean(rows: Sequence[Row], column: str) -> float:
    return float(sum(row[column] for row in rows)) / len(rows)


def _distinct(values: Sequence[Any]) -> tuple[Any, ...]:
    # True == 1 in Python, and a study must tell them apart.
    return tuple({repr(value): value for value in values}.values())


def _distributions(space: Mapping[str, Choice | Span]) -> dict[str, Any]:
    kinds = _optuna().distributions
    return {
        name: kinds.CategoricalDistribution(part.values)
        if isinstance(part, Choice)
        else kinds.FloatDistribution(part.low, part.high, log=True)
        for name, part in space.items()
    }


def _optuna() -> Any:
    try:
        import optuna
        import optuna.storages.journal
    except ImportError as error:
        raise ImportError('a sweep needs Optuna: pip install "lavps[sweep]"') from error
    return optuna
