"""What the published notebook of Figure 3 shows: final losses as printed, the rest read off the saved figure."""

ALPHA = (0.2, 0.4, 0.6, 0.8, 1.0)
FINAL = {
    "collapsed": (0.598028, 0.158175, 0.064472, 0.034594, 0.021552),
    "factorized": (0.003792, 0.001479, 0.000892, 0.000633, 0.000486),
}
# (alpha): (epoch, value) of curves, good to two or three digits.
LOSS = {
    ("collapsed", 0.2): ((20, 1.437), (50, 1.300), (100, 1.171), (200, 0.972), (300, 0.818), (400, 0.695)),
    ("collapsed", 0.4): ((20, 1.313), (50, 1.016), (100, 0.722), (200, 0.417), (300, 0.277), (400, 0.203)),
    ("collapsed", 0.6): ((20, 1.123), (50, 0.688), (100, 0.378), (200, 0.180)),
    ("collapsed", 0.8): ((20, 0.905), (50, 0.434), (100, 0.207)),
    ("collapsed", 1.0): ((20, 0.698), (50, 0.277), (100, 0.125), (200, 0.058), (300, 0.037), (400, 0.027)),
    ("factorized", 0.2): ((10, 1.380), (15, 1.353), (20, 1.328), (30, 1.238), (50, 0.768), (75, 0.22), (100, 0.081)),
    ("factorized", 1.0): ((10, 0.477), (20, 0.054), (30, 0.023), (50, 0.010)),
}
INCENTIVE = {
    ("collapsed", 0.2): ((50, 0.52), (100, 0.95), (200, 1.74), (300, 2.27), (400, 2.56), (500, 2.78)),
    ("collapsed", 0.4): ((175, 1.5), (500, 1.00)),
    ("collapsed", 0.6): ((80, 1.0), (500, 0.38)),
    ("collapsed", 0.8): ((40, 0.83), (500, 0.18)),
    ("factorized", 0.2): ((61, 2.8), (500, 0.114)),
    ("factorized", 0.4): ((27, 1.48), (500, 0.03)),
    ("factorized", 0.6): ((17, 1.04),),
    ("factorized", 0.8): ((11, 0.74),),
}


def points(epochs: int) -> list[tuple[str, str, float, int, float]]:
    """All of it up to the epoch `epochs`: (quantity, form, alpha, epoch, value); the final losses are those of epoch 500."""
    found = [
        (quantity, form, alpha, epoch, value)
        for quantity, table in (("loss", LOSS), ("incentive", INCENTIVE))
        for (form, alpha), values in table.items()
        for epoch, value in values
    ]
    found += [("loss", form, a, 500, v) for form, values in FINAL.items() for a, v in zip(ALPHA, values, strict=True)]
    return [point for point in found if point[3] <= epochs]
