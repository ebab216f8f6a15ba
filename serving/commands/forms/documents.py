"""Words of the commands in YAML and JSON documents: manifests, Compose, task files.

    words_of_documents([{"image": "vllm/vllm-openai", "args": ["--model", "org/model"]}])
    # yields a group with ["docker", "run", "vllm/vllm-openai", "--model", "org/model"]

Read are the containers of Kubernetes, Docker Compose, ECS and `docker inspect`, SkyPilot's tasks,
the settings of charts and frameworks (settings.py), and scripts of several lines under any
key, such as those of a ConfigMap.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import yaml

from outrider.serving.commands.forms.settings import (
    words_of_config,
    words_of_kserve,
    words_of_settings,
)
from outrider.serving.commands.forms.shell import END, words_of_script
from outrider.serving.commands.forms.variables import IMAGE_USED, VARIABLE

IMAGE = re.compile(r"(?:[\w.:-]+/)*[\w.-]*vllm[\w.-]*(?:[:@][\w.:+-]+)?")
"""Name of an image, such as vllm/vllm-openai:v0.32.0, whose entry point is `vllm serve`."""

LONGEST_IMAGE = 500
"""Characters of an image's name that is compared."""

LONGEST_TEXT = 1_000_000
"""Characters of a text that is searched. Kubernetes' objects are shorter than 1.5 MB, and vLLM's
logs are reduced to the lines that name its arguments."""

ROLE = "role"
"""The variable with the role of a container's server. It is in lower case, as `IMAGE_USED`."""

PREFILL = "prefill"

_ROLE_LABEL = re.compile(r"(?:^|[./-])role(?:-name)?$")
"""Names of a pod's label with its role."""

OF_INSPECT = {"Cmd": "command", "Entrypoint": "entrypoint", "Env": "environment", "Image": "image"}
"""What `docker inspect` calls the keys of Compose."""

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The loader in C, which is ten times as fast, where PyYAML has it."""


RAY_SERVE = "serveConfigV2"

DEEPEST = 500
"""Brackets in brackets that are read; libyaml's time grows with their product."""


def documents_in(text: str) -> list[Any]:
    """Returns the documents of a YAML or JSON text; none for a script."""
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth = depth + 1 if bracket in "[{" else max(depth - 1, 0)
        if depth > DEEPEST:
            return []
    try:
        documents = list(yaml.load_all(text, LOADER))
    except (yaml.YAMLError, RecursionError, ValueError):
        return []
    return list(itertools.chain.from_iterable(map(_of_list, documents)))


def _of_list(document: Any) -> list[Any]:
    """Returns the documents of the List that `kubectl get` prints; any other document itself."""
    is_list = isinstance(document, Mapping) and str(document.get("kind")).endswith("List")
    items = document.get("items") if is_list else None
    return items if isinstance(items, list) else [document]


def words_of_documents(documents: list[Any]) -> Iterator[Iterable[list[str]]]:
    """Yields the words of each command in YAML or JSON documents, in groups.

    The commands of a group are different ones; another group may have the same ones in other words.
    """
    mappings = list(mappings_in(documents))
    # The field of a RayService that holds Ray Serve's configuration as text.
    embedded = [mapping.get(RAY_SERVE) for mapping in mappings]
    mappings += mappings_in([documents_in(text) for text in embedded if isinstance(text, str)])
    documents = [*documents, *_inline_values(documents)]
    yield _tasks(mappings)
    yield words_of_kserve(mappings)
    yield words_of_settings(mappings)
    yield words_of_config(documents)
    yield _words_of_containers(documents)
    for mapping in mappings:
        of_dstack = _of_dstack(mapping)
        for script in _texts(mapping):
            is_script = "\n" in script.strip() or bool(of_dstack)
            if "vllm" in script and is_script:
                named = (f"{name}={value}" for name, value in _environment(mapping))
                yield [[*of_dstack, *named, *words_of_script(script)]]


def _words_of_containers(documents: list[Any]) -> Iterator[list[str]]:
    """Yields the words of each container's command."""
    config_maps = _config_maps(documents)
    for document in documents:
        of_kubernetes = isinstance(document, Mapping) and "apiVersion" in document
        roles = _roles_in(document)
        for written in _containers(_with_variables_of_services(document)):
            container = _with_config_maps(written, config_maps)
            words = _words_of_container(container, of_kubernetes)
            role = [f"{ROLE}={roles[id(written)]}"] if id(written) in roles else []
            yield [*role, *_of_leader(document, words), *words]


