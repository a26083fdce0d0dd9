"""Words of the pages: titles of the tasks, and the definitions that every page may use."""

from __future__ import annotations

TITLES = {
    "sr4": "super-resolution x4",
    "motion-blur": "motion blur",
    "centre-box": "centre box",
    "jpeg": "JPEG",
    "hdr": "HDR clipping",
    "sr2": "super-resolution x2",
    "sr8": "super-resolution x8",
    "sr16": "super-resolution x16",
    "inpainting": "inpainting, half of the pixels",
    "denoise": "denoising",
    "gaussian-blur": "Gaussian blur",
    "random-rectangle": "random rectangle",
    "random-motion-blur": "random motion blur",
    "random-motion-blur-hard": "stronger motion blur",
    "half-pixels": "half of the pixels missing",
    "random-pixels": "80 to 85 % of the pixels missing",
}
NFE = (
    "**NFE** is the number of denoiser function evaluations per sample: a forward pass counts 1, a backward pass 2. "
    "Forward passes of the inference model and linearized steps count at their measured time relative to a denoiser "
    "forward pass."
)
METHODS = (
    "**MGDM** (mixture-guided diffusion) solves a variational problem at every diffusion step: by gradients through the "
    "denoiser, with Adam or with a whitened gradient, or by a linearized step, which needs neither gradients nor training. "
    "**LAVPS** (Likelihood-guided Amortized Variational Posterior Sampling) initializes this problem with a trained "
    "inference model. K is the number of diffusion steps, G the number of gradient steps per diffusion step, and "
    "*t ≤ 0.5* the second half of the diffusion time."
)
