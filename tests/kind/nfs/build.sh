# build.sh MOUNT_NFS.C: /usr/local/sbin/mount.nfs, which needs nothing but libc where it is copied to.
set -eu
gcc -std=gnu11 -O2 -Wall -o /usr/local/sbin/mount.nfs "$1" -I/usr/include/fuse3 \
    -Wl,-Bstatic -lfuse3 -lnfs -Wl,-Bdynamic -lpthread -ldl
