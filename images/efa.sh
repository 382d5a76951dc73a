#!/bin/sh
# Install AWS's EFA software: libfabric with the EFA provider, the aws-ofi-nccl plugin that lets NCCL use it, and Open
# MPI unless --skip-mpi says otherwise. The kernel's half is on the node already.
#
#     efa.sh INSTALLER_VERSION PLUGIN_VERSION [--skip-mpi]
#
# The plugin that comes with an installer, and the newest: docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-changelog.html
set -eu
installer=$1 plugin=$2
shift 2
apt-get update
DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends ca-certificates curl
folder=$(mktemp -d)
curl --fail --silent --show-error --location "https://efa-installer.amazonaws.com/aws-efa-installer-$installer.tar.gz" \
    | tar -xz -C "$folder"
(cd "$folder/aws-efa-installer" && ./efa_installer.sh -y --skip-kmod --skip-limit-conf --no-verify "$@")
rm -rf "$folder" /var/lib/apt/lists/*
# The installer brings the plugin along, on NVIDIA's images in a package of another name (libnccl-ofi-ngc-…): it must be
# the one that was tested with it.
case $(dpkg-query --show --showformat='${Version}' 'libnccl-ofi*') in
    "$plugin"*) ;;
    *) echo "efa.sh: installer $installer does not bring aws-ofi-nccl $plugin" >&2; exit 1 ;;
esac
# Found without LD_LIBRARY_PATH and PATH, which programs that ssh starts don't get.
for library in ofi-nccl/libnccl-net efa/libfabric openmpi/libmpi; do
    [ ! -d "/opt/amazon/${library%/*}" ] || find "/opt/amazon/${library%/*}" -name "${library#*/}*.so*" -exec dirname {} +
done | sort -u >/etc/ld.so.conf.d/bireme-efa.conf
ldconfig
for program in efa/bin/fi_info openmpi/bin/mpirun openmpi/bin/orted; do
    [ ! -e "/opt/amazon/$program" ] || ln -sf "/opt/amazon/$program" "/usr/local/bin/${program##*/}"
done
