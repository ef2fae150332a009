"""Parameter groups that an optimizer got while training, such as those of layers that were unfrozen."""

from amptui.base.errors import UsageError
from amptui.engine.checkpoint.file import Checkpoint, checkpoint_name
from amptui.engine.prepared import Prepared

CANNOT_BE_RESUMED = (
    "checkpoints from here on cannot be resumed: the optimizer got a parameter group with parameters that "
    "are not the model's, which a new process cannot make again; add them in build_optimizer()"
)

_START_NEW_RUN = "start a new run without --resume, with all groups in build_optimizer()"


def added_groups(prepared: Prepared) -> list[dict[str, bool] | None]:
    """The groups that ``build_optimizer()`` did not make: each parameter's name, and whether it is trained.

    None for a group with a parameter that is not the model's, or not any more.
    """
    added = prepared.optimizer.param_groups[prepared.built_groups :]
    if not added:
        return []
    names = {id(parameter): name for name, parameter in prepared.model.named_parameters()}
    return [
        {names[id(each)]: each.requires_grad for each in group["params"]}
        if all(id(each) in names for each in group["params"])
        else None
        for group in added
    ]


def add_groups(checkpoint: Checkpoint, prepared: Prepared) -> None:
    """Give the optimizer the groups that it had got before ``checkpoint``; their options are in its state.

    Raises UsageError, in one line, if that cannot be done.
    """
    optimizer, saved = prepared.optimizer, checkpoint.optimizer.get("param_groups")
    for group in checkpoint.added_groups:
        _add_group(group, prepared, checkpoint_name(checkpoint.step))
    if saved is not None and len(saved) != len(optimizer.param_groups):
        had, has = len(saved), len(optimizer.param_groups)
        what = f"its optimizer has {had} parameter group{'' if had == 1 else 's'}, but now there are {has}"
        raise _refusal(checkpoint_name(checkpoint.step), what)


def _add_group(group: dict[str, bool] | None, prepared: Prepared, name: str) -> None:
    grew = "while training, the optimizer got a parameter group"
    if group is None:
        raise _refusal(name, f"{grew} with parameters that are not the model's")
    parameters = dict(prepared.model.named_parameters())
    absent = next((parameter for parameter in group if parameter not in parameters), None)
    if absent is not None:
        raise _refusal(name, f"{grew} with {absent}, which the model does not have")
    for parameter, is_trained in group.items():
        parameters[parameter].requires_grad_(is_trained)
    try:
        prepared.optimizer.add_param_group({"params": [parameters[parameter] for parameter in group]})
    except ValueError as error:
        raise _refusal(name, f"{grew} that does not fit: {error}") from error


def _refusal(name: str, what: str) -> UsageError:
    return UsageError(f"checkpoint {name} cannot be resumed: {what}", hint=_START_NEW_RUN)
