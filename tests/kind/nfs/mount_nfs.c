/*
 * mount.nfs SERVER:/PATH TARGET [-o OPTIONS], for nodes whose kernel has no NFS client: FUSE over libnfs.
 *
 * It speaks NFSv3 at ports 2049 and 20048, without a port mapper, and obeys no option but `ro`: libnfs 4.0 cannot
 * write more than a page by NFSv4. Nothing is cached, so what one node has written another one reads at once.
 */
#define FUSE_USE_VERSION 31
#define _FILE_OFFSET_BITS 64
#include <errno.h>
#include <fcntl.h>
#include <fuse3/fuse.h>
#include <nfsc/libnfs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>

enum { USAGE = 1, MOUNT_FAILED = 32, TIMEOUT_MS = 10000, BLOCK = 512 };

static struct nfs_context *nfs;
static const char *server, *path;

static struct nfs_context *connected(void)
{
    char url[4096];
    struct nfs_context *context = nfs_init_context();

    snprintf(url, sizeof url, "nfs://%s%s?version=3&nfsport=2049&mountport=20048", server, path);
    struct nfs_url *parsed = nfs_parse_url_dir(context, url);
    nfs_set_timeout(context, TIMEOUT_MS);
    if (parsed && nfs_mount(context, parsed->server, parsed->path) == 0) {
        nfs_umask(context, 0); /* the kernel has taken it off already */
        return context;
    }
    fprintf(stderr, "mount.nfs: %s:%s: %s\n", server, path, nfs_get_error(context));
    return NULL;
}

static int status(int result) { return result < 0 ? result : 0; }

static struct nfsfh *handle(struct fuse_file_info *file) { return (struct nfsfh *)(uintptr_t)file->fh; }

/* The connection, which asks as the user who asked the kernel. */
static struct nfs_context *as_caller(void)
{
    nfs_set_uid(nfs, fuse_get_context()->uid);
    nfs_set_gid(nfs, fuse_get_context()->gid);
    return nfs;
}

/* Connections do not survive the fork that puts FUSE into the background: main's only finds out whether it works. */
static void *on_init(struct fuse_conn_info *connection, struct fuse_config *config)
{
    config->use_ino = 1;
    config->attr_timeout = config->entry_timeout = 0;
    if (!(nfs = connected()))
        exit(MOUNT_FAILED);
    return NULL;
}

static int on_getattr(const char *name, struct stat *out, struct fuse_file_info *file)
{
    struct nfs_stat_64 found;
    int result = nfs_lstat64(as_caller(), name, &found);

    if (result < 0)
        return result;
    memset(out, 0, sizeof *out);
    out->st_ino = found.nfs_ino;
    out->st_mode = found.nfs_mode;
    out->st_nlink = found.nfs_nlink;
    out->st_uid = found.nfs_uid;
    out->st_gid = found.nfs_gid;
    out->st_size = found.nfs_size;
    out->st_blocks = (found.nfs_size + BLOCK - 1) / BLOCK;
    out->st_atime = found.nfs_atime;
    out->st_mtime = found.nfs_mtime;
    out->st_ctime = found.nfs_ctime;
    return 0;
}

static int on_readdir(const char *name, void *buffer, fuse_fill_dir_t fill, off_t offset, struct fuse_file_info *file,
                      enum fuse_readdir_flags flags)
{
    struct nfsdir *folder;
    struct nfsdirent *entry;
    int result = nfs_opendir(as_caller(), name, &folder);

    if (result < 0)
        return result;
    while ((entry = nfs_readdir(nfs, folder)))
        fill(buffer, entry->name, NULL, 0, 0);
    nfs_closedir(nfs, folder);
    return 0;
}

static int on_open(const char *name, struct fuse_file_info *file)
{
    struct nfsfh *opened = NULL;
    int result = nfs_open(as_caller(), name, file->flags & (O_ACCMODE | O_SYNC), &opened);
    file->fh = (uintptr_t)opened;
    return status(result);
}

static int on_create(const char *name, mode_t mode, struct fuse_file_info *file)
{
    struct nfsfh *opened = NULL;
    int result = nfs_open2(as_caller(), name, O_CREAT | (file->flags & (O_ACCMODE | O_EXCL | O_TRUNC)), mode, &opened);
    file->fh = (uintptr_t)opened;
    return status(result);
}

static int on_read(const char *name, char *buffer, size_t size, off_t offset, struct fuse_file_info *file)
{
    return nfs_pread(as_caller(), handle(file), offset, size, buffer);
}

