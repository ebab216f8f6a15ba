# vLLM's image with Outrider: docker build -t outrider . (docs/how-to/containers.md)
# `python -m tools.dockerfile` executes the RUN lines without Docker.
ARG BASE=vllm/vllm-openai:v0.32.0

# What a production server needs to load and swap speculators: one package, no new dependency.
FROM ${BASE} AS server
COPY . /opt/outrider
WORKDIR /opt/outrider
RUN python3 -m pip install --no-deps --no-build-isolation /opt/outrider
RUN python3 -m outrider.serving.admin.live_flags
# The image's own entry point stays `vllm serve`.

# What the commands need: training, evaluation and the controller of a live endpoint.
FROM server AS train
RUN python3 -m pip list --format=freeze | grep -vE '^(pip|setuptools|wheel|outrider)==' > /opt/kept.txt
RUN python3 -m pip install --constraint /opt/kept.txt '/opt/outrider[train,live]'
RUN outrider --version
ENTRYPOINT ["outrider"]
