"""`ordnet recipes`: what can be trained by name."""

from typing import Annotated

import typer


def recipes(
    name: Annotated[str | None, typer.Argument(help="One recipe: its command and all its settings.")] = None,
) -> None:
    """The recipes, with command, cost and score."""
    from ordnet.errors import OrdnetError
    from ordnet.recipes import recipes as known

    found = known()
    if name is not None:
        if name not in found:
            raise OrdnetError(f"there is no recipe {name!r}; there are {', '.join(found)}")
        recipe = found[name]
        print(f"# {recipe.about}\n# {recipe.command}\n# cost: {recipe.cost}")
        print(f"# paper: {recipe.paper}\n# ours: {recipe.ours}\n{recipe.settings.to_yaml()}", end="")
        return
    for recipe in found.values():
        print(f"{recipe.name}: {recipe.about}")
        print(f"    {recipe.command}")
        print(f"    cost: {recipe.cost} · paper: {recipe.paper} · ours: {recipe.ours}")
