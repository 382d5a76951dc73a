#!/bin/sh
# Build Horovod from its source distribution for the MPI and the PyTorch or else the TensorFlow that are there, and install it.
# On GPUs (where nvcc is) gradients travel by NCCL, else by MPI.
#
#     horovod.sh horovod-0.28.1.tar.gz
set -eu
source=$(mktemp -d)
tar -xzf "$1" -C "$source" --strip-components=1
cd "$source"

# PyTorch's headers need C++17 since 2.1; Horovod 0.28.1 asks for 14.
sed -i 's/CMAKE_CXX_STANDARD 14/CMAKE_CXX_STANDARD 17/; s/c++14/c++17/g' CMakeLists.txt horovod/torch/CMakeLists.txt
# A class with a const member is assigned to in its flatbuffers, which newer compilers refuse.
sed -i 's/^\( *\)const size_type count_;/\1size_type count_;/' third_party/flatbuffers/include/flatbuffers/stl_emulation.h
# Headers that came along with others in older standard libraries.
export CXXFLAGS="-include stdexcept -include cstdint"
# Policies of CMake before 3.5, which its third parties ask for, are gone from CMake 4.
export CMAKE_POLICY_VERSION_MINIMUM=3.5
MAKEFLAGS="-j$(nproc)"
export MAKEFLAGS HOROVOD_WITHOUT_MXNET=1
if python3 -c "import torch" 2>/dev/null; then
    export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1
else
    export HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1
fi
export HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1 HOROVOD_CPU_OPERATIONS=MPI
if command -v nvcc >/dev/null; then
    export HOROVOD_GPU_OPERATIONS=NCCL
fi
PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-build-isolation --no-deps --no-index --no-cache-dir .
rm -rf "$source"
