"""Search for settings on the validation images, quality against cost, by any number of processes.

Every process runs the same command, and works on a method while it holds the method's claim
(:func:`~lavps.io.atomic.claim`). If a process is killed, another one continues its rows.
Optuna stores the trials in a journal in the benchmark's folder, and proposes settings (TPE or NSGA-II with
two objectives, mean LPIPS and cost). A method with all its rows is never run again, in any study.

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

from ..extras import require
from ..samplers import NonFiniteError, Settings
from .folder import Benchmark
from .runs import Runner
from .spaces import Choice, SamplerName, Span, search_space, searched_settings


@dataclass(frozen=True)
class Sweep:
    """A study of settings on the validation images.

    Attributes:
        benchmark: Folder of the benchmark.
        runner: Runner on the validation split.
        name: Name of the study; all studies in one folder share their rows.
        screen: Number of images on which methods are screened first; default no screening.
        slack: LPIPS difference from the best method of equal or lower cost up to which a screened method is
            run on all images.
    """

    benchmark: Benchmark
    runner: Runner
    name: str
    screen: int | None = None
    slack: float = 0.01

    def grid(self, methods: Sequence[Settings]) -> None:
        """Run the methods that have not been run; wait for those that other processes run."""
        space = {"method": Choice(tuple(dict.fromkeys(method.key for method in methods)))}
        for wait in (False, True):
            for method in methods:
                if method.key in self._recorded():
                    continue
                with self.runner.folder.claimed(method.key, wait) as held:
                    if held and method.key not in self._recorded():
                        self._record(method, space, self._evaluate(method))
        self._promote()

    def search(
        self,
        sampler: SamplerName,
        model: str | None,
        trials: int,
        algorithm: Literal["tpe", "nsga2"] = "tpe",
        space: Mapping[str, Choice | Span] | None = None,
    ) -> None:
        """Propose and run settings until the study has this many trials.

        Args:
            sampler: Sampler, "mgdm" or "lavps".
            model: Folder of the inference model of "lavps".
            trials: Number of trials of the study, over all processes and earlier runs.
            algorithm: Algorithm that proposes settings.
            space: Parameters; default :func:`~lavps.benchmark.spaces.search_space`.
        """
        samplers, space = _optuna().samplers, space or search_space(sampler)
        self._study.sampler = samplers.TPESampler() if algorithm == "tpe" else samplers.NSGAIISampler()
        self._take_over()
        while len(self._study.get_trials(deepcopy=False)) < trials:
            trial = self._study.ask(_distributions(space))
            method = searched_settings(sampler, model, trial.params)
            with self.runner.folder.claimed(method.key):
                trial.set_user_attr("key", method.key)
                trial.set_user_attr("method", method.to_dict())
                self._tell(trial.number, self._evaluate(method))
        self._take_over()
        self._promote()

    def _promote(self) -> None:
        """Run the screened methods within ``slack`` of the front on all images."""
        if self.screen is None:
            return
        methods = {trial.user_attrs["key"]: trial.user_attrs["method"] for trial in self._complete()}
        tried, kept = self.finished(), []
        for key, (score, cost) in tried.items():
            best = min(other for other, price in tried.values() if price <= cost)
            if score <= best + self.slack:
                kept.append(Settings.from_dict(methods[key]))
        for wait in (False, True):
            for method in kept:
                with self.runner.folder.claimed(method.key, wait) as held:
                    if held:
                        self.runner.run_claimed(method)

    def finished(self) -> dict[str, tuple[float, float]]:
        """Return mean LPIPS and cost of the study's methods, by key."""
        return {trial.user_attrs["key"]: (trial.values[0], trial.values[1]) for trial in self._complete()}

    def _complete(self) -> list[Any]:
        return [t for t in self._study.get_trials(deepcopy=False) if t.state.name == "COMPLETE"]

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

    def _evaluate(self, method: Settings) -> tuple[float, float] | None:
        """Return mean LPIPS and cost; None if the method diverges. The caller holds its claim."""
        if self.runner.folder.failure(method.key) is not None:
            return None
        prices = self.benchmark.prices(method, self.runner.models, self.runner.measurements)
        try:
            rows = self.runner.run_claimed(method, self.screen)
        except NonFiniteError as error:
            self.runner.folder.fail(method, str(error))
            return None
        return float(sum(row["lpips"] for row in rows)) / len(rows), prices.cost(rows)

    def _record(
        self, method: Settings, space: Mapping[str, Choice | Span], values: tuple[float, float] | None
    ) -> None:
        trial = _optuna().trial
        self._study.add_trial(
            trial.create_trial(
                state=trial.TrialState.FAIL if values is None else trial.TrialState.COMPLETE,
                params={"method": method.key},
                distributions=_distributions(space),
                values=values,
                user_attrs={"key": method.key, "method": method.to_dict()},
            )
        )

    def _tell(self, number: int, values: tuple[float, float] | None) -> None:
        # Another process may have taken over this trial and finished it.
        state = _optuna().trial.TrialState.FAIL if values is None else None
        self._study.tell(number, values, state=state, skip_if_finished=True)

    def _take_over(self) -> None:
        """Finish the running trials whose claim no process holds: their processes have ended."""
        for trial in self._study.get_trials(deepcopy=False):
            if trial.state.is_finished() or "method" not in trial.user_attrs:
                continue
            method = Settings.from_dict(trial.user_attrs["method"])
            with self.runner.folder.claimed(method.key, wait=False) as held:
                if held:
                    self._tell(trial.number, self._evaluate(method))


def _distributions(space: Mapping[str, Choice | Span]) -> dict[str, Any]:
    kinds = _optuna().distributions
    return {
        name: kinds.CategoricalDistribution(part.values)
        if isinstance(part, Choice)
        else kinds.FloatDistribution(part.low, part.high, log=True)
        for name, part in space.items()
    }


def _optuna() -> Any:
    require("optuna.storages.journal", "sweep", "a sweep needs Optuna")
    return require("optuna", "sweep")
