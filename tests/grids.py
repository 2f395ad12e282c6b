"""A made climate cube: a trend, a season, elevation, and noise of known variance."""

import numpy as np
import xarray as xr

NOISE = 0.1
CHUNKS = (6, 8, 10)


def make_cube(n_times=24, n_lat=20, n_lon=25, seed=0):
    """Return a Dataset of `rain` (with missing cells), `elevation`, and the target
    `temperature`.
    """
    rng = np.random.default_rng(seed)
    time = np.datetime64("2001-01-15", "ns") + 30 * np.arange(n_times) * np.timedelta64(
        1, "D"
    )
    lat = np.linspace(-60, 60, n_lat)
    lon = np.linspace(0, 100, n_lon)
    rain = rng.normal(size=(n_times, n_lat, n_lon)).astype("f4")
    elevation = rng.normal(size=(n_lat, n_lon)).astype("f4")
    days = 30 * np.arange(n_times)[:, None, None]
    season = np.sin(2 * np.pi * (days + 14) / 365.25)
    mean = (
        np.cos(rain)
        + 0.5 * elevation
        + season
        + days / 1000
        + np.sin(lat / 30)[None, :, None]
    )
    temperature = (mean + NOISE * rng.normal(size=rain.shape)).astype("f4")
    rain[:, :5, :5] = np.nan
    temperature[0, 7:9, :] = np.nan
    on_earth = {"grid_mapping": "crs"}
    dims = ("time", "lat", "lon")
    return xr.Dataset(
        {
            "rain": (dims, rain, on_earth),
            "elevation": (dims[1:], elevation),
            "temperature": (
                dims,
                temperature,
                {"units": "K", "long_name": "air temperature", **on_earth},
            ),
        },
        {
            "time": time,
            "lat": ("lat", lat, {"units": "degrees_north"}),
            "lon": lon,
            "crs": ((), 0, {"grid_mapping_name": "latitude_longitude"}),
        },
        {"title": "a made cube"},
    )


def write_cube(url, cube=None, **encoding):
    """Write a cube as Zarr 3, and return it as it was; the target is packed into 16
    bits.
    """
    cube = make_cube() if cube is None else cube
    packed = {
        "scale_factor": 2**-10,
        "add_offset": 1.0,
        "dtype": "int16",
        "_FillValue": -32768,
    }
    stored = {"rain": {"chunks": CHUNKS}, "temperature": {"chunks": CHUNKS, **packed}}
    cube.to_zarr(
        url, mode="w", zarr_format=3, consolidated=False, encoding=stored | encoding
    )
    return cube


def stacked(cube, *names):
    """Return variables and coordinates as columns, of cells in the order of the
    dimensions.
    """
    like = cube["temperature"]
    parts = [
        cube[name].broadcast_like(like).transpose(*like.dims).values.ravel()
        for name in names
    ]
    return np.stack(parts, axis=1)
