"""Evaluation of samplers: image metrics, paired tests, distances to exact posteriors, calibration."""

from .calibration import (
    CalibrationReport,
    calibrate,
    coverage,
    rank_histogram,
    ranks,
    tarp_ranks,
    uniformity_band,
    uniformity_p_value,
)
from .conformal import Correction, conformal_p_value, interval_misses, required_scales
from .distances import sliced_wasserstein
from .fit import FIT_SAMPLES, fit_statistics
from .lpips import LPIPS
from .metrics import ImageBatch, crps, energy_score, pixel_coverage, psnr, ssim
from .mmd import CLIPEmbedding, Embedding, LPIPSEmbedding, SetDistance, image_mmd, mmd_difference
from .noise_estimate import estimate_noise
from .oracle import (
    OptimizedStart,
    OracleScore,
    exact_samples,
    oracle_mixture,
    oracle_problem,
    random_start,
    score,
)
from .pareto import Match, Point, cheapest_matching, front_of, pareto_front
from .reference import tempered_posterior
from .statistics import (
    BootstrapDifference,
    NonInferiority,
    joint_bootstrap,
    non_inferiority,
    paired_bootstrap,
)

__all__ = [
    "FIT_SAMPLES",
    "LPIPS",
    "BootstrapDifference",
    "CLIPEmbedding",
    "CalibrationReport",
    "Correction",
    "Embedding",
    "ImageBatch",
    "LPIPSEmbedding",
    "Match",
    "NonInferiority",
    "OptimizedStart",
    "OracleScore",
    "Point",
    "SetDistance",
    "calibrate",
    "cheapest_matching",
    "conformal_p_value",
    "coverage",
    "crps",
    "energy_score",
    "estimate_noise",
    "exact_samples",
    "fit_statistics",
    "front_of",
    "image_mmd",
    "interval_misses",
    "joint_bootstrap",
    "mmd_difference",
    "non_inferiority",
    "oracle_mixture",
    "oracle_problem",
    "paired_bootstrap",
    "pareto_front",
    "pixel_coverage",
    "psnr",
    "random_start",
    "rank_histogram",
    "ranks",
    "required_scales",
    "score",
    "sliced_wasserstein",
    "ssim",
    "tarp_ranks",
    "tempered_posterior",
    "uniformity_band",
    "uniformity_p_value",
]
