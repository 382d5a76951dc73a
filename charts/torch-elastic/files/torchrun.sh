# Stock torchrun with the rendezvous c10d, for images that cannot run bireme-runtime. $0 is Python, the arguments are the script's.
while ! "$0" -c 'import socket, sys; socket.gethostbyname(sys.argv[1])' "${PET_RDZV_ENDPOINT%:*}" 2>/dev/null; do
  echo "waiting for the name of worker 0, ${PET_RDZV_ENDPOINT%:*}" >&2
  sleep 2
done
if [ "$JOB_COMPLETION_INDEX" = 0 ]; then host=true; else host=false; fi
export PET_RDZV_CONF="is_host=$host${PET_RDZV_CONF:+,$PET_RDZV_CONF}"
exec "$0" -m torch.distributed.run "$@"