def _roles_in(document: Any) -> dict[int, str]:
    """Returns the role in a prefill/decode pair of each mapping that has one, by its identity.

    Pods have it as a label: llm-d.ai/role of llm-d, role-name of AIBrix' StormService.
    """
    roles: dict[int, str] = {}
    waiting: list[tuple[Any, str | None]] = [(document, None)]
    visited = set()  # a YAML alias is the same object again
    while waiting:
        value, role = waiting.pop()
        if id(value) in visited or not isinstance(value, Mapping | list):
            continue
        visited.add(id(value))
        if isinstance(value, Mapping):
            role = _role_of(value) or role
            roles |= {} if role is None else {id(value): role}
        members = value.values() if isinstance(value, Mapping) else value
        waiting += [(member, role) for member in members]
    return roles


def _role_of(pod: Mapping[str, Any]) -> str | None:
    """Returns the role that a pod's labels name; None without one."""
    about = pod.get("metadata")
    labels = about.get("labels") if isinstance(about, Mapping) else None
    if not isinstance(labels, Mapping):
        return None
    values = [str(value).lower() for key, value in labels.items() if _ROLE_LABEL.search(str(key))]
    return next((value for value in values if value in (PREFILL, "decode")), None)


def _inline_values(documents: list[Any]) -> list[Any]:
    """Returns the values of a chart that Argo CD's Applications have as text, with parameters.

    Its docs, "Helm": parameters count before `values`.
    """
    listed: list[Any] = []
    for document in documents:
        if not isinstance(document, Mapping) or document.get("kind") != "Application":
            continue
        for helm in mappings_in(document.get("spec")):
            text = helm.get("values")
            if not isinstance(text, str):
                continue
            for values in documents_in(text):
                if isinstance(values, dict):
                    _set_parameters(values, helm.get("parameters"))
                    listed.append(values)
    return listed


def _set_parameters(values: dict[str, Any], parameters: Any) -> None:
    """Sets the values at the paths that parameters name, such as image.tag."""
    for parameter in parameters if isinstance(parameters, list) else ():
        *path, name = str(parameter.get("name")).split(".")
        holder: Any = values
        for key in path:
            holder = holder.get(key) if isinstance(holder, dict) else None
        if isinstance(holder, dict):
            holder[name] = parameter.get("value")


def files_of_documents(documents: list[Any]) -> dict[str, str]:
    """Returns the files of ConfigMaps by name."""
    files: dict[str, str] = {}
    for values in _config_maps(documents).values():
        files |= values
    return files


def _config_maps(documents: list[Any]) -> dict[str, dict[str, str]]:
    """Returns the texts of each ConfigMap, by its name."""
    maps: dict[str, dict[str, str]] = {}
    for document in documents:
        if not isinstance(document, Mapping) or document.get("kind") != "ConfigMap":
            continue
        about = document.get("metadata")
        name = str(about.get("name")) if isinstance(about, Mapping) else ""
        data = document.get("data")
        texts = data.items() if isinstance(data, Mapping) else ()
        maps[name] = {str(key): text for key, text in texts if isinstance(text, str)}
    return maps


def _with_config_maps(
    container: Mapping[str, Any], maps: Mapping[str, dict[str, str]]
) -> Mapping[str, Any]:
    """Returns a container with the variables that `envFrom` and `valueFrom` take from ConfigMaps.

    As in Kubernetes, those of `env` come later and count.
    """
    sources = container.get("envFrom")
    written = container.get("env")
    variables: list[Any] = []
    for source in sources if isinstance(sources, list) else ():
        reference = source.get("configMapRef") if isinstance(source, Mapping) else None
        values = maps.get(str(reference.get("name")), {}) if isinstance(reference, Mapping) else {}
        prefix = source.get("prefix") or ""
        variables += [{"name": f"{prefix}{key}", "value": text} for key, text in values.items()]
    for entry in written if isinstance(written, list) else ():
        origin = entry.get("valueFrom") if isinstance(entry, Mapping) else None
        reference = origin.get("configMapKeyRef") if isinstance(origin, Mapping) else None
        if isinstance(reference, Mapping):
            value = maps.get(str(reference.get("name")), {}).get(str(reference.get("key")))
            entry = entry if value is None else {"name": entry.get("name"), "value": value}
        variables.append(entry)
    return {**container, "env": variables} if isinstance(sources or written, list) else container


