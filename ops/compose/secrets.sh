#!/bin/sh
# Usage: ops/compose/secrets.sh [FOLDER]. Makes the secrets that docker-compose.yml mounts: random passwords, and
# the addresses that hold them. What is there already stays as it is.
#
# The folder is open to its owner alone. The files in it are readable by all, because a container sees them with
# the modes they have here, and no process in one runs as their owner.
set -eu
folder=${1:-"$(dirname "$0")/../../.secrets"}
umask 077
mkdir -p "$folder"
chmod 700 "$folder"
cd "$folder"
made=0

# keep NAME TEXT: whole or not at all
keep() {
    if [ ! -s "$1" ]; then
        printf '%s\n' "$2" >".$1.new"
        chmod 444 ".$1.new"
        mv ".$1.new" "$1"
        made=$((made + 1))
    fi
}

random() {
    od -An -N24 -tx1 /dev/urandom | tr -d ' \n'
}

# login FILE USER PASSWORD
login() {
    keep "$1" "postgresql://$2:$3@postgres:5432/fencepost"
}

printf '*\n' >.gitignore
keep postgres_password "$(random)"
login owner_dsn fencepost_owner "$(cat postgres_password)"
for role in worker relay producer operator reader; do
    login "${role}_dsn" "compose_$role" "$(random)"
done
keep redis_auth "requirepass $(random)"
keep redis_url "redis://:$(sed 's/^requirepass //' redis_auth)@redis:6379/0"
keep flower_auth "admin:$(random)"
echo "secrets: $made of $(ls | wc -l | tr -d ' ') are new in $(pwd)"
