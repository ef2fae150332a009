"""The catalogue of models that come with amptui; looking a name up imports no model and no torch."""

CATALOGUE = {
    "mnist-deep": ("amptui.models.mnist_deep", "a far too deep CNN on MNIST: AMP with work to speed up"),
    "simple-cnn": ("amptui.models.simple_cnn", "two convolutions on CIFAR-10: AMP with little to speed up"),
    "multi-task": ("amptui.models.multi_task", "two heads and two losses on MNIST: one loss scale for both"),
    "resnet50": (
        "amptui.models.resnet50",
        "ResNet-50 on images in folders or random ones: what mixed precision is measured with",
    ),
    "char-gpt": (
        "amptui.models.char_gpt",
        "a small transformer that learns to write: AMP beyond convolutions",
    ),
    "selective": (
        "amptui.models.selective",
        "a CNN with an FP32 island: one operation that autocast must leave alone",
    ),
    "unstable": (
        "amptui.models.unstable",
        "float16's troubles on purpose, one at a time: --set trouble=collapse",
    ),
}
"""Name to the module that holds the experiment, and one line of what it teaches."""