def _words_of_container(container: Mapping[str, Any], of_kubernetes: bool) -> list[str]:
    words = [f"{name}={value}" for name, value in _environment(container)]
    if isinstance(container.get("image"), str):
        words.append(f"{IMAGE_USED}={container['image']}")
    elif isinstance(container.get("repository"), str):  # `image` of vLLM's chart
        words.append(f"{IMAGE_USED}={container['repository']}:{container.get('tag', 'latest')}")
    # Kubernetes' `command` and the `entrypoint` of Compose and Ansible, whose `env` is a mapping,
    # replace the image's entry point.
    is_pod = of_kubernetes or "args" in container or isinstance(container.get("env"), list)
    replaces = "command" if is_pod else "entrypoint"
    # Compose replaces ${NAME:-default} in the name, too, and Ansible {{ name }}.
    image = VARIABLE.sub(lambda match: match["default"] or "", str(container.get("image", "")))
    image = re.sub(r"\{\{[^{}]*\}\}", "", image).removesuffix(":")
    if is_image(image) and not container.get(replaces):
        words += ["docker", "run", image]
    for key in ("entrypoint", "command", "args"):
        value = container.get(key) or []
        words += _one_command(value) if isinstance(value, str) else map(str, value)
    return words


def _with_variables_of_services(document: Any) -> Any:
    """Returns a DynamoGraphDeployment whose containers have its variables and their service's.

    NVIDIA Dynamo 1.1, `spec.envs` and `spec.services.NAME.envs`.
    """
    if not isinstance(document, Mapping) or document.get("kind") != "DynamoGraphDeployment":
        return document
    spec = document.get("spec")
    services = spec.get("services") if isinstance(spec, Mapping) else None
    if not isinstance(spec, Mapping) or not isinstance(services, Mapping):
        return document
    containers: list[Mapping[str, Any]] = []
    # A prefill worker hands each request to a decode worker, which drafts.
    ordered = sorted(services.values(), key=_prefills)
    for service in ordered:
        pod = service.get("extraPodSpec") if isinstance(service, Mapping) else None
        main = pod.get("mainContainer") if isinstance(pod, Mapping) else None
        if isinstance(main, Mapping):
            listed = [spec.get("envs"), service.get("envs"), main.get("env")]
            lists = (entries for entries in listed if isinstance(entries, list))
            variables = list(itertools.chain.from_iterable(lists))
            containers.append({**main, "env": variables})
    return {"apiVersion": document.get("apiVersion"), "containers": containers}


def _prefills(service: Any) -> bool:
    """Whether a service of Dynamo's only reads prompts."""
    if not isinstance(service, Mapping):
        return False
    pod = service.get("extraPodSpec")
    main = pod.get("mainContainer") if isinstance(pod, Mapping) else None
    written = main.get("args") if isinstance(main, Mapping) else None
    words = " ".join(map(str, written)) if isinstance(written, list) else str(written)
    is_marked = "is-prefill-worker" in words or "disaggregation-mode prefill" in words
    return is_marked or service.get("subComponentType") == "prefill"


def _of_leader(document: Any, words: list[str]) -> list[str]:
    """Returns the variables that LeaderWorkerSet sets on the first node, if its words have them.

    Its docs, "labels, annotations and environment variables".
    """
    if not isinstance(document, Mapping) or document.get("kind") != "LeaderWorkerSet":
        return []
    spec = document.get("spec")
    template = spec.get("leaderWorkerTemplate") if isinstance(spec, Mapping) else None
    size = template.get("size", 1) if isinstance(template, Mapping) else 1
    values = {"LWS_GROUP_SIZE": str(size), "LWS_WORKER_INDEX": "0"}
    text = " ".join(words)
    return [f"{name}={value}" for name, value in values.items() if name in text]


def is_image(name: str) -> bool:
    """Whether this is the name of an image with vLLM's server."""
    return len(name) <= LONGEST_IMAGE and IMAGE.fullmatch(name) is not None


def _names_image(name: str) -> bool:
    """Whether a name is an image's with a repository or a tag, unlike a container's name."""
    return re.search("[/:]", name) is not None and is_image(name)


def mappings_in(documents: Any) -> Iterator[Mapping[str, Any]]:
    """Yields every mapping of YAML or JSON documents, once each, in document order."""
    waiting: list[Any] = [documents]
    read = set()  # a YAML alias is the same object again, possibly a billion times
    while waiting:
        value = waiting.pop()
        if id(value) in read:
            continue
        if isinstance(value, Mapping):
            yield value
            waiting += reversed(list(value.values()))
        elif isinstance(value, list):
            waiting += reversed(value)
        if isinstance(value, Mapping | list):
            read.add(id(value))


def _texts(mapping: Mapping[str, Any]) -> Iterator[str]:
    """Yields the texts under a mapping's keys, and those in lists under them."""
    for value in mapping.values():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                yield text


def _tasks(mappings: list[Mapping[str, Any]]) -> Iterator[list[str]]:
    """Yields the words of every script under `run`, after its variables: SkyPilot."""
    for task in mappings:
        script = task.get("run")
        if isinstance(script, str) and "vllm" in script:
            variables = task.get("envs") or task.get("env") or {}
            named = dict(variables) if isinstance(variables, Mapping) else {}
            named = _of_skypilot(task) | named
            # One without a value is set when the task is launched.
            pairs = (f"{name}={text}" for name, text in named.items() if text is not None)
            yield [*pairs, *words_of_script(script)]


