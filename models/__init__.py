"""The catalogue of models that come with amptui; looking a name up imports no model and no torch."""

CATALOGUE = {
    "mnist-deep": ("amptui.models.mnist_deep", "a far too deep CNN on MNIST: AMP with work to speed up"),
    "simple-cnn": ("amptui.models.simple_cnn", "two convolutions on CIFAR-10: AMP with little to speed up"),
}
"""Name to the module that holds the experiment, and one line of what it teaches."""
