#!/bin/sh
exec vllm serve --config config.yaml