def _of_skypilot(task: Mapping[str, Any]) -> dict[str, str]:
    """Returns the variables that SkyPilot sets on the first node of a task.

    Its docs, "environment variables": GPUs are those of `resources.accelerators`, one without a
    number, and nodes `num_nodes`. Alternatives with different numbers leave it open.
    """
    resources = task.get("resources")
    if not isinstance(resources, Mapping):
        return {}
    variables = {"SKYPILOT_NUM_NODES": str(task.get("num_nodes", 1)), "SKYPILOT_NODE_RANK": "0"}
    choices = [resources]
    for key in ("any_of", "ordered"):
        listed = resources.get(key)
        choices += listed if isinstance(listed, list) else []
    numbers = {number for choice in choices for number in _numbers_of_gpus(choice)}
    if len(numbers) == 1:
        variables["SKYPILOT_NUM_GPUS_PER_NODE"] = numbers.pop()
    return variables


def _of_dstack(task: Mapping[str, Any]) -> list[str]:
    """Returns the variable with the number of GPUs that dstack sets, if it is in a configuration.

    Its docs, "resources": a text of name, memory and number in any order (`H100:80GB:4`), one
    without a number, or a mapping. Alternatives and ranges leave the number open.
    """
    resources = task.get("resources")
    gpu = resources.get("gpu") if "commands" in task and isinstance(resources, Mapping) else None
    if isinstance(gpu, Mapping):
        count = str(gpu.get("count", 1))
    elif isinstance(gpu, str | int):
        parts = str(gpu).split(":")
        count = next((part for part in parts if re.fullmatch(r"[\d.]*\d[\d.]*", part)), "1")
    else:
        return []
    return [f"DSTACK_GPUS_NUM={count}"] if count.isdecimal() else []


def _numbers_of_gpus(resources: Any) -> Iterator[str]:
    """Yields the number of GPUs for each accelerator that a task may get.

    They are NAME:NUMBER, lists or sets of these, or mappings of names to numbers (its docs, "task
    YAML"). YAML reads the set `{H200:8, B200:8}` as a mapping whose keys are NAME:NUMBER.
    """
    listed = resources.get("accelerators") if isinstance(resources, Mapping) else None
    if isinstance(listed, Mapping):
        for name, number in listed.items():
            yield str(number or str(name).partition(":")[2] or 1)
        return
    for name in listed if isinstance(listed, list) else [listed]:
        if name:
            yield str(name).partition(":")[2] or "1"


def _one_command(text: str) -> list[str]:
    """Words of a Compose command, which may have several lines; none if it cannot be split."""
    return [word for word in words_of_script(text) if word != END]


def _containers(documents: Any) -> Iterator[Mapping[str, Any]]:
    """Every mapping with an image and a command, in document order."""
    for value in mappings_in(documents):
        if {"Cmd", "Entrypoint"} & value.keys():  # docker inspect
            yield {OF_INSPECT.get(str(key), str(key)): inner for key, inner in value.items()}
        elif {"command", "args", "entrypoint"} & value.keys():
            name = value.get("name")
            # A service of GitLab's CI has its image as its name.
            is_service = "image" not in value and isinstance(name, str) and _names_image(name)
            yield {"image": name, **value} if is_service else value
        elif "image" in value and any(name.startswith("NIM_") for name, _ in _environment(value)):
            yield value  # NVIDIA NIM, whose variables are its command


def _environment(container: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Variables of Kubernetes (`env`: names and values) and Compose (`environment`)."""
    listed = container.get("environment") or container.get("env") or []
    if isinstance(listed, Mapping):
        yield from ((str(name), str(value)) for name, value in listed.items())
        return
    for entry in listed:
        if isinstance(entry, Mapping) and "value" in entry:
            yield str(entry.get("name")), str(entry["value"])
        elif isinstance(entry, str):
            name, _, value = entry.partition("=")
            yield name, value


def with_texts(value: Any, change: Callable[[str], str], done: dict[int, Any]) -> Any:
    """Returns a document with its texts changed; an alias of YAML stays one object."""
    if isinstance(value, str):
        return change(value)
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, Mapping):
        mapping: dict[Any, Any] = {}
        done[id(value)] = mapping
        for key, inner in value.items():
            mapping[key] = with_texts(inner, change, done)
        return mapping
    if isinstance(value, list):
        items: list[Any] = []
        done[id(value)] = items
        items.extend(with_texts(inner, change, done) for inner in value)
        return items
    return value
