# Stock mpirun and sshd, for images that cannot run bireme-runtime. The arguments are the launcher's command.
folder=${BIREME_MPI_FOLDER:-/bireme/mpi}
umask 077
cat "${BIREME_MPI_KEY:-/bireme/ssh/id_rsa}" >"$folder/key"
public=$(ssh-keygen -y -P '' -f "$folder/key" | cut -d ' ' -f 1,2)
echo "$public" >"$folder/authorized_keys"
echo "bireme $public" >"$folder/known_hosts"
# sshd drops the environment of the pod.
{ export -p | grep -v -E '^export (HOME|PWD|OLDPWD|SHLVL|USER|LOGNAME|SHELL)='; echo 'exec sh -c "$SSH_ORIGINAL_COMMAND"'; } >"$folder/session"
cat >"$folder/sshd_config" <<END
Port $BIREME_MPI_PORT
HostKey $folder/key
AuthorizedKeysFile $folder/authorized_keys
ForceCommand /bin/sh $folder/session
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
LogLevel $BIREME_SSHD_LOG
MaxStartups 1000
LoginGraceTime 0
END
cat >"$folder/ssh_config" <<END
Port $BIREME_MPI_PORT
IdentityFile $folder/key
IdentitiesOnly yes
BatchMode yes
HostKeyAlias bireme
UserKnownHostsFile $folder/known_hosts
StrictHostKeyChecking yes
LogLevel ERROR
END
[ "$(id -u)" != 0 ] || mkdir -p /run/sshd
sshd=$(PATH=$PATH:/usr/sbin:/usr/local/sbin:/sbin command -v sshd)
if [ -z "$BIREME_MPI_ROLE" ] && [ "$JOB_COMPLETION_INDEX" = 0 ]; then
  "$sshd" -D -e -f "$folder/sshd_config" &
elif [ "$BIREME_MPI_ROLE" != launcher ]; then
  exec "$sshd" -D -e -f "$folder/sshd_config"
fi
worker=0
: >"$folder/hostfile"
while [ "$worker" -lt "$BIREME_MPI_WORKERS" ]; do
  host=$(echo "$BIREME_MPI_HOSTS" | sed "s/{}/$worker/")
  until ssh -F "$folder/ssh_config" "$host" true; do
    echo "waiting for worker $worker, $host" >&2
    sleep 2
  done
  case $BIREME_MPI_IMPLEMENTATION in
    OpenMPI) echo "$host slots=$BIREME_MPI_SLOTS" ;;
    *) echo "$host:$BIREME_MPI_SLOTS" ;;
  esac >>"$folder/hostfile"
  worker=$((worker + 1))
done
export BIREME_HOSTFILE="$folder/hostfile"
for name in OMPI_MCA_plm_rsh_args PRTE_MCA_plm_ssh_args HYDRA_LAUNCHER_EXTRA_ARGS HYDRA_LAUNCH_EXTRA_ARGS I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS PDSH_SSH_ARGS_APPEND; do
  export "$name=-F $folder/ssh_config"
done
export OMPI_MCA_orte_keep_fqdn_hostnames=true PRTE_MCA_prte_keep_fqdn_hostnames=true HYDRA_LAUNCHER=ssh I_MPI_HYDRA_BOOTSTRAP=ssh
[ "$(id -u)" != 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
exec "$@"