static int on_write(const char *name, const char *buffer, size_t size, off_t offset, struct fuse_file_info *file)
{
    return nfs_pwrite(as_caller(), handle(file), offset, size, (void *)buffer);
}

static int on_release(const char *name, struct fuse_file_info *file) { return status(nfs_close(nfs, handle(file))); }

static int on_fsync(const char *name, int only_data, struct fuse_file_info *file)
{
    return status(nfs_fsync(as_caller(), handle(file)));
}

static int on_unlink(const char *name) { return status(nfs_unlink(as_caller(), name)); }

static int on_mkdir(const char *name, mode_t mode) { return status(nfs_mkdir2(as_caller(), name, mode)); }

static int on_rmdir(const char *name) { return status(nfs_rmdir(as_caller(), name)); }

static int on_rename(const char *from, const char *to, unsigned flags)
{
    return flags ? -EINVAL : status(nfs_rename(as_caller(), from, to));
}

static int on_link(const char *from, const char *to) { return status(nfs_link(as_caller(), from, to)); }

static int on_symlink(const char *from, const char *to) { return status(nfs_symlink(as_caller(), from, to)); }

static int on_readlink(const char *name, char *buffer, size_t size) { return status(nfs_readlink(as_caller(), name, buffer, size)); }

static int on_truncate(const char *name, off_t size, struct fuse_file_info *file)
{
    return status(nfs_truncate(as_caller(), name, size));
}

static int on_chmod(const char *name, mode_t mode, struct fuse_file_info *file)
{
    return status(nfs_chmod(as_caller(), name, mode));
}

static int on_chown(const char *name, uid_t user, gid_t group, struct fuse_file_info *file)
{
    return status(nfs_chown(as_caller(), name, user, group));
}

static struct timeval moment(struct timespec said, uint64_t before)
{
    if (said.tv_nsec == UTIME_OMIT)
        return (struct timeval){before, 0};
    if (said.tv_nsec == UTIME_NOW)
        clock_gettime(CLOCK_REALTIME, &said);
    return (struct timeval){said.tv_sec, said.tv_nsec / 1000};
}

static int on_utimens(const char *name, const struct timespec times[2], struct fuse_file_info *file)
{
    struct nfs_stat_64 found;
    int result = nfs_lstat64(as_caller(), name, &found);

    if (result < 0)
        return result;
    struct timeval moments[2] = {moment(times[0], found.nfs_atime), moment(times[1], found.nfs_mtime)};
    return status(nfs_utimes(nfs, name, moments));
}

static int on_statfs(const char *name, struct statvfs *out) { return status(nfs_statvfs(as_caller(), name, out)); }

static const struct fuse_operations operations = {
    .init = on_init, .getattr = on_getattr, .readdir = on_readdir, .open = on_open, .create = on_create,
    .read = on_read, .write = on_write, .release = on_release, .fsync = on_fsync, .unlink = on_unlink,
    .mkdir = on_mkdir, .rmdir = on_rmdir, .rename = on_rename, .link = on_link, .symlink = on_symlink,
    .readlink = on_readlink, .truncate = on_truncate, .chmod = on_chmod, .chown = on_chown,
    .utimens = on_utimens, .statfs = on_statfs,
};

static int is_read_only(int count, char **words)
{
    for (int i = 3; i + 1 < count; i++) {
        if (strcmp(words[i], "-o"))
            continue;
        for (char *option = strtok(words[i + 1], ","); option; option = strtok(NULL, ","))
            if (!strcmp(option, "ro"))
                return 1;
    }
    return 0;
}

int main(int count, char **words)
{
    char *source = count > 2 ? strdup(words[1]) : NULL;
    char *colon = source ? strchr(source, ':') : NULL;
    char options[4096];

    if (!colon) {
        fprintf(stderr, "usage: mount.nfs SERVER:/PATH TARGET [-o OPTIONS]\n");
        return USAGE;
    }
    *colon = 0;
    server = source;
    path = colon + 1;
    struct nfs_context *tried = connected();
    if (!tried)
        return MOUNT_FAILED;
    nfs_destroy_context(tried);
    snprintf(options, sizeof options, "allow_other,default_permissions,subtype=nfs,fsname=%s%s", words[1],
             is_read_only(count, words) ? ",ro" : "");
    /* -s: a context of libnfs belongs to one thread. */
    char *arguments[] = {words[0], "-s", "-o", options, words[2], NULL};
    return fuse_main(5, arguments, &operations, NULL);
}
