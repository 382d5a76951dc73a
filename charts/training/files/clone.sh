# clone URL REF PATH: clones into the working directory. An empty REF is the branch that the server names.
set -eu
url=$1 ref=${2:-HEAD} path=$3
export GIT_TERMINAL_PROMPT=0

# The folder may belong to another user than the container's.
git() { command git -c safe.directory='*' -c credential.helper= -c "credential.helper=$helper" "$@"; }
helper='!f() { [ -z "${GIT_PASSWORD:-}" ] || { echo "username=$GIT_USERNAME"; echo "password=$GIT_PASSWORD"; }; }; f'

# Some servers give a commit that no branch ends with only together with all others.
fetched() {
    if git fetch --quiet --depth 1 "$url" "$ref"; then
        git checkout --quiet --force --detach FETCH_HEAD
    else
        git fetch --quiet "$url" '+refs/*:refs/fetched/*' && git checkout --quiet --force --detach "$ref"
    fi
}

git init --quiet
for pause in 1 2 4 8 0; do
    if fetched; then
        [ ! -e .gitmodules ] || git submodule --quiet update --init --recursive --depth 1
        [ -e "$path" ] || { echo "$url at $ref has no $path: set launch.git.path" >&2; exit 78; }
        echo "$url at $(git rev-parse HEAD)"
        exit 0
    fi
    sleep "$pause"
done
echo "$url cannot be cloned at $ref: see above, and launch.git of the values" >&2
exit 1
