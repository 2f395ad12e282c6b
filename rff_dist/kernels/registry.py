"""The kernels that have a name, and where their classes are.

A new kernel needs its class and a line here. Texts such as "matern:nu=1.5", stored
models, the command line's help, the names in `rff_dist`, the manual's reference and the
tests' random kernels follow from this table. It has paths in place of classes because
help must not wait for SciPy.
"""

#: The path of each kernel's class, by the kernel's name in texts and stored models.
KERNELS = {
    "gaussian": "rff_dist.kernels.stationary.Gaussian",
    "laplacian": "rff_dist.kernels.stationary.Laplacian",
    "cauchy": "rff_dist.kernels.stationary.Cauchy",
    "sinc": "rff_dist.kernels.stationary.Sinc",
    "matern": "rff_dist.kernels.stationary.Matern",
    "rational_quadratic": "rff_dist.kernels.stationary.RationalQuadratic",
    "additive": "rff_dist.kernels.additive.Additive",
    "linear": "rff_dist.kernels.explicit.Linear",
    "polynomial": "rff_dist.kernels.explicit.Polynomial",
    "min": "rff_dist.kernels.explicit.Min",
}
