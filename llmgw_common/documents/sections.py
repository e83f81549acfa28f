"""What every section shares."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

#: A value that becomes an engine argument: True is the flag alone, None and False leave it out.
ArgValue = str | int | float | bool | list[str] | None

#: A short name: what people type, and what stands in file names, labels and metrics.
Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]

#: A model's name may hold slashes (organisation/model), and colons as other systems write them.
ModelNameText = Annotated[
    str,
    Field(
        min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*(/[A-Za-z0-9._:-]+)*$"
    ),
]

#: The name of an environment variable.
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]


class Section(BaseModel):
    """A frozen part of the catalog that knows all of its keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)
