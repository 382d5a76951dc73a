"""Kubernetes objects as read-only views."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from bireme.core.errors import BiremeError
from bireme.core.labels import HOOK_ANNOTATION

_REVISION = "deployment.kubernetes.io/revision"
_OF_SERVER = ("managedFields", "generation", "resourceVersion", "uid", "creationTimestamp")


@dataclass(frozen=True, slots=True, repr=False)
class Manifest(Mapping[str, Any]):
    """One Kubernetes object, frozen all the way down: mappings are read-only, lists are tuples.

    ``source`` is the template it came from, as in Helm's ``# Source:`` line ("" when unknown). `thaw` gives a
    copy that can be changed.
    """

    _content: Mapping[str, Any]
    source: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_content", freeze(self._content))

    def __getitem__(self, key: str) -> Any:
        return self._content[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._content)

    def __len__(self) -> int:
        return len(self._content)

    def __hash__(self) -> int:
        return hash((self.kind, self.namespace, self.name, self.source))

    def __repr__(self) -> str:
        return f"Manifest({self.identity})"

    @property
    def kind(self) -> str:
        """The object's kind, "" when it has none."""
        return str(self._content.get("kind") or "")

    @property
    def api_version(self) -> str:
        """The object's apiVersion, "" when it has none."""
        return str(self._content.get("apiVersion") or "")

    @property
    def group(self) -> str:
        """The API group of the object's kind, "" for Kubernetes' core."""
        return self.api_version.rpartition("/")[0]

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The object's metadata, empty when it has none."""
        return within(self._content, "metadata")

    @property
    def name(self) -> str:
        """metadata.name, "" when it has none."""
        return str(self.metadata.get("name") or "")

    @property
    def namespace(self) -> str | None:
        """metadata.namespace, None when the object has none."""
        found = self.metadata.get("namespace")
        return str(found) if found else None

    @property
    def labels(self) -> Mapping[str, str]:
        """metadata.labels."""
        return within(self._content, "metadata", "labels")

    @property
    def annotations(self) -> Mapping[str, str]:
        """metadata.annotations."""
        return within(self._content, "metadata", "annotations")

    @property
    def is_hook(self) -> bool:
        """Whether it is a hook or a test, which Helm runs at certain moments instead of keeping it."""
        return HOOK_ANNOTATION in self.annotations

    @property
    def identity(self) -> str:
        """Kind and name as people write them: ``Job/imagenet-r1``."""
        return f"{self.kind or '(no kind)'}/{self.name or '(no name)'}"

    @property
    def fields(self) -> Any:
        """Its content with attributes for keys: ``web.fields.spec.replicas``."""
        return Fields.of(self._content)

    def thaw(self) -> dict[str, Any]:
        """A deep copy in plain dicts and lists, free to change."""
        thawed: dict[str, Any] = thaw(self._content)
        return thawed


class Fields(dict[str, Any]):
    """A mapping whose keys are attributes too, unless ``dict`` has one of that name, such as ``items``."""

    @classmethod
    def of(cls, value: Any) -> Any:
        """A copy of ``value`` in which all mappings are Fields, and all sequences lists."""
        if isinstance(value, Mapping):
            return cls((key, cls.of(item)) for key, item in value.items())
        return [cls.of(item) for item in value] if isinstance(value, list | tuple) else value

    def __getattr__(self, key: str) -> Any:
        try:
            return self[key]
        except KeyError:
            raise AttributeError(f"there is no {key}, only: {', '.join(self)}") from None


@contextmanager
def read_as_kubernetes(manifest: Manifest) -> Iterator[None]:
    """What goes wrong inside with ``manifest``, whoever wrote it, is a BiremeError that names it."""
    try:
        yield
    except BiremeError as error:
        said = str(error)
        raise BiremeError(said if manifest.identity in said else f"{manifest.identity}: {said}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BiremeError(
            f"{manifest.identity} is not valid in Kubernetes: bireme check CHART says where"
        ) from error


def without_state(item: Mapping[str, Any]) -> dict[str, Any]:
    """An object that an API server has told, without its status and what Kubernetes alone writes."""
    metadata = {key: value for key, value in item["metadata"].items() if key not in _OF_SERVER}
    # A controller adds the number some time after a Deployment is there.
    notes = metadata.pop("annotations", None) or {}
    if kept := {key: note for key, note in notes.items() if key != _REVISION}:
        metadata["annotations"] = kept
    return {**{key: value for key, value in item.items() if key != "status"}, "metadata": metadata}


def within(value: Any, *keys: str) -> Mapping[str, Any]:
    """The mapping at ``keys`` in ``value``, empty where there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def freeze(value: Any) -> Any:
    """``value`` with every mapping read-only and every list a tuple."""
    if isinstance(value, Mapping):
        return MappingProxyType({key: freeze(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    return value


def thaw(value: Any) -> Any:
    """The reverse of `freeze`: fresh dicts and lists."""
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [thaw(item) for item in value]
    return value
