# The programs of values/workloads/maskrcnn-tensorpack.yaml and maskrcnn-optimized.yaml: Tensorpack's Mask R-CNN in /tensorpack, and
# AWS's in /mask-rcnn-tensorflow. The context is images/:
#
#     docker build --target tensorpack -t maskrcnn-tensorpack -f images/tensorflow/maskrcnn.Dockerfile images
#     docker build --target optimized -t maskrcnn-optimized -f images/tensorflow/maskrcnn.Dockerfile images
#
# BASE has TensorFlow of at most 2.15, Horovod, MPI and sshd: bireme/tensorflow (images/tensorflow/Dockerfile) or, by default, AWS's
# deep learning container in REGION, which AWS's program names too and whose registry wants a login (account 763104351884).
# On it neither target has been built: what has been is both on the CPU's bireme/tensorflow, with sources from a copy of GITHUB.
ARG REGION=us-west-2
ARG BASE=763104351884.dkr.ecr.${REGION}.amazonaws.com/tensorflow-training:2.12.0-gpu-py310-cu118-ubuntu20.04-ec2

# Needs the package registry only.
FROM ${BASE} AS packages
# hadolint ignore=DL3002
USER 0
COPY tensorflow/maskrcnn.txt /opt/bireme/
# AWS's program imports turtle, which needs tkinter.
RUN if ! python3 -c "import pip, tkinter"; then \
        apt-get update \
        && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends python3-pip python3-tk \
        && rm -rf /var/lib/apt/lists/*; \
    fi
RUN PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-cache-dir --no-deps --require-hashes --requirement /opt/bireme/maskrcnn.txt \
    && python3 -c "import cv2, pycocotools.coco, scipy, ujson, zmq"

# Python finds their packages by a file, because the charts set PYTHONPATH.
FROM packages AS tensorpack
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
ARG GITHUB=https://github.com
ARG TENSORPACK=1547a54e8546494614ca31c984a1bfd1d0e24b77
ARG TENSORPACK_SHA256=854729edf8cbada306c5b810fc04cd3b505cc479f408bf5fbdc241930a77762e
COPY tensorflow/source.py /opt/bireme/
RUN python3 /opt/bireme/source.py "$GITHUB/tensorpack/tensorpack/archive/$TENSORPACK.tar.gz" "$TENSORPACK_SHA256" /tensorpack \
    && echo /tensorpack >"$(python3 -c "import site; print(site.getsitepackages()[0])")/tensorpack.pth" \
    && python3 /tensorpack/examples/FasterRCNN/train.py --help
USER 1000

FROM packages AS optimized
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
ARG GITHUB=https://github.com
ARG MASK_RCNN=e10d6ca812d14ee7c222b613fea8ab46ba25ae36
ARG MASK_RCNN_SHA256=f28dc8a92556be4e5e4ac6de22cb6ac42e43d269328352b2f2507341fe81e199
COPY tensorflow/source.py /opt/bireme/
RUN python3 /opt/bireme/source.py "$GITHUB/aws-samples/mask-rcnn-tensorflow/archive/$MASK_RCNN.tar.gz" "$MASK_RCNN_SHA256" /mask-rcnn-tensorflow \
    && echo /mask-rcnn-tensorflow >"$(python3 -c "import site; print(site.getsitepackages()[0])")/tensorpack.pth" \
    && python3 /mask-rcnn-tensorflow/MaskRCNN/train.py --help
USER 1000
