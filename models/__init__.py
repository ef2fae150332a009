"""The catalogue of models that come with amptui; looking a name up imports no model and no torch."""

CATALOGUE = {
    "mnist-deep": ("amptui.models.mnist_deep", "a deep CNN on MNIST, with enough work for AMP to speed up"),
    "simple-cnn": ("amptui.models.simple_cnn", "a small CNN on CIFAR-10, on which AMP gains little"),
    "multi-task": (
        "amptui.models.multi_task",
        "two heads and two losses on MNIST, with one loss scale for both",
    ),
    "resnet50": (
        "amptui.models.resnet50",
        "ResNet-50 on image folders or random images",
    ),
    "char-gpt": (
        "amptui.models.char_gpt",
        "a small transformer that predicts the next character of a text",
    ),
    "selective": (
        "amptui.models.selective",
        "a CNN with one operation kept in FP32, outside autocast",
    ),
    "unstable": (
        "amptui.models.unstable",
        "float16's typical problems, one at a time: --set trouble=collapse",
    ),
}
"""Name to the module of the experiment, and one line that describes it."""
