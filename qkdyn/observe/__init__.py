"""Attention watched while any model trains: how sharp it is and where it points, by layer and head.

Measured on the device, kept on the device, and read when asked:

    records = observe.start(1000, jax.eval_shape(measures, x))  # a buffer for 1000 records, of what `measures` returns
    maps = observe.sown(variables)                              # Linen, NNX; or whatever maps a function returns
    values = observe.measure(maps, mask=mask)                   # {layer: {measure: (heads,)}}, inside jit
    values = {"loss": loss, **values}                           # a scalar beside them, where wanted
    records = observe.write(records, step, values)              # carried through scans
    observe.emit(records, logger)                               # logger(step, {"layer_0/entropy": 1.23, ...})
    observe.to_dataset(records)                                 # xarray, axes (step, layer, head); of a scalar step

With NNX pass sow_weights=True only where `nnx.capture` looks: elsewhere each call leaves its maps in the model, whose structure
is then another one, so that `nnx.jit` compiles every step anew and nothing of the maps is freed (`examples/language_nnx.py`).
"""

from qkdyn.observe.collect import attend_with_maps, by_layer, named, sown
from qkdyn.observe.maps import measure, row_measures
from qkdyn.observe.reading import emit, to_dataset
from qkdyn.observe.records import Records, start, write, write_every

__all__ = [
    "Records",
    "attend_with_maps",
    "by_layer",
    "emit",
    "measure",
    "named",
    "row_measures",
    "sown",
    "start",
    "to_dataset",
    "write",
    "write_every",
]
