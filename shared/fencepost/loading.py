"""Finding the application that a command or a worker was told of."""

import importlib
import sys
import traceback
from pathlib import Path

from fencepost.app import App
from fencepost.errors import UsageError
from fencepost.misspelt import is_application


def load_app(path: str) -> App:
    """The app at `package.module:attribute`, looked for from the current folder on as well.

    UsageError, in one sentence, for anything that keeps it from running, `App.check` included.
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise UsageError(f"an app is named as package.module:attribute, not {path!r} (FENCEPOST_APP)")
    value: object = _module(module_name)
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise UsageError(f"{module_name} has no attribute {attribute}")
        value = getattr(value, part)
    if not isinstance(value, App):
        raise UsageError(f"{path} is a {type(value).__name__}, not a fencepost.App")
    if problems := value.check():
        raise UsageError(f"{path} cannot run: " + "; ".join(problems))
    return value


def _module(name: str) -> object:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # a console script does not look there by itself
    try:
        return importlib.import_module(name)
    except UsageError as error:
        raise UsageError(f"importing {name} failed: {error}{_place(error)}") from error
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(f"there is no module {name} on the path or in {here}") from error
        raise UsageError(f"importing {name} failed: {error}") from error
    except (Exception, SystemExit) as error:  # a script that runs as it is imported, say
        said = f"{type(error).__name__}: {error}{_place(error)}"
        raise UsageError(f"importing {name} failed: {said}") from error


def _place(error: BaseException) -> str:
    """The line of the application at which its import failed, unless the error names it."""
    lines = [one for one in traceback.extract_tb(error.__traceback__) if is_application(one.filename)]
    place = f" ({Path(lines[-1].filename).name}:{lines[-1].lineno})" if lines else ""
    return "" if place in str(error) else place
